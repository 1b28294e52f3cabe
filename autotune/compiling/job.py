"""Compile jobs: all that decides one binary, and its key in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from autotune.compiling.symbols import compiled_in
from autotune.devices.device import Device
from autotune.kernel.includes import Header, SourceText
from autotune.kernel.launches import LaunchSequence, launch_sequence
from autotune.kernel.source import source_text
from autotune.kernel.spec import Kernel
from autotune.languages.registry import compiler
from autotune.values import Configuration, Problem

#: Bumped when the stored form of a binary changes; part of every key.
_CACHE_VERSION = 4


@lru_cache(64)
def _begun_key(source: str, headers: tuple[Header, ...]) -> Any:
    """Return the hash of a source; its copies go on with the options of single configurations."""
    text = json.dumps([_CACHE_VERSION, SourceText(source, headers).identity])
    return hashlib.sha256(f"{text[:-1]}, ".encode())


@dataclass(frozen=True)
class CompileJob:
    """All that decides one binary."""

    source: str
    defines: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    device: Device
    #: Language of the source; a backend's name stands for its dialect of C.
    language: str
    toolchain: str
    #: Functions to be launched, by the names that launches use.
    entries: tuple[str, ...] = ()
    #: Files that the compiler itself finds for the source's includes.
    headers: tuple[Header, ...] = ()
    #: sha256 of source with includes, defines, options, architecture and compiler version.
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed now, because later many threads need it at once, under a lock.
        key = _begun_key(self.source, self.headers).copy()
        text = json.dumps(
            [
                sorted(self.defines),
                self.options,
                self.device.backend,
                self.device.arch,
                "" if self.device.is_cuda else self.device.driver,
                self.toolchain,
                self.entries,
            ]
        )
        key.update(text[1:].encode())
        object.__setattr__(self, "key", key.hexdigest())


def compile_job(
    kernel: Kernel,
    configuration: Configuration,
    problem: Problem,
    device: Device,
    scalars: Mapping[str, Any] = MappingProxyType({}),
    plan: LaunchSequence | None = None,
) -> CompileJob:
    """Return the compile job of one configuration.

    ``scalars`` replace declared ones; ``plan`` saves the launch function if the caller has its result.
    """
    plan = plan or launch_sequence(kernel, configuration, problem, device)
    language = kernel.language_on(device.backend)
    source = source_text(kernel, configuration, device)
    if kernel.language:
        symbols = compiled_in(kernel, configuration, problem, device, plan, source.text, scalars)
    else:
        symbols = kernel.macros(configuration, problem, device)
    return CompileJob(
        source=source.text,
        defines=tuple(symbols.items()),
        options=kernel.compiler_options(configuration, device),
        device=device,
        language=language,
        toolchain=compiler(language).toolchain(),
        entries=tuple(dict.fromkeys(str(launch.entry) for launch in plan.launches)),
        headers=source.headers,
    )
