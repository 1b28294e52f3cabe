"""Searches a space: the session of a search, and the strategies that choose configurations.

============== =======================================================================
`base`         the contract between a strategy and its session
`strategies`   the strategies by name; random, exhaustive and ordered search
`session`      one search: remembered rows, budget, new rows, events
`pending`      rows that are verified when the reference is evaluated
`auto`         our own strategies, which use the model
`proposals`    the choice of the next configuration, and the end of a search
`acquisition`  the expected improvement of candidates by one fit of the model
`surrogate`    the model: features of configurations, a Gaussian process
`kernel_tuner` Kernel Tuner's strategies; `kernel_tuner_space`: our spaces in its form
`optuna`       Optuna's samplers
`lattice`      the space as a grid of ranks, for the adapters of these libraries
============== =======================================================================
"""
