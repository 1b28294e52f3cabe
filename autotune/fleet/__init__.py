"""Tune kernels on the workers of a Dask cluster (the extra ``fleet``).

========= =================================================================================
`address` find a scheduler, refuse an open one, connect to it; describe the local fleet
`cluster` start a scheduler and workers on this machine
`client`  the GPUs, compilers and tasks of a cluster
`site`    the actors of a run; several runs, one at a time on each model
`worker`  the code inside a Dask worker
========= =================================================================================
"""
