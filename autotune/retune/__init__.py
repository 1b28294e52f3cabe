"""Keeps tuned entries fresh: finds stale ones and tunes them again; the regression gate.

========== ===============================================================
`stale`    the stale entries and the reasons, from records and space files alone
`retuning` winners verified and measured again, or searched; the verdicts of the gate
`schedule` entries for cron and GitHub
========== ===============================================================

The tool decides what is stale, the operator's scheduler decides when to ask. Prints nothing.
"""
