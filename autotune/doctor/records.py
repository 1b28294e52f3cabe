"""Whether what is tuned for this machine's devices is still current. Measures nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from autotune.doctor.finding import Finding, first_line
from autotune.doctor.nvidia import Nvidia

REMEDY = "autotune retune --stale"
#: As `autotune retune` has it where nothing is said.
_MAX_AGE_DAYS = 90.0


def records(_: Nvidia) -> Iterator[Finding]:
    """Stale entries, and space files that could not be compared with theirs."""
    from autotune.errors import DeviceError, MissingDependencyError
    from autotune.retune.stale import Question, find_devices, survey

    try:
        devices = find_devices()
    except (DeviceError, MissingDependencyError):
        return  # said already: nothing here can be tuned for
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged records are among the targets
        found = survey(Question(devices, max_age_days=_MAX_AGE_DAYS))
    for failure in found.failures:
        text = f"{failure.kernel} cannot be compared with its record: {first_line(failure.message)}"
        yield Finding("records", "warn", text, f"autotune check {failure.kernel}")
    stale = [target for target in found.targets if target.why != "never tuned here"]
    if stale:
        kernels = ", ".join(dict.fromkeys(target.kernel.name for target in stale))
        first = f"{stale[0].kernel.name} ({stale[0].problem}): {stale[0].why}"
        count = f"{len(stale)} {'entry is' if len(stale) == 1 else 'entries are'} stale"
        yield Finding("records", "warn", f"{count}, of {kernels}; {first}", REMEDY)
    elif not found.failures:
        names = ", ".join(device.name for device in devices)
        yield Finding("records", "ok", f"nothing that is tuned for {names} is stale")
