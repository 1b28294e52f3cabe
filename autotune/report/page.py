"""The report as one HTML file: plotly embedded, nothing fetched, opens from a folder.

Knows the template; figures are drawn by ``page.js`` from data that this module writes as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from autotune.errors import MissingDependencyError
from autotune.files import write_atomically
from autotune.report import answer, evidence, setting, table, wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.effects import Effect, effects
from autotune.report.insight import section
from autotune.values import Configuration, Value

_HERE = Path(__file__).parent


def write_html(content: ReportContent, path: Path | str) -> Path:
    """Write the page; return its file.

    Raises
    ------
    MissingDependencyError
        If plotly is not installed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _html(content).encode())
    return path


def _html(content: ReportContent) -> str:
    import jinja2

    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingDependencyError("plotly", "tune", "the HTML report") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        content=content,
        name=wording.one_line(content.kernel),
        device=wording.one_line(content.device.name),
        answer=answer,
        setting=setting,
        problems=[_problem_view(content, problem) for problem in content.problems],
        data={"problems": [_problem_data(content, problem) for problem in content.problems]},
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        script=(_HERE / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        to_json=_to_json,
    )


def _to_json(data: object) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _problem_view(content: ReportContent, problem: ProblemContent) -> dict[str, Any]:
    """What the template shows of one problem."""
    return {
        "name": table.problem_name(problem),
        "finals": evidence.finals(content, problem),
        "outcomes": evidence.outcomes(problem),
        "importance": evidence.importance(content, problem, effects(problem, content.space)),
        "resources": evidence.resources(problem),
        "has_answer": problem.entry is not None,
        "has_trials": bool(problem.trials),
        "is_timed": problem.best_ms is not None,
        "examples": evidence.failure_examples(content, problem),
        "insight": section(content, problem),
    }


def _problem_data(content: ReportContent, problem: ProblemContent) -> dict[str, Any]:
    """What the figures show of one problem."""
    values = _value_lists(content, problem)
    found = effects(problem, content.space)[: evidence.DRAWN_PARAMETERS]
    best = problem.best_ms or 1.0
    unit, length = wording.time_unit(best)
    return {
        "name": table.problem_name(problem),
        "unit": unit,
        "best": best / length,
        "parameters": [
            {
                "name": wording.one_line(name),
                "free": name in content.free,
                "values": [table.value_text(value) for value in listed],
            }
            for name, listed in values.items()
        ],
        "axes": [list(values).index(effect.parameter) for effect in found],
        "trials": _trials_data(problem, values, length),
        "effects": [_effect_data(effect) for effect in found],
        "finals": _finals_data(content, problem),
    }


def _value_lists(content: ReportContent, problem: ProblemContent) -> dict[str, list[Value]]:
    """Values of each parameter: the declared ones, then others that were met."""
    declared = content.space.parameters if content.space else content.record.parameters
    lists = {name: list(values) for name, values in declared.items()}
    for trial in problem.trials:
        for name, value in trial.configuration.items():
            known = lists.setdefault(name, [])
            if value not in known:
                known.append(value)
    return lists


def _trials_data(
    problem: ProblemContent, values: Mapping[str, list[Value]], length: float
) -> dict[str, Any]:
    """Trials by column; messages once each, for many fail alike."""
    spent = accumulate(
        trial.compile_s + trial.verify_s + trial.measure_s for trial in problem.trials
    )
    messages = list(dict.fromkeys(wording.one_line(trial.message) for trial in problem.trials))
    number = {text: i for i, text in enumerate(messages)}
    winner = problem.winner
    return {
        "time": [
            None if trial.median_ms is None else float(f"{trial.median_ms / length:.6g}")
            for trial in problem.trials
        ],
        "seconds": [round(seconds, 3) for seconds in spent],
        "status": [str(trial.status) for trial in problem.trials],
        "messages": messages,
        "message": [number[wording.one_line(trial.message)] for trial in problem.trials],
        "values": [
            [
                listed.index(trial.configuration[name]) if name in trial.configuration else -1
                for name, listed in values.items()
            ]
            for trial in problem.trials
        ],
        "winner": next((i for i, trial in enumerate(problem.trials) if trial is winner), -1),
    }


def _effect_data(effect: Effect) -> dict[str, Any]:
    share = "" if effect.share is None else f"explains {wording.percent(effect.share)}"
    return {
        "name": wording.one_line(effect.parameter),
        "share": share,
        "values": [
            {
                "text": table.value_text(value.value),
                "relative": [float(f"{value:.6g}") for value in value.relative],
                "failed": value.failed,
            }
            for value in effect.values
        ],
    }


def _finals_data(content: ReportContent, problem: ProblemContent) -> list[dict[str, Any]]:
    """Rows of the finals figure, best first, vendors last."""
    rows: list[dict[str, Any]] = []
    for row in problem.finals:
        low, high = row.ratio.low, row.ratio.high
        won = row.verdict == "winner"
        if won and row.finalist:
            low, high = (bound / row.median_ms for bound in row.finalist.interval_ms)
        name = evidence.contender_name(content, row, problem.won or Configuration())
        rows.append(
            {
                "name": "winner" if won else name,
                "kind": row.verdict,
                "time": wording.time(row.median_ms),
                "ratio": [low, row.ratio.value, high],
            }
        )
    return rows
