"""What the search's model makes of measurements: predictions left out, importances, hostile rows, the section."""

from __future__ import annotations

import itertools
import json
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from sample_records import record

from autotune.cli import run
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.report.content import ProblemContent, content_of
from autotune.report.insight import section
from autotune.search.encoding import Encoding
from autotune.search.insight import FEWEST, Insight, insight, leave_one_out
from autotune.search.proposals import GIVEN
from autotune.search.replay import load
from autotune.search.surrogate import Covariance, Points
from autotune.store import RunInfo, Scope, Store
from autotune.values import Configuration, Problem, Value

DATA = Path(__file__).parent / "data"


def timed(configuration: Configuration, time_ms: float, status: Status = Status.OK) -> Measurement:
    return Measurement(configuration, status, samples_ms=(time_ms,))


def failed(configuration: Configuration) -> Measurement:
    return Measurement(configuration, Status.COMPILE_FAILED, "no")


def full(**parameters: Sequence[Value]) -> list[Configuration]:
    """All combinations."""
    rows = itertools.product(*parameters.values())
    return [Configuration(dict(zip(parameters, row, strict=True))) for row in rows]


def some(
    configurations: Sequence[Configuration], count: int, time_ms: Callable[[Configuration], float]
) -> list[Measurement]:
    """So many at random, timed."""
    chosen = np.random.default_rng(1).permutation(len(configurations))[:count]
    return [timed(configurations[place], time_ms(configurations[place])) for place in chosen]


