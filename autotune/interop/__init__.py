"""Other tuners: reads and writes their measurements, and turns their scripts into space files.

Public modules: `formats` (Kernel Tuner's caches and T4 results), `imported` (files that a person
imported), `script` (Kernel Tuner scripts).
"""
