"""Devices, their binaries, and a backend for each kind behind one contract.

========= ==================================================================
`device`  a device's identity, limits and clocks
`base`    the contract of a backend, and compiled sources
`choose`  backends by name, devices by selector
`cuda`    CUDA; with `nvrtc`, `nvml` and `graph`
`opencl`  OpenCL
`sass`    what the instructions of a cubin show; `occupancy` of a block
`host`    outputs compared in the host's memory
========= ==================================================================
"""
