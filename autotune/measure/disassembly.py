"""Runs NVIDIA's disassembler on the code of a binary; it needs no device and no driver."""

from __future__ import annotations

import subprocess
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from autotune.devices.nvrtc import find_program
from autotune.errors import AutotuneError, install

#: A disassembly that takes longer is given up; large kernels take two seconds.
_TIMEOUT_S = 60.0


def disassembler() -> str:
    """Return the path of nvdisasm; empty if it is not installed. Triton has its own copy."""
    if found := find_program("nvdisasm"):
        return found
    triton = find_spec("triton")
    folder = Path(triton.origin).parent if triton and triton.origin else Path()
    bundled = folder / "backends" / "nvidia" / "bin" / "nvdisasm"
    return str(bundled) if bundled.is_file() else ""


@lru_cache(64)
def disassembled(code: bytes) -> str:
    """Return the SASS of a cubin; raise AutotuneError if it cannot be read."""
    program = disassembler()
    if not program:
        raise AutotuneError(
            f"SASS needs nvdisasm, which is not installed; run: {install('explain')}"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        try:
            done = subprocess.run(
                # The analysis of data flow doubles the time and changes no instruction.
                [program, "--print-code", "--no-dataflow", file.name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise AutotuneError(f"nvdisasm took longer than {_TIMEOUT_S:.0f} s") from error
        except OSError as error:
            raise AutotuneError(
                f"{program}: {error.strerror}; run: {install('explain')}"
            ) from error
    if done.returncode:
        first = (done.stderr.strip() or "no reason given").splitlines()[0]
        raise AutotuneError(f"nvdisasm failed: {first.replace(file.name, 'the cubin')}")
    return done.stdout
