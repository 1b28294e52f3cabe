"""A tuned kernel as a function on arrays.

Public modules: `load` (the function, and the calls it keeps), `libraries` (arrays of NumPy, CuPy, torch and
others), `binding` (arguments of a call to a problem), `choice` (configuration and launch plan), `gpu` and
`host` (launches on device arrays and on host arrays).
"""
