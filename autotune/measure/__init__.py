"""Configurations to measurements: compiled, verified and timed in processes of their own.

============= ==============================================================
`measurement` a measurement, its status, and its cost by time or energy
`data`        inputs and references of a problem, and their generator
`tolerance`   the default tolerance, by element
`cache`       data sets and binaries on disk
`process`     actors, which run tasks in processes of their own
`declared`    arguments without their data, and what of them is compiled in
`compiler`    the processes that compile
`tasks`       measurements on one device, and the code in its process
`verify`      outputs, inputs and guard bands
`sight`       the proof that verification notices a missing element
`timing`      samples, when there are enough, and the energy of a call
`limits`      the least possible time
`evaluator`   configurations of one problem, on one device or several
`race`        contenders timed in interleaved rounds
`rotation`    configurations timed on many sizes, without verification
`sanitize`    compute-sanitizer, and the code under it
`profile`     Nsight Compute; `counters` has the metrics that are asked for
`disassembly` NVIDIA's disassembler
============= ==============================================================
"""
