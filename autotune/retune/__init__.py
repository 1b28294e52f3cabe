"""Keeps tuned entries fresh: finds stale ones and tunes them again; the regression gate.

========== ===============================================================
`stale`    the stale entries and the reasons, from records and space files alone
`check`    a recorded winner verified and measured again with its rivals, and its verdict
`retuning` measures or searches stale entries again, and publishes the results
`standing` a record compared with the kernel declared here; the records of a command
`schedule` entries for cron, systemd, Slurm and GitHub
========== ===============================================================

The tool decides what is stale, the operator's scheduler decides when to ask. Prints nothing.
"""
