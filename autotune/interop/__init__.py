"""Other tuners: reads and writes their measurements, and turns their scripts into space files.

Public modules: `formats` (Kernel Tuner's caches and T4 results), `exchange` (what a person imported, and
what the results store has), `script` (Kernel Tuner scripts).
"""
