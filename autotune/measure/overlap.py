"""Checks whether two launches of a configuration disturb each other: one module, at the same time.

They do where the kernel keeps state in its module, such as a counter or a partial sum. Each side has
buffers, workspaces and data of its own.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from autotune.devices.base import ContextLostError, LaunchError, Side
from autotune.devices.binary import Binary
from autotune.kernel.launches import bound
from autotune.measure import verify
from autotune.measure.measurement import Measurement, Status
from autotune.measure.process import retire
from autotune.measure.tasks import Job, Launchable, draft_of
from autotune.values import Configuration

#: Rounds, after each of which outputs are compared; after `_LEAST` of them no round begins later than
#: `_SECONDS` after the first.
_ROUNDS, _LEAST, _SECONDS = 12, 3, 0.01
#: Launches of each side in a round: at most this number, and this long, but at least a few.
_LAUNCHES, _LEAST_LAUNCHES, _LAUNCHES_MS = 16, 4, 3.0


def check(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Run a verified configuration twice at the same time; a failure becomes its measurement.

    Where the device has no room for the second side, the measurement is `OK` with a message.
    """
    draft = draft_of(job, configuration, binary)
    try:
        wrong = _disturbed(Launchable(job, configuration, binary), binary)
        status, message = (Status.WRONG_RESULT, wrong) if wrong else (Status.OK, "")
    except MemoryError as error:
        status, message = Status.OK, str(error)
    except LaunchError as error:
        status, message = Status.LAUNCH_FAILED, str(error)
    except ContextLostError as error:
        retire()
        status, message = Status.CRASHED, str(error)
    return replace(draft, status=status, message=" ".join(message.split()))


def _disturbed(ready: Launchable, binary: Binary) -> str:
    """Return which output was wrong after launches at the same time, or an empty text."""
    data, executor = ready.data, ready.executor
    first, *others = data.datasets
    # Module symbols are one data set's: on another's a side of the same module would be wrong.
    second = others[-1] if others and not data.constants(first) else first
    twin = verify.DeviceData(
        executor, data.datasets, pristine=data.pristine, expected=data.expected
    )
    twin.declare_scratch({name: out for name, (out, _) in data.scratch.items()})
    pairs = ((data, first), (twin, second))
    module, _ = ready.bind(first)
    sides, took_ms = [], 0.0
    for side, name in pairs:
        pointers, scalars = side.pointers(), side.scalars(name)
        steps = bound(ready.plan, side.names, pointers, scalars, side.dtypes, binary)
        side.refresh(name, wholly=True)
        side.poison_scratch()
        took_ms = executor.run(module, steps)  # the first launch pays for loading
        sides.append(Side(partial(_renew, side, name), steps))
    times = max(_LEAST_LAUNCHES, min(_LAUNCHES, int(_LAUNCHES_MS / max(took_ms, 1e-3))))
    run, end = executor.at_once(module, sides, times), time.monotonic() + _SECONDS
    for done in range(_ROUNDS):
        if done >= _LEAST and time.monotonic() > end:
            break
        run()
        for side, name in pairs:
            for found in verify.outputs(side, name):
                if not found.is_right:
                    return f"{found.output} is wrong, by up to {found.max_error:.3g}"
    return ""


def _renew(data: verify.DeviceData, dataset: str) -> None:
    """Enqueue poison over the outputs and workspaces of the launch before."""
    data.refresh(dataset, wholly=False)
    data.poison_scratch()
