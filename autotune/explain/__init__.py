"""Explain why a configuration is fast or slow: resources, occupancy, SASS, counters, advice.

- `explaining`: the entry point of `autotune explain`; `variants`: choose configurations and compile them
- `measuring`: times and counters on a device; `recorded`: times and counters kept next to records
- `advice`: rules with their sources; `rendering`: tables, sentences, Markdown and JSON
"""
