"""Reports of one kernel on one device: an offline HTML page, and Markdown with one picture.

Public modules: `publish` (a finished run to record, header and pages), `content` (the values of a report, from
a run, the store or a record), `answer`, `evidence` and `setting` (its tables), `table` (a table as text,
Markdown and HTML), `wording` (numbers and units), `markdown`, `page` and `svg` (the files), `summary` (for
notebooks).
"""
