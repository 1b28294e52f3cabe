"""Many machines as one: kernels tuned on the workers of a Dask cluster (the extra ``fleet``).

========= =================================================================================
`address` finds a scheduler, refuses an open one, connects to it, describes the local fleet
`cluster` a scheduler and workers of this machine
`client`  cards, compilers and tasks of a cluster
`site`    the actors of a run; several runs, one at a time on each model
`worker`  the code inside a Dask worker
========= =================================================================================
"""
