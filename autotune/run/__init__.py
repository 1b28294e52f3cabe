"""One command's job: search every problem, hold the finals, time the portfolio, make the record.

=========== ==============================================================================
`request`   what a run is asked to do: the goal, the effort
`device_limits` the device's recorded limits, and the requests that measure them
`run`       `execute`: the whole job
`bench`     compilers and workers of a run, the jobs and keys of its problems
`agreement` the expected outputs of a kernel without a reference
`searching` the search of one problem
`starting`  configurations of records, with which a search starts
`tuner`     searches and finals on some devices of a run, in this process or in one of its own
`division`  the problems and the time of a run, divided among its tuners
`finals`    the best verified again and raced with the vendor's calls
`sizes`     finalists verified at sizes near the tuned one
`idle`      parameters that do nothing
`verdict`   who enters, who wins, ties, ratios, noise
`answering` the best of every problem timed on every problem, then on random sizes
`drawing`   random problem sizes
`size_times` the times on sizes, and which configurations to time on the next one
`continuing` the last step of a run again, for a record: `autotune sizes`
`result`    what a run returns
`plans`     how a configuration launches, as records have it
`recording` the tuned record of a run; what follows from a record's kernel, computed again
=========== ==============================================================================
"""
