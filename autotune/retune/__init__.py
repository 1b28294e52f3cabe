"""Keeps what is tuned fresh: what went stale and why, mended within a time; the regression gate.

========== ===============================================================
`stale`    what is stale and why, from records and space files alone
`lock`     one re-tuning per device at a time
`check`    a recorded winner verified and measured again with its rivals, and its verdict
`mend`     re-measures or searches what is stale, and publishes it
`schedule` entries for cron, systemd, Slurm and GitHub
========== ===============================================================

The tool decides what is stale, the operator's scheduler decides when to ask. Prints nothing.
"""
