"""Reads the arguments of a call: the key of its prepared call, and the addresses and numbers of its launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.calling.libraries import Library, Torch, kind_of
from autotune.errors import UsageError
from autotune.languages.base import ALIGNMENT


@dataclass(frozen=True)
class Reader:
    """The reader of calls whose arguments have certain types and names."""

    names: list[str]
    #: Whether the value of each argument decides the tuning or the binary.
    is_exact: list[bool]
    #: Returns the key of a call, and the addresses and numbers of its launch.
    read: Callable[[Sequence[Any]], tuple[object, list[Any]]]


def reading(number: int, values: Sequence[Any], is_exact: Sequence[bool]) -> Any:
    """Return the function of a `Reader`, generated as source because calls are many and short.

    ``number`` is part of its keys, so that they differ from the keys of other readers.
    """
    seen, passed_on, aligned, known = [f"{number}"], list[str](), list[str](), dict[str, Any]()
    begin = [f"({''.join(f'v{place}, ' for place in range(len(values)))}) = values"]
    for place, (value, decides) in enumerate(zip(values, is_exact, strict=True)):
        name, kind = f"v{place}", type(value)
        try:
            adapter = kind_of(value)
        except UsageError:  # Triton launches the call
            passed_on.append("None")
            continue
        if type(adapter) is Torch:  # like Triton: the type and the alignment, not the shape
            begin.append(f"p{place} = {name}.data_ptr()")
            seen += [
                f"{name}.dtype",
                f"{name}.{'get_device()' if adapter.has_several_devices else 'is_cuda'}",
            ]
            aligned.append(f"p{place}")
            passed_on.append(f"p{place}")
        elif isinstance(adapter, Library):
            known[f"seen{place}"] = adapter.key_part
            begin += [f"p{place} = []", f"k{place} = seen{place}({name}, p{place})"]
            seen.append(f"k{place}")
            passed_on.append(f"*p{place}")
        else:
            if kind is int and not decides:
                seen += [f"2 if {name} == 1 else {name} % 16 == 0"]
                seen += [f"-2147483648 <= {name} < 2147483648"]
            elif kind is not float or decides:
                seen.append(name)
            passed_on.append(name)
    if aligned:
        offsets = f"({''.join(f'{pointer} % {ALIGNMENT}, ' for pointer in aligned)})"
        seen.append(f"({' | '.join(aligned)}) % {ALIGNMENT} and {offsets}")
    result = f"({', '.join(seen)},), [{', '.join(passed_on)}]"
    lines = "".join(f"    {line}\n" for line in [*begin, f"return {result}"])
    exec(f"def read(values):\n{lines}", known)
    return known["read"]
