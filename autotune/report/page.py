"""The report as one HTML page: nothing fetched but the script beside it, opens from a folder.

Knows the template; figures are drawn by ``figures.js`` and ``configurations.js`` from data that this
module writes as JSON.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import MissingDependencyError
from autotune.files import write_atomically
from autotune.report import answer, evidence, setting, table, wording
from autotune.report.content import ProblemContent, ReportContent, relevant
from autotune.report.effects import Effect, effects
from autotune.report.front import front_of
from autotune.report.roofline import Roof, Roofline, roofline
from autotune.values import Value

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).parent
_SCRIPTS = ("figures.js", "configurations.js", "page.js")
#: Letter of a parameter's first value in the data; the one before it says that it does not apply.
_FIRST = ord("A")


def write_html(content: ReportContent, path: Path | str, single: bool = False) -> Path:
    """Write the page, and the script that all pages of its folder share; return the page's file.

    Parameters
    ----------
    single
        Whether the script goes into the page instead, which can then be sent without its folder.

    Raises
    ------
    MissingDependencyError
        If plotly is not installed.
    """
    path = Path(path)
    found = [effects(problem, content.space) for problem in content.problems]
    problems = list(zip(content.problems, found, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    script = path.with_name(_script_name())
    if not single and not script.exists():
        write_atomically(script, _library().encode())
    data: dict[str, Any] = {
        "problems": [_problem_data(content, *problem) for problem in problems],
        "roofline": _roofline_data(roofline(content)),
    }
    page = (
        environment()
        .get_template("page.html.j2")
        .render(
            content=content,
            name=wording.one_line(content.kernel),
            device=wording.one_line(content.device.name),
            answer=answer,
            setting=setting,
            problems=[_problem_view(content, *problem) for problem in problems],
            data=packed(_to_json(data)),
            roofline=data["roofline"],
            library="" if single else script.name,
            embedded=_library() if single else "",
            scripts=[(_HERE / file).read_text(encoding="utf-8") for file in _SCRIPTS],
        )
    )
    write_atomically(path, page.encode())
    return path


def environment() -> Any:
    """Return the renderer of the templates of this folder; it escapes whatever it is given."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["whole"] = _whole
    made.globals["style"] = (_HERE / "page.css").read_text(encoding="utf-8")
    return made


def _whole(text: str) -> Markup:
    """Return text in whose names no line breaks, where a browser would after a hyphen: ``--fresh``.

    What is longer than a device's uuid is no name, and might be wider than a page.
    """
    from markupsafe import Markup

    span = Markup('<span class="whole">{}</span>')
    words = (
        span.format(word) if "-" in word and len(word) <= 40 else word for word in text.split(" ")
    )
    return Markup(" ").join(words)


# ---------------------------------------------------------------------- what draws


def _script_name() -> str:
    """Return the name of the script beside the pages; pages of another version of plotly keep theirs."""
    try:
        from plotly.offline import get_plotlyjs_version
    except ImportError as error:
        raise MissingDependencyError("plotly", "tune", "the HTML report") from error
    return f"plotly-{get_plotlyjs_version()}.js"


@cache
def _library() -> str:
    """Return Plotly as a script that only holds it: two fifths of its size, until a page unpacks it."""
    from plotly.offline import get_plotlyjs

    return f'var PLOTLY="{packed(get_plotlyjs())}";'


def packed(text: str) -> str:
    """Return text as gzip in base64, which ends no element and needs no escape."""
    packer = zlib.compressobj(9, wbits=31)
    return base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()


# ---------------------------------------------------------------------- what is drawn


def _to_json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _problem_view(
    content: ReportContent, problem: ProblemContent, found: Sequence[Effect]
) -> dict[str, Any]:
    """Return what the template shows of one problem."""
    return {
        "name": table.problem_name(problem),
        "finals": evidence.finals(content, problem),
        "outcomes": evidence.outcomes(problem),
        "importance": evidence.importance(content, problem, found),
        "resources": evidence.resources(problem),
        "has_answer": problem.entry is not None,
        "has_trials": bool(problem.trials),
        "is_timed": problem.best_ms is not None,
        "examples": evidence.failure_examples(content, problem),
        "front": front_of(content, problem),
    }


def _problem_data(
    content: ReportContent, problem: ProblemContent, found: Sequence[Effect]
) -> dict[str, Any]:
    """Return what the figures show of one problem."""
    values = _value_lists(content, problem, found)
    best = problem.best_ms or 1.0
    unit, length = wording.time_unit(best)
    return {
        "name": table.problem_name(problem),
        "unit": unit,
        "best": best / length,
        "parameters": [
            {
                "name": wording.one_line(name),
                "values": [table.value_text(value) for value in listed],
            }
            for name, listed in values.items()
        ],
        "effects": [
            {
                "parameter": list(values).index(effect.parameter),
                "share": ""
                if effect.share is None
                else f"explains {wording.percent(effect.share)}",
            }
            for effect in found[: evidence.DRAWN_PARAMETERS]
        ],
        "trials": _trials_data(content, problem, values, length),
        "finals": _finals_data(content, problem),
    }


