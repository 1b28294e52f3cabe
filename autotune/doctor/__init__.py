"""The state of this machine, and the command that fixes each problem.

Public modules: `hardware` (a finding; NVIDIA's driver and GPUs from NVML and device files) and `checks` (driver,
packages, compilers, GPUs, environment, store, cache, space folders, fleet).

The package prints nothing, never raises, and creates no device context.
"""

from autotune.doctor.checks import findings
from autotune.doctor.hardware import Finding, State

__all__ = ["Finding", "State", "findings"]
