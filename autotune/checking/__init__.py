"""Checks a kernel before it is tuned, and a foreign record before it is imported. No search.

=============== ============================================================================
`kernel_check`  `autotune check`: data, space, a sample that is compiled and verified
`interpreting`  the sample on an interpreter, within a time limit
`launch_faults` the launches of a record, compared with the launches of its kernel
`importing`     a foreign record, compared with the record that a run would have written
=============== ============================================================================
"""
