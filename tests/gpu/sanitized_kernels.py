"""Every bundled kernel under compute-sanitizer: `make test-sanitized`, some five minutes of many cores.

The file's name keeps it out of `make test-gpu`: each kernel takes four processes of the tool, all cores for
compiling, and the other tests' turns on the GPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.devices.nvrtc import find_program
from autotune.errors import NothingValidError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import exceeded_limit, launch_sequence
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure import sanitize
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Configuration, Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not find_program("compute-sanitizer"), reason="no compute-sanitizer"),
]

ROOT = Path(__file__).parents[2]
BUNDLED = sorted(file.stem for file in (ROOT / "spaces").rglob("[a-z]*.py"))
#: For a tool and a kernel, on a machine that does much else.
TIMEOUT_S = 3600.0


def sampled(kernel: Kernel, device: Device) -> Iterator[tuple[Configuration, Problem]]:
    """Yield configurations that have every value of every parameter together, each with a problem that allows it.

    Two at least are of each category of problems. Values that apply nowhere are left out.
    """
    space, rng = enumerate_space(kernel, device), np.random.default_rng(0)
    categories: dict[Any, list[Problem]] = {}
    known = [*kernel.problems["cuda"], *kernel.edges_on(device)]
    for problem in known:
        categories.setdefault(kernel.static_of(problem), []).append(problem)
    seen = set[Any]()

    def drawn(part: Space, problems: Sequence[Problem]) -> Iterator[tuple[Configuration, Problem]]:
        for configuration in map(part.configuration, part.sample(rng, 4000)):
            allowed = [problem for problem in problems if kernel.allows(configuration, problem)]
            yield from ((configuration, problem) for problem in allowed[:1])

    for problems in categories.values():
        for configuration, problem in islice(drawn(space, problems), 2):
            seen |= set(space.relevant(configuration).items())
            yield configuration, problem
    for name, values in space.parameters.items():
        for value in (value for value in values if (name, value) not in seen):
            with suppress(NothingValidError):
                part = space.restricted({name: [value]})
                for configuration, problem in drawn(part, known):
                    applying = set(space.relevant(configuration).items())
                    if (name, value) in applying:
                        seen |= applying
                        yield configuration, problem
                        break


def small_problems(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> list[Problem]:
    """Return odd sizes; where the static fields have none, the smallest problem with 100003 elements at most."""
    found = sanitize.small_problems(kernel, configuration, problem, device)
    if set(found) & set(kernel.edge_problems):
        return found
    sizes = {n: v for n, v in found[0].items() if isinstance(v, int) and n not in kernel.static}
    return [Problem(**{**found[0], **{n: min(v, 100003) for n, v in sizes.items()}})]


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_kernels_are_clean(name: str) -> None:
    """A sample with every value of every parameter, each configuration at two of its odd sizes in turn.

    A function in Triton is compiled for each size, and at some of them has no room on the device.
    """
    kernel, device = find_kernel(name), choose_device("cuda:0")
    bench = Bench(Request(kernel, device, kernel.problems["cuda"]))
    turns: dict[Any, Iterator[Problem]] = {}
    jobs, trials = [], []
    try:
        for configuration, problem in sampled(kernel, device):
            small = small_problems(kernel, configuration, problem, device)
            turn = turns.setdefault(tuple(small), cycle(small))
            for each in islice(turn, min(2, len(small))):
                job = bench.compile_job(configuration, each)
                with_lines = replace(job, options=(*job.options, "-lineinfo"))
                bench.compilers.submit(with_lines)
                jobs.append((configuration, each, with_lines))
        for configuration, problem, job in jobs:
            binary = bench.compilers.result(job).binary
            assert binary is not None, configuration
            if exceeded_limit(
                launch_sequence(kernel, configuration, problem, device), binary, device
            ):
                continue
            trials.append(sanitize.Trial(bench.job(problem), configuration, binary))
        faults, remarks = sanitize.find_faults(
            sanitize.required_program(device), trials, timeout_s=TIMEOUT_S
        )
    finally:
        bench.close()
    for configuration, fault in faults.items():
        print(configuration, "|", fault)
    assert (faults, remarks) == ({}, [])
