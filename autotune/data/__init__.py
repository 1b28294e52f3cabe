"""Inputs, expected outputs and error bounds of a problem; independent of devices and configurations.

================== ============================================================
`draw`             the random generator of inputs
`arguments`        kind, type and shape of a kernel's arguments
`dataset`          data sets in files, and their keys
`prepare`          makes a data set, or reads it from the cache
`reference`        evaluates a kernel's reference
`device_reference` evaluates it on a GPU where NumPy's results are the same
`evaluations`      the reference on changed inputs
`small`            small problems of the same kind as a large one
`bounds`           exact, one bound for all elements, or one for each
`matching_outputs` outputs that the kernel's own function compares
`carried`          bounds of a large problem, taken from small ones
`tolerance`        the default tolerance, by element
`consensus`        expected outputs without a reference: configurations agree
`fixed`            inputs whose content a kernel could hold, and other content
`wrapping`         outputs that the reference computes in too few bits
`extremes`         ranges of the data, and values beyond them
`sight`            the proof that verification notices a kernel without an input
================== ============================================================
"""
