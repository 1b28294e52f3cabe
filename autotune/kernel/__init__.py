"""The declaration of a kernel, and everything that can be computed from it without a device.

Public modules: `spec` (`Kernel` and the types of launches and outputs), `declaration` (options, problems and
functions of a kernel), `rules` (`Source`: parameters, rules and functions of one source), `names` (checks of names
and values), `expression` (traced integers), `catalog` (finds and loads space files), `modules` (runs files of users),
`parsing` (problems and configurations from text), `space` (valid configurations), `joining` (their enumeration),
`sizes` (sizes derived from a problem), `launches` (launch sequences), `views` and `view_layout` (tensor maps and
textures), `attributes` (checks of clusters and cooperative grids), `matching` (arguments against compiled
parameters), `includes` (included files of a source), `source` (texts and fingerprints of a kernel), `space_text` (the
fingerprint of a space file, without running it), `definition` (fingerprints of a whole kernel), `snapshot` (kernels of
scripts), `operand` and `products` (arrays of a call).
"""
