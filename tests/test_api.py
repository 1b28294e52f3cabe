"""`tune` in a program: the record, a frame of all rows, and the report."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune import tune
from autotune.errors import UsageError

SPACE = str(Path(__file__).parents[1] / "examples" / "saxpy" / "spaces" / "saxpy.py")


@pytest.mark.opencl
def test_tune_returns_record_frame_and_report(
    tmp_path: Path, opencl_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    begun = datetime.now(UTC).replace(microsecond=0)
    tuned = tune(
        SPACE,
        problems=[{"n": 4099}, {"n": 70001}],
        budget="6evals",
        strategy="random",
        device=opencl_device,
        fixed={"BLOCK": (64, 128)},
        listener=seen.append,
    )
    assert [entry.problem for entry in tuned.record.entries] == [{"n": 4099}, {"n": 70001}]
    assert len(tuned.frame) == 6
    assert set(tuned.frame["BLOCK"]) <= {64, 128}
    assert set(tuned.frame["n"]) == {4099, 70001}
    assert (tuned.frame["status"] == "ok").all()
    assert tuned.report.exists()
    assert seen
    times = [tuned.record.provenance.created, *(entry.tuned_on for entry in tuned.record.entries)]
    for time in times:
        assert begun <= datetime.fromisoformat(time) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"effort": "heroic"}, "heroic"),
        ({"budget": "soon"}, "expected for example"),
        ({"problems": [{"m": 3}]}, "fields n expected"),
        ({"device": "rocm:1"}, "rocm"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(
    arguments: dict[str, object], words: str, opencl_device: str
) -> None:
    with pytest.raises(UsageError, match=words):
        tune(SPACE, **{"device": opencl_device, **arguments})  # type: ignore[arg-type]
