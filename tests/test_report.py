"""Reports: contents, statistics, escaping, odd cases, and the page in a headless Chromium."""

import base64
import functools
import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import unified_diff
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from chromium import Page, browser
from markdown_it import MarkdownIt
from sample_records import entered, places, race, tuned_problem, vendor_call
from sample_spaces import write_space
from thinned import thinned

from autotune import Kernel, Launch, Problem
from autotune.answers.table import AnswerTable, Expected, Plan, Portfolio, Prediction, TableRow
from autotune.cli import run as command
from autotune.cli import runs
from autotune.devices.base import CompiledFunction
from autotune.devices.device import Clocks, for_arch
from autotune.errors import RecordError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.definition import Definition
from autotune.kernel.space import Space, enumerate_space
from autotune.measure.counters import FIGURES
from autotune.measure.measurement import Measurement, Status
from autotune.report import charts, evidence, results, wording
from autotune.report.content import ProblemContent, ReportContent, content_of, from_rows, from_run
from autotune.report.evidence import explained, importance
from autotune.report.page import write_html, write_markdown
from autotune.report.publish import Published
from autotune.report.wording import NONE
from autotune.run import verdict
from autotune.run.request import Request
from autotune.run.result import ProblemResult, RunResult
from autotune.store import Row
from autotune.tuned.counted import CountedVariant, add_counts, file_of
from autotune.tuned.reading import decode, read_all
from autotune.tuned.record import Checks, Provenance, RaceResult, TunedProblem, TunedRecord
from autotune.tuned.recorded_device import RecordedDevice
from autotune.values import Configuration

