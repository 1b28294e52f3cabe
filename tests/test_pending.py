"""Searches begin before the reference is evaluated; nothing that it does not confirm wins or is recorded."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sample_spaces import changed, write_space

from autotune.devices.choose import choose_device
from autotune.errors import AutotuneError
from autotune.kernel.catalog import load_file
from autotune.measure.measurement import Measurement, Status
from autotune.run.bench import Site
from autotune.run.request import Request, Search
from autotune.run.result import RunResult
from autotune.run.run import Run
from autotune.search.session import Budget, Event, Measured, Phase
from autotune.store import Store

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("kept_processes")]

RIGHT = "if (i < n) out[i] = factor * x[i];"
#: Configurations of the space.
BLOCKS = (32, 64, 96, 128, 160, 192, 224, 256)


class SearchFirst(Site):
    """This machine, with the reference of a CPU's kernel in a process of its own, too."""

    def uses_references(self, request: Request) -> bool:
        return True


@dataclass
class Trial:
    """A run of ``scale`` whose reference is slow: it waits until the search has ``ahead`` results."""

    folder: Path
    store: str = RIGHT
    ahead: int = len(BLOCKS)
    reference: str = "factor * x"
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        go = f"if os.path.exists({str(self.go)!r}):\n            break"
        wait = f"for _ in range(6000):  # a minute at most\n        {go}\n        time.sleep(0.01)"
        self.space = write_space(
            self.folder,
            ("import numpy as np", "import os\nimport time\n\nimport numpy as np"),
            ("return factor * x", f"{wait}\n    return {self.reference}"),
            ("BLOCK=(32, 64)", f"BLOCK={BLOCKS}"),
        )
        source = self.folder / "kernels" / "scale.cu"
        source.write_text(changed(source.read_text(), (RIGHT, self.store)))

    @property
    def go(self) -> Path:
        return self.folder / "go"

    @property
    def rows(self) -> list[Measurement]:
        """Results in the order of the search."""
        return [event.measurement for event in self.events if isinstance(event, Measured)]

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        waits = isinstance(event, Phase) and event.name == "reference"
        if len(self.rows) >= self.ahead or waits:
            self.go.touch()

    def run(self, device: str) -> RunResult:
        with self.opened(device) as run:
            return run.run()

    @contextmanager
    def opened(self, device: str) -> Iterator[Run]:
        kernel = load_file(self.space)
        goal, problems = Search(strategy="exhaustive"), kernel.all_problems()[:1]
        request = Request(kernel, choose_device(device), problems, goal=goal, budget=Budget(60.0))
        with (
            Store.open(self.folder / "store.db") as store,
            closing(Run(request, store, self, SearchFirst())) as run,
        ):
            yield run

    @property
    def stored(self) -> dict[int, list[Status]]:
        """Statuses of each configuration's rows, oldest first."""
        found: dict[int, list[Status]] = {}
        with Store.open(self.folder / "store.db") as store:
            for row in store.rows():
                block = int(row.measurement.configuration["BLOCK"])
                found.setdefault(block, []).append(row.measurement.status)
        return found


def test_configurations_are_timed_while_a_slow_reference_is_evaluated(
    tmp_path: Path, opencl_device: str
) -> None:
    trial = Trial(tmp_path)
    result = trial.run(opencl_device)
    first = trial.rows[: len(BLOCKS)]
    assert {row.status for row in first} <= {Status.PENDING, Status.STOPPED_EARLY}
    assert Status.PENDING in {row.status for row in first}
    (found,) = result.problems
    assert found.winner is not None
    assert trial.stored[int(found.winner["BLOCK"])][:2] == [Status.PENDING, Status.OK]


def test_a_search_for_one_of_several_right_answers_waits_for_the_reference(
    tmp_path: Path, opencl_device: str
) -> None:
    """Its configurations may differ from each other."""
    trial = Trial(tmp_path)
    with trial.opened(opencl_device) as run:
        assert run.searches_first
        run.kernel.matches(lambda found, expected: True)
        assert not run.searches_first


