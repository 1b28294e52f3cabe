"""Answers for problems that were not measured.

`fit.fitted_tables` turns a matrix of times into the answer tables of a record, one for each combination of
categories:

1. `category` fits the time of each configuration as a function of the sizes: a `formula`, corrected by `trees`.
   It keeps the configurations that are fastest on some sizes. On held-out sizes it measures the share of the
   best speed that answers reach.
2. A category with fewer than `fit.MIN_SIZES` sizes has no fit.

`table.answer` picks the plan for a problem: the allowed configuration with the smallest predicted time; without
a fit, the plan of the nearest measured problem. The exported C++ header has the same rule.

========== =======================================================================
`table`    the schema of answer tables in records; picks the plan for a problem
`fit`      from a matrix of times to answer tables
`category` fits one category of problems, and evaluates the fit on held-out sizes
`formula`  the time of a configuration as sums of products of sizes
`trees`    small trees that correct fitted times
========== =======================================================================

The package imports nothing, so that lookup starts in milliseconds.
"""
