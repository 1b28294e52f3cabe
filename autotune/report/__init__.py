"""Reports of one kernel on one device: an offline HTML page, and Markdown for a repository.

Public modules: `publish` (a finished run to record, header and pages), `content` (the values of a report, from
a run, the store or a record), `results` and `evidence` (its tables and figures), `text_table` (a table as text,
Markdown and HTML), `wording` (numbers and units), `page` (the files), `summary` (for notebooks),
`progress` (of a run, on a terminal, in a notebook or in a log).
"""
