"""The state of this machine, and the command that fixes each problem.

Public modules: `hardware` (a finding, and NVIDIA's hardware as NVML and the device files show it) and `checks`
(driver, packages, compilers, GPUs, environment, store, cache, space folders, fleet).

It tunes nothing, prints nothing, never raises, and makes no device context.
"""

from autotune.doctor.checks import findings
from autotune.doctor.hardware import Finding, State

__all__ = ["Finding", "State", "findings"]
