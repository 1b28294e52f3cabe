"""A tuned kernel as a function on arrays.

Public modules, in the order in which a call that was not made before goes through them: `load` (the function),
`libraries` (arrays of NumPy, CuPy, torch and others), `binding` (arguments to a problem), `choice` (configuration and
launch plan), `first_call` and `trial` (which first calls tune their size, and how), then `host_calls`
(host arrays) or `gpu` (device arrays) with `loaded` (modules and workspaces on a device), and `call_cache` (calls that
are kept). `compiled` has calls in programs that torch compiles.
"""
