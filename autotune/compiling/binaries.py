"""Compiles a job in this process, through a cache of binaries on the disk."""

from __future__ import annotations

import hashlib
import logging
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from autotune.cache import BINARIES, touch
from autotune.compiling.job import CompileJob, compile_job
from autotune.compiling.name_clashes import replaced_name, replaced_word
from autotune.devices import cubin
from autotune.devices.base import Binary, CompileError, ResourceError
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.files import cache_folder, cache_path, write_atomically
from autotune.kernel.includes import Header
from autotune.kernel.modules import fault_of
from autotune.kernel.spec import Kernel
from autotune.languages.registry import LANGUAGES, compiler
from autotune.values import Configuration, Problem

_log = logging.getLogger("autotune")

#: Bytes of the checksum in front of a stored binary: calls do not verify the results of a binary.
_SUM_BYTES = 4


class CompileFailure(Enum):
    """The reason why a compile failed."""

    REJECTED = auto()
    #: The source needs more of a resource than the architecture has.
    RESOURCES = auto()
    TIMED_OUT = auto()


@dataclass(frozen=True)
class Compiled:
    """The result of a compile: a binary, or the reason for its failure."""

    binary: Binary | None
    #: One line for the user; empty if there is a binary.
    message: str
    seconds: float
    #: The reason, if there is no binary.
    failure: CompileFailure = CompileFailure.REJECTED
    #: The binary was read from the cache.
    is_cached: bool = False


def code_hash(binary: Binary) -> str:
    """Return the sha256 of the machine code of a binary: of a cubin without the versions that it names."""
    known = cubin.code_hash(binary.code) if binary.code.startswith(b"\x7fELF") else ""
    return known or hashlib.sha256(binary.code).hexdigest()


def compile_now(job: CompileJob, writes: bool = True) -> Compiled:
    """Compile in this process, through the cache; raise AutotuneError if a header changed since the job was made.

    Without ``writes`` the cache is only read.
    """
    is_dialect = job.language not in LANGUAGES
    if is_dialect and (clash := replaced_word(job)):
        return Compiled(None, clash, 0.0)
    cached = read_cached(job.key, writes)
    if cached is not None:
        return cached
    if not is_dialect and (here := compiler(job.language).toolchain()) != job.toolchain:
        raise AutotuneError(
            f"{here} is installed here, but the run uses {job.toolchain}; install the same version"
        )
    start = time.perf_counter()
    try:
        binary = compiler(job.language).compile(
            job.source, dict(job.defines), job.options, job.device, job.entries
        )
    except CompileError as error:
        _refuse_changed(job.headers)
        is_resource = isinstance(error, ResourceError)
        failure = CompileFailure.RESOURCES if is_resource else CompileFailure.REJECTED
        clash = replaced_name(job, str(error)) if is_dialect and not is_resource else ""
        message = ": ".join(filter(None, (clash, first_error(str(error)))))
        return Compiled(None, message, time.perf_counter() - start, failure)
    _refuse_changed(job.headers)
    binary = replace(binary, key=job.key)
    if writes:
        write_cached(binary)
    return Compiled(binary, "", time.perf_counter() - start)


def _refuse_changed(headers: Iterable[Header]) -> None:
    if changed := next((header for header in headers if header.is_changed), None):
        raise AutotuneError(
            f"{changed.path} changed while it was in use; measurements so far are kept: run the command "
            "again"
        )


def read_cached(key: str, touches: bool = True) -> Compiled | None:
    """Read the binary of a key from the cache, and set the time of its last use; None if it is absent.

    A file that is damaged, or that other users may write, counts as absent.
    """
    start = time.perf_counter()
    try:
        file = Path(cache_path(BINARIES, cached_name(key)))
        if fault_of(file):
            return None
        data = file.read_bytes()
        if zlib.crc32(data[_SUM_BYTES:]).to_bytes(_SUM_BYTES, "big") != data[:_SUM_BYTES]:
            return None
        binary = msgspec.msgpack.decode(data[_SUM_BYTES:], type=Binary)
    except (OSError, msgspec.MsgspecError):
        return None
    if touches:
        touch(file)
    return Compiled(binary, "", time.perf_counter() - start, is_cached=True)


def first_error(log: str) -> str:
    """Return the line of a compile log with the first error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = lines[0] if lines else "the compiler gave no reason"
    return next((line for line in lines if "error" in line.lower()), first)


def cached_name(key: str) -> str:
    """Return the path of a binary in the folder of binaries."""
    return f"{key[:2]}/{key}.msgpack"


def encoded_binary(binary: Binary) -> bytes:
    """Return the content of a binary's file in the cache."""
    data = msgspec.msgpack.encode(binary)
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "big") + data


def write_cached(binary: Binary) -> None:
    """Write a binary to the cache of this machine, if the cache is writable."""
    with suppress(OSError):
        file = cache_folder(BINARIES) / cached_name(binary.key)
        file.parent.mkdir(0o700, exist_ok=True)
        write_atomically(file, encoded_binary(binary))


def compiled_for(
    kernel: Kernel,
    configuration: Mapping[str, Any],
    problem: Problem,
    device: Device,
    scalars: Mapping[str, Any] = MappingProxyType({}),
    writes: bool = True,
) -> Binary:
    """Compile one configuration with `compile_now`; raise `SpecError` if the compiler rejects it."""
    chosen = Configuration(configuration)
    compiled = compile_now(compile_job(kernel, chosen, problem, device, scalars), writes)
    if compiled.binary is None:
        raise kernel.error(f"configuration {chosen} for {device.name}: {compiled.message}")
    if not (writes or compiled.is_cached):
        folder = cache_path(BINARIES)
        _log.warning("autotune: %s: %s compiled, not found in %s", kernel.name, chosen, folder)
    return compiled.binary
