"""Finds parameters without effect. A search would choose their values by noise."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from types import CodeType, FunctionType
from typing import Any

from autotune.kernel.rules import HOOKS
from autotune.kernel.source import frozen_sources
from autotune.kernel.spec import Kernel
from autotune.values import SOURCE, Configuration

#: Comments and string literals of a source, whose words are not names.
_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
#: An include that only the compiler resolves; its file may use any name.
_OPEN_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*\"", re.MULTILINE)
#: Methods of a configuration; a function that calls one may read all parameters.
_ALL_PARAMETERS = {"items", "keys", "values"}
#: Minimum number of pairs of configurations with equal binaries before two values count as equal.
_MIN_PAIRS = 2


def unnamed(kernel: Kernel) -> Iterator[str]:
    """Yield a warning for each parameter that neither a source nor a function of the kernel names."""
    text = "\n".join(source.text for source in frozen_sources(kernel).values())
    rules = [rule.function for rule in (*kernel.constraint_rules, *kernel.applies_rules)]
    attached = [
        (name, function)
        for owner in (kernel, *kernel.sources.values())
        for name, function in owner.hooks.items()
    ]
    hooks = [function for name, function in attached if "c" in HOOKS.get(name, ())]
    functions = [*hooks, *rules, *kernel.metrics.values()]
    language = kernel.language
    named = _words(functions) | (language.options if language else set())
    if _OPEN_INCLUDE.search(text) or named & _ALL_PARAMETERS or "defines" in dict(attached):
        return
    in_source = set(re.findall(r"[A-Za-z_]\w*", text if language else _NO_CODE.sub(" ", text)))
    for name, values in kernel.parameters.items():
        macros = {name, *(f"{name}_{value}" for value in values if isinstance(value, str))}
        if not macros & in_source and name not in named | {SOURCE}:
            yield (
                f"{kernel.name}: parameter {name} does nothing: neither the source nor a function of the "
                "space file names it; correct its name, or remove it"
            )


def _words(functions: Iterable[Callable[..., Any]]) -> set[str]:
    """Return the names and texts in functions and in called functions of the same modules."""
    found, waiting, met = set[str](), [*functions], set[int]()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or id(function) in met:
            continue
        met.add(id(function))
        words = set(_words_of(function.__code__))
        found |= words
        for called in map(function.__globals__.get, words):
            if callable(called) and called.__module__ == function.__module__:
                waiting.append(called)
    return found


def _words_of(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_varnames)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words_of(constant)
        elif isinstance(constant, str | tuple):
            yield from (constant,) if isinstance(constant, str) else filter(_is_text, constant)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def equal_values(kernel: Kernel, twins: Iterable[Mapping[Configuration, str]]) -> Iterator[str]:
    """Yield a warning for values that always lead to equal binaries and launches.

    ``twins`` are, for each problem, texts that are equal for equal binaries and launches.
    """
    same, pairs = Counter[tuple[str, Any, Any]](), Counter[tuple[str, Any, Any]]()
    for of_problem in twins:
        for name, values in kernel.parameters.items():
            groups: dict[Configuration, dict[Any, str]] = {}
            for configuration, twin in of_problem.items() if len(values) > 1 else ():
                if name not in configuration:
                    continue
                others = configuration.replace(**{name: values[0]})
                groups.setdefault(others, {})[configuration[name]] = twin
            for group in groups.values():
                for first, second in combinations(sorted(group), 2):
                    pairs[name, first, second] += 1
                    same[name, first, second] += group[first] == group[second]
    warned = " ".join(unnamed(kernel))
    for name in kernel.parameters:
        equal = [
            pair
            for pair, count in pairs.items()
            if pair[0] == name and same[pair] == count >= _MIN_PAIRS
        ]
        if equal and f"parameter {name} " not in warned:
            shown = sorted({value for _, *both in equal for value in both})
            yield (
                f"{kernel.name}: {name}={', '.join(map(str, shown))} compile to the same binary with the "
                f"same launch; keep one of these values, or declare by @{kernel.name}.applies when {name} "
                "has an effect"
            )
