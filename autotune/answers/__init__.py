"""Answers for problems that were not measured.

`fit.fitted_tables` turns a matrix of times into the answer tables of a record, one for each combination of
categories:

1. `category` fits the time of each configuration as a function of the sizes: a `formula`, corrected by `trees`.
   It keeps the configurations that together are fastest over all sizes (chosen greedily). It also answers
   held-out sizes, and records which share of the best speed those answers reach.
2. A category has no fit with fewer than `fit.MIN_SIZES` sizes, if its matrix lacks much faster winners on most
   problems, or if every fit fails.

`table.answer` picks the plan for a problem: the allowed configuration with the smallest predicted time; without
a fit, the plan of the nearest row. A tuned problem may have no row in a table. If the nearest table expects no
speed for it, it becomes a row with ``table=None``, and its plan answers its neighbours without a fit.

`autotune.tuned.merged.pick` asks the device, then its architecture, then the nearest other architectures, then
takes the kernel's default. In each of them the exact row answers first, then the near rows. A first call's
result comes after the exact rows of the device, and before all else. The exported C++ header has the same rule,
without first calls.

========== =======================================================================
`table`    the schema of answer tables in records; picks the plan for a problem
`fit`      from a matrix of times to answer tables
`category` fits one category of problems, and evaluates the fit on held-out sizes
`formula`  the time of a configuration as sums of products of sizes
`trees`    small trees that correct fitted times
========== =======================================================================

This ``__init__`` imports nothing, so that lookup starts in milliseconds.
"""
