"""Keeps tuned entries fresh: finds stale entries, tunes them again, and checks entries for regressions.

========== ======================================================================
`stale`    stale entries and the reasons, from records and space files alone
`outcomes` the options of re-tuning, and the outcome of each problem
`retuning` every device of a query: re-tuning, and the check of what is tuned
`retuner`  one device: entries that hold are confirmed, the others searched
`repeated` whether an earlier run of the same command has the results already
`gate`     one entry, or another answer: verified and timed again, and the verdict
`slowdown` the rule for times: held, slower or undecided
`schedule` entries for cron, systemd, Slurm and GitHub
========== ======================================================================

This folder decides which entries are stale; the operator's scheduler decides when to run it. It prints
nothing.
"""
