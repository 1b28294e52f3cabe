"""Compiles one configuration to one binary in this process, for `measure`, `calling`, `export` and `explain`.

============== =============================================================
`symbols`      values and types of arguments that a language compiles in
`job`          the inputs of a compile, and the key of its binary
`name_clashes` names of a source that a macro of its job replaces
`binaries`     compiles a job, through the cache
============== =============================================================
"""
