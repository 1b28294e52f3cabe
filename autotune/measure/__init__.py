"""Configurations to measurements: compiled, verified and timed in processes of their own.

=============== ==============================================================
`measurement`   a measurement, its status, and its cost by time or energy
`process`       actors, which run tasks in processes of their own
`compilers`     the processes that compile
`device_worker` the worker of one device, in the parent process
`worker_state`  the state of that process: context, kernel and data of a job
`launchable`    a configuration on the buffers of a job
`tasks`         verifies, times and writes results, in the worker process
`verify`        outputs, inputs and guard bands
`timing`        samples, when there are enough, and the energy of a call
`roofline`      the least possible time
`evaluator`     configurations of one problem, on one device or several
`race`          contenders timed in interleaved rounds
`rotation`      configurations timed on many sizes, without verification
`sanitize`      compute-sanitizer, and the code under it
`profile`       Nsight Compute; `counters` has the metrics that are asked for
`disassembly`   NVIDIA's disassembler
=============== ==============================================================
"""
