"""Checks the arguments of the decorator, and lists its configurations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from triton.runtime.autotuner import Config

from autotune.calling.first_call import VARIABLE, tuning
from autotune.calling.production import ProductionRules
from autotune.errors import UsageError, unknown
from autotune.kernel.names import refuse
from autotune.search.session import Budget
from autotune.values import Configuration

#: Options of `triton.Config` and their defaults.
OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
#: Maximum number of combinations of parameter values.
_MAX_CONFIGURATIONS = 20_000


@dataclass(frozen=True)
class Options:
    """The arguments of the decorator in addition to those of `triton.autotune`; see `autotune`."""

    reference: Callable[..., Mapping[str, Any]] | None
    tolerance: float | None
    tune: str
    budget: str
    name: str | None

    def check(self) -> None:
        """Raise `UsageError` if ``tune``, ``budget`` or a variable of the environment is invalid."""
        tuning(self.tune)
        tuning(os.environ.get(VARIABLE) or self.tune, name=VARIABLE)
        Budget.parse(str(self.budget))
        ProductionRules.of()


def listed_configurations(
    configs: Sequence[Config] | None, key: Sequence[str], parameters: Mapping[str, Any]
) -> list[Config]:
    """Return the configurations of the decorator.

    Raise `UsageError` if a parameter is invalid. Triton checks ``configs``, and their ``key``.
    """
    refuse(
        (
            (configs is None) == (not parameters),
            "autotune: give configs=[...], or parameters such as BLOCK=(64, 128)",
        )
    )
    if configs is not None:
        return list(configs)
    refuse(
        (not _is_list(key, str), f"autotune: key={key!r}: give a list of names, as key=['n']"),
        *(
            (
                not _is_list(values) or not len(values),
                f"autotune: {name}={values!r}: give a tuple of values, as {name}=(64, 128)",
            )
            for name, values in parameters.items()
        ),
    )
    return list(_every(parameters))


def check_is_jit(fn: Any) -> None:
    """Raise `UsageError` for a function without `triton.jit`."""
    if not hasattr(fn, "arg_names"):
        raise UsageError(
            f"autotune: {getattr(fn, '__name__', fn)} is not a Triton function; write @triton.jit below "
            "@autotune(...)"
        )


def check_names(fn: Any, key: Sequence[str], parameters: Iterable[str]) -> None:
    """Raise `UsageError` if ``key`` or ``parameters`` has a name that the function does not have."""
    inner, names = fn, fn.arg_names
    while hasattr(inner, "fn"):
        inner = inner.fn
    where = f"autotune: {inner.__name__}"
    known = [*names, *OPTIONS]
    refuse(
        *((name not in names, f"{where}: {unknown('key', name, names)}") for name in key),
        *(
            (name not in _compile_options(), f"{where}: {unknown('parameter', name, known)}")
            for name in sorted(set(parameters).difference(names))
        ),
    )


def as_recorded(name: str, configs: Sequence[Config]) -> dict[Configuration, Config]:
    """Return `triton.Config` by configuration of a record.

    Configurations have no option that has its default value in all of them.
    """
    every = [{**config.kwargs, **OPTIONS, **config.all_kwargs()} for config in configs]
    names = [
        parameter
        for parameter in dict.fromkeys(parameter for values in every for parameter in values)
        if parameter not in ("num_ctas", "maxnreg")
        or any(values[parameter] != OPTIONS[parameter] for values in every)
    ]
    for values in every:
        if lacking := [parameter for parameter in names if values.get(parameter) is None]:
            text = f"autotune: {name}: a configuration lacks {lacking[0]}, which others have"
            raise UsageError(f"{text}; give {lacking[0]} in all configurations")
    made = [
        Configuration({parameter: values[parameter] for parameter in names}) for values in every
    ]
    return dict(zip(made, configs, strict=True))


def _is_list(given: Any, kind: type = object) -> bool:
    """Return whether an argument is a list, a tuple or another sequence of values of a type."""
    is_several = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    return is_several and not isinstance(given, str) and all(isinstance(v, kind) for v in given)


def _compile_options() -> set[str]:
    from triton.backends.nvidia.compiler import CUDAOptions

    return {*CUDAOptions.__dataclass_fields__}


def _every(given: Mapping[str, Sequence[Any]]) -> Iterator[Config]:
    total = np.prod([len(values) for values in given.values()], dtype=float)
    if total > _MAX_CONFIGURATIONS:
        raise UsageError(
            f"autotune: {total:.0f} configurations, more than {_MAX_CONFIGURATIONS}; give fewer values"
        )
    for values in product(*given.values()):
        chosen = dict(zip(given, values, strict=True))
        options = {name: chosen.pop(name) for name in OPTIONS if name in chosen}
        yield Config(chosen, **options)
