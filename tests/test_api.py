"""`tune` in a program: what it takes, and its result: record, frame, report, and how it shows itself."""

import ast
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from autotune import tune
from autotune.api import Tuned
from autotune.errors import UsageError
from autotune.measure.measurement import Measurement, Status
from autotune.measure.timing import Caches
from autotune.report.progress import cell_progress
from autotune.search.session import Budget, Measured, Phase, SearchStarted
from autotune.values import Configuration, Problem

pytestmark = pytest.mark.usefixtures("kept_processes")

SPACE = str(Path(__file__).parents[1] / "examples" / "saxpy" / "spaces" / "saxpy.py")


NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook" / "blend.ipynb"
#: What the notebook is tuned with here: two configurations of each problem.
TUNED_WITH = """
    budget="8evals", strategy="random", fixed={"BLOCK": (64, 128), "ITEMS": 2}, quiet=True,
    accept=True, listener=seen.append, device=opencl_device
"""


@pytest.fixture(scope="module")
def notebook(
    tmp_path_factory: pytest.TempPathFactory, opencl_device: str
) -> Iterator[dict[str, Any]]:
    """The names of the example notebook after its cells, run as IPython does: as main, with no file.

    What the cells show is there under ``shown``, what the listener was told under ``seen``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        names = {"__name__": "__main__", "seen": [], "shown": [], "opencl_device": opencl_device}
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []  # the file is what a person wrote
                text = "".join(cell["source"]).replace('budget="20s"', TUNED_WITH)
                show_last(text.replace("00_003", "_003"), names)
        yield names


def show_last(text: str, names: dict[str, Any]) -> None:
    """Run a cell; its last expression is shown."""
    tree = ast.parse(text)
    if isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.parse("shown.append(0)").body[0]
        tree.body[-1].value.args = [last.value]  # type: ignore[attr-defined]
    exec(compile(ast.fix_missing_locations(tree), "<cell>", "exec"), names)


@pytest.fixture(scope="module")
def tuned_notebook(notebook: dict[str, Any]) -> Tuned:
    """What `tune` returned in it."""
    tuned: Tuned = notebook["tuned"]
    return tuned


@pytest.mark.opencl
def test_tune_returns_record_frame_and_report(
    notebook: dict[str, Any], tuned_notebook: Tuned
) -> None:
    assert [entry.problem for entry in tuned_notebook.record.problems] == [
        {"n": 1003},
        {"n": 10003},
    ]
    assert len(tuned_notebook.frame) == 4
    assert set(tuned_notebook.frame["BLOCK"]) == {64, 128}
    assert set(tuned_notebook.frame["ITEMS"]) == {2}
    assert set(tuned_notebook.frame["n"]) == {1003, 10003}
    assert (tuned_notebook.frame["status"] == "ok").all()
    kinds = tuned_notebook.frame.dtypes
    assert [name for name, kind in kinds.items() if str(kind) == "object"] == ["samples_ms"]
    known = {
        "registers": "Int64",
        "sm_mhz": "Int64",
        "energy_mj": "float64",
        "median_ms": "float64",
    }
    assert {name: str(kinds[name]) for name in known} == known
    assert tuned_notebook.report.exists()
    assert sum(isinstance(event, Measured) for event in notebook["seen"]) == 4
    times = [
        tuned_notebook.record.provenance.created,
        *(entry.origin.tuned_on for entry in tuned_notebook.record.problems),
    ]
    for time in times:
        assert datetime.now(UTC) - timedelta(hours=1) < datetime.fromisoformat(time)
        assert datetime.fromisoformat(time) <= datetime.now(UTC)


@pytest.mark.opencl
def test_a_result_says_its_winners_in_a_line_each(tuned_notebook: Tuned) -> None:
    first, *lines = repr(tuned_notebook).split("\n")
    assert first == f"blend on {tuned_notebook.record.device.name}:"
    for line, entry in zip(lines, tuned_notebook.record.problems, strict=True):
        chosen = f"BLOCK={entry.configuration['BLOCK']}, ITEMS=2"
        pattern = rf"  n={entry.problem['n']}: [\d.]+ [nµ]s( \(noisy\))? with {chosen}"
        assert re.fullmatch(pattern, line)


@pytest.mark.opencl
def test_a_notebook_shows_the_winners(tuned_notebook: Tuned) -> None:
    shown = tuned_notebook._repr_html_()
    (table,) = ElementTree.fromstring(shown).findall("table")
    assert len(table.findall(".//tr")) == 3
    charts = [svg.get("aria-label") for svg in ElementTree.fromstring(shown).iter("svg")]
    assert charts == [
        "Search of n=1003",
        "Effect of BLOCK",
        "Search of n=10003",
        "Effect of BLOCK",
    ]
    assert "--" not in shown
    assert "BLOCK=" in shown
    assert "<style" not in shown and "http" not in shown


@pytest.mark.opencl
def test_the_example_notebook_shows_what_it_promises(notebook: dict[str, Any]) -> None:
    answer, table, blended = notebook["shown"]
    assert answer is notebook["tuned"]
    assert table.notna().to_numpy().sum() == 4
    np.testing.assert_array_equal(blended, np.full(4, 0.25, np.float32))


@pytest.mark.opencl
def test_one_configuration_is_measured_and_not_recorded(
    tmp_path: Path, opencl_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = tune(
        SPACE,
        problems={"n": np.int64(3)},
        config={"BLOCK": np.int32(64)},
        timing="hot",
        device=opencl_device,
        quiet=True,
    )
    (row,) = found.frame.to_dict("records")
    assert (row["BLOCK"], row["ITEMS"], row["status"]) == (64, 1, "ok")
    (entry,) = found.run.problems
    assert found.run.request.timing_of(entry.problem).caches is Caches.HOT
    assert re.search(r": n=3: ok, .* with BLOCK=64, ITEMS=1$", repr(found))
    assert "BLOCK=64" in found._repr_html_()
    assert not list(tmp_path.iterdir())
    assert found.report is found.record is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"budget": "soon"}, "expected for example"),
        ({"problems": [{"m": 3}]}, "unknown problem field 'm'"),
        ({"problems": [3]}, "problem: got 3, expected a mapping: {'n': ...}"),
        ({"config": ["BLOCK=64"]}, "config: .* expected a mapping: {'BLOCK'"),
        ({"timing": "warm"}, "unknown timing 'warm'"),
        ({"fixed": {"BLOK": 32}}, "unknown parameter 'BLOK'.*BLOCK"),
        ({"config": {"BLOCK": "a"}}, "saxpy: unknown value of BLOCK: 'a'"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(
    arguments: dict[str, object], words: str, opencl_device: str
) -> None:
    kernel = "saxpy" if "spaces" in arguments else SPACE
    with pytest.raises(UsageError, match=words):
        tune(kernel, **{"device": opencl_device, **arguments})  # type: ignore[arg-type]


def test_progress_in_a_notebook_replaces_itself_and_goes() -> None:
    shown: list[str] = []
    problem = Problem(n=3)
    right = Measurement(Configuration(BLOCK=32), Status.OK, samples_ms=(1.0, 2.0, 3.0))
    with cell_progress("saxpy", 1, lambda text: shown.append(text.plain)) as progress:
        progress(SearchStarted(problem, Budget(evaluations=4)))
        for _ in range(1000):  # of which as many are shown as there is time for
            progress(Measured(problem, right, False, None))
        progress(Phase(problem, "finals"))
    assert shown[-2] == "saxpy n=3: finals: the best, interleaved"
    assert shown[0] == "saxpy n=3: 0 of 4 tried"
    assert shown[-1] == ""
    assert len(shown) < 1000
