"""Devices and the backends that compile for them and launch on them, behind one contract.

================== ============================================================
`device`           identity, limits and clocks of a device
`base`             the contract of a backend; binaries
`choose`           backends by name, devices by selector
`compiler_options` options in the form that NVRTC and OpenCL take
`cuda_backend`     CUDA devices, and compiling with `nvrtc`; `nvml` reads clocks
`cuda_executor`    launches on a CUDA device, on one `cuda_stream`
`cuda_timer`       times calls, as a `graph` if possible
`tensor_map`       tensor maps as the driver encodes them
`texture`          texture objects that the driver makes
`driver_launch`    launches with attributes, such as clusters
`cuda_memory`      buffers between guard bands, and uploads
`cupy_arrays`      arrays in place of NumPy's, in a function of NumPy
`gpu_lock`         keeps them out of the times that another process measures
`cuda_checks`      the kernels that compare outputs on the device
`opencl`           launches and compiles with OpenCL, on `opencl_devices`
`opencl_timer`     times its launches, and baselines in the host's memory
`cubin`            parameters and constants of a cubin
`sass`             the instructions of a cubin, and `occupancy` of a block
`host`             compares outputs in the host's memory
================== ============================================================
"""
