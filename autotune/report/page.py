"""The report as one HTML page, and the index of pages.

A page fetches nothing but the script in its folder. ``figures.js`` and ``configurations.js`` draw
the figures from the data that this module writes as JSON.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.errors import MissingDependencyError
from autotune.files import write_atomically
from autotune.measure.measurement import front
from autotune.report import answer, evidence, setting, wording
from autotune.report.content import ProblemContent, ReportContent, relevant
from autotune.report.evidence import Effect, effects
from autotune.report.table import Table, unbroken
from autotune.report.wording import NONE, plural
from autotune.tuned.record import TunedRecord

if TYPE_CHECKING:
    from markupsafe import Markup

T = TypeVar("T")

_HERE = Path(__file__).parent
_SCRIPTS = ("figures.js", "configurations.js", "page.js")


def write_html(content: ReportContent, path: Path | str, single: bool = False) -> Path:
    """Write the page, and the script that all pages of its folder share; return the page's file.

    ``single``: the script goes into the page, which can then be sent without its folder.
    """
    path = Path(path)
    found = [effects(problem, content.space) for problem in content.problems]
    problems = list(zip(content.problems, found, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    script = path.with_name(_script_name())
    if not single and not script.exists():
        write_atomically(script, _library().encode())
    data = {
        "problems": [_problem_data(content, *problem) for problem in problems],
        "roofline": setting.roofline(content),
    }
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            content=content,
            name=wording.one_line(content.kernel),
            device=wording.one_line(content.device.name),
            answer=answer,
            setting=setting,
            evidence=evidence,
            problems=problems,
            data=packed(json.dumps(data, separators=(",", ":"), allow_nan=False)),
            roofline=data["roofline"],
            library="" if single else script.name,
            embedded=_library() if single else "",
            scripts=[(_HERE / file).read_text(encoding="utf-8") for file in _SCRIPTS],
        )
    )
    write_atomically(path, page.encode())
    return path


def _environment() -> Any:
    """Return the environment of the templates in this folder; it escapes all values."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["whole"] = _whole
    made.filters["table"] = _scrolling
    made.globals["style"] = (_HERE / "page.css").read_text(encoding="utf-8")
    return made


def _whole(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(unbroken(text))


def _scrolling(table: Table, name: str, anchor: str = "") -> Markup:
    """Return a table in a box that scrolls where the page is narrower; empty without rows."""
    from markupsafe import Markup

    if not table.rows:
        return Markup("")
    box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}" id="{}">{}</div>')
    return box.format(name, anchor or name.replace(" ", "-").lower(), Markup(table.html()))


# ---------------------------------------------------------------------- the plotting library


def _script_name() -> str:
    """Return the name of the script; pages of another version of plotly keep theirs."""
    try:
        from plotly.offline import get_plotlyjs_version
    except ImportError as error:
        raise MissingDependencyError("plotly", "tune", "the HTML report") from error
    return f"plotly-{get_plotlyjs_version()}.js"


@cache
def _library() -> str:
    """Return plotly as a script that holds it compressed: two fifths of its size."""
    from plotly.offline import get_plotlyjs

    return f'var PLOTLY="{packed(get_plotlyjs())}";'


def packed(text: str) -> str:
    """Return text as gzip in base64, which needs no escape in HTML."""
    packer = zlib.compressobj(9, wbits=31)
    return base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()


# ---------------------------------------------------------------------- a problem


def _problem_data(
    content: ReportContent, problem: ProblemContent, found: Sequence[Effect]
) -> dict[str, Any]:
    """Return a problem's data for the figures.

    Trials are stored by column, and repeated values as numbers of a list: most of a page is trials.
    """
    trials, best = problem.trials, problem.best_ms or 1.0
    unit, length = wording.time_unit(best)
    places = {trial.configuration: i for i, trial in enumerate(trials)}
    front_rows = [places[trial.configuration] for trial in front(trials)]
    energy_unit, amount = wording.energy_unit(
        min((trial.energy_mj for trial in trials if trial.energy_mj is not None), default=1.0)
    )
    parameters = _parameters(content, problem, found)
    names = [parameter["name"] for parameter in parameters]
    status, statuses = _numbered(str(trial.status) for trial in trials)
    message, messages = _numbered(
        "" if trial.status.is_timed else wording.one_line(trial.message) for trial in trials
    )
    functions = [trial.largest_function for trial in trials]
    spent = accumulate(trial.compile_s + trial.verify_s + trial.measure_s for trial in trials)
    return {
        "name": problem.name,
        "unit": unit,
        "energy_unit": energy_unit,
        "best": best / length,
        "parameters": parameters,
        "effects": [
            {
                "parameter": names.index(wording.one_line(effect.parameter)),
                "share": ""
                if effect.share is None
                else f"importance {wording.percent(effect.share)}",
            }
            for effect in found[: evidence.DRAWN_PARAMETERS]
        ],
        "finals": _finals_data(content, problem),
        "front": front_rows,
        "trials": {
            "time": [_shortened(trial.median_ms, length) for trial in trials],
            "energy": [_shortened(trial.energy_mj, amount) for trial in trials]
            if front_rows
            else [],
            "seconds": [round(seconds, 2) for seconds in spent],
            "statuses": statuses,
            "status": status,
            "messages": messages,
            "message": message,
            "registers": [function.registers for function in functions],
            "spills": [function.spill_bytes for function in functions],
            "shared": [trial.shared_bytes for trial in trials],
            "winner": places.get(problem.winner.configuration, -1) if problem.winner else -1,
        },
    }


