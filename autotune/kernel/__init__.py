"""A kernel's declaration, and everything that follows from it without a device.

Public modules: `spec` (`Kernel` and the types of launches and outputs), `declaration` (options, problems and
functions of a kernel), `rules` (`Source`: parameters, rules and functions of one source), `names` (checks of
names and values), `expression` (traced integers), `catalog` (finds and loads space files), `modules` (whose
files are run, and how), `parsing` (problems and configurations from text), `space` (valid configurations),
`joining` (how they are enumerated), `launches`, `includes` (the files that a source reads), `source` (texts and
fingerprints), `snapshot` (kernels of scripts), `operand` and `products` (arrays of a call).
"""
