"""What other tuners write: their measurements read and written, their scripts turned into space files.

Public modules: `formats` (Kernel Tuner's caches and T4 results), `imported` (files that a person
imported), `script` (Kernel Tuner scripts).
"""
