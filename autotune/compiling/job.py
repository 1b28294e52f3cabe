"""Compile jobs: the inputs of a compile, and the key of its binary in the cache."""

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

#: Version of the stored form of a binary, part of every key; raise it if the form changes.
_CACHE_VERSION = 4


@lru_cache(64)
def _source_hash(source: str, headers: tuple[Header, ...]) -> Any:
    """Return the hash state of a source; each key continues a copy of it with its own options."""
    text = json.dumps([_CACHE_VERSION, SourceText(source, headers).identity])
    return hashlib.sha256(f"{text[:-1]}, ".encode())


@dataclass(frozen=True)
class CompileJob:
    """The inputs of one compile."""

    source: str
    defines: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    device: Device
    #: Language of the source; a backend's name stands for its dialect of C.
    language: str
    toolchain: str
    #: Functions to launch, by the names that launches use.
    entries: tuple[str, ...] = ()
    #: Files that the compiler itself finds for the source's includes.
    headers: tuple[Header, ...] = ()
    #: sha256 of source with includes, defines, options, architecture and compiler version.
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed here, because later many threads need the key at once, under a lock.
        key = _source_hash(self.source, self.headers).copy()
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

    ``scalars`` replace declared scalars. ``plan`` is the result of the launch function, if the caller has it.
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
