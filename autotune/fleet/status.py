"""What the workers of a fleet have and do, as they announce it. Asks the scheduler only, and no clock.

Rates are of what a worker counts by its own monotonic clock: clocks of hosts may be a day apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.fleet.worker import NAME

if TYPE_CHECKING:
    from distributed import Client


def workers(client: Client) -> list[dict[str, Any]]:
    """One row for each worker, by name: what it announces, and why it was set aside where it was.

    A worker that is no autotune's, or has not announced itself yet, has ``version`` None.
    """
    found = client.scheduler_info(n_workers=-1)["workers"]
    aside = client.get_metadata([NAME, "set_aside"], default={})
    rows = [_row(address, said, aside.get(address, "")) for address, said in found.items()]
    return sorted(rows, key=lambda row: str(row["name"]))


def _row(address: str, said: dict[str, Any], set_aside: str) -> dict[str, Any]:
    own = said["metrics"].get(NAME, {})
    return {
        "name": str(said["name"]),
        "address": address,
        "version": own.get("version"),
        "python": own.get("python"),
        "set_aside": set_aside,
        "compilers": own.get("compilers", 0),
        "compiled": own.get("compiled", 0),
        "compile_failed": own.get("compile_failed", 0),
        "compiled_per_core_s": _rate(own.get("compiled", 0), own.get("compile_s", 0.0)),
        "devices": [_device(device) for device in own.get("devices", ())],
    }


def _device(said: dict[str, Any]) -> dict[str, Any]:
    device = said["device"]
    return {
        **{name: device[name] for name in ("name", "arch", "uuid", "backend", "index")},
        **{name: said[name] for name in ("doing", "measured", "failed", "busy_s")},
        "measured_per_busy_s": _rate(said["measured"], said["busy_s"]),
    }


def _rate(count: int, seconds: float) -> float | None:
    """A count over the time that it took; None where there is none yet."""
    return count / seconds if seconds > 0 else None
