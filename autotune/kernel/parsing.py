"""Reads problems, configurations and restrictions of a kernel from text or mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.errors import UsageError, unknown
from autotune.kernel.expression import MAX_INTEGER
from autotune.kernel.spec import Kernel
from autotune.values import SOURCE, Configuration, Problem, Value


def pairs(text: str) -> dict[str, str]:
    """Return the names and values of ``a=1,b=2``; `UsageError` if a name occurs twice."""
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign or not name or not value:
            raise UsageError(f"{part!r}: expected NAME=VALUE")
        if name in found:
            raise UsageError(f"{name} is given twice")
        found[name] = value
    return found


def sizes(text: str) -> dict[str, int | str]:
    """Return the problem fields of ``m=64,mode=copy`` for an unknown kernel, as integers or texts."""
    found: dict[str, int | str] = {}
    for name, value in pairs(text).items():
        number = integer(value)
        found[name] = value if number is None else number
    return found


def integer(text: str) -> int | None:
    """Return the integer of a text such as ``64``, ``2^20`` or ``2**20``; None for other texts."""
    base, sign, exponent = text.replace("**", "^").partition("^")
    try:
        return int(base) ** int(exponent) if sign and int(exponent) <= 62 else int(text)
    except ValueError:
        return None


def problem(kernel: Kernel, given: str | Mapping[str, Any]) -> Problem:
    """Return a problem from its text or fields; layout fields may be left out."""
    fields = _mapping("problem", given, kernel.fields)
    example = next(problem for group in kernel.problems.values() for problem in group)
    known = kernel.filled(example)
    for name in fields:
        if name not in known:
            raise UsageError(f"{kernel.name}: {unknown('problem field', name, known)}")
    missing = [name for name in example if name not in fields]
    if missing:
        raise UsageError(
            f"{kernel.name}: problem {given!r} lacks {', '.join(missing)}; "
            f"give for example {str(example).replace(', ', ',')}"
        )
    # Records and headers keep the kernel's order.
    values = {name: _field(name, fields[name], known[name]) for name in known if name in fields}
    return kernel.normal(Problem(values))


def _field(name: str, given: Any, example: Any) -> int | str:
    value = given.item() if hasattr(given, "item") else given
    if not isinstance(example, int):
        return str(value)
    number = integer(value) if isinstance(value, str) else value
    if not isinstance(number, int) or not 0 <= number <= MAX_INTEGER:
        raise UsageError(
            f"problem field {name}={given}: expected an integer from 0 to {MAX_INTEGER}"
        )
    return number


def configuration(kernel: Kernel, given: str | Mapping[str, Any]) -> Configuration:
    """Return a configuration; missing parameters have the default of its source."""
    found = values(kernel.name, kernel.parameters, given)
    default = kernel.default(found.get(SOURCE, ""))
    for name in found:
        if name not in default:
            raise UsageError(_not_of_source(kernel, name, default))
    return default.replace(**found)


def _not_of_source(kernel: Kernel, name: str, default: Configuration) -> str:
    owners = [source for source, own in kernel.sources.items() if name in own.parameters]
    return (
        f"{kernel.name}: source {default[SOURCE]} has no parameter {name}; add "
        f"{' or '.join(f'{SOURCE}={owner}' for owner in owners)}"
    )


def values(
    kernel: str, parameters: Mapping[str, Sequence[Value]], given: str | Mapping[str, Any]
) -> dict[str, Value]:
    """Return values of some parameters of a kernel, in the declared types."""
    found = _mapping("config", given, parameters)
    return {name: _value(kernel, parameters, name, value) for name, value in found.items()}


def restriction(
    kernel: str, parameters: Mapping[str, Sequence[Value]], given: Mapping[str, Any]
) -> dict[str, tuple[Value, ...]]:
    """Return the allowed values of some parameters of a kernel; a single value needs no list."""
    found: dict[str, tuple[Value, ...]] = {}
    for name, chosen in _mapping("fixed", given, parameters).items():
        several = (
            chosen if hasattr(chosen, "__iter__") and not isinstance(chosen, str) else [chosen]
        )
        found[name] = tuple(_value(kernel, parameters, name, value) for value in several)
    return found


def _mapping(label: str, given: Any, known: Iterable[str]) -> Mapping[str, Any]:
    if isinstance(given, str):
        return pairs(given)
    if isinstance(given, Mapping):
        return given
    example = ", ".join(f"{name!r}: ..." for name in known)
    raise UsageError(f"{label}: got {given!r}, expected a mapping: {{{example}}}")


def _value(kernel: str, parameters: Mapping[str, Sequence[Value]], name: str, given: Any) -> Value:
    if name not in parameters:
        raise UsageError(f"{kernel}: {unknown('parameter', name, parameters)}")
    for declared in parameters[name]:
        texts = {str(declared)}
        if isinstance(declared, bool):
            texts |= {str(int(declared)), str(declared).lower()}
        if str(given) in texts or (isinstance(declared, float) and _decimal(given) == declared):
            return declared
    raise UsageError(f"{kernel}: {unknown(f'value of {name}:', given, parameters[name])}")


def _decimal(given: Any) -> float | None:
    try:
        return float(given)
    except (TypeError, ValueError):
        return None
