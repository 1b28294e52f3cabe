"""Keeps what is tuned fresh: what went stale and why, mended within a time; the regression gate.

========== ===============================================================
`stale`    what is stale and why, from records and space files alone
`lock`     one re-tuning per device at a time
`drift`    a recorded winner verified and measured again, beside its rivals
`mend`     re-measures or searches what is stale, and publishes it
`gate`     every recorded entry against its record: `check-tuned`
`schedule` entries for cron, systemd, Slurm and GitHub
========== ===============================================================

The tool decides what is stale, the operator's scheduler decides when to ask. Prints nothing.
"""
