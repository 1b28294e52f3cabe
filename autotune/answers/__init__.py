"""Answers for problems that were not measured.

`fit.fitted_tables` turns a matrix of times into the answer tables of a record, one for each combination of
categories:

1. `category` fits the time of each configuration as a function of the sizes: a `formula`, corrected by `trees`.
   It keeps the configurations that are fastest somewhere, and measures on held-out sizes which share of the best
   speed such answers reach.
2. With fewer than `fit.MIN_SIZES` sizes there is no fit.

`table.answer` picks the plan for a problem: the allowed configuration with the smallest predicted time; without
a fit, the plan of the nearest measured problem. The exported C++ header does the same.

========== =======================================================================
`schema`   the answer tables as records hold them
`table`    walking a table; light, since lookup imports it
`fit`      from a matrix of times to answer tables
`category` the fit of one category of problems, and its worth on held-out sizes
`formula`  the time of a configuration as sums of products of sizes
`trees`    small trees that correct fitted times
========== =======================================================================

The package imports nothing, so that lookup starts in milliseconds.
"""
