"""The front of time and energy of one problem, as a table and a picture; for searches that measured both.

Knows neither the page nor where trials come from.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from itertools import pairwise

from autotune.measure.measurement import Measurement
from autotune.measure.objective import front
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.svg import Figure, Scale
from autotune.report.table import Table, configuration_text, problem_name

_WIDTH, _HEIGHT = 760, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 56, 738, 362
#: What takes more than this many times the least of either is not drawn: the front would be a point.
_SHOWN = 4.0


@dataclass(frozen=True)
class Front:
    """The part of a front that a page shows."""

    table: Table
    #: An SVG document.
    picture: str

    @property
    def source(self) -> str:
        """The picture as the address of an image, which keeps its style from the page's."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.picture.encode()).decode()


def front_of(content: ReportContent, problem: ProblemContent) -> Front | None:
    """The front of a problem; None where no energy was measured."""
    found = front(problem.trials)
    if not found:
        return None
    return Front(_table(content, problem, found), _picture(content, problem, found))


def _point(trial: Measurement) -> tuple[float, float]:
    """Milliseconds and millijoules of a trial that has both."""
    return trial.median_ms or 0.0, trial.energy_mj or 0.0


def _table(content: ReportContent, problem: ProblemContent, found: list[Measurement]) -> Table:
    (least_ms, _), (_, least_mj) = _point(found[0]), _point(found[-1])
    rows = []
    for trial in found:
        time_ms, energy_mj = _point(trial)
        power_w = trial.energy.power_w if trial.energy else 0.0
        rows.append(
            {
                "Configuration": configuration_text(content, trial.configuration),
                "Time": wording.time(time_ms),
                "Energy": wording.energy(energy_mj),
                "Power": f"{wording.number(power_w, 3)} W",
                "Time / fastest": wording.ratio(time_ms / least_ms),
                "Energy / least": wording.ratio(energy_mj / least_mj),
                "SM clock": f"{trial.energy.clocks.sm_mhz} MHz"
                if trial.energy and trial.energy.clocks.sm_mhz
                else "–",
            }
        )
    strong = [place for place, trial in enumerate(found) if trial is problem.winner]
    return Table.of(rows, wide="Configuration", strong=strong)


def _picture(content: ReportContent, problem: ProblemContent, found: list[Measurement]) -> str:
    known = [_point(trial) for trial in problem.trials if _is_drawable(trial)]
    (least_ms, _), (_, least_mj) = _point(found[0]), _point(found[-1])
    unit, length = wording.time_unit(least_ms)
    amount, size = wording.energy_unit(least_mj)
    shown = [
        (time_ms / length, energy_mj / size)
        for time_ms, energy_mj in known
        if time_ms <= _SHOWN * least_ms and energy_mj <= _SHOWN * least_mj
    ]
    line = [(time_ms / length, energy_mj / size) for time_ms, energy_mj in map(_point, found)]
    right, up = (max(point[axis] for point in (*shown, *line)) for axis in (0, 1))
    x = Scale(least_ms / length / 1.03, right * 1.03, _LEFT, _RIGHT, is_log=True)
    y = Scale(least_mj / size / 1.03, up * 1.03, _BOTTOM, _TOP, is_log=True)
    title = f"{content.kernel} on {content.device.name}, {problem_name(problem)}: time and energy"
    figure = Figure(_WIDTH, _HEIGHT, title)
    figure.text(16, 24, f"Energy of a call ({amount})", "ink bold")
    figure.x_axis(x, _BOTTOM, top=_TOP)
    for tick in y.ticks():
        figure.line(_LEFT, y(tick), _RIGHT, y(tick), "grid")
        figure.text(_LEFT - 8, y(tick) + 4, wording.number(tick), "dim small", "end")
    figure.text(_RIGHT, _BOTTOM + 40, f"Time of a call ({unit})", "ink", "end")
    figure.dots([(x(a), y(b)) for a, b in shown], "grey")
    for (a, b), (c, d) in pairwise(line):  # nothing below the steps
        figure.line(x(a), y(b), x(c), y(b), "line blue")
        figure.line(x(c), y(b), x(c), y(d), "line blue")
    figure.dots([(x(a), y(b)) for a, b in line], "blue")
    won = [problem.winner] if problem.winner and _is_drawable(problem.winner) else []
    winner = [(time_ms / length, energy_mj / size) for time_ms, energy_mj in map(_point, won)]
    winner = [point for point in winner if point in shown]
    figure.dots([(x(a), y(b)) for a, b in winner], "green")
    _legend(figure, beyond=len(known) - len(shown), has_winner=bool(winner))
    return figure.render()


def _is_drawable(trial: Measurement) -> bool:
    return trial.status.is_timed and trial.median_ms is not None and trial.energy_mj is not None


def _legend(figure: Figure, beyond: int, has_winner: bool) -> None:
    entries = [("blue", "front"), *([("green", "winner")] if has_winner else []), ("grey", "other")]
    at = _LEFT
    for colour, name in entries:
        figure.dots([(at, _BOTTOM + 36)], colour)
        figure.text(at + 10, _BOTTOM + 40, name, "dim small")
        at += 34 + 7 * len(name)
    if beyond:
        figure.text(
            _RIGHT, 24, f"{beyond} take more than {_SHOWN:g} times either", "dim small", "end"
        )
