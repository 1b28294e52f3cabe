"""Devices, their binaries, and a backend for each kind behind one contract.

=============== ============================================================
`device`        a device's identity, limits and clocks
`base`          the contract of a backend, and compiled sources
`choose`        backends by name, devices by selector
`cuda_backend`  CUDA devices, and compiling with `nvrtc`; `nvml` reads clocks
`cuda_executor` launches on a CUDA device; on one `cuda_stream`
`cuda_timer`    times calls, as a `graph` if possible
`cuda_memory`   buffers between guard bands, and uploads
`cuda_checks`   the kernels that compare outputs on the device
`opencl`        OpenCL
`sass`          the instructions of a cubin, and `occupancy` of a block
`host`          outputs compared in the host's memory
=============== ============================================================
"""
