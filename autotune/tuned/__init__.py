"""Tuned records: their schema, files and merging, and the answers that lookup makes of them.

Public modules: `answer`, `comparison`, `fallback`, `importing`, `lookup`, `reading`, `record`, `table`
and `writing`.
"""
