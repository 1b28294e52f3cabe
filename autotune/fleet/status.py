"""Describe the fleet that runs on this machine, for `autotune doctor`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Literal

from autotune.fleet.address import connected, default_file, find, is_listening


def local() -> Iterator[tuple[str, Literal["ok", "warn"], str, str]]:
    """Yield topic, state, text and remedy of the local fleet, and of each of its workers."""
    file = default_file()
    if not file.exists():
        return
    address = find(str(file))
    if not is_listening(address):
        remedy = f"rm {shlex.quote(str(file))}"
        yield "fleet", "warn", f"{address} (of {file}) has ended", remedy
        return
    yield "fleet", "ok", f"{address} (of {file})", ""
    with connected(address) as client:
        found = client.scheduler_info(n_workers=-1)["workers"].values()
    for worker in sorted(found, key=lambda worker: str(worker["name"])):
        # "autotune" is the metric of `autotune.fleet.worker`.
        yield "fleet", "ok", f"{worker['name']}: {_words(worker['metrics'].get('autotune'))}", ""


def _words(announced: dict[str, Any] | None) -> str:
    if announced is None:
        return "starting, or without our preload"
    parts = [f"{device['name']} ({device['arch']})" for device in announced["devices"]]
    if announced["compilers"]:
        parts.append(f"{announced['compilers']} compilers")
    return f"{', '.join(parts)}; {announced['done']} tasks done, {announced['failed']} failed"