def _parameters(
    content: ReportContent, problem: ProblemContent, found: Sequence[Effect]
) -> list[dict[str, Any]]:
    """Return parameters that have a choice: name, values, and each trial's value by its number.

    Values are the declared ones, then others that were met. -1: the parameter does not apply.
    """
    declared = content.space.parameters if content.space else content.record.parameters
    shown = content.free | {effect.parameter for effect in found}
    met = dict.fromkeys(name for trial in problem.trials for name in trial.configuration)
    applied = [relevant(trial.configuration, content.space) for trial in problem.trials]
    parameters = []
    for name in {**declared, **met}:
        if name not in shown and name in declared:
            continue
        tried = (
            trial.configuration[name] for trial in problem.trials if name in trial.configuration
        )
        values = list(dict.fromkeys((*declared.get(name, ()), *tried)))
        number = {value: i for i, value in enumerate(values)}
        parameters.append(
            {
                "name": wording.one_line(name),
                "values": [wording.value_text(value) for value in values],
                "trials": [number[row[name]] if name in row else -1 for row in applied],
            }
        )
    return parameters


def _numbered(items: Iterable[T]) -> tuple[list[int], list[T]]:
    """Return each item as its number in the list of different items, and that list."""
    number: dict[T, int] = {}
    numbers = [number.setdefault(item, len(number)) for item in items]
    return numbers, list(number)


def _shortened(value: float | None, unit: float) -> float | None:
    return None if value is None else float(f"{value / unit:.5g}")


def _finals_data(content: ReportContent, problem: ProblemContent) -> list[dict[str, Any]]:
    """Return the finals' rows: the winner, the others best first, then the vendor's calls."""
    if problem.entry is None:
        return []
    race, rows = problem.entry.race, []
    for found in race.contenders:
        if found.ratio is None:
            continue
        low, high = found.ratio.interval
        won = found is race.winner
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


# ---------------------------------------------------------------------- the index


@dataclass(frozen=True)
class Standing:
    """A record with its state: current, stale or not known."""

    record: TunedRecord
    #: Reasons to tune problems again, with the number of problems; empty while all are current.
    stale: dict[str, int] = field(default_factory=dict)
    #: Number of stale problems.
    stale_entries: int = 0
    #: Why the state is not known; empty where it is.
    unknown: str = ""
    #: Number of declared problems that were never tuned on the device.
    missing: int = 0
    #: A warning if the kernel declared here is another one of that name.
    other_kernel: str = ""


def write_index(standings: Sequence[Standing], folder: Path) -> Path:
    """Write ``index.html`` with links to the reports below its folder; return its path."""
    ordered = sorted(standings, key=lambda standing: standing.record.kernel)
    kernels = {standing.record.kernel for standing in standings}
    devices = {standing.record.device.folder for standing in standings}
    stale = [standing for standing in ordered if standing.stale]
    tuned = f"{plural(len(kernels), 'kernel')} on {plural(len(devices), 'device')}"
    state = f"{plural(len(stale), 'record')} of {len(standings)}" if stale else "none"
    page = (
        _environment()
        .get_template("index.html.j2")
        .render(
            tuned=Table.of(
                [_index_row(standing) for standing in ordered],
                words=("Tuned", "Stale"),
                wide="Stale",
                links=[_page(standing.record, folder) for standing in ordered],
            ),
            headline=f"{tuned}; stale: {state}.",
            version=max((s.record.provenance.version for s in standings), default=""),
            remedy=" ".join(dict.fromkeys(standing.record.kernel for standing in stale)),
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    write_atomically(file, page.encode())
    return file


def _index_row(standing: Standing) -> dict[str, str]:
    record, entries = standing.record, standing.record.problems
    count, vendors = len(entries), answer.vendor_names(entries)
    reasons = "; ".join(
        text if many == count else f"{text} ({many})" for text, many in standing.stale.items()
    )
    stale = f"{standing.stale_entries} of {count}: {reasons}" if reasons else "no"
    missing = f" of {count + standing.missing}" if standing.missing else ""
    return {
        "Report": wording.one_line(f"{record.kernel} on {record.device.name}"),
        "Problems": f"{count}{missing}",
        "Speed vs the vendor's library": f"{answer.vendor_speed(entries)} {vendors}".strip(),
        "Share of measured limit": answer.limit_share(entries),
        "Tuned": max((entry.origin.tuned_on[:10] for entry in entries), default=NONE),
        "Stale": f"not known: {standing.unknown}" if standing.unknown else stale,
    }


def _page(record: TunedRecord, folder: Path) -> str:
    """Return the address of a record's report; empty where there is none."""
    places = (Path(record.device.folder, record.kernel + end) for end in (".html", ".md"))
    return next((place.as_posix() for place in places if (folder / place).is_file()), "")
