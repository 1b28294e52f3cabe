"""One configuration to one binary, in this process: what `measure`, `calling`, `export` and `explain` compile by.

========== =================================================================
`symbols`  the values and types of arguments that a language compiles in
`job`      all that decides a binary, and its key
`binaries` compiles a job, through the cache
========== =================================================================
"""
