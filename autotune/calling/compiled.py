"""Calls of tuned kernels in programs that torch compiles or exports: each call is one operator.

While torch traces, a kernel's ``call`` function describes the tensors that the call writes and makes. Sizes
and numbers become constants of the program. The program calls the kernel when it runs.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autotune.calling.binding import LOADED, bind
from autotune.errors import UsageError
from autotune.kernel.operand import NewArray, Operand
from autotune.syntax import parsed

_LIBRARY = torch.library.Library("autotune", "FRAGMENT")


def traced(key: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return the results of a call while torch traces the program; they have no gradient."""
    values = (*args, *named.values())
    form = f"(({''.join(f'{_text(value)}, ' for value in values)}), {tuple(named)!r})"
    sources = _written(key, form)
    read = [
        value
        for position, value in enumerate(values)
        if isinstance(value, torch.Tensor) and position not in sources
    ]
    if sources:
        found = [values[source] for source in sources]
        torch.ops.autotune.load_into(key, form, read, found)
    else:
        found = torch.ops.autotune.load(key, form, read)
    return found[0] if len(found) == 1 else tuple(found)


def _text(value: Any) -> str:
    """Return a value, or a tensor's layout, as Python text; torch's symbols become constants.

    The key of a dictionary turns a symbol into a number: torch 2.11 cannot format a number that is an input.
    """
    if isinstance(value, torch.Tensor):
        shape, strides = (
            "".join(f"{n}, " for n in numbers) for numbers in (value.shape, value.stride())
        )
        return f"(({shape}), ({strides}), '{str(value.dtype)[6:]}')"
    return repr(next(iter({value: None})))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
def _written(key: str, form: str) -> tuple[int, ...]:
    """Return the positions of passed results; empty if all results are new."""
    sources = [result.source for result in _results(key, form)]
    passed = tuple(source for source in sources if not isinstance(source, NewArray))
    if passed and len(set(passed)) < len(sources):
        raise UsageError(f"{key}: in a compiled program pass each output once, or no output")
    return passed


def _arguments(form: str, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    _, names = parsed(lambda: literal_eval(form))
    first = len(values) - len(names)
    return tuple(values[:first]), dict(zip(names, values[first:], strict=True))


def _results(key: str, form: str) -> tuple[Operand, ...]:
    """Return the results of a call as its ``call`` function describes them."""
    layouts, _ = parsed(lambda: literal_eval(form))
    values = [
        Operand(layout[0], layout[1], layout[2], source=position)
        if isinstance(layout, tuple)
        else layout
        for position, layout in enumerate(layouts)
    ]
    kernel = _kernel(key)
    return bind(kernel.kernel, *_arguments(form, values), kernel.find).results


def _kernel(key: str) -> Any:
    if key not in LOADED:
        raise UsageError(f"the program calls {key}; load that kernel before the program runs")
    return LOADED[key]


def _call(key: str, form: str, read: Sequence[Any], written: Sequence[Any] = ()) -> list[Any]:
    layouts, _ = parsed(lambda: literal_eval(form))
    passed = dict(zip(_written(key, form), written, strict=True))
    others = iter(read)
    values = [
        passed[position]
        if position in passed
        else next(others)
        if isinstance(layout, tuple)
        else layout
        for position, layout in enumerate(layouts)
    ]
    args, named = _arguments(form, values)
    results = _kernel(key)(*args, **named)
    return list(results) if isinstance(results, tuple) else [results]


def _call_into(key: str, form: str, read: Sequence[Any], written: Sequence[Any]) -> None:
    _call(key, form, read, written)


def _made(key: str, form: str, read: Sequence[Any]) -> list[Any]:
    return [
        read[0].new_empty(made.source.shape, dtype=getattr(torch, made.source.dtype))
        for made in _results(key, form)
    ]


for _schema, _compute, _fake in (
    ("load(str kernel, str form, Tensor[] read) -> Tensor[]", _call, _made),
    (
        "load_into(str kernel, str form, Tensor[] read, Tensor(a!)[] written) -> ()",
        _call_into,
        lambda key, form, read, written: None,
    ),
):
    _name = _schema.partition("(")[0]
    _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    for _backend in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _compute, _backend)
    torch.library.register_fake(f"autotune::{_name}", _fake, lib=_LIBRARY)