def told(measurements: Sequence[Measurement]) -> Insight:
    """The insight, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = insight(measurements)
    assert found is not None
    return found


def recorded(name: str, count: int) -> list[Measurement]:
    recording = load(DATA / f"{name}-NVIDIA_H100_80GB_HBM3.json.gz")
    chosen = np.random.default_rng(0).permutation(len(recording.space))[:count]
    return [recording.measurements[number] for number in chosen]


# --- predictions


def test_left_out_in_closed_form_is_left_out_one_by_one() -> None:
    measurements = recorded("gemv", 15)
    values = np.log([measurement.median_ms or 0.0 for measurement in measurements])
    parameters = {
        name: tuple(dict.fromkeys(each.configuration[name] for each in measurements))
        for name in measurements[0].configuration
    }
    rows = [
        [parameters[name].index(each.configuration[name]) for name in parameters]
        for each in measurements
    ]
    space = Space(parameters, np.array(rows, np.int16))
    numbers = np.array([space.index(each.configuration) for each in measurements])
    encoding = Encoding(space)
    points = Points(
        encoding.features(numbers).astype(float), encoding.indicators(numbers).astype(float)
    )
    covariance = Covariance.prior(encoding.width)
    total = covariance.between(points, points)
    means, variances = leave_one_out(total, 0.05, values)
    for place in range(15):
        rest = np.delete(np.arange(15), place)
        inverse = np.linalg.inv(total[np.ix_(rest, rest)] + 0.05 * np.eye(14))
        across = total[place, rest]
        assert means[place] == pytest.approx(across @ inverse @ values[rest], rel=1e-6)
        expected = total[place, place] + 0.05 - across @ inverse @ across
        assert variances[place] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["gemv", "sgemm"])
def test_recorded_times_are_predicted_and_intervals_hold(name: str) -> None:
    measurements = recorded(name, 100)
    found = told(measurements)
    assert [each.measurement for each in found.left_out] == measurements
    assert found.explained > 0.8 and found.rank_correlation > 0.8
    assert 0.88 < found.within <= 1
    for each in found.left_out:
        low, high = each.interval_ms
        assert low < each.predicted_ms < high
        counted = min(each.measurement.median_ms or 0.0, found.slow_ms)
        assert each.is_within == (low <= counted <= high)
    assert insight(measurements) == found


def test_more_than_the_model_takes_are_the_best_half_and_others() -> None:
    measurements = some(full(A=range(20), B=range(20)), 400, lambda c: 1 + abs(c["A"] - c["B"]))
    found = told(measurements)
    assert len(found.left_out) == GIVEN < len(measurements)
    ranked = sorted(measurements, key=lambda each: each.median_ms or math.inf)
    taken = {each.measurement.configuration for each in found.left_out}
    assert {each.configuration for each in ranked[: GIVEN // 2]} <= taken


# --- importances


def shares(found: Insight) -> dict[str, tuple[float, float]]:
    return {each.parameter: (each.alone, each.total) for each in found.importances}


def test_what_is_idle_has_no_importance_and_interactions_are_in_the_total() -> None:
    """log t = f(A) + B · C with B and C of -1 and 1, none of which tells anything alone."""
    configurations = full(A=range(6), B=(0, 1), C=(0, 1), IDLE=range(5), WORD=("x", "y", "z"))

    def time_ms(c: Configuration) -> float:
        return math.exp(0.02 * c["A"] + 0.1 * (2 * c["B"] - 1) * (2 * c["C"] - 1))

    found = told(some(configurations, 150, time_ms))
    logs = np.log([time_ms(each) for each in configurations])
    logs = np.minimum(logs, max(np.quantile(logs, 0.5), logs.min() + 0.2))
    of_a = [[v for v, c in zip(logs, configurations, strict=True) if c["A"] == a] for a in range(6)]
    alone_a = np.var([np.mean(group) for group in of_a]) / np.var(logs)
    importance = shares(found)
    assert importance["A"][0] == pytest.approx(alone_a, abs=0.05)
    for name in ("B", "C"):
        alone, total = importance[name]
        assert alone < 0.05 and total > 0.6
    for name in ("IDLE", "WORD"):
        assert max(importance[name]) < 0.03
    assert found.importances[0].parameter in ("B", "C")
    assert found.explained > 0.95


def test_a_parameter_that_is_the_only_one_explains_all_that_is_explained() -> None:
    blocks = full(BLOCK=range(64, 1025, 64))
    found = told([timed(block, 1 + abs(block.BLOCK - 512) / 512) for block in blocks])
    (importance,) = found.importances
    assert importance.parameter == "BLOCK"
    assert importance.total == pytest.approx(found.explained) and found.explained > 0.9


def test_parameters_tied_by_a_constraint_tell_it_alone_and_none_is_missed() -> None:
    configurations = [
        replaced
        for replaced in full(A=range(8), TWIN=range(8), OTHER=range(4))
        if replaced["A"] == replaced["TWIN"]
    ]
    found = told(some(configurations, 32, lambda c: 1 + c["A"] + 0.01 * c["OTHER"]))
    importance = shares(found)
    for name in ("A", "TWIN"):
        alone, total = importance[name]
        assert alone > 0.8 and total < 0.05


def test_importances_come_near_the_shares_of_a_whole_recorded_space() -> None:
    """From a part of the valid configurations, against variances of means over all of them."""
    recording = load(DATA / "sgemm-NVIDIA_H100_80GB_HBM3.json.gz")
    found = told(recorded("sgemm", 200))
    logs = np.log([measurement.median_ms or 0.0 for measurement in recording.measurements])
    logs = np.minimum(logs, math.log(found.slow_ms))
    importance = shares(found)
    for position, name in enumerate(recording.space.names):
        column = recording.space.rows[:, position]
        if len(np.unique(column)) == 1:
            assert name not in importance
            continue
        means = {index: logs[column == index].mean() for index in np.unique(column)}
        alone = np.var([means[index] for index in column]) / np.var(logs)
        assert importance[name][0] == pytest.approx(alone, abs=0.08)


# --- rows as they come


def noise(configurations: Sequence[Configuration]) -> list[Measurement]:
    times = np.random.default_rng(3).lognormal(sigma=0.3, size=len(configurations))
    return [timed(c, float(t)) for c, t in zip(configurations, times, strict=True)]


GRID = full(A=range(6), B=range(6))


def slope(configuration: Configuration) -> float:
    return math.exp(0.2 * configuration["A"])


def test_too_few_and_all_equal_say_nothing() -> None:
    assert insight([]) is None
    assert insight([timed(GRID[0], 1.0)]) is None
    assert insight([timed(c, slope(c)) for c in GRID[: FEWEST - 1]]) is None
    assert insight([failed(c) for c in GRID]) is None
    assert insight([timed(c, 2.0) for c in GRID]) is None
    again = [timed(GRID[0], 1.0 + number) for number in range(30)]
    assert insight(again) is None  # one configuration, whose last word counts


def test_where_nothing_is_explained_no_parameter_is_important() -> None:
    found = told(noise(GRID))
    assert found.explained < 0.1 and found.importances == ()


def test_what_failed_counts_as_slow_and_has_no_surprise() -> None:
    measurements = [
        failed(c) if c["B"] == 5 else timed(c, 1 + 0.01 * c["A"])
        for c in full(A=range(9), B=range(6))
    ]
    found = told(measurements)
    assert found.slow_ms == pytest.approx(math.exp(0.2))
    assert found.importances[0].parameter == "B"
    for each in found.left_out:
        is_failed = not each.measurement.status.is_timed
        assert (each.surprise is None) == is_failed
        assert (each.predicted_ms > 1.1) == is_failed


def test_what_was_stopped_early_is_a_bound_and_no_value() -> None:
    """Half of the fast ones are stopped at a tenth of their excess: that bends nothing."""
    configurations = full(A=range(9), B=range(9))

    def time_ms(c: Configuration) -> float:
        return math.exp(0.02 * c["A"] + 0.01 * c["B"])

    exact = [timed(c, time_ms(c)) for c in configurations]
    early = [
        timed(each.configuration, 1 + 0.1 * (each.samples_ms[0] - 1), Status.STOPPED_EARLY)
        if number % 2
        else each
        for number, each in enumerate(exact)
    ]
    found = told(early)
    for each, true in zip(found.left_out, exact, strict=True):
        is_early = each.measurement.status is Status.STOPPED_EARLY
        assert (each.surprise is None) == is_early
        if is_early:
            assert each.predicted_ms == pytest.approx(
                min(true.samples_ms[0], found.slow_ms), rel=0.04
            )
    assert found.explained > 0.9


def test_only_stopped_early_are_values_as_there_is_nothing_else() -> None:
    found = told([timed(c, slope(c), Status.STOPPED_EARLY) for c in GRID])
    assert all(each.surprise is not None for each in found.left_out)
    assert found.explained > 0.9


def test_texts_alone_and_rows_of_an_older_space() -> None:
    words = full(A=("a", "b", "c", "d"), B=("u", "v", "w"), C=("x", "y"))
    older = [timed(Configuration(A="a", OLD=1), 1.0)]
    found = told([*older, *(timed(c, 2.0 if c["A"] in "ab" else 1.0) for c in words)])
    assert len(found.left_out) == len(words)
    (first, *others) = found.importances
    assert first.parameter == "A" and first.alone > 0.8
    assert max(each.total for each in others) < 0.05


def test_times_at_the_ends_of_numbers() -> None:
    measurements = [timed(c, 10.0 ** (-300 if c["A"] < 3 else 300)) for c in GRID]
    found = told(measurements)
    assert all(
        0 < low < high < math.inf for each in found.left_out for low, high in [each.interval_ms]
    )
    assert insight([replace(each, samples_ms=(0.0,)) for each in measurements]) is None


# --- the section of a report


EVIL = "</svg><script>window.hacked=1</script>&\"'"


def section_of(measurements: Sequence[Measurement]) -> str:
    parameters = {
        name: tuple(dict.fromkeys(each.configuration[name] for each in measurements))
        for name in measurements[0].configuration
    }
    problem = ProblemContent(Problem(n=1), tuple(measurements))
    return section(content_of(record(parameters=parameters), [problem]), problem)


def test_the_section_draws_every_row_and_names_what_was_predicted_worst() -> None:
    """Of 81, every ninth fails, and one is far from what its neighbours say."""
    configurations = full(A=range(9), B=range(9))
    measurements = [
        failed(c) if c["B"] == 8 else timed(c, math.exp(0.02 * c["A"] + 0.01 * c["B"]))
        for c in configurations
    ]
    measurements[40] = timed(configurations[40], 1.2)
    measurements[10] = replace(measurements[10], status=Status.STOPPED_EARLY)
    root = ElementTree.fromstring(section_of(measurements))
    drawn, bars = root.iter("svg")
    counts = {
        kind: sum(
            path.get("d", "").count("M") for path in drawn.iter("path") if path.get("class") == kind
        )
        for kind in ("dots grey", "thin amber", "thin red")
    }
    # Each once more, in the legend.
    assert counts == {"dots grey": 71 + 1, "thin amber": 1 + 1, "thin red": 2 * (9 + 1)}
    named = [item.text or "" for item in root.iter("li")]
    assert named[0].startswith("A=4, B=4: 1.200 ms, predicted 1.1")
    assert {text.text for text in bars.iter("text")} >= {"A", "B", "lost without it", "alone"}


def test_names_of_users_are_no_markup() -> None:
    measurements = [
        timed(Configuration({EVIL: f"{EVIL}{a}", "B": b}), 1.0 + a + (b == 3) * 7 * (a == 2))
        for a in range(5)
        for b in range(5)
    ]
    text = section_of(measurements)
    assert "<script" not in text and "&lt;/svg&gt;" in text
    assert ElementTree.fromstring(text).tag == "section"


def test_where_little_is_explained_there_are_no_bars_and_of_too_few_no_section() -> None:
    text = section_of(noise(GRID))
    assert "too little to say which parameters matter" in text
    assert len(list(ElementTree.fromstring(text).iter("svg"))) == 1
    assert section_of([timed(c, slope(c)) for c in GRID[:5]]) == ""


def test_times_of_several_hundred_are_told_as_a_part() -> None:
    measurements = some(full(A=range(20), B=range(20)), 400, lambda c: 1 + abs(c["A"] - c["B"]))
    assert "Each of 300 configurations (of 400)" in section_of(measurements)


# --- the command


def stored(path: Path, measurements: Sequence[Measurement]) -> None:
    scope = Scope("demo", Problem(n=7), "GPU-1", "Test GPU", "580.1", "nvrtc", "s", "a", "cold")
    with Store.open(path) as store:
        run_id = store.begin_run(RunInfo("demo", "Test GPU", "random", 1, "0", "autotune run demo"))
        store.add_many(run_id, scope, measurements)


def test_results_tell_the_importance_of_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("AUTOTUNE_STORE", str(path))
    stored(path, [timed(c, slope(c)) for c in GRID])
    assert run(["results", "demo", "--importance"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert "lost without it" in header
    assert first.split()[:3] == ["demo", "n=7", "A"] and second.split()[2] == "B"
    assert run(["results", "--importance", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["parameter"] for row in rows] == ["A", "B"]
    assert rows[0]["explained"] >= rows[0]["lost_without"] > 0.9 > 0.05 > rows[1]["lost_without"]
    assert run(["results", "--importance", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("kernel,problem,device,parameter,lost_without,alone")
    assert run(["results", "--importance", "--best", "3"]) == 2
    assert "leave out --best" in capsys.readouterr().err


def test_importances_that_little_supports_are_hints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(3)
    noisy = [timed(c, slope(c) * math.exp(0.25 * draw.gauss(0, 1))) for c in GRID]
    found = insight(noisy)
    assert found and 0.1 < found.explained < 0.5
    text = section_of(noisy)
    assert (
        "they are hints" in text
        and "explained: hints" in text
        and "bar blue" not in text
        and "bar grey" not in text
    )
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "store.sqlite"))
    stored(tmp_path / "store.sqlite", noisy)
    assert run(["results", "demo", "--importance"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[3].startswith("(")
    assert "hints at best" in err
    assert run(["results", "demo", "--best", "1"]) == 0
    assert "times of the search, each measured once" in capsys.readouterr().err


def test_results_say_where_too_little_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("AUTOTUNE_STORE", str(path))
    stored(path, [timed(c, slope(c)) for c in GRID[:5]])
    assert run(["results", "--importance"]) == 0
    assert "it takes 12 configurations of a problem" in capsys.readouterr().err


def test_what_others_measured_has_importances_too(capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "synthetic.json.gz"
    assert run(["import", str(file), "--kernel", "mine"]) == 0
    capsys.readouterr()
    assert run(["results", "mine", "--imported", "--importance", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["kernel"] == "mine"
