"""Checks what others declare: a kernel before it is tuned, a record before it is imported. Searches nothing.

============== ============================================================================
`kernel_check` `autotune check`: data, space, a sample that is compiled and verified
`interpreting` the sample on an interpreter, as far as there is time
`importing`    a record of others, compared with what a run would have written
============== ============================================================================
"""
