"""One run: it searches every problem, holds finals, times the portfolio and makes the record.

=========== ==============================================================================
`request`   the request of a run: kernel, devices, problems, goal, effort
`device_limits` the device's recorded limits, and the requests that measure them
`run`       `execute`: a whole run
`bench`     the compilers and workers of a run, and the jobs and keys of its problems
`agreement` the outputs on which most configurations agree
`searching` the search of one problem
`late`      verification of rows that were measured before the reference was evaluated
`starting`  configurations of records, with which a search starts
`tuner`     searches and finals on some devices of a run, in this process or a separate one
`division`  the problems and the time of a run, divided among its tuners
`finals`    verification of the best, and their race with the vendor's calls
`other_sizes` verification at sizes that are not tuned
`extreme_checks` winners on values that the data never hold
`idle`      parameters without effect
`verdict`   entrants, winner, ties, ratios, noise
`answering` times of the best on every problem, then on random sizes
`drawing`   random problem sizes
`size_times` the times on sizes, and the configurations to time on the next size
`continuing` the last step of a run, continued for a record: `autotune sizes`
`result`    the result of a run
`plans`     the launches of a configuration, in the form of records
`recording` the tuned record of a run; derived values of a record, computed again
=========== ==============================================================================
"""
