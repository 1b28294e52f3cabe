"""Tuned records: their schema, files and merging, and the lookup of a configuration in them.

============= ====================================================================
`record`      the schema of a record
`check`       what the types of a record cannot check
`clock`       the time format of records
`identity`    whether a record is of another kernel of the same name
`reading`     the folders of records, and reading them
`writing`     merging newly tuned problems into a record's file
`lookup`      from a kernel and a problem to the tuned configuration; this machine's GPU
`merged`      the records of a kernel merged into a table, and the order in which its rows are asked
`answer`      a picked plan as the mapping that lookup returns
`first_calls` answers that first calls added to a record
`counted`     counters of Nsight Compute beside records
`comparison`  two records problem by problem, two entries of a problem
============= ====================================================================
"""
