"""Source languages: how a source becomes a binary, on any machine and without a context.

======== =====================================================
`choose` compilers by name: those of backends, and languages
======== =====================================================
"""
