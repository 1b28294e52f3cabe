"""A folder of precompiled cubins as a language, whose compiler picks the file of a configuration.

The name of a file lists its architecture and its parameter values, separated by hyphens:
``scale-sm_90-BLOCK=128.cubin``.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.devices import cubin
from autotune.devices.base import Binary, CompiledFunction, CompileError
from autotune.devices.device import Device
from autotune.errors import SpecError
from autotune.languages.base import Files, PassedValue
from autotune.values import Value

_ENDING = ".cubin"


class CubinLanguage:
    """Precompiled cubins as a `Language`; the launch function decides the block, as in CUDA C++."""

    backends: tuple[str, ...] = ("cuda",)
    interpreter = ""
    options: frozenset[str] = frozenset()

    def source(self, file: Path, functions: Sequence[str], files: Files) -> str:
        found = sorted(file.glob(f"*{_ENDING}"))
        if not found:
            raise SpecError(f"{file.name} is not a folder with files *{_ENDING}")
        codes = {ready.stem: files.read_bytes(ready) for ready in found}
        return json.dumps(
            {stem: b64encode(code).decode() for stem, code in codes.items()}, indent=1
        )

    def symbols(
        self,
        source: str,
        function: str,
        launches: Sequence[Sequence[PassedValue]],
        values: Mapping[str, Value],
    ) -> dict[str, str]:
        named = {word.partition("=")[0] for stem in json.loads(source) for word in stem.split("-")}
        return {name: str(value) for name, value in values.items() if name in named}

    def block(self, values: Mapping[str, Value]) -> tuple[int, ...]:
        return ()

    def toolchain(self) -> str:
        return "ready cubins 1"

    def load_compiler(self) -> None:
        pass

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        wanted = {device.arch, *(f"{name}={value}" for name, value in defines.items())}
        codes = json.loads(source)
        found = [stem for stem in codes if wanted <= set(stem.split("-"))]
        if len(found) != 1:
            raise CompileError(
                f"{len(found) or 'no'} cubins match {' '.join(sorted(wanted))}, expected 1; "
                f"the folder has {', '.join(codes)}"
            )
        code = b64decode(codes[found[0]])
        functions = tuple(
            CompiledFunction(entry, parameter_bytes=cubin.parameter_bytes(code, entry))
            for entry in entries
        )
        return Binary(code, functions, "", key="")
