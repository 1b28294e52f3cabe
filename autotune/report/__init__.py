"""Reports of one kernel on one device: an offline HTML page, and Markdown for a repository.

Public modules: `publish` (write record, header and pages of a finished run), `content` (the values of a report,
from a run, the store or a record), `results` and `evidence` (tables and figures), `text_table` (a table as text,
Markdown and HTML), `wording` (numbers and units), `page` (the files), `summary` (a run in a notebook),
`charts` (its charts as SVG),
`progress` (a run's progress on a terminal, in a notebook or in a log).
"""
