"""Keeps tuned entries fresh: finds stale ones and tunes them again; the regression gate.

========== ======================================================================
`stale`    stale entries and the reasons, from records and space files alone
`outcomes` the options of re-tuning, and the outcome of each problem
`retuning` every device of a query: re-tuning, and the check of what is tuned
`retuner`  one device: entries that hold are confirmed, the others searched
`gate`     one entry: verified and timed again, and the verdict
`schedule` entries for cron and GitHub
========== ======================================================================

The tool decides what is stale, the operator's scheduler decides when to ask. Prints nothing.
"""
