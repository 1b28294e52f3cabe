"""One command's job: search every problem, hold the finals, measure the portfolio."""
