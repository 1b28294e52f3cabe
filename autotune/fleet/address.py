"""Where a fleet's scheduler is, who may reach it, and a connection to it. Knows nothing of what runs there.

The scheduler file is Dask's (JSON with ``address``), and says beside that which files of TLS to use, so
that its path alone is enough to connect. It holds no secret, and where it leads code is run: it comes
under the rule of `kernel.trust`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import platform
import shlex
import socket
import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import FleetError, UsageError, needing
from autotune.files import data_path, write_atomically
from autotune.kernel.trust import TRUST, fault_of

if TYPE_CHECKING:
    from distributed import Client, Security

#: How long a scheduler may take to answer at all.
CONNECT_TIMEOUT_S = 10.0
#: How long a glance at an address may take.
_GLANCE_S = 3.0
#: What follows where a scheduler is gone.
GO_ON = "start the fleet again and repeat the command, which goes on from what the store has"
#: What is ours in a scheduler file.
_OWN = "autotune"
#: Whose certificates Dask tells apart.
ROLES = ("client", "scheduler", "worker")
_OPTIONS = "the --tls-ca, --tls-cert and --tls-key"


def default_file() -> Path:
    """The scheduler file where none is named."""
    return Path(data_path("fleet.json"))


@dataclass(frozen=True)
class Tls:
    """Paths of the PEM files of TLS; every process of a fleet shows one certificate of one authority."""

    ca: str
    cert: str
    key: str

    @classmethod
    def given(cls, ca: str | None, cert: str | None, key: str | None) -> Tls | None:
        """What the command line names; None where it names nothing.

        Raises
        ------
        UsageError
            If one of the three is missing.
        """
        if not (ca or cert or key):
            return None
        if not (ca and cert and key):
            raise UsageError("TLS needs all three: --tls-ca, --tls-cert and --tls-key")
        return cls(*map(os.path.abspath, (ca, cert, key)))

    def security(self) -> Security:
        """As Dask takes it: both sides show a certificate, and nothing goes unencrypted.

        Raises
        ------
        UsageError
            If a file is missing, is no PEM file, or the key is of another certificate.
        """
        from distributed import Security

        files = {f"tls_{role}_cert": self.cert for role in ROLES}
        files |= {f"tls_{role}_key": self.key for role in ROLES}
        security = Security(require_encryption=True, tls_ca_file=self.ca, **files)
        try:
            security.get_connection_args("client")
        except OSError as error:  # of ssl, too
            named = f"--tls-ca {self.ca}, --tls-cert {self.cert}, --tls-key {self.key}"
            raise UsageError(f"{named}: not usable for TLS: {error.strerror or error}") from error
        return security


@dataclass(frozen=True)
class Endpoint:
    """A scheduler, as its file or an address on the command line says."""

    address: str
    tls: Tls | None = None
    #: Whether whoever started or named it accepted that it is open.
    is_open_accepted: bool = False
    dashboard: str = ""
    #: Where `autotune fleet start` runs, and since when (ISO 8601); empty where something else started it.
    host: str = ""
    process: int = 0
    started: str = ""
    #: How many workers were asked for; 0 where nobody knows.
    asked: int = 0
    file: Path | None = None

    def write(self, file: Path) -> None:
        """Write the scheduler file."""
        own = asdict(self) | {"file": None}
        said = {"type": "Scheduler", "address": self.address, _OWN: own}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(said, indent=1).encode())

    @property
    def words(self) -> str:
        """The address, with what is known of the file it came from."""
        if self.file is None:
            return self.address
        ago = f" at {self.started} on {self.host}, process {self.process}" if self.host else ""
        return f"{self.address} (of {self.file}{f', started{ago}' if ago else ''})"


def find(where: str | None, tls: Tls | None = None, *, insecure: bool = False) -> Endpoint:
    """The scheduler of a scheduler file or an address; default: the file that ``fleet start`` writes.

    Raises
    ------
    UsageError
        If there is no such file, it is damaged, others may change it, it is of another machine
        alone, or the scheduler is open to whoever reaches it and nobody accepted that.
    """
    if where and "://" in where:
        scheduler = Endpoint(where, tls, insecure)
    else:
        scheduler = _read(Path(where) if where else default_file(), tls, insecure)
        if scheduler.host not in ("", platform.node()) and _is_loopback(
            host_and_port(scheduler.address)[0]
        ):
            raise UsageError(
                f"{scheduler.words}: of that machine alone; run this there, or remove the file if that fleet has ended"
            )
    refuse_open(scheduler.address, scheduler.is_open_accepted)
    return scheduler


def _read(file: Path, tls: Tls | None, insecure: bool) -> Endpoint:
    if not file.exists():
        raise UsageError(
            f"{file}: no such scheduler file; run: autotune fleet start --local, "
            "or name another file or an address such as tls://host:8786"
        )
    fault = fault_of(file)
    if fault is not None:
        raise UsageError(
            f"{fault.place}: {fault.what}, and the scheduler that {file.name} names runs code as you; if you "
            f"know who writes it, add --trust {shlex.quote(str(fault.project))} (or set {TRUST})"
        )
    try:
        said: dict[str, Any] = json.loads(file.read_bytes())
        own: dict[str, Any] = said.get(_OWN) or {"address": said["address"]}
        files = own.pop("tls", None)
        accepted = insecure or own.pop("is_open_accepted", False) is True
        known = {**own, "address": str(own["address"])}
        known |= {"file": file, "is_open_accepted": accepted}
        return Endpoint(**known, tls=tls or (Tls(**files) if files else None))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file}: not a scheduler file: {error}") from error


def refuse_open(address: str, is_accepted: bool) -> None:
    """Refuse a scheduler that others reach and that asks nobody who he is.

    Raises
    ------
    UsageError
        If it is no address, or neither TLS nor of this machine alone, unless that was accepted.
    """
    host, _ = host_and_port(address)
    if is_accepted or address.startswith("tls://") or _is_loopback(host):
        return
    raise UsageError(
        f"{address}: without TLS, whoever reaches this scheduler runs code as you on every worker; use TLS "
        "(--tls-ca, --tls-cert, --tls-key), or accept that by autotune fleet start --insecure: its file says so then"
    )


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    if not host or not port.isdigit() or not address.startswith(("tls://", "tcp://")):
        raise UsageError(f"{address!r}: no address of a scheduler; for example tls://host:8786")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:  # a name that nobody knows here
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in found)


@contextmanager
def connected(scheduler: Endpoint) -> Iterator[Client]:
    """A client of a scheduler, closed at the end; the scheduler goes on.

    Raises
    ------
    FleetError
        If nothing answers there.
    UsageError
        If one side does not accept the other's certificate.
    """
    client = connect(scheduler)
    try:
        yield client
    finally:
        client.close()


def connect(scheduler: Endpoint) -> Client:
    """A client of a scheduler, for who closes it; raises as `connected` does."""
    with needing("a fleet"):
        quiet()
        from distributed import Client, Security
    security = (
        scheduler.tls.security() if scheduler.tls else Security()
    )  # of Dask's own configuration
    _greet(scheduler, security)
    try:
        return Client(
            scheduler.address, security=security, timeout=CONNECT_TIMEOUT_S, set_as_default=False
        )
    except OSError as error:
        raise FleetError(f"{scheduler.words}: the scheduler was lost: {error}; {GO_ON}") from error


def _greet(scheduler: Endpoint, security: Security) -> None:
    """Wait for a scheduler's first byte, which it sends unasked: what speaks against it is told apart only here."""
    context = security.get_connection_args("client")["ssl_context"]
    if not scheduler.address.startswith("tls://"):
        context = None
    elif context is None:
        raise UsageError(
            f"{scheduler.words}: needs {_OPTIONS} that the fleet was started with; its scheduler file names them, "
            "or Dask's configuration (distributed.comm.tls)"
        )
    try:
        with (
            socket.create_connection(host_and_port(scheduler.address), CONNECT_TIMEOUT_S) as plain,
            context.wrap_socket(plain) if context else plain as line,
        ):
            if not line.recv(1):
                raise ConnectionResetError("it closed the connection")
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            raise UsageError(
                f"{scheduler.words}: what listens there has no TLS; a scheduler without begins with tcp://"
            ) from error
        raise UsageError(
            f"{scheduler.words}: certificates do not match ({error.reason}); give {_OPTIONS} "
            "that the fleet was started with"
        ) from error
    except (TimeoutError, ConnectionResetError) as error:
        raise FleetError(
            f"{scheduler.words}: no scheduler answers there ({error}); one with TLS begins with tls://; {GO_ON}"
        ) from error
    except OSError as error:
        raise FleetError(f"{scheduler.words}: {error.strerror or error}; {GO_ON}") from error


def is_taken(scheduler: Endpoint) -> bool:
    """Whether something listens at a scheduler's address, or may: its host does not answer."""
    try:
        socket.create_connection(host_and_port(scheduler.address), _GLANCE_S).close()
    except OSError as error:
        return not isinstance(error, ConnectionRefusedError)
    return True


def quiet() -> None:
    """Let Dask say nothing in this process: what goes wrong is told once, by us.

    Not by Dask's configuration, which workers inherit.
    """
    import logging

    import distributed  # sets levels when it is imported

    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=distributed.__name__)
