"""Measures configurations: compiles, verifies and times them in separate processes.

=============== ==============================================================
`measurement`   a measurement, its status, and its cost by time or energy
`process`       actors, which run tasks in other processes
`compilers`     the processes that compile
`device_worker` the worker of one device, in the parent process
`worker_state`  the state of the worker process: context, kernel and data of a job
`claim`         outputs of a configuration, expected until the reference is evaluated
`references`    the process that evaluates references
`launchable`    a configuration on the buffers of a job
`tasks`         verifies, times and writes results, in the worker process
`verify`        outputs, inputs and guard bands
`rounding`      rounding or a fault, at sizes with other sums
`timing`        samples, the rule that ends sampling, and the energy of a call
`roofline`      the least possible time of a kernel
`evaluator`     measures configurations of one problem on one or more devices
`vendor_call`   a baseline's call on a job's buffers, and its verification
`race`          contenders timed in interleaved rounds
`rotation`      configurations timed on many sizes, without verification
`sanitize`      compute-sanitizer, and the code that runs under it
`profile`       Nsight Compute; `counters` lists its metrics
`disassembly`   NVIDIA's disassembler
=============== ==============================================================
"""
