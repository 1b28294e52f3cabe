"""The state of this machine, and the command that fixes each problem.

========== ===============================================================
`finding`   the result of one check
`nvidia`    driver, device files, clocks, MIG, other processes: by NVML
`software`  packages per extra, CuPy and NVRTC against the driver, tools
`places`    environment, store, cache, disk, space folders, stale records
========== ===============================================================

It tunes nothing, prints nothing, never raises, and makes no device context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import TypeAlias

from autotune.doctor import nvidia, places, software
from autotune.doctor.finding import Finding, State, first_line, tried
from autotune.errors import MissingDependencyError
from autotune.extras import install
from autotune.fleet import status

__all__ = ["Finding", "State", "findings"]

Check: TypeAlias = tuple[str, Callable[[nvidia.Nvidia], Iterator[Finding]], str]
#: Topic, check, and the remedy to name where the check itself fails.
CHECKS: tuple[Check, ...] = (
    ("python", software.python, install()),
    ("packages", software.packages, install("tune")),
    ("driver", nvidia.driver, "nvidia-smi"),
    ("permissions", nvidia.permissions, "ls -l /dev/nvidia* /dev/dri"),
    ("cupy", software.cupy, install("cuda13")),
    ("nvrtc", software.nvrtc, install("nvrtc")),
    ("opencl", software.opencl, install("cpu")),
    ("gpu", nvidia.gpus, "nvidia-smi -q"),
    ("tools", software.tools, install("test")),
    ("environment", places.environment, "env | grep -E 'AUTOTUNE|CUDA'"),
    ("store", places.store, places.OTHER_STORE),
    ("cache", places.cache, "export AUTOTUNE_CACHE_DIR=/tmp/autotune-cache"),
    ("disk", places.disk, "df -h"),
    ("spaces", places.spaces, "autotune list"),
    ("fleet", lambda _: starmap(Finding, status.local()), "autotune fleet start --local"),
    ("records", places.records, places.RETUNE),
)


def findings(checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Check everything that measuring depends on, in the order to read and fix it.

    Every ``warn`` and ``bad`` finding has a remedy.
    """
    machine = tried(nvidia.look, nvidia.Nvidia())
    found: list[Finding] = []
    for topic, check, remedy in checks:
        try:
            found += check(machine)
        except MissingDependencyError as error:
            found.append(Finding(topic, "bad", error.lack, install(error.extra)))
        except Exception as error:
            text = f"cannot be used or looked at ({type(error).__name__}: {first_line(error)})"
            found.append(Finding(topic, "bad", text, remedy))
    return found
