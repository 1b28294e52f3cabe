"""Find the scheduler of a fleet, refuse it if strangers can reach it, connect to it, and describe it.

Dask writes the scheduler file. Certificates come from Dask's configuration (``distributed.comm.tls``).
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import shlex
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autotune.errors import FleetError, UsageError, needing
from autotune.files import data_path
from autotune.kernel.modules import TRUST, fault_of

if TYPE_CHECKING:
    from distributed import Client

#: Timeout of a connection to a scheduler.
CONNECT_TIMEOUT_S = 10.0
#: Timeout of `is_listening`.
_LISTENING_S = 3.0
#: Remedy if a scheduler is gone.
GO_ON = "start the fleet again and repeat the command; it continues from the results in the store"
_TLS_HELP = "set distributed.comm.tls in Dask's configuration as on the fleet (docs/fleet.md)"


def default_file() -> Path:
    """Return the scheduler file that ``autotune fleet`` writes by default."""
    return Path(data_path("fleet.json"))


def find(where: str) -> str:
    """Return the address of a scheduler from an address or a scheduler file.

    Raises `UsageError` if the file is missing, damaged or writable by others, or if the scheduler
    is open to strangers.
    """
    address = where if "://" in where else _read(Path(where))
    refuse_open(address)
    return address


def _read(file: Path) -> str:
    if not file.exists():
        raise UsageError(
            f"{file}: no such scheduler file; run: autotune fleet, "
            "or name another file or an address such as tls://host:8786"
        )
    fault = fault_of(file)
    if fault is not None:
        raise UsageError(
            f"{fault.place}: {fault.reason}. The scheduler in {file.name} runs code as you. If you trust "
            f"everyone who can write there, set {TRUST}={shlex.quote(str(fault.project))}"
        )
    try:
        return str(json.loads(file.read_bytes())["address"])
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{file}: not a scheduler file: {error}") from error


def refuse_open(address: str) -> None:
    """Refuse a scheduler without TLS that other machines reach: their users could run code as you."""
    host, _ = _host_and_port(address)
    if not address.startswith("tls://") and not _is_loopback(host):
        raise UsageError(
            f"{address}: without TLS, anybody who can reach this scheduler can run code as you on every "
            "worker; start it with TLS (docs/fleet.md)"
        )


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    if not host or not port.isdigit() or not address.startswith(("tls://", "tcp://")):
        raise UsageError(
            f"{address!r}: not the address of a scheduler; an example: tls://host:8786"
        )
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:  # an unknown host name
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def is_listening(address: str) -> bool:
    """Return whether a process listens at a scheduler's address."""
    try:
        socket.create_connection(_host_and_port(address), _LISTENING_S).close()
    except OSError:
        return False
    return True


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """Connect a client to a scheduler; close the client at the end, but not the scheduler.

    Raises `FleetError` if no scheduler answers, `UsageError` if the certificates do not match.
    """
    with needing("a fleet"):
        quiet()
        from distributed import Client
        from distributed.comm.core import FatalCommClosedError
    if not is_listening(address):
        raise FleetError(f"{address}: no scheduler listens there; {GO_ON}")
    try:
        asyncio.run(_try_connecting(address))
        client = Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    # TypeError: TLS without certificate files; ValueError: the scheduler does not use TLS.
    except (FatalCommClosedError, FileNotFoundError, TypeError, ValueError) as error:
        raise UsageError(
            f"{address}: the TLS connection failed: {error.__cause__ or error}; {_TLS_HELP}"
        ) from error
    except (
        OSError,
        ImportError,
    ) as error:  # ImportError: the scheduler has another version of Dask
        raise FleetError(f"{address}: no scheduler answers: {error}; {GO_ON}") from error
    try:
        yield client
    finally:
        client.close()


async def _try_connecting(address: str) -> None:
    """Connect without a client: a client that fails to connect blocks for 20 s in its destructor."""
    from distributed import Security
    from distributed.comm.core import connect

    options = Security().get_connection_args("client")
    comm = await connect(address, timeout=CONNECT_TIMEOUT_S, **options)
    await comm.close()


def quiet() -> None:
    """Silence Dask in this process, because autotune reports each error itself.

    Dask's configuration stays as it is, because workers inherit it.
    """
    import distributed  # its import sets the levels

    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=distributed.__name__)


def local_fleet() -> Iterator[tuple[str, Literal["ok", "warn"], str, str]]:
    """Yield topic, state, text and remedy of the local fleet, and of each of its workers."""
    file = default_file()
    if not file.exists():
        return
    address = find(str(file))
    if not is_listening(address):
        remedy = f"rm {shlex.quote(str(file))}"
        yield "fleet", "warn", f"the fleet of {file} has ended: {address}", remedy
        return
    yield "fleet", "ok", f"{address} (of {file})", ""
    with connected(address) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
    for worker in sorted(workers, key=lambda worker: str(worker["name"])):
        # `autotune.fleet.worker` publishes the metric "autotune".
        yield (
            "fleet",
            "ok",
            f"{worker['name']}: {_description(worker['metrics'].get('autotune'))}",
            "",
        )


def _description(announced: dict[str, Any] | None) -> str:
    if announced is None:
        return "starting, or without the preload autotune.fleet.worker"
    parts = [f"{device['name']} ({device['arch']})" for device in announced["devices"]]
    return ", ".join([*parts, f"{announced['compilers']} compilers"])
