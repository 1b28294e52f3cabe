"""A tuned kernel as a function on arrays.

A new call goes through the public modules in this order:

- `load`: the function
- `libraries`: adapters of NumPy, CuPy, torch and other libraries
- `binding`: from the arguments to a problem
- `choice`: configuration and launch plan; `production`: rules for frozen and pinned calls
- `first_call`: the calls that tune their size, and prepared calls in a cache; `trial` tunes
- `twin`: verifies a small problem before a call beyond the verified sizes
- `host_calls`: calls on host arrays
- `rivals`: calls of other libraries that answer in place of launches
- `gpu`: calls on device arrays, by `steps`; `loaded` has their modules and workspaces

`compiled` has calls in programs that torch compiles.
"""
