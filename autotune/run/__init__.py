"""One command's job: search every problem, hold the finals, make the record."""
