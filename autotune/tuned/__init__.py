"""Tuned records: their schema, files and merging, and the lookup of a configuration in them.

================= ====================================================================
`record`          the schema of a record
`recorded_device` the device of a record, and whether it is another device's chip
`dates`           the times of records
`reading`         finds and reads records
`validity`        checks a record against itself
`writing`         merges newly tuned problems into a record's file; finds records of other kernels
`kernel_files`    compares a record with the kernel's files
`lookup`          finds the tuned configuration for a problem; finds this machine's GPU
`merged`          merges the records of a kernel into a table; picks the plan for a problem
`answer`          the mapping that lookup returns
`rival`           whether a call of another library answers in place of the winner
`first_calls`     the store of first calls, by which processes agree
`counted`         counters of Nsight Compute, in files next to records
`comparison`      compares two records, and two entries of a problem
================= ====================================================================
"""