def _value_lists(
    content: ReportContent, problem: ProblemContent, found: Sequence[Effect]
) -> dict[str, list[Value]]:
    """Return the values of each parameter that has a choice: the declared ones, then others that were met."""
    declared = content.space.parameters if content.space else content.record.parameters
    shown = content.free | {effect.parameter for effect in found}
    lists = {name: list(values) for name, values in declared.items() if name in shown}
    for trial in problem.trials:
        for name, value in trial.configuration.items():
            if name in shown or name not in declared:
                known = lists.setdefault(name, [])
                if value not in known:
                    known.append(value)
    return lists


def _trials_data(
    content: ReportContent,
    problem: ProblemContent,
    values: Mapping[str, list[Value]],
    length: float,
) -> dict[str, Any]:
    """Return trials by column: thousands of them are most of a page.

    Of each parameter a string, with a letter for each trial: ``A`` for its first value and so on,
    ``@`` where it does not apply. Messages once each, for many fail alike, and of failures only.
    """
    trials = problem.trials
    spent = accumulate(trial.compile_s + trial.verify_s + trial.measure_s for trial in trials)
    applied = [relevant(trial.configuration, content.space) for trial in trials]
    told = ["" if t.status.is_timed else wording.one_line(t.message) for t in trials]
    messages = {text: i for i, text in enumerate(dict.fromkeys(told))}
    statuses = {status: i for i, status in enumerate(dict.fromkeys(t.status for t in trials))}
    functions = [trial.largest_function for trial in trials]
    winner = problem.winner
    return {
        "time": [
            None if trial.median_ms is None else float(f"{trial.median_ms / length:.5g}")
            for trial in trials
        ],
        "seconds": [round(seconds, 2) for seconds in spent],
        "statuses": [str(status) for status in statuses],
        "status": [statuses[trial.status] for trial in trials],
        "messages": list(messages),
        "message": [messages[text] for text in told],
        "values": [
            "".join(
                chr(_FIRST + number[matters[name]]) if name in matters else chr(_FIRST - 1)
                for matters in applied
            )
            for name, listed in values.items()
            for number in [{value: i for i, value in enumerate(listed)}]
        ],
        "registers": [function.registers for function in functions],
        "spills": [function.spill_bytes for function in functions],
        "shared": [trial.shared_bytes for trial in trials],
        "winner": next((i for i, trial in enumerate(trials) if trial is winner), -1),
    }


def _finals_data(content: ReportContent, problem: ProblemContent) -> list[dict[str, Any]]:
    """Return the rows of the finals figure: the winner, the others best first, then the vendor's calls."""
    race = problem.race
    rows: list[dict[str, Any]] = []
    for found in race.contenders if race else ():
        assert race is not None
        won = found is race.winner
        if found.ratio is None:
            continue
        low, high = found.ratio.interval
        if won:
            low, high = (bound / found.time_ms.value for bound in found.time_ms.interval)
        rows.append(
            {
                "name": "winner" if won else evidence.contender_name(content, race, found),
                "kind": evidence.verdict(race, found),
                "time": wording.time(found.time_ms.value),
                "ratio": [low, found.ratio.value, high],
            }
        )
    return rows


def _roofline_data(found: Roofline | None) -> dict[str, Any] | None:
    """Return points and roofs of the roofline: bytes, operations and seconds."""
    if found is None:
        return None
    return {
        "of_bytes": found.is_of_bytes,
        "bandwidth": _roof_data(found.bandwidth, wording.bandwidth),
        "arithmetic": _roof_data(found.arithmetic, wording.arithmetic),
        "points": [
            {
                "name": wording.one_line(str(point.problem)),
                "bytes": float(f"{point.moved_bytes:.6g}"),
                "operations": float(f"{point.operations:.6g}"),
                "seconds": float(f"{point.median_ms / 1e3:.6g}"),
                "time": wording.time(point.median_ms),
                "vendor": wording.one_line(point.vendor or ""),
                "vendor_seconds": point.vendor_ms and float(f"{point.vendor_ms / 1e3:.6g}"),
                "vendor_time": wording.time(point.vendor_ms) if point.vendor_ms else "",
            }
            for point in found.points
        ],
    }


def _roof_data(roof: Roof | None, words: Callable[[float], str]) -> dict[str, Any] | None:
    """Return a roof: its rate in bytes or operations per second, and its name with the rate."""
    if roof is None:
        return None
    name = f"measured {table.limit_words(roof.limit_name)}" if roof.limit_name else "peak by clocks"
    return {"rate": float(f"{roof.rate * 1e9:.6g}"), "name": f"{name}, {words(roof.rate)}"}
