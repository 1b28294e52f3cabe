"""Text of the command line -> problems, configurations and values.

Whatever does not fit is a `UsageError` that says what does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import UsageError, unknown
from autotune.kernel.spec import Kernel
from autotune.values import Configuration, Problem, Value


def sizes(text: str) -> dict[str, int | str]:
    """Read ``m=64,mode=copy``, problem fields of whatever kernel: integers where they are."""
    found: dict[str, int | str] = {}
    for name, value in pairs(text).items():
        number = integer(value)
        found[name] = value if number is None else number
    return found


def pairs(text: str) -> dict[str, str]:
    """Read ``a=1,b=2``; no name may occur twice."""
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign or not name or not value:
            raise UsageError(f"{part!r}: expected NAME=VALUE")
        if name in found:
            raise UsageError(f"{name} is given twice")
        found[name] = value
    return found


def problem(kernel: Kernel, text: str) -> Problem:
    """Read a problem such as ``m=512,n=512,k=512``; every field but those of the layout must be there."""
    given = pairs(text)
    example = next(problem for group in kernel.problems.values() for problem in group)
    known = kernel.filled(example)
    for name in given:
        if name not in known:
            raise UsageError(f"{kernel.name}: {unknown('problem field', name, known)}")
    missing = [name for name in example if name not in given]
    if missing:
        raise UsageError(
            f"{kernel.name}: problem {text!r} lacks {', '.join(missing)}; "
            f"give for example --problem {str(example).replace(', ', ',')}"
        )
    return kernel.normal(
        Problem({name: _field(name, given[name], known[name]) for name in known if name in given})
    )


def _field(name: str, text: str, example: Any) -> int | str:
    if not isinstance(example, int):
        return text
    number = integer(text)
    if number is None or number < 0:
        raise UsageError(f"problem field {name}={text}: an integer of at least 0 expected")
    return number


def integer(text: str) -> int | None:
    """An integer, also as ``2^20`` or ``2**20``; None for anything else."""
    base, sign, exponent = text.replace("**", "^").partition("^")
    try:
        return int(base) ** int(exponent) if sign and int(exponent) <= 62 else int(text)
    except ValueError:
        return None


def configuration(kernel: Kernel, text: str) -> Configuration:
    """Read a configuration; parameters left out keep the kernel's default."""
    return kernel.default().replace(**values(kernel.name, kernel.parameters, text))


def values(kernel: str, parameters: Mapping[str, Sequence[Value]], text: str) -> dict[str, Value]:
    """Read values of some of a kernel's parameters."""
    return {name: _value(kernel, parameters, name, word) for name, word in pairs(text).items()}


def restriction(
    kernel: str, parameters: Mapping[str, Sequence[Value]], texts: Iterable[str]
) -> dict[str, tuple[Value, ...]]:
    """Read ``NAME=V1,V2`` for several of a kernel's parameters."""
    fixed: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, sign, words = text.partition("=")
        if not sign or not words:
            raise UsageError(f"--fix {text}: expected NAME=VALUE,VALUE")
        fixed[name] = tuple(_value(kernel, parameters, name, word) for word in words.split(","))
    return fixed


def _value(kernel: str, parameters: Mapping[str, Sequence[Value]], name: str, text: str) -> Value:
    """One parameter's value; it must be among the declared ones."""
    if name not in parameters:
        raise UsageError(f"{kernel}: {unknown('parameter', name, parameters)}")
    for declared in parameters[name]:
        names = {str(declared)}
        if isinstance(declared, bool):
            names |= {str(int(declared)), str(declared).lower()}
        if text in names or (isinstance(declared, float) and _decimal(text) == declared):
            return declared
    raise UsageError(f"{kernel}: {unknown(f'value of {name}:', text, parameters[name])}")


def _decimal(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def inputs(path: Path) -> dict[str, Any]:
    """Arrays of an ``.npz`` file, by name; pickled objects are none."""
    import zipfile

    import numpy as np

    if not path.is_file():  # a pipe would be waited for
        raise UsageError(f"--inputs {path}: no such file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(f"--inputs {path}: not an .npz file of plain arrays: {error}") from error
