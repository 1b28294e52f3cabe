"""Tuned records: their schema, files and merging, and the answers that lookup makes of them.

============ =====================================================================
`record`     the schema of a record, and its check
`reading`    the folders of records, and reading them
`writing`    merging newly tuned problems into a record's file
`lookup`     from a kernel and a problem to the tuned configuration; this machine's GPU
`table`      the records of a kernel merged, and the rule that picks a plan
`answer`     a picked plan as the mapping that lookup returns
`fallback`   answers for problems that were not measured
`prediction` the time of each configuration, fitted to the measured problems
`dense`      answers fitted to random sizes, and what to expect of them
`correction` small trees that correct fitted times
`counted`    counters of Nsight Compute beside records
`kept`       answers that first calls found, in files of their own
`comparison` two records problem by problem, two entries of a problem
============ =====================================================================
"""
