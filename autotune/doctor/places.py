"""Findings on environment, store, cache, disk, space folders and records. Knows no devices."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from autotune.doctor.finding import Finding, State, first_line, tried
from autotune.doctor.nvidia import Nvidia
from autotune.errors import DeviceError, MissingDependencyError, StoreError
from autotune.files import cache_folder, data_folder
from autotune.kernel.modules import TRUST, ForeignPlace, fault_of
from autotune.measure.cache import BINARIES, DATA, limit_bytes
from autotune.report import wording

_LITTLE_DISK_BYTES = 5 << 30
_TOO_LITTLE_DISK_BYTES = 1 << 30
#: Age from which `autotune retune` measures an entry again by default.
_MAX_AGE_DAYS = 90.0
OTHER_STORE = "export AUTOTUNE_STORE=$HOME/autotune.sqlite"
RETUNE = "autotune retune --stale"


def environment(nvidia: Nvidia) -> Iterator[Finding]:
    if os.environ.get("AUTOTUNE_DISABLE", "0") not in ("", "0"):
        text = "AUTOTUNE_DISABLE is set: lookup answers with defaults only"
        yield Finding("environment", "warn", text, "unset AUTOTUNE_DISABLE")
    if nvidia.gpus and os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        text = "CUDA_VISIBLE_DEVICES hides every GPU"
        yield Finding("environment", "bad", text, "unset CUDA_VISIBLE_DEVICES")


def store(_: Nvidia) -> Iterator[Finding]:
    from autotune.store import Store, default_url
    from autotune.store.address import Address

    address = Address.parse(default_url(), wait_s=2.0)
    if address.path is None:
        try:
            address.engine().connect().close()
        except Exception as error:  # of the database's driver, which may quote the password
            raise StoreError(address.without_secrets(first_line(error))) from None
    elif address.path.exists():
        Store.open(address.path, wait_s=2.0).close()
        _try_writing(address.path.parent)
    else:
        _try_writing(next(place for place in address.path.parents if place.exists()))
    yield Finding("store", "ok", str(address))


def cache(_: Nvidia) -> Iterator[Finding]:
    folder = cache_folder("binaries").parent
    _try_writing(folder)
    size = sum(_size_bytes(file) for file in folder.rglob("*"))
    limit = limit_bytes(DATA) + limit_bytes(BINARIES)
    text = f"{folder}: {wording.size(size)}; at most {wording.size(limit)} stay between runs"
    if fault := fault_of(folder):
        text = f"{fault.place}: {fault.what}: what is kept in {folder} is not used"
        own = "export AUTOTUNE_CACHE_DIR=$HOME/.cache/autotune"
        yield Finding("cache", "bad", text, fault.mend or own)
    elif size > 2 * limit:  # a run in progress takes more
        yield Finding("cache", "warn", text, "autotune doctor cache --clear")
    else:
        yield Finding("cache", "ok", text)


def disk(
    _: Nvidia, free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
) -> Iterator[Finding]:
    folders = (cache_folder("binaries").parent, data_folder(), Path(tempfile.gettempdir()))
    for folder in {folder.stat().st_dev: folder for folder in reversed(folders)}.values():
        free = free_bytes(folder)
        text = f"{wording.size(free)} free for {folder}"
        if free >= _LITTLE_DISK_BYTES:
            yield Finding("disk", "ok", text)
        else:
            state: State = "warn" if free >= _TOO_LITTLE_DISK_BYTES else "bad"
            yield Finding("disk", state, text, "autotune doctor cache --clear")


def spaces(_: Nvidia) -> Iterator[Finding]:
    from autotune.kernel.catalog import space_folders

    folders = space_folders()
    faults: dict[Path, ForeignPlace] = {}
    for folder in folders:
        for file in (folder, *folder.glob("*.py")):
            with suppress(OSError):  # a link to nothing
                if fault := fault_of(file):
                    faults.setdefault(fault.place, fault)
    for place, fault in faults.items():
        text = f"{place}: {fault.what}, and it leads to code: that is not run"
        known = f"export {TRUST}={shlex.quote(str(fault.project))}  # if you know what is there"
        yield Finding("spaces", "bad", text, fault.mend or known)
    if not faults:
        yield Finding("spaces", "ok", ", ".join(str(folder) for folder in folders) or "none found")


def records(_: Nvidia) -> Iterator[Finding]:
    from autotune.retune.stale import StaleQuery, find_devices, survey

    try:
        devices = find_devices()
    except (DeviceError, MissingDependencyError):
        return  # another check reports it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged records are among the targets
        found = survey(StaleQuery(devices, max_age_days=_MAX_AGE_DAYS))
    for failure in found.failures:
        text = f"{failure.kernel} cannot be compared with its record: {first_line(failure.message)}"
        yield Finding("records", "warn", text, f"autotune check {failure.kernel}")
    stale = [target for target in found.targets if target.why != "never tuned here"]
    if stale:
        kernels = ", ".join(dict.fromkeys(target.kernel.name for target in stale))
        first = f"{stale[0].kernel.name} ({stale[0].problem}): {stale[0].why}"
        count = f"{len(stale)} {'entry is' if len(stale) == 1 else 'entries are'} stale"
        yield Finding("records", "warn", f"{count}, of {kernels}; {first}", RETUNE)
    elif not found.failures:
        names = ", ".join(device.name for device in devices)
        yield Finding("records", "ok", f"nothing that is tuned for {names} is stale")


def _size_bytes(file: Path) -> int:
    return tried(lambda: file.stat().st_size, 0)


def _try_writing(folder: Path) -> None:
    """Write a file that has no name."""
    with tempfile.TemporaryFile(dir=folder) as stream:
        stream.write(b"autotune")
