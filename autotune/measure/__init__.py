"""Configurations to measurements: compiled, verified and timed in processes of their own.

============= ==============================================================
`measurement` a measurement, its status, and its cost by time or energy
`process`     actors, which run tasks in processes of their own
`compilers`   the processes that compile
`tasks`       measurements on one device, and the code in its process
`verify`      outputs, inputs and guard bands
`timing`      samples, when there are enough, and the energy of a call
`roofline`    the least possible time
`evaluator`   configurations of one problem, on one device or several
`race`        contenders timed in interleaved rounds
`rotation`    configurations timed on many sizes, without verification
`sanitize`    compute-sanitizer, and the code under it
`profile`     Nsight Compute; `counters` has the metrics that are asked for
`disassembly` NVIDIA's disassembler
============= ==============================================================
"""
