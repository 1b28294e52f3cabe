"""Launches at once on a GPU: faulty kernels (contracts/overlap.py), the bundled ones, and `load`.

In all of them a contrast shows that the launches do meet: the same without what is tested goes wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from contracts.faults import SPACES
from contracts.overlap import OverlapContract

from autotune import lookup
from autotune.calling.load import TunedKernel, load
from autotune.compiling.job import compile_job
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel, space_files
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Configuration, Problem

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]

BUNDLED = sorted(space_files())
#: Keeps a stream busy for so many cycles: what is enqueued meanwhile on others begins at once.
GATE = r"""
extern "C" __global__ void gate(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {}
}
"""


@pytest.mark.alone
class TestLaunchesAtOnceOnCuda(OverlapContract):
    selector = "cuda:0"


# ---------------------------------------------------------------- bundled kernels


def problems_of(kernel: Kernel, configuration: Configuration, number: int) -> list[Problem]:
    """The smallest problem of the kernel that a configuration allows, and one of its odd sizes, in turn."""

    def size(problem: Problem) -> int:
        return math.prod(value for value in problem.values() if isinstance(value, int))

    allowed = [p for p in kernel.problems["cuda"] if kernel.allows(configuration, p)]
    edges = [p for p in kernel.edge_problems if kernel.allows(configuration, p)]
    return [*sorted(allowed, key=size)[:1], *edges[number % max(1, len(edges)) :][:1]]


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_configurations_share_state_only_where_they_are_declared_to(name: str) -> None:
    kernel, device = find_kernel(name), choose_device("cuda:0")
    known = dict.fromkeys([kernel.default(), *map(kernel.completed, kernel.seeds)])
    if name == "reduce":  # the way to collect that is disturbed most, tried by no search
        kernel.parameters["COLLECT"] = ("words", "pair")
        known |= dict.fromkeys(seed.replace(COLLECT="pair") for seed in known)
    pairs = [
        (configuration, problem)
        for number, configuration in enumerate(known)
        if is_member(kernel, configuration, device)
        for problem in problems_of(kernel, configuration, number)
    ]
    pairs.sort(key=lambda pair: str(pair[1]))  # so that data are made once for each problem
    caught: dict[Configuration, str] = {}
    request = Request(kernel, device, (pairs[0][1],), timeout_s=5.0)
    with closing(Bench(request)) as bench, ThreadPoolExecutor(16) as threads:

        def compiled(pair: tuple[Configuration, Problem]) -> Any:
            return bench.compilers.result(compile_job(kernel, *pair, device)).binary

        for pair, binary in zip(pairs, threads.map(compiled, pairs), strict=True):
            configuration, problem = pair
            assert binary is not None
            if configuration not in caught:
                found = bench.worker.check_at_once(bench.job(problem), configuration, binary)
                if found.status is not Status.OK or found.message:
                    caught[configuration] = f"{problem}: {found.status}: {found.message}"
    declared = {c for c, _ in pairs if kernel.is_exclusive(c)}
    print(
        f"\n{name}: {len(dict(pairs))} configurations, {len(declared)} of them declared exclusive"
    )
    for configuration in declared:
        print(f"  {caught.get(configuration, 'not caught')} | {configuration}")
    assert {c: told for c, told in caught.items() if c not in declared} == {}
    assert bool(declared) == (name in ("gemv_columns", "reduce", "sgemm", "sgemm_tf32x3"))
    assert not declared or declared & set(caught)


# ---------------------------------------------------------------- load


@pytest.fixture(scope="module")
def gate(cupy: Any) -> Callable[[], None]:
    """Enqueues on the current stream what lasts some 50 ms."""
    kernel = cupy.RawKernel(GATE, "gate")
    return lambda: kernel((1,), (1,), (np.int64(75_000_000),))


def ticket(kind: str) -> TunedKernel:
    """A kernel that adds up, with a ticket that is the caller's, the module's, or declared to be."""
    kernel = find_kernel("ticket", SPACES)
    kernel.sources[""].default_values = {"PIECE": 1 << 10, "TICKET": kind}
    return load(kernel)


class Calls:
    """What four callers call one function with, and what all elements of each one's results must be."""

    def __init__(
        self,
        cupy: Any,
        function: TunedKernel,
        arguments: list[tuple[Any, ...]],
        expected: list[float],
    ) -> None:
        self.cupy, self.function = cupy, function
        self.arguments, self.expected = arguments, expected

    def wrong(self, results: list[list[Any]]) -> int:
        """How many results, listed by caller, are not what they must be."""
        self.cupy.cuda.Device().synchronize()
        return sum(
            int((self.cupy.stack(mine).reshape(len(mine), -1) != expected).any(axis=1).sum())
            for mine, expected in zip(results, self.expected, strict=True)
        )

    def on_streams(self, gate: Callable[[], None], count: int, repeats: int) -> int:
        """Wrong results of calls on a stream for each caller, let go all at once."""
        cupy = self.cupy
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in self.arguments]
        first = cupy.cuda.Stream(non_blocking=True)
        wrong = 0
        for _ in range(repeats):
            results: list[list[Any]] = [[] for _ in streams]
            cupy.cuda.Device().synchronize()
            with first:
                gate()
            opened = first.record()
            for stream in streams:
                stream.wait_event(opened)
            for _ in range(count):
                for stream, mine, into in zip(streams, self.arguments, results, strict=True):
                    with stream:
                        into.append(self.function(*mine))
            wrong += self.wrong(results)
        return wrong

    def in_graphs(self, count: int, repeats: int) -> int:
        """Wrong results of graphs of calls, captured one after another and replayed at once."""
        cupy = self.cupy
        captor = cupy.cuda.Stream(non_blocking=True)
        graphs, results = [], []
        for mine in self.arguments:
            with captor:
                self.function(*mine)
                captor.begin_capture()
                results.append([self.function(*mine) for _ in range(count)])
                graphs.append(captor.end_capture())
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in graphs]
        wrong = 0
        for _ in range(repeats):
            for result in (result for mine in results for result in mine):
                result.fill(cupy.nan)
            cupy.cuda.Device().synchronize()
            for graph, stream in zip(graphs, streams, strict=True):
                graph.launch(stream)
            wrong += self.wrong(results)
        return wrong


