"""Source languages: how a source becomes a binary, on any machine and without a context.

============= ==============================================================
`base`        the contract of a language
`registry`    languages, compilers and interpreters by name
`slices`      a Python function with all that it uses, cut out of its files
`triton`      Triton
`ptx`         the PTX of several functions as one
`cubins`      ready cubins
`interpreter` Triton's interpreter, which verifies kernels without a GPU
============= ==============================================================
"""
