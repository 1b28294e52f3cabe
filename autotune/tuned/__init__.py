"""Tuned records: their schema, files and merging, and the lookup of a configuration in them.

============ ==============================================================
"""
