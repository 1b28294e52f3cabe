"""Compares configurations with the reference on values that the data never hold. A difference only warns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from autotune import cache
from autotune.data.arguments import declared_arguments
from autotune.data.extremes import ExtremeData
from autotune.errors import AutotuneError, SpecError
from autotune.kernel.sizes import compact, size_fields
from autotune.measure.measurement import Status
from autotune.measure.process import ActorFailed
from autotune.measure.sanitize import small_problems
from autotune.measure.tasks import write_extremes, write_results
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench
from autotune.values import Configuration, Problem, category_of, size_of

#: Maximum number of elements of the arrays of a problem.
_MAX_ELEMENTS = 1 << 18
#: Maximum time in seconds to make the data of a problem: its reference may not end on such values.
_DATA_S = 60.0
#: Maximum number of differences that a message names.
_MAX_SHOWN = 2
#: Endings of a launch that a caller with such values would see.
_ENDINGS = {Status.CRASHED: "it crashes", Status.TIMED_OUT: "it hangs"}


def differences(
    bench: Bench, chosen: Mapping[Configuration, Problem]
) -> dict[Configuration, tuple[str, ...]]:
    """Return the configurations that clearly differ from the reference on extreme values, with the differences.

    Each configuration runs on a small problem with the static and the text fields of its problem in
    ``chosen``. Without a reference, on a caller's own data, and in a fleet nothing is compared.
    """
    kernel, request = bench.kernel, bench.request
    if "reference" not in kernel.hooks or request.has_callers_data or bench.worker.actor.queues:
        return {}
    units = {n for c in chosen for n in c.values() if type(n) is int and n > 1}
    made = dict[Problem, list[ExtremeData]]()
    found = dict[Configuration, tuple[str, ...]]()
    with cache.scratch() as scratch, suppress(AutotuneError, ActorFailed):
        for configuration, problem in chosen.items():
            for small in _small_problems(bench, configuration, problem, units, list(made)):
                job = bench.job(small, names=())
                folder, results = (Path(tempfile.mkdtemp(dir=scratch)) for _ in range(2))
                if small not in made:
                    task = partial(bench.worker.ask, write_extremes, job=job, timeout_s=_DATA_S)
                    made[small] = task(request.seed, folder)
                if data := made[small]:
                    found[configuration] = _differences(bench, job, configuration, data, results)
                    break
    return {configuration: texts for configuration, texts in found.items() if texts}


def message(name: str, differing: Sequence[str]) -> str:
    """Return one line about the differences of a configuration or kernel from the reference."""
    more = f" and {len(differing) - _MAX_SHOWN} more" if len(differing) > _MAX_SHOWN else ""
    return (
        f"{name} differs from the reference on values that the data never hold: "
        f"{'; '.join(differing[:_MAX_SHOWN])}{more}; draw such values if callers have them"
    )


def _small_problems(
    bench: Bench,
    configuration: Configuration,
    problem: Problem,
    units: set[int],
    known: Sequence[Problem],
) -> Iterator[Problem]:
    """Yield small problems that a configuration allows, ``known`` problems of the same kind first."""
    kernel = bench.kernel
    kind, fields = kernel.static_of(problem), size_fields(kernel, problem)
    alike = [small for small in known if kernel.static_of(small) == kind]
    alike = [small for small in alike if category_of(small) == category_of(problem)]
    alike += [compact(problem, fields, units, count) for count in (4, 2, 1)]
    declared = small_problems(kernel, configuration, problem, bench.device)
    for small in dict.fromkeys([*alike, *sorted(declared, key=size_of)]):
        with suppress(SpecError):  # the kernel's functions refuse this problem
            arguments = declared_arguments(kernel, small).values()
            is_small = sum(argument.count for argument in arguments) <= _MAX_ELEMENTS
            if is_small and kernel.allows(configuration, small):
                yield small


def _differences(
    bench: Bench,
    job: Job,
    configuration: Configuration,
    data: Sequence[ExtremeData],
    results: Path,
) -> tuple[str, ...]:
    """Run a configuration on all data at once; if that does not end, run it on one after the other."""
    together = replace(job, datasets=tuple(extreme.dataset for extreme in data))
    ended = bench.verify(together, configuration, write_results, results)
    if ended.status is Status.OK:
        return tuple(filter(None, (extreme.difference(bench.kernel, results) for extreme in data)))
    for extreme in data if ended.status in _ENDINGS else ():
        alone = replace(job, datasets=(extreme.dataset,))
        ended = bench.verify(alone, configuration, write_results, results)
        if ended.status in _ENDINGS:
            return (f"{extreme.change}: {_ENDINGS[ended.status]}",)
    return ()
