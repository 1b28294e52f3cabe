"""Suites that several implementations must pass: run here on the CPU device, in tests/gpu on CUDA."""
