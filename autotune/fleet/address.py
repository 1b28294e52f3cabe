"""Find the scheduler of a fleet, refuse it if strangers can reach it, connect to it, and describe it.

A scheduler file of ``autotune fleet`` has the certificate of the fleet. Without one, certificates come from
Dask's configuration (``distributed.comm.tls``).
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autotune.errors import FleetError, UsageError, needing
from autotune.files import data_path, write_atomically
from autotune.kernel.modules import TRUST, fault_of

if TYPE_CHECKING:
    from distributed import Client, Security
    from distributed.deploy.spec import SpecCluster

#: Timeout of a connection to a scheduler.
CONNECT_TIMEOUT_S = 10.0
#: Timeout of `is_listening`.
_LISTENING_S = 3.0
#: Remedy if a scheduler is gone.
GO_ON = "start the fleet again and repeat the command; it continues from the results in the store"
#: Warning of a fleet that was started with ``--no-tls``.
OPEN = "without TLS, every user of this machine can run code as you"
_TLS_HELP = (
    "name the scheduler file that autotune fleet wrote, or set distributed.comm.tls in Dask's "
    "configuration as on the fleet (docs/fleet.md)"
)


@dataclass(frozen=True)
class Endpoint:
    """The address of a scheduler, and the credentials of its clients: PEM texts, or names of files."""

    address: str
    #: Certificate of the authority; empty if Dask's configuration has the credentials.
    authority: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)

    @classmethod
    def of(cls, cluster: Client | SpecCluster) -> Endpoint:
        """Return the endpoint of a client or a cluster."""
        found = cluster.security
        credentials = (found.tls_ca_file, found.tls_client_cert, found.tls_client_key)
        return cls(cluster.scheduler.address, *(text or "" for text in credentials))

    @property
    def security(self) -> Security:
        """The credentials as Dask takes them."""
        from distributed import Security

        if not self.authority:
            return Security()
        return Security(
            require_encryption=self.address.startswith("tls://"),
            tls_ca_file=self.authority,
            tls_client_cert=self.certificate,
            tls_client_key=self.key,
        )


def default_file() -> Path:
    """Return the scheduler file that ``autotune fleet`` writes by default."""
    return Path(data_path("fleet.json"))


def find(where: str) -> Endpoint:
    """Return the endpoint of a scheduler from an address or a scheduler file.

    Raises `UsageError` if the file is missing, damaged or writable by others, if others can read its key,
    or if the scheduler is open to strangers.
    """
    endpoint = Endpoint(where) if "://" in where else _read(Path(where))
    refuse_open(endpoint.address)
    return endpoint


def write(file: Path, endpoint: Endpoint) -> None:
    """Write a scheduler file, which only this user can read."""
    write_atomically(file, json.dumps(asdict(endpoint)).encode(), 0o600)


def _read(file: Path) -> Endpoint:
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
        stored = json.loads(file.read_bytes())
        given = {
            name: str(stored[name])
            for name in ("authority", "certificate", "key")
            if name in stored
        }
        endpoint = Endpoint(str(stored["address"]), **given)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{file}: not a scheduler file: {error}") from error
    if endpoint.key and file.stat().st_mode & 0o077:
        raise UsageError(
            f"{file}: other users can read it, and with its key they can run code as you; run: "
            f"chmod 600 {shlex.quote(str(file))}, and start the fleet again"
        )
    return endpoint


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
def connected(endpoint: Endpoint) -> Iterator[Client]:
    """Connect a client to a scheduler; close the client at the end, but not the scheduler.

    Raises `FleetError` if no scheduler answers, `UsageError` if the certificates do not match.
    """
    with needing("a fleet"):
        quiet()
        from distributed import Client
        from distributed.comm.core import FatalCommClosedError
    address = endpoint.address
    if not is_listening(address):
        raise FleetError(f"{address}: no scheduler listens there; {GO_ON}")
    try:
        security = endpoint.security
        asyncio.run(_try_connecting(address, security))
        client = Client(address, security=security, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
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


async def _try_connecting(address: str, security: Security) -> None:
    """Connect without a client: a client that fails to connect blocks for 20 s in its destructor."""
    from distributed.comm.core import connect

    options = security.get_connection_args("client")
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
    endpoint = find(str(file))
    address = endpoint.address
    if not is_listening(address):
        remedy = f"rm {shlex.quote(str(file))}"
        yield "fleet", "warn", f"the fleet of {file} has ended: {address}", remedy
        return
    if address.startswith("tls://"):
        yield "fleet", "ok", f"{address} (of {file})", ""
    else:
        yield "fleet", "warn", f"{address} (of {file}): {OPEN}", "end it, and run: autotune fleet"
    with connected(endpoint) as client:
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
