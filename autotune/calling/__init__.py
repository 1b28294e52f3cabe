"""A tuned kernel as a function on arrays.

Public modules: `load` (the function, the calls it keeps, and calls on host arrays), `libraries` (arrays of NumPy,
CuPy, torch and others), `binding` (arguments of a call to a problem), `choice` (configuration and launch plan),
`first_call` and `trial` (which first calls tune their size, and how), `gpu` (launches on device arrays) and `compiled`
(calls in programs that torch compiles).
"""
