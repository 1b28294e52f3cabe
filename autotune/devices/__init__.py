"""Devices, their binaries, and a backend for each kind behind one contract.

========= ==================================================================
`device`  a device's identity, limits and clocks
`binary`  a compiled source and the resources of its functions
`base`    the contract of a backend
`choose`  backends by name, devices by selector
`cuda`    CUDA; with `nvrtc`, `nvml`, `graph` and `upload`
`opencl`  OpenCL
`toolkit` programs of the CUDA toolkit
========= ==================================================================
"""
