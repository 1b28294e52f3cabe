"""Compares the launches of a record with the launches that its kernel computes now.

A record that was edited by hand is valid in itself, but its grids may be too small. The kernel must be unchanged
since: launches of another kernel differ rightly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.answers.table import Plan, Sizes
from autotune.devices.device import Device
from autotune.kernel.launches import launch_sequence
from autotune.kernel.source import comparison_of
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.run.plans import default_rows, plan_of, steps_of
from autotune.tuned.answer import TunedConfig
from autotune.tuned.record import TunedProblem, TunedRecord
from autotune.tuned.validity import Place, named, plans_of, wrong
from autotune.values import Configuration, Problem, category_of

#: Members that follow from the kernel alone; ``archs`` also follows from the table of architectures.
_MEMBERS = (
    *("entry", "block", "shared_bytes", "grid", "before", "after"),
    *("cluster", "cooperative", "programmatic"),
    *("requires", "exclusive", "deterministic"),
)


def record_faults(record: TunedRecord, kernel: Kernel) -> Iterator[str]:
    """Yield the launches of a record that its kernel computes otherwise; skip those of an earlier kernel.

    Configurations that are no longer in the space are skipped, too.
    """
    device, made = record.device.planned_for(), record.provenance
    changes = comparison_of(kernel)
    are_changed = [
        bool(changes(entry.origin.source, entry.origin.arguments)) for entry in record.problems
    ]
    is_changed = bool(changes(made.source, made.arguments))
    for place, plan, problem in plans_of(record):
        match place:
            case ("problems", int(number), *_) if are_changed[number]:
                continue
            case ("defaults" | "portfolio", *_) if is_changed:
                continue
            case ("portfolio", _, int(number), "prediction", *_):
                problem = record.portfolio.tables[number].rows[0].problem
        if problem and (fault := plan_fault(place, plan, problem, kernel, device)):
            yield fault
    for number, entry in enumerate(record.problems):
        if not are_changed[number] and (fault := _steps_fault(number, entry, kernel, device)):
            yield fault


def plan_fault(place: Place, plan: Plan, problem: Sizes, kernel: Kernel, device: Device) -> str:
    """Return the first member of a plan that the kernel computes otherwise for a problem; empty if none."""
    configuration = Configuration(plan.configuration)
    if place[0] == "defaults":
        rows = default_rows(kernel, device)
        alike = [row for row in rows if category_of(row.problem) == category_of(problem)]
        if not alike:
            return f"{named(place)}: {kernel.name} declares no problem like {dict(problem)!r:.120}"
        expected = alike[0].plans[0]
    elif is_member(kernel, configuration, device):
        expected = plan_of(kernel, configuration, Problem(dict(problem)), device)
    else:
        return ""
    for name in _MEMBERS:
        found, computed = getattr(plan, name), getattr(expected, name)
        if found != computed:
            return wrong((*place, name), found, f"{computed!r}, as the kernel computes it")
    others = set(plan.archs or ()) - set(expected.archs or ())
    return wrong((*place, "archs"), sorted(others), f"of {expected.archs}") if others else ""


def _steps_fault(number: int, entry: TunedProblem, kernel: Kernel, device: Device) -> str:
    configuration = Configuration(entry.configuration)
    if not entry.steps or not is_member(kernel, configuration, device):
        return ""
    expected = steps_of(kernel, configuration, Problem(dict(entry.problem)), device)
    place = "problems", number, "steps"
    if len(entry.steps) != len(expected):
        return wrong(place, len(entry.steps), f"{len(expected)} steps")
    pairs = zip(entry.steps, expected, strict=True)
    return next((wrong((*place, at), a, repr(b)) for at, (a, b) in enumerate(pairs) if a != b), "")


def answer_fault(
    found: TunedConfig, problem: Mapping[str, int | str], kernel: Kernel, device: Device
) -> str:
    """Return the first launch value of an answer that the kernel computes otherwise; empty if none."""
    configuration, asked = Configuration(dict(found)), kernel.filled(Problem(dict(problem)))
    if not is_member(kernel, configuration, device):
        return ""
    if not kernel.allows(configuration, asked):
        return wrong("requires", "met", "not met: the kernel does not allow the problem")
    computed = launch_sequence(kernel, configuration, asked, device).launches
    if len(found.launches) != len(computed):
        return wrong("launches", len(found.launches), f"{len(computed)}, as the kernel computes it")
    for number, launches in enumerate(zip(found.launches, computed, strict=True)):
        for name in vars(launches[0]):
            recorded, expected = (getattr(launch, name) for launch in launches)
            if recorded not in (None, expected):
                place = "launches", number, name
                return wrong(place, recorded, f"{expected}, as the kernel computes it")
    return ""
