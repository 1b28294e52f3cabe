"""Reports of one kernel on one device: an offline HTML page, and Markdown with one picture."""