ALIKE = "if (i < n) out[i] = i == 7 ? 0 : factor * x[i];"
FAST_HALF = "if (i < n) out[i] = BLOCK > 128 && i > 500 ? 0 : factor * x[i];"
DEFAULT_HALF = "if (i < n) out[i] = BLOCK < 160 && i == 999 ? 0 : factor * x[i];"
NAN_IN_A_BLOCK = "if (i < n) out[i] = BLOCK != 96 && BID(0) == 2 ? NAN : factor * x[i];"


@pytest.mark.parametrize(
    ("store", "right"),
    [
        (ALIKE, ()),
        pytest.param(FAST_HALF, (32, 64, 96, 128), marks=pytest.mark.full),
        (DEFAULT_HALF, (160, 192, 224, 256)),
        pytest.param(NAN_IN_A_BLOCK, (96,), marks=pytest.mark.full),
    ],
    ids=["all alike", "the fast half", "the default and most voters", "NaN in a block"],
)
def test_what_the_reference_refutes_never_wins(
    tmp_path: Path, opencl_device: str, store: str, right: tuple[int, ...]
) -> None:
    trial = Trial(tmp_path, store)
    if right:
        found = trial.run(opencl_device).record
        assert found is not None
        finalists = found.problems[0].race.finalists
        assert finalists and {entry.configuration["BLOCK"] for entry in finalists} <= {*right}
    else:
        with (
            pytest.warns(
                UserWarning, match=r"all 8 configurations .* differ .* out\[7\] is 0, exp"
            ),
            pytest.raises(AutotuneError, match=r"no configuration passed .*8 wrong_result"),
        ):
            trial.run(opencl_device)
    for block, statuses in trial.stored.items():
        assert Status.OK not in statuses or block in right
        assert statuses[-1] is not Status.PENDING


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("x[p]", "scale.*reference: NameError: name 'p' is not defined"),
        (
            "os.kill(os.getpid(), 9)",
            "process that evaluates the reference ended .killed by signal 9",
        ),
        ("np.zeros(2**55)", "Unable to allocate"),
    ],
    ids=["raises", "is killed", "has too little memory"],
)
def test_a_reference_that_fails_during_the_search_ends_the_run_with_one_error(
    tmp_path: Path, opencl_device: str, reference: str, message: str
) -> None:
    trial = Trial(tmp_path, reference=reference)
    with pytest.raises((AutotuneError, MemoryError), match=message):
        trial.run(opencl_device)
    statuses = {status for found in trial.stored.values() for status in found}
    assert statuses <= {Status.PENDING, Status.STOPPED_EARLY}


_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_pending import Trial
class Killed(Trial):
    def __call__(self, event):
        super().__call__(event)
        if self.go.exists():
            os.kill(os.getpid(), signal.SIGKILL)
Killed(Path({folder!r}), {store!r}).run({device!r})
"""


def test_a_run_that_is_killed_before_verification_leaves_nothing_that_wins(
    tmp_path: Path, opencl_device: str
) -> None:
    trial = Trial(tmp_path, FAST_HALF)
    script = _KILLED.format(
        tests=str(Path(__file__).parent),
        folder=str(tmp_path),
        store=FAST_HALF,
        device=opencl_device,
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False)
    assert ended.returncode == -signal.SIGKILL
    left = trial.stored
    assert left and {status for found in left.values() for status in found} <= {
        Status.PENDING,
        Status.STOPPED_EARLY,
    }
    with Store.open(tmp_path / "store.db") as store:
        (scope,) = {row.scope for row in store.rows()}
        assert not store.fastest(scope, 1)
    assert trial.go.exists()  # the reference is fast now
    winner = trial.run(opencl_device).problems[0].winner
    assert winner is not None and winner["BLOCK"] <= 128
