"""Exchange with other tuners: reads and writes their measurements, and converts their scripts and existing kernels.

Public modules: `formats` (Kernel Tuner's caches and T4 results), `exchange` (imported measurements, and
exports of the results store), `script` (space files from Kernel Tuner scripts), `skeleton` (space files from
the signatures of existing kernels), `ported` (an example, and the text of both).
"""
