"""Choosing what to measure next: the session, and the strategies that search in it.

============== =======================================================================
`base`         the contract between a strategy and its session
`strategies`   the strategies by name; random, exhaustive and ordered search
`session`      memory, budget, rows, resume and events of one search
`auto`         our own strategies, by the model
`proposals`    which configuration next, and when to end
`acquisition`  the expected improvement of candidates by one fit of the model
`surrogate`    the model: features of configurations, a Gaussian process
`kernel_tuner` Kernel Tuner's strategies; `kernel_tuner_space`: a space of ours as theirs
`optuna`       Optuna's samplers
`lattice`      the space as a grid of ranks, for the adapters of these libraries
============== =======================================================================
"""
