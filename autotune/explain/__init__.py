"""Why a configuration is as fast as it is: resources, occupancy, SASS, counters, advice.

- `explaining`: the whole of `autotune explain`; `variants` chooses configurations and compiles them
- `measuring`: times and counters on a device; `recorded`: times and counters kept next to records
- `advice`: rules with their sources; `rendering`: tables, sentences, Markdown and JSON
"""