def sums(cupy: Any, function: TunedKernel, n: int) -> Calls:
    """Sums of n equal numbers, small enough for float32 to hold them."""
    arguments = [(cupy.full(n, i, cupy.float32),) for i in range(1, 5)]
    return Calls(cupy, function, arguments, [float(i * n) for i in range(1, 5)])


def products(cupy: Any, name: str, m: int, k: int, *n: int) -> Calls:
    """Products of equal numbers with halves."""
    arguments = [
        (cupy.full((m, k), i, cupy.float32), cupy.full((k, *n), 0.5, cupy.float32))
        for i in range(1, 5)
    ]
    return Calls(cupy, load(name), arguments, [0.5 * i * k for i in range(1, 5)])


def of_columns(cupy: Any, m: int, n: int) -> Calls:
    """The same of a matrix by columns and a vector."""
    arguments = [
        (cupy.full((n, m), i, cupy.float32), cupy.full(n, 0.5, cupy.float32)) for i in range(1, 5)
    ]
    return Calls(cupy, load("gemv_columns"), arguments, [0.5 * i * n for i in range(1, 5)])


def alike(cupy: Any, name: str, shape: tuple[int, ...], *scalars: float) -> Calls:
    """Results that are the input, somewhere else; of prefetch and ffma after no step at all."""
    arguments = [(cupy.full(shape, i, cupy.float32), *scalars) for i in range(1, 5)]
    return Calls(cupy, load(name), arguments, [1.0, 2.0, 3.0, 4.0])


#: By kernel and size; of those that keep state in their module, and of those that have workspaces.
EVERY: dict[str, Callable[[Any], Calls]] = {
    "reduce 2^16": lambda cupy: sums(cupy, load("reduce"), 1 << 16),
    "reduce 2^20": lambda cupy: sums(cupy, load("reduce"), 1 << 20),
    "sgemm split over the grid": lambda cupy: products(cupy, "sgemm", 64, 65536, 64),
    "sgemm": lambda cupy: products(cupy, "sgemm", 96, 200, 64),
    "sgemm_tf32x3": lambda cupy: products(cupy, "sgemm_tf32x3", 128, 256, 128),
    "gemv": lambda cupy: products(cupy, "gemv", 300, 5000),
    "gemv, a few rows": lambda cupy: products(cupy, "gemv", 3, 65536),
    "gemv_columns": lambda cupy: of_columns(cupy, 64, 65536),
    "transpose": lambda cupy: alike(cupy, "transpose", (100, 60)),
    "copy": lambda cupy: alike(cupy, "copy", (10000,)),
    "prefetch": lambda cupy: alike(cupy, "prefetch", (10000,), 1.0, 0.0, 8),
    "ticket": lambda cupy: sums(cupy, ticket("declared"), 1 << 16),
}


@pytest.fixture(params=EVERY)
def calls(cupy: Any, request: pytest.FixtureRequest) -> Calls:
    return EVERY[request.param](cupy)


@pytest.mark.alone
def test_five_thousand_calls_on_each_of_four_streams_are_right(
    calls: Calls, gate: Callable[[], None]
) -> None:
    assert calls.on_streams(gate, 250, 20) == 0


@pytest.mark.alone
def test_four_graphs_of_a_hundred_calls_replayed_at_once_are_right(calls: Calls) -> None:
    assert calls.in_graphs(100, 200) == 0


def test_exclusive_winners_are_among_them(cupy: Any) -> None:
    """Of reduce and sgemm; else the tests above would show little."""
    for name, fields in (("reduce", {"n": 1 << 16}), ("sgemm", {"m": 64, "n": 64, "k": 65536})):
        tuned = lookup(name, **fields)
        assert tuned is not None and tuned.exclusive


@pytest.mark.alone
def test_without_the_declaration_the_same_calls_go_wrong(
    cupy: Any, gate: Callable[[], None]
) -> None:
    """So that the two tests above can fail; sums long enough that those of two streams meet."""
    shared = sums(cupy, ticket("module"), 1 << 20)
    # A busy host launches too slowly for the sums of two streams to meet each time.
    assert any(shared.on_streams(gate, 100, 4) for _ in range(10))
    assert any(shared.in_graphs(100, 5) for _ in range(10))


def test_graphs_keep_their_workspaces(cupy: Any) -> None:
    """Right after what was free when they were captured is another's."""
    shared = sums(cupy, ticket("caller"), 1 << 16)
    assert shared.in_graphs(100, 5) == 0


def test_graphs_of_torch_are_right_too() -> None:
    """Which captures so that nothing may allocate or load, and without a call before."""
    torch = pytest.importorskip("torch")
    function = ticket("declared")
    xs = [torch.full((1 << 16,), float(i), device="cuda") for i in range(1, 5)]
    function(xs[0])
    graphs, results = [], []
    for x in xs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append([function(x) for _ in range(20)])
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(5):
        for result in (result for mine in results for result in mine):
            result.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for i, mine in enumerate(results, 1):
            assert [float(result) for result in mine] == [i * float(1 << 16)] * 20
