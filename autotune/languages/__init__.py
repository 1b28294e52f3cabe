"""Source languages, which compile a source to a binary on any machine, without a GPU context.

============= ==============================================================
`base`        the interface of a language
`registry`    languages, compilers and interpreters by name
`slices`      extracts a Python function and its dependencies from their files
`triton`      Triton
`ptx`         joins the PTX of several functions
`cubins`      precompiled cubins
`interpreter` Triton's interpreter, which verifies kernels without a GPU
============= ==============================================================
"""