ROOT = Path(__file__).parents[1]
SMALL, LARGE = Problem(m=512, n=512), Problem(m=4096, n=4096)
EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>|`*_[a](b)\n# x"
PARAMETERS = {"BM": (32, 64, 128), "PAD": (False, True), "ONE": (7,)}


def measurement(
    configuration: Configuration,
    time_ms: float = 1.0,
    status: Status = Status.OK,
    message: str = "",
    spill_bytes: int = 0,
) -> Measurement:
    return Measurement(
        configuration,
        status,
        message,
        samples_ms=(time_ms, time_ms) if status.is_timed else (),
        entries=(CompiledFunction("k", 40, spill_bytes, 4096),)
        if status is not Status.COMPILE_FAILED
        else (),
        dynamic_shared_bytes=1024,
        compile_s=0.5,
        measure_s=0.25,
    )


def page_data(page: str) -> Any:
    """What the figures of a page are drawn from."""
    data = re.search(r'id="data">(.*?)</script>', page)
    assert data
    return json.loads(gzip.decompress(base64.b64decode(data[1])))


def space() -> Space:
    rows = np.array([[i, j, 0] for i in range(3) for j in range(2)], np.int16)
    return Space(dict(PARAMETERS), rows)


def trials() -> tuple[Measurement, ...]:
    """Six configurations: three right, one stopped early, two failures."""
    c = list(space())
    return (
        measurement(c[0], 2.0),
        measurement(c[1], status=Status.COMPILE_FAILED, message="at /home/bob/k.cu(3): no ';'"),
        measurement(c[2], 1.5),
        measurement(c[3], 1.2, Status.STOPPED_EARLY, "slower"),
        measurement(c[4], 1.25, spill_bytes=8),
        measurement(c[5], status=Status.WRONG_RESULT, message="c[0] is 1, expected 2"),
    )


def entry(problem: Problem, configuration: Configuration, **changes: Any) -> TunedProblem:
    made_up = {
        "median_ms": 1.25,
        "interval_ms": (1.24, 1.26),
        "source": "ab" * 32,
        "evaluations": 6,
        "seed": 3,
        "command": "autotune run sgemm",
        "gb_per_s": 100.0,
        "gflop_per_s": 23456.0,
        "limit_fraction": 0.7,
        "limit_name": "ffma",
        "vendor": vendor_call("cublas", 1.3, 1.04, 1.03, 1.05),
        "tied": 2,
        "checks": Checks(max_error=1e-5, rms_error=2e-6, bound=8e-5, drawn={"a": (-4, 3.9)}),
        "registers": 40,
        "spill_bytes": 8,
        "static_shared_bytes": 4096,
        "arguments": "",
        "toolchain": "nvrtc 13.4",
        "device_uuid": "",
    }
    plan = Plan(configuration=dict(configuration), block=(32, 4, 1))
    return tuned_problem(dict(problem), plan, **{**made_up, **changes})


def record(entries: Sequence[TunedProblem] = (), kernel: str = "sgemm") -> TunedRecord:
    return TunedRecord(
        kernel=kernel,
        device=RecordedDevice(
            backend="cuda", name="NVIDIA Test", arch="sm_90", shared_bytes_per_block=8192
        ),
        fields={"m": "integer", "n": "integer"},
        parameters=PARAMETERS,
        defaults=(
            TableRow(
                problem=dict(SMALL),
                plans=(Plan(configuration=dict(next(iter(space()))), block=(32,)),),
            ),
        ),
        problems=tuple(entries),
        provenance=Provenance(
            version="0.1.0", toolchain="nvrtc 13.4", driver="580.1", created="2026-11-21"
        ),
    )


def raced() -> RaceResult:
    """Finals of two tied configurations and a vendor."""
    noise = np.random.default_rng(0).normal(0, 0.004, (3, 40))
    found = trials()
    finalists = [
        entered(found[4], 1.25 * (1 + noise[0]), clean_ms=1.2, hot_ms=1.1),
        entered(found[2], 1.251 * (1 + noise[1])),
        entered(found[0], 2.0 * (1 + noise[2])),
    ]
    result = verdict.judge(race(finalists, {"cublas": 1.3 * (1 + noise[2])}, hot_ms=0.9))
    assert result
    return result


def run(problems: Sequence[ProblemResult], searched: Space | None = None) -> RunResult:
    kernel = Kernel("sgemm.cu", **PARAMETERS)
    request = Request(kernel, for_arch("sm_90"), (SMALL,))
    return RunResult(
        request, tuple(problems), searched or space(), 1, Definition("ab" * 32, ""), "nvrtc 13.4"
    )


def full() -> ReportContent:
    """One problem with everything."""
    result = ProblemResult(SMALL, trials(), result=raced(), seconds=12.0)
    winner = trials()[4].configuration
    return from_run(run([result]), record([entry(SMALL, winner)]))


def searched(found: Sequence[Measurement], problem: Problem = SMALL) -> ReportContent:
    """A problem for which there is no answer."""
    return content_of(record(), [ProblemContent(problem, tuple(found))])


def evil() -> ReportContent:
    """Every text that a user's file decides is an attack."""
    parameters = {EVIL: (EVIL, "b"), "B": (1, 2)}
    rows = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.int16)
    attacked = Space(parameters, rows)
    found = [measurement(c, 1.0 + i) for i, c in enumerate(attacked)]
    found[1] = measurement(found[1].configuration, status=Status.CRASHED, message=EVIL)
    problem = Problem(dtype=EVIL)
    finalists = [entered(found[i], (1.0 + i, 1.1 + i, 1.2 + i)) for i in (0, 2, 3)]
    finals = verdict.judge(race(finalists, {EVIL: (2.0, 2.0, 2.0)}))
    vendor = vendor_call(EVIL, 2.0, 2.0, 1.9, 2.1)
    tuned_entry = entry(problem, found[0].configuration, vendor=vendor, noise=(EVIL,), command=EVIL)
    tuned_entry = msgspec.structs.replace(tuned_entry, limit_name=EVIL)
    written = record([tuned_entry, entry(SMALL, found[0].configuration)], kernel=EVIL)
    device = msgspec.structs.replace(written.device, name=EVIL, uuid=EVIL)
    written = msgspec.structs.replace(written, device=device, parameters=parameters)
    result = ProblemResult(problem, tuple(found), result=finals)
    return from_run(run([result], searched=attacked), written)


# ---------------------------------------------------------------------- what is said


def test_the_answer_says_time_interval_rate_vendor_and_limit() -> None:
    table = results.winners(full())
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "Problem": "m=512, n=512",
        "Time": "1.250 ms",
        "95 % interval": "1.240 – 1.260",
        "Rate": "23.46 TFLOP/s",
        "Speed vs cublas (95 %)": "1.040× (1.030 – 1.050)",
        "Speed vs default": "1.600×",
        "Share of measured limit": "70.0 % of FP32 rate (FFMA)",
        "Tied": "2",
        "Tried": "6",
    }
    assert "1.040× the speed of cublas" in results.headline(full())


def test_winning_configurations_leave_out_what_is_no_choice() -> None:
    table = results.configurations(full())
    assert (table.columns, table.rows) == (
        ("Problem", "BM", "PAD"),
        (("m=512, n=512", "128", "0"),),
    )


def test_winners_of_several_sources_are_shown_with_their_own_parameters() -> None:
    tuned = next(
        known
        for known in read_all(ROOT / "reports")
        if (known.kernel, known.device.name) == ("sgemm", "NVIDIA H200")
    )
    table = results.configurations(content_of(tuned, []))
    assert table.columns == ("Problem", "Source", "Parameters")
    for _, source, shown in table.rows:
        assert {part.split("=")[0] for part in shown.split(", ")} <= set(tuned.sources[source])


def test_of_many_parameters_only_those_that_tell_winners_apart_are_shown() -> None:
    """Of the shipped winners of transpose; of a single one everything is."""
    (tuned,) = (
        known
        for known in read_all(ROOT / "reports")
        if (known.kernel, known.device.name) == ("transpose", "NVIDIA H200")
    )
    _, *values = zip(*results.configurations(content_of(tuned, [])).rows, strict=True)
    assert all(len(set(column)) > 1 for column in values)
    alone = msgspec.structs.replace(tuned, problems=tuned.problems[:1])
    shown = results.configurations(content_of(alone, []))
    assert {row[0] for row in shown.rows} == set(tuned.parameters)


def test_finals_show_interval_ratio_and_ties() -> None:
    held = msgspec.structs.replace(entry(SMALL, trials()[4].configuration), race=raced())
    content = content_of(record([held]), [ProblemContent(SMALL, trials())], space())
    table = evidence.finals(content, content.problems[0])
    assert [row[4] for row in table.rows] == ["winner", "tied", "slower", "vendor"]
    assert table.rows[0][0] == "BM=128, PAD=0" and table.strong == {0}
    assert table.rows[1][0] == "BM=64"  # what differs from the winner
    assert re.fullmatch(r"1\.60\d× \(1\.5\d\d – 1\.6\d\d\)", table.rows[2][3])
    clean, hot = map(table.columns.index, ("Clean cache", "Hot cache"))
    assert [row[clean] for row in table.rows] == ["1.200 ms", NONE, NONE, NONE]
    assert [row[hot] for row in table.rows] == ["1.100 ms", NONE, NONE, "900.0 µs"]


def test_failures_have_counts_and_an_example_without_paths() -> None:
    content = full()
    assert evidence.outcomes(content, content.problems[0]).rows[2] == (
        "compile_failed",
        "1",
        "16.7 %",
        "BM=32, PAD=1: at …/k.cu(3): no ';'",
    )


def test_provenance_names_device_toolchain_versions_seed_and_command() -> None:
    rows = dict(results.provenance(full()).rows)
    assert rows["Device"] == "NVIDIA Test (sm_90)"
    assert rows["Toolchain"] == "nvrtc 13.4" and rows["Driver"] == "580.1"
    assert rows["Seed"] == "3" and rows["Strategy"] == "random" and rows["autotune"] == "0.1.0"
    assert rows["Source (sha256)"] == "ab" * 8 and len(rows["Space (sha256)"]) == 16
    assert rows["Command"] == "autotune run sgemm"


def test_a_finalist_that_proved_wrong_counts_as_failed() -> None:
    found = trials()
    wrong = replace(found[4], status=Status.WRONG_RESULT, message="wrong on odd sizes")
    result = ProblemResult(SMALL, found, (wrong,))
    (problem,) = from_run(run([result]), record()).problems
    assert [trial.status for trial in problem.trials].count(Status.WRONG_RESULT) == 2
    assert len(problem.trials) == 6 and problem.best_ms == 1.5


def test_warnings_are_grouped_by_reason() -> None:
    winner = trials()[4].configuration
    old = record([entry(problem, winner) for problem in (SMALL, LARGE)])
    provenance = msgspec.structs.replace(old.provenance, source="another")
    old = msgspec.structs.replace(old, provenance=provenance)
    assert results.warnings(content_of(old, [])) == [
        "m=512, n=512; m=4096, n=4096: should be tuned again, its source changed."
    ]


def test_the_portfolio_is_ranked_by_geometric_mean_and_failures_come_last() -> None:
    made = [dict(configuration) for configuration in list(space())[:3]]
    portfolio = Portfolio(
        configurations=tuple(made),
        problems=(dict(SMALL), dict(LARGE)),
        median_ms=((1.0, None), (1.1, 8.0), (2.0, 4.0)),
    )
    known = msgspec.structs.replace(record(), portfolio=portfolio)
    table = results.portfolio(content_of(known, []))
    assert [row[1:] for row in table.rows] == [
        ("1.414×", "2.000×", "m=512, n=512"),
        ("1.483×", "2.000×", "m=4096, n=4096"),
        ("–", "–", "fails on 1 problem"),
    ]


def test_no_configuration_of_the_portfolio_beats_an_answer() -> None:
    """The finals chose the second; that the first was faster in another race is not told."""
    made = [dict(configuration) for configuration in list(space())[:3]]
    portfolio = Portfolio(
        configurations=tuple(made),
        problems=(dict(SMALL), dict(LARGE)),
        median_ms=((1.0, 6.0), (1.25, 8.0), (3.0, 4.0)),
    )
    known = msgspec.structs.replace(record([entry(SMALL, made[1])]), portfolio=portfolio)
    assert [row[1:] for row in results.portfolio(content_of(known, [])).rows] == [
        ("1.225×", "1.500×", "m=4096, n=4096"),
        ("1.414×", "2.000×", "m=4096, n=4096"),
        ("1.549×", "2.400×", "m=512, n=512"),
    ]


def test_the_expected_speed_for_other_sizes_is_shown_where_it_is_known() -> None:
    plan = Plan(configuration=dict(next(iter(space()))), block=(32,))
    rows = (TableRow(problem=dict(SMALL), plans=(plan,)),)
    expected = Expected(ranges=(), splits=((0, 9),), shares=((0.9, 0.97), (0.8, 1.0)))
    unknown = Prediction(multiple=4, costs=(), sizes=5)
    known = Prediction(multiple=4, costs=(), sizes=60, expected=expected)
    tables = (AnswerTable(rows=rows, prediction=each) for each in (None, unknown, known))
    shown = msgspec.structs.replace(record(), portfolio=Portfolio(tables=tuple(tables)))
    assert results.other_sizes(content_of(shown, [])).rows == (
        ("the fastest predicted", "60", "0.80 to 1.00, 0.90 to 0.97"),
    )


def test_clocks_and_throttling_are_provenance() -> None:
    slow = Clocks(sm_mhz=1410, throttle_reasons=("power",))
    found = [replace(trial, clocks=Clocks(sm_mhz=1980)) for trial in trials()]
    found[2] = replace(found[2], clocks=slow)
    rows = dict(results.provenance(searched(found)).rows)
    assert rows["SM clock"] == "1410 MHz to 1980 MHz"
    assert rows["Throttled"] == "1 of 6 measurements (power)"


def test_noise_is_a_warning_with_what_helps() -> None:
    configuration = trials()[4].configuration
    doubtful = entry(SMALL, configuration, noise=("its time is known to within 9% only",))
    content = content_of(record([doubtful, entry(LARGE, configuration)]), [])
    assert results.warnings(content) == [
        "m=512, n=512: noisy, its time is known to within 9% only.",
        f"For results with less noise, {wording.hint(verdict.LESS_NOISE)}.",
    ]
    assert [row[1] for row in results.winners(content).rows] == ["1.250 ms (noisy)", "1.250 ms"]


def test_advice_in_a_notebook_names_arguments() -> None:
    text = wording.hint(verdict.LESS_NOISE, in_python=True)
    assert "fresh=True" in text and 'effort="full", budget=' in text and "--" not in text


def test_the_chart_of_a_search_shows_all_trials_and_the_line_of_the_best() -> None:
    content = many()
    data = evidence.problem_data(content, content.problems[0])
    svg = ElementTree.fromstring(charts.search(data))
    dots = {path.get("stroke"): path.get("d", "").count("M") for path in svg.iter("path")}
    assert dots[charts.GREY] == 15 and dots[charts.RED] == 5
    words = [text.text for text in svg.iter("text")]
    assert "configurations tried: 20; time in ms" in words
    panels = ElementTree.fromstring(f"<div>{charts.effects(data)}</div>")
    assert len(panels) == len(data["effects"])


def test_the_table_of_a_run_says_what_is_noisy(capsys: pytest.CaptureFixture[str]) -> None:
    """And shows ties by the ratio that decides them."""
    found = list(trials())
    held = race([entered(found[4], [1.25] * 9)])
    result = run([ProblemResult(SMALL, tuple(found), race=held, result=raced())])
    doubtful = entry(SMALL, found[4].configuration)
    noisy = msgspec.structs.replace(raced(), noise=("the device was throttled",))
    doubtful = msgspec.structs.replace(doubtful, race=noisy)
    nowhere = Path("x")
    published = Published(record([doubtful]), (), nowhere, nowhere, nowhere, None)
    runs.show_winners(result, published)
    runs.say_where(result, published)
    out, err = capsys.readouterr()
    header, row = out.splitlines()[1:3]
    assert header.endswith("Configuration") and "1.249 ms (noisy)" in row
    tied = raced().runners_up[0]
    assert tied.ratio and f"2 ({tied.ratio.low:.3f} … {tied.ratio.high:.3f}×)" in row
    assert "m=512, n=512 is noisy: the device was throttled\n" in err
    assert f"for less noise, {wording.hint(verdict.LESS_NOISE)}\n" in err


# ---------------------------------------------------------------------- statistics


def test_explained_is_kelleys_epsilon_squared() -> None:
    groups = [[1.0, 2.0, 4.0], [8.0, 8.0, 16.0]]
    logs = [np.log(group) for group in groups]
    everything = np.concatenate(logs)
    total = ((everything - everything.mean()) ** 2).sum()
    within = sum(((group - group.mean()) ** 2).sum() for group in logs)
    assert explained(groups) == pytest.approx((total - within - within / 4) / total)


def test_explained_knows_all_nothing_and_too_little() -> None:
    assert explained([[1.0, 1.0], [2.0, 2.0]]) == 1.0
    assert explained([[1.0, 1.0], [1.0, 1.0]]) == 0.0
    assert explained([[1.0], [2.0]]) is None
    assert explained([[1.0, 2.0], []]) is None
    noise = np.random.default_rng(1).lognormal(size=(5, 40))
    assert explained(noise.tolist()) == pytest.approx(0.0, abs=0.05)


def test_parameters_are_ranked_by_importance() -> None:
    cells = [(bm, pad) for bm in PARAMETERS["BM"] for pad in (False, True)]
    found = [
        measurement(Configuration(BM=bm, PAD=pad, ONE=7), bm * (1.01 if pad else 1.0))
        for bm, pad in cells
    ]
    found[-1] = replace(found[-1], status=Status.TIMED_OUT, samples_ms=())
    (first, share), (second, _) = importance(ProblemContent(SMALL, tuple(found)), space()).items()
    assert (first, second) == ("BM", "PAD")  # ONE is no choice
    assert share is not None and share > 0.99


def test_trials_to_which_a_parameter_does_not_apply_are_not_its_own() -> None:
    kernel = Kernel("k.cu", VARIANT=("plain", "deep"), STAGES=(1, 2))

    @kernel.applies("STAGES")
    def pipelined(VARIANT):
        return VARIANT == "deep"

    kernel.launch(lambda c, p: Launch((1,), (1,)))
    declared = enumerate_space(kernel, for_arch("sm_90"))
    found = tuple(measurement(c, 1.0 + i) for i, c in enumerate(declared))
    shares = importance(ProblemContent(SMALL, found), declared)
    deep = [trial.median_ms for trial in found if trial.configuration["VARIANT"] == "deep"]
    assert len(deep) == 2 and shares == {
        "VARIANT": explained([[found[0].median_ms], deep]),
        "STAGES": None,  # two deep ones: too few of a value
    }


def test_the_page_holds_the_seconds_spent_up_to_each_trial(tmp_path: Path) -> None:
    page = write_html(full(), tmp_path / "page.html").read_text()
    spent = page_data(page)["problems"][0]["trials"]["seconds"]
    assert spent == pytest.approx([0.75 * number for number in range(1, 7)], abs=0.01)


# ---------------------------------------------------------------------- stored rows


def row(number: int, trial: Measurement, **changes: object) -> Row:
    fields = {
        "run_id": 1,
        "kernel": "sgemm",
        "problem": SMALL,
        "device_name": "NVIDIA Test",
        "device_uuid": "u",
        "arch": "sm_90",
        "driver": "580.1",
        "toolchain": "nvrtc 13.4",
        "source": "ab" * 32,
        "arguments": "x",
        "timing": "cold:flush",
        "created": "2026-11-20T10:00:00.000+00:00",
        "seed": 3,
        "strategy": "random",
    }
    return Row(id=number, scope="", measurement=trial, **{**fields, **changes})


def test_rows_of_other_kernels_devices_and_ways_of_measuring_stay_out() -> None:
    found = trials()
    again = replace(found[0], samples_ms=(1.9,))
    rows = [
        *(row(i, trial) for i, trial in enumerate(found)),
        row(10, again, created="2026-11-21T10:00:00.000+00:00", run_id=2),
        row(11, replace(found[2], samples_ms=(0.1,)), timing="hot"),
        row(12, replace(found[2], samples_ms=(0.1,)), device_name="Other"),
        row(13, replace(found[2], samples_ms=(0.1,)), kernel="reduce"),
    ]
    content = from_rows(rows, record([entry(SMALL, found[4].configuration)]), space())
    (problem,) = content.problems
    assert len(problem.trials) == 6 and problem.best_ms == 1.25
    assert problem.trials[0].median_ms == 1.9  # the newest, in the place of the first


@pytest.mark.opencl
def test_report_writes_the_page_that_the_run_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: str, kept_processes: None
) -> None:
    """After several runs, one of them accepted, with a problem each and failures."""
    monkeypatch.chdir(tmp_path)
    space_file = write_space(tmp_path)
    source = tmp_path / "kernels" / "scale.cu"
    source.write_text(source.read_text().replace("i < n", "i < n && (BLOCK < 64 || n > 500)"))
    tuning = ["run", str(space_file), "--device", opencl_device, "--strategy", "exhaustive"]
    for options in (["n=100"], ["n=1000", "--budget", "1evals"], ["n=1000", "--fix", "BLOCK=32"]):
        assert command([*tuning, "--problem", *options, "--accept"]) == 0
        written = {file: file.read_text() for file in (tmp_path / "reports").rglob("scale.*")}
        assert command(["report", "scale", "--spaces", str(space_file.parent)]) == 0
        pages = [file for file in written if file.suffix in (".md", ".html")]
        assert len(pages) == 2
        for file in pages:
            assert file.read_text().splitlines() == written[file].splitlines()


def test_without_rows_the_record_alone_makes_a_report(tmp_path: Path) -> None:
    content = from_rows([], record([entry(SMALL, trials()[4].configuration)]))
    assert results.winners(content).rows[0][1] == "1.250 ms"
    text = write_markdown(content, tmp_path).read_text()
    assert "1.250 ms" in text and "a -4 … 3.9" in text  # its data
    write_html(content, tmp_path / "report.html")


def test_counters_of_the_winner_and_others_are_a_section(tmp_path: Path) -> None:
    """Beside the record as `explain --out` writes them; those of an older source stay out."""
    winner = entry(SMALL, trials()[4].configuration)
    content = from_rows([], record([winner]))
    counted = CountedVariant(
        problem=dict(SMALL),
        configuration=dict(winner.configuration),
        time_ms=1.25,
        counters={FIGURES["sectors_ld"].metric: 4.0, FIGURES["l1_hit"].metric: 61.9},
        source=winner.origin.source,
        arguments="",
        created="2026-11-27T00:00:00+00:00",
    )
    stale = msgspec.structs.replace(counted, time_ms=9.0, source="older", configuration={"bm": 1})
    page = tmp_path / "matmul.html"
    file = file_of(tmp_path.parent, tmp_path.name, "matmul")
    add_counts(file, "matmul", content.record.device, [counted, stale])
    text = write_html(content, page).read_text()
    assert "sectors per load request" in text and "61.9 %" in text
    assert "9.000 ms" not in text
    file.unlink()
    assert "sectors per load request" not in write_html(content, page).read_text()


def test_the_command_needs_no_store_where_records_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORE", "sqlite:////nowhere/store.sqlite")
    reports = ROOT / "reports"
    arguments = ["report", "copy", "--device", "NVIDIA_H200", "--out", str(tmp_path)]
    assert command([*arguments, "--from", str(reports)]) == 0
    written = {Path(line) for line in capsys.readouterr().out.splitlines()}
    assert {file.name for file in written} == {"copy.md", "copy.html"}
    for file in (file for file in written if file.suffix != ".html"):
        assert file.read_bytes() == (reports / "NVIDIA_H200" / file.name).read_bytes()


def test_no_committed_page_is_older_than_its_record(tmp_path: Path) -> None:
    """Nor than the space file: autotune report --from reports --out reports writes all of them anew."""
    spaces: dict[tuple[str, str], Space] = {}
    records = read_all(ROOT / "reports")
    assert len(records) > 10
    for known in records:
        key = known.kernel, known.device.arch
        if known.device.backend != "cuda":
            continue  # of a run on this machine
        if key not in spaces:
            spaces[key] = enumerate_space(
                find_kernel(known.kernel, ROOT / "spaces"), for_arch(key[1])
            )
        written = write_markdown(from_rows((), known, spaces[key]), tmp_path)
        committed = ROOT / "reports" / known.device.folder / written.name
        now, then = (file.read_text().split("\n") for file in (written, committed))
        changed = unified_diff(then, now, str(committed), "now", n=0, lineterm="")
        assert "\n".join(line[:200] for line in islice(changed, 9)) == ""


# ---------------------------------------------------------------------- files


class _Elements(HTMLParser):
    """Collects elements, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def odd_cases() -> dict[str, ReportContent]:
    found = trials()
    failed = tuple(trial for trial in found if not trial.status.is_timed)
    winner = found[4].configuration
    plain = entry(SMALL, winner, vendor=None, limit_fraction=None, limit_name=None, checks=None)
    wide = [ProblemContent(Problem(n=i), found) for i in range(9)]
    return {
        "no problem": content_of(record(), []),
        "nothing measured": searched([]),
        "everything failed": searched(failed),
        "one trial": searched(found[:1]),
        "only stopped early": searched(found[3:4]),
        "no vendor, limits or space": content_of(record([plain]), [ProblemContent(SMALL, found)]),
        "record only": content_of(record([entry(LARGE, winner)]), [ProblemContent(SMALL, found)]),
        "many problems": content_of(record(), wide, space()),
    }


@pytest.mark.parametrize("case", odd_cases())
def test_odd_cases_make_whole_files(case: str, tmp_path: Path) -> None:
    content = odd_cases()[case]
    assert write_markdown(content, tmp_path).read_text().startswith("# sgemm on NVIDIA Test\n")
    page = write_html(content, tmp_path / "page.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert len(list(tmp_path.glob(".*"))) == 0


def test_no_winner_is_said_with_what_happened() -> None:
    (warning,) = results.warnings(odd_cases()["everything failed"])
    assert (
        "no configuration passed verification and was timed (1 compile_failed, 1 wrong_result)"
        in warning
    )
    row = results.winners(odd_cases()["everything failed"]).rows[0]
    assert row[1] == "no winner"


def test_columns_that_nobody_filled_are_left_out() -> None:
    columns = results.winners(odd_cases()["no vendor, limits or space"]).columns
    assert columns == (
        "Problem",
        "Time",
        "95 % interval",
        "Rate",
        "Speed vs default",
        "Tied",
        "Tried",
    )


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    before = write_markdown(full(), tmp_path).read_bytes()
    assert write_markdown(full(), tmp_path).read_bytes() == before
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["sgemm.md"]


@pytest.mark.parametrize("limit", ["ffma", "tensor"])
def test_the_roofline_is_of_measured_limits(limit: str) -> None:
    winner, limited = trials()[4].configuration, {"limit_name": limit}
    entries = [
        entry(SMALL, winner, limit_fraction=0.5, gflop_per_s=30000.0, **limited),
        entry(LARGE, winner, limit_fraction=0.25, gflop_per_s=14000.0, vendor=None, **limited),
    ]
    found = evidence.roofline(content_of(record(entries), []))
    assert found is not None and not found["of_bytes"]
    assert found["memory"] == []
    assert found["arithmetic"].keys() == {limit}
    roof = found["arithmetic"][limit]
    assert roof["rate"] == 60000e9 and "60.00 TFLOP/s" in roof["label"]
    first, second = found["points"]
    assert first["roof"] == second["roof"] == limit
    assert first["operations"] / first["bytes"] == pytest.approx(300.0)
    assert first["vendor_seconds"] == pytest.approx(1.25e-3 * 1.04)
    assert second["vendor_seconds"] is None


def test_each_known_limit_of_arithmetic_is_a_roof() -> None:
    winner = trials()[4].configuration
    entries = [
        entry(SMALL, winner, limit_name="tensor", limit_fraction=0.5, gflop_per_s=300000.0),
        entry(LARGE, winner, limit_name=None, limit_fraction=None, gflop_per_s=14000.0),
    ]
    known = {"read": 3000.0, "copy": 2900.0, "ffma": 60000.0, "tensor": 500000.0}
    found = evidence.roofline(content_of(record(entries), []), known)
    assert found is not None
    assert found["memory"] == [{"rate": 2900e9, "label": "copy bandwidth, 2900 GB/s"}]
    # the record's own measurement goes before the device's
    roofs = {name: roof["rate"] for name, roof in found["arithmetic"].items()}
    assert roofs == {"ffma": 60000e9, "tensor": 600000e9}
    assert [point["roof"] for point in found["points"]] == ["tensor", "tensor"]
    both = [entries[0], msgspec.structs.replace(entries[1], limit_name="ffma", limit_fraction=0.25)]
    found = evidence.roofline(content_of(record(both), []), known)
    assert found is not None
    assert [point["roof"] for point in found["points"]] == ["tensor", "ffma"]


def test_a_winner_of_unknown_arithmetic_is_below_memory_alone() -> None:
    won = entry(SMALL, trials()[4].configuration, limit_name="copy", limit_fraction=0.1)
    found = evidence.roofline(content_of(record([won]), []), {"ffma": 60000.0})
    assert found is not None and found["arithmetic"].keys() == {"ffma"}
    assert found["points"][0]["roof"] == ""


def test_a_rate_of_tensor_cores_is_arithmetic() -> None:
    won = entry(SMALL, trials()[4].configuration, limit_name="tensor", limit_fraction=0.9)
    table = results.winners(content_of(record([won]), []))
    found = dict(zip(table.columns, table.rows[0], strict=True))
    assert found["Rate"] == "23.46 TFLOP/s"
    assert found["Share of measured limit"] == "90.0 % of tensor core rate"


def test_a_limit_that_was_not_measured_is_no_roof() -> None:
    winner = trials()[4].configuration
    copied = entry(SMALL, winner, limit_name="copy", limit_fraction=0.5, gflop_per_s=None)
    quick = entry(LARGE, winner, limit_name=None, limit_fraction=None, gflop_per_s=70000.0)
    found = evidence.roofline(content_of(record([copied, quick]), []))
    assert found is not None and found["of_bytes"]  # one problem has no operations
    assert [roof["rate"] for roof in found["memory"]] == [200e9] and not found["arithmetic"]
    assert [point["share"] for point in found["points"]] == [0.5, None]  # those of the table
    assert evidence.roofline(content_of(record([quick]), [])) is None


def test_without_anything_tuned_no_report_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["report", "--out", str(tmp_path)]) == 2
    assert "nothing is tuned yet; run: autotune run KERNEL" in capsys.readouterr().err


def test_no_absolute_path_is_told(tmp_path: Path) -> None:
    found = [replace(trial, message="in /home/bob/space/x.cu: bad") for trial in trials()]
    result = ProblemResult(SMALL, tuple(found))
    ran = "autotune run sgemm --out '/home/bob/my reports' --store=/home/bob/x"
    content = from_run(run([result]), record([entry(SMALL, found[4].configuration, command=ran)]))
    page = write_html(content, tmp_path / "page.html").read_text()
    texts = [write_markdown(content, tmp_path).read_text(), page, json.dumps(page_data(page))]
    assert not [text for text in texts if "/home" in text or "bob" in text]


# ---------------------------------------------------------------------- attacks


def test_html_escapes_what_users_write(tmp_path: Path) -> None:
    page = write_html(evil(), tmp_path / "page.html").read_text()
    elements = _Elements(page)
    assert elements.tags.count("script") == 5 and "img" not in elements.tags
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    (library,) = tmp_path.glob("plotly-*.js")
    addresses = [value for name, value in elements.attributes if name in ("src", "href")]
    assert addresses == [library.name]
    assert EVIL.replace("\n", " ") in json.dumps(page_data(page)).replace("\\", "")


def test_markdown_escapes_what_users_write(tmp_path: Path) -> None:
    page = write_markdown(evil(), tmp_path)
    assert re.fullmatch(r"\w+\.md", page.name) and page.parent == tmp_path
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(page.read_text())
    elements = _Elements(html)
    assert not {"script", "a", "em", "img"} & set(elements.tags)
    widths = [
        line.count("<td") for line in html.replace("</tr>", "\n").split("\n") if "<td" in line
    ]
    assert len(widths) > 0


def test_no_control_character_of_a_record_reaches_a_page_or_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In any text that a record may hold: a terminal obeys the first three, a reader is misled by the last."""
    control = "\x1b[31m\x9b\x07\u202e"
    document = json.loads((ROOT / "reports/NVIDIA_H200/ffma.json").read_bytes())
    for path in places(json.loads(json.dumps(document))):
        *outer, last = path
        holder = functools.reduce(lambda value, key: value[key], outer, document)
        if isinstance(text := holder[last], str) and last != "kernel":
            holder[last] = text + control
            try:
                decode(json.dumps(document).encode())
            except RecordError:
                holder[last] = text
    file = tmp_path / "records" / "NVIDIA_H200" / "ffma.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(document))
    assert file.read_text().count("u202e") > 40
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "records"))
    source = ["--from", str(tmp_path / "records"), "--out", str(tmp_path / "out")]
    for words in (
        ["report", *source],
        ["report", str(file), "--against", str(file)],
        ["export", "ffma", "cuda", *source],
        ["lookup", "ffma", "n=1024", "steps=64", "--arch", "sm_90"],
    ):
        assert command(words) == 0, capsys.readouterr().err
    printed = "".join(capsys.readouterr())
    written = [f.read_text() for f in tmp_path.joinpath("out").rglob("*.*") if f.is_file()]
    assert len(written) > 5
    assert not [text for text in (printed, *written) if set("\x1b\x9b\x07\u202e") & set(text)]


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("at /home/bob/k.cu(3): x", "at …/k.cu(3): x"),
        ("log:/tmp/a/b", "log:…/b"),
        ("file:///home/u/x.cu: no", "…/x.cu: no"),
        ("10 GB/s and/or https://x.y/z/w", "10 GB/s and/or https://x.y/z/w"),
        ("a / b, ../x/y, a//b/c", "a / b, ../x/y, a//b/c"),
        ("two\nlines\x00 and \u202eback", "two lines and back"),
    ],
)
def test_text_of_others_is_one_line_without_paths(text: str, harmless: str) -> None:
    assert wording.one_line(text) == harmless


@pytest.mark.parametrize(
    ("ms", "text"),
    [(1.2e-6, "1.200 ns"), (0.49066, "490.7 µs"), (9.9996, "10.00 ms"), (12345.6, "12.35 s")],
)
def test_times_have_four_digits_and_a_unit(ms: float, text: str) -> None:
    assert wording.time(ms) == text


@pytest.mark.parametrize(
    ("mj", "text"), [(0.25, "250 µJ"), (1.0, "1 mJ"), (999.5, "999.5 mJ"), (1500.0, "1.5 J")]
)
def test_energies_have_the_largest_unit_below_them(mj: float, text: str) -> None:
    assert wording.energy(mj) == text


# ---------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Page]]:
    with browser(tmp_path_factory.mktemp("profile")) as new_page:
        yield new_page


DRAWN = "document.documentElement.dataset.drawn !== undefined"
SHOWN = ".problem:not([hidden])"


def check_quiet(page: Page, file: Path) -> None:
    """Nothing was fetched but the page and the script beside it, and nothing complained."""
    beside = {script.resolve().as_uri() for script in file.parent.glob("plotly-*.js")}
    fetched = {url for url in page.requests if not url.startswith(("data:", "blob:"))}
    assert fetched == {file.resolve().as_uri()} | beside
    assert page.complaints == []


@pytest.mark.browser
def test_the_page_draws_all_figures_offline(pages: Callable[[], Page], tmp_path: Path) -> None:
    second = ProblemContent(LARGE, trials())
    content = full()
    content = replace(content, problems=(*content.problems, second))
    file, page = write_html(content, tmp_path / "page.html"), pages()
    page.open(file, width=400)
    drawn = f"document.querySelectorAll('{SHOWN} .js-plotly-plot .main-svg').length"
    page.wait_for(DRAWN)
    assert page.evaluate(f"{drawn} >= 4")
    assert page.evaluate("document.querySelector('#winners .js-plotly-plot') !== null")
    assert page.evaluate(f"document.querySelector('{SHOWN} .parallel canvas') !== null")
    assert page.evaluate(f"document.querySelectorAll('{SHOWN} .panel').length") == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.querySelectorAll('#winner-per-problem td button')[1].click()")
    page.wait_for(f"document.querySelector('{SHOWN} h2').textContent === 'm=4096, n=4096'")
    page.wait_for(f"{drawn} >= 3")
    page.evaluate(f"document.querySelector('{SHOWN} [data-axis=seconds]').click()")
    page.wait_for(f"document.querySelector('{SHOWN} .xtitle').textContent.includes('time spent')")
    check_quiet(page, file)


@pytest.mark.browser
def test_a_dotted_line_leads_from_each_problem_to_its_roof(
    pages: Callable[[], Page], tmp_path: Path
) -> None:
    winner = trials()[4].configuration
    entries = [
        entry(SMALL, winner, limit_name="tensor", limit_fraction=0.5, gflop_per_s=300000.0),
        entry(LARGE, winner, limit_name="ffma", limit_fraction=0.25, gflop_per_s=14000.0),
    ]
    file, page = write_html(content_of(record(entries), []), tmp_path / "page.html"), pages()
    page.open(file)
    page.wait_for(DRAWN)
    lines = "document.querySelector('#winners .js-plotly-plot').data"
    labels = f"{lines}.filter((line) => line.mode === 'lines+text').map((line) => line.text[1])"
    assert page.evaluate(labels) == [
        "FP32 rate (FFMA), 56.00 TFLOP/s",
        "tensor core rate, 600.0 TFLOP/s",
    ]
    dotted = f"{lines}.find((line) => line.line?.dash === 'dot').y"
    assert page.evaluate(dotted) == [300000e9, 600000e9, None, 14000e9, 56000e9, None]
    check_quiet(page, file)


def many() -> ReportContent:
    """A search of 20: seven with BM=32, eight with BM=64, five with BM=128 that failed."""
    values = [32] * 7 + [64] * 8 + [128] * 5
    found = [
        measurement(Configuration(BM=bm, PAD=bool(i % 2), ONE=i), 3.0 - 0.1 * i)
        if bm < 128
        else measurement(Configuration(BM=bm, PAD=False, ONE=i), status=Status.WRONG_RESULT)
        for i, bm in enumerate(values)
    ]
    return searched(found)


@pytest.mark.browser
def test_brushes_choose_the_rows_of_the_table_and_columns_sort_it(
    pages: Callable[[], Page], tmp_path: Path
) -> None:
    file, page = write_html(many(), tmp_path / "page.html", single=True), pages()
    page.open(file, dark=True)
    page.wait_for(DRAWN)
    shown = """[...document.querySelectorAll('.table tbody tr')].map((row) => row.cells[0].textContent)"""
    click = "[...document.querySelectorAll('.table button')].find((b) => b.textContent === '{}').click()"
    assert page.evaluate(shown) == [str(number) for number in range(15, 0, -1)]  # by time
    box, brush = "document.querySelector('.parallel')", "'dimensions[0].constraintrange'"
    page.evaluate(f"Plotly.restyle({box}, {{{brush}: [[[-0.1, 0.7]]]}}).then(() => 0)")
    page.wait_for(f"{shown}.length === 7")
    assert page.evaluate("document.querySelector('output').textContent").startswith(
        "7 of 15 selected"
    )
    page.evaluate(click.format("all configurations"))
    page.evaluate(click.format("No."))
    page.evaluate(click.format("No."))
    assert page.evaluate(shown) == [str(number) for number in range(20, 0, -1)]
    assert page.evaluate("document.querySelector('.table td:nth-child(2)').textContent") == (
        "wrong_result"
    )
    # Seven are points, eight have a box.
    boxes = "document.querySelector('.panel div').data.filter((trace) => trace.type === 'box')"
    assert page.evaluate(f"{boxes}.map((trace) => trace.x[0])") == [1]
    # One symbol, one meaning: whatever is drawn is in the list, and nothing is in it twice.
    assert page.evaluate(
        """(() => {
          const meant = Object.values(SYMBOLS).map((made) => made().symbol);
          const drawn = [...document.querySelectorAll('.js-plotly-plot')]
            .flatMap((plot) => plot.data.filter((trace) => trace.mode === 'markers'))
            .map((trace) => trace.marker.symbol);
          return new Set(meant).size === meant.length && drawn.every((one) => meant.includes(one));
        })()"""
    )
    check_quiet(page, file)


@pytest.mark.browser
def test_wide_pages_show_every_column_and_narrow_ones_break_no_name(
    pages: Callable[[], Page], tmp_path: Path
) -> None:
    """A page with all figures, and the largest record that ships."""
    records = read_all(ROOT / "reports")
    (sgemm,) = (r for r in records if (r.kernel, r.device.name) == ("sgemm", "NVIDIA H200"))
    first = sgemm.problems[0]
    noisy_race = msgspec.structs.replace(first.race, noise=("see --effort and --fresh",))
    doubtful = msgspec.structs.replace(first, race=noisy_race)
    noisy = msgspec.structs.replace(sgemm, problems=(doubtful, *sgemm.problems[1:]))
    page = pages()
    for content in (full(), from_rows([], noisy)):
        file = write_html(content, tmp_path / "page.html", single=True)
        page.open(file, width=1400)
        page.wait_for(f"{DRAWN} || document.scripts.length === 0")
        cut = (
            "[...document.querySelectorAll('.scroll:has(table)')]"
            ".filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.ariaLabel)"
        )
        assert page.evaluate(cut) == []
        page.resize(390)
        page.wait_for(f"{cut}.length === 0")
        named = "[...document.querySelectorAll('td')].every((cell) => cell.dataset.name)"
        assert page.evaluate(named)
        broken = page.evaluate(
            """(() => {
              const found = [], range = document.createRange();
              const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              while (walk.nextNode()) {
                const node = walk.currentNode;
                if (!node.parentElement.offsetParent || node.parentElement.closest('svg')) continue;
                for (const word of node.data.matchAll(/[\\w=-]+/g)) {
                  range.setStart(node, word.index);
                  range.setEnd(node, word.index + word[0].length);
                  if (new Set([...range.getClientRects()].map((r) => r.top)).size > 1)
                    found.push(word[0]);
                }
              }
              return found;
            })()"""
        )
        assert broken == []
        page.wait_for("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_a_page_without_its_script_says_so(pages: Callable[[], Page], tmp_path: Path) -> None:
    file, page = write_html(full(), tmp_path / "page.html"), pages()
    (script,) = tmp_path.glob("plotly-*.js")
    script.unlink()
    page.open(file)
    note = "document.getElementById('alone')"
    page.wait_for(f"!{note}.hidden")
    assert f"{script.name}, which is not in this folder" in page.evaluate(f"{note}.textContent")
    assert "autotune report sgemm --single" in page.evaluate(f"{note}.textContent")


@pytest.mark.browser
def test_attacks_do_not_run_in_the_page(pages: Callable[[], Page], tmp_path: Path) -> None:
    file, page = write_html(evil(), tmp_path / "page.html"), pages()
    page.open(file)
    page.wait_for(DRAWN)
    assert page.evaluate("window.hacked === undefined && document.images.length === 0")
    assert page.evaluate("document.querySelectorAll('.plot a, .panels a').length") == 0
    assert "<img" in page.evaluate("document.querySelector('.panel h4').textContent")
    assert "<img" in page.evaluate("document.querySelector('.table th:nth-child(4)').textContent")
    check_quiet(page, file)


@pytest.mark.browser
@pytest.mark.parametrize(
    "case",
    thinned(
        ["everything failed", "record only", "one trial", "no problem"],
        ["everything failed", "record only"],
    ),
)
def test_odd_pages_complain_of_nothing(
    pages: Callable[[], Page], tmp_path: Path, case: str
) -> None:
    file, page = write_html(odd_cases()[case], tmp_path / "page.html"), pages()
    page.open(file)
    page.wait_for(DRAWN)
    check_quiet(page, file)


def test_kernels_without_own_records_have_pages_of_those_that_ship(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["report", "copy", "ffma", "--device", "NVIDIA_H200", "--out", str(tmp_path)]
    assert command(asked) == 0
    captured = capsys.readouterr()
    assert {Path(line).name for line in captured.out.splitlines()} == {
        f"{kernel}.{kind}" for kernel in ("copy", "ffma") for kind in ("md", "html")
    }
    for kernel in ("copy", "ffma"):
        text = f"{kernel} is not tuned here; the report is of the records that ship with autotune"
        assert text in captured.err
    assert command(["report", "copy", "unheard_of", "--out", str(tmp_path)]) == 2
    assert "unheard_of is not tuned yet" in capsys.readouterr().err
