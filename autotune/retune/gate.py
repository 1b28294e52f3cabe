"""The regression gate: verifies and times a recorded winner again, and judges its record.

It also verifies the other configurations that lookup answers with. `autotune.retune.slowdown` has the rule for times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from autotune.answers.table import Plan, Sizes
from autotune.checking.launch_faults import plan_fault
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.kernel.source import changed_since
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.measure.race import Contender, Race, RaceRules, race
from autotune.measure.roofline import implausible
from autotune.measure.timing import Caches, Timing
from autotune.measure.worker_state import Job
from autotune.retune.slowdown import Slowdown
from autotune.retune.stale import Target, entry_changes
from autotune.run.bench import Bench
from autotune.run.verdict import judge
from autotune.tuned.lookup import table_of
from autotune.tuned.record import TIME, ContenderResult, TunedProblem, TunedRecord
from autotune.values import Configuration, Problem, category_of

#: Number of rounds of a race between a winner and its rivals.
ROUNDS = 30
#: Maximum number of races; another one follows while the verdict is undecided.
MAX_RACES = 3
#: Time in seconds after which no further round of a race begins.
MAX_SECONDS = 10.0
#: Maximum number of recorded configurations that race with the winner.
_MAX_RIVALS = 5


@dataclass(frozen=True)
class Remeasurement:
    """The new measurement of a recorded winner."""

    #: `OK`, or the failure of its verification or race.
    status: Status
    message: str = ""
    #: Its new times over its recorded times; None if nothing was timed.
    slowdown: Slowdown | None = None
    #: The winner in the new race; None if nothing was timed.
    winner: ContenderResult | None = None
    #: The fastest contender of the new race; None if nothing was timed.
    fastest: ContenderResult | None = None
    #: The device of the race.
    device_uuid: str = ""


#: A plan that lookup answers with, and a problem of its category.
Answer: TypeAlias = tuple[Plan, Sizes]


class Verdict(StrEnum):
    """The state of a recorded entry."""

    HELD = "held"
    FASTER = "faster"
    SLOWER = "slower"
    #: The noise of the record and of the races neither shows nor excludes a loss; the message gives the interval.
    UNDECIDED = "undecided"
    #: As fast as recorded, but a runner-up is faster.
    BEATEN = "beaten"
    #: Wrong results, a crash, a time-out, or no longer a valid configuration.
    WRONG = "wrong"
    #: The kernel changed after the entry was tuned; the message gives the changes.
    STALE = "stale"
    #: Nothing could be compared; the message gives the reason.
    UNCHECKED = "unchecked"
    FAILED = "failed"
    #: Correct, and not timed: it answers other problems than the tuned ones.
    VERIFIED = "verified"


@dataclass(frozen=True)
class CheckedEntry:
    """A recorded entry and its verdict."""

    target: Target
    verdict: Verdict
    message: str = ""
    remeasurement: Remeasurement | None = None
    #: A configuration that answers other problems than the entry's; None: the entry's winner.
    other: Configuration | None = None


def verdict(found: Remeasurement, threshold: float) -> tuple[Verdict, str]:
    """Return the verdict and its message; beaten needs a significant difference."""
    if found.status is not Status.OK:
        return Verdict.WRONG, f"{found.status}: {found.message}"
    assert found.slowdown is not None
    change = found.slowdown.change(threshold)
    if change == "slower":
        return Verdict.SLOWER, found.slowdown.text
    if found.winner and found.fastest and not found.winner.tied:
        share = found.fastest.time_ms.value / found.winner.time_ms.value
        if share < 1 - threshold:
            return Verdict.BEATEN, f"a runner-up takes {share:.3f} of its time"
    if change == "undecided":
        hint = "check again on an idle device; if the record is noisy, tune again"
        text = f"{found.slowdown.text}: noise hides a loss of {threshold:.1%}; {hint}"
        return Verdict.UNDECIDED, text
    return Verdict(change), ""


def check_entry(bench: Bench, target: Target, threshold: float) -> CheckedEntry:
    """Verify and time the entry of a target, and judge it.

    The threshold is a share of the recorded time.
    """
    assert target.known is not None
    record, entry = target.known.record, target.known.entry
    if Timing(entry.race.timing) is Timing.OTHER:
        text = f"timed in another way ({entry.race.timing})"
        return CheckedEntry(target, Verdict.UNCHECKED, text)
    try:
        changes = [reason.text for reason in entry_changes(bench.kernel, bench.device, entry)]
        answers = [(plan, entry.problem) for plan in entry.plans if not changes]
        if fault := _launch_fault(bench, answers):
            return CheckedEntry(target, Verdict.WRONG, fault)
        found = remeasure(bench, record, entry, threshold)
    except AutotuneError as error:
        return CheckedEntry(target, Verdict.FAILED, str(error))
    judged, message = verdict(found, threshold)
    if changes and judged is not Verdict.WRONG:
        judged, message = Verdict.STALE, "; ".join(changes)
    return CheckedEntry(target, judged, message, found)


def check_others(bench: Bench, targets: Sequence[Target]) -> Iterator[CheckedEntry]:
    """Verify each further configuration that lookup answers with on the bench's device.

    Each is verified on the fastest tuned problem of its category that it allows.
    """
    known = [(target, target.known.entry) for target in targets if target.known]
    won = {Configuration(entry.configuration) for _, entry in known}
    fastest = sorted(known, key=lambda pair: pair[1].median_ms)
    for configuration, answers in _answers(bench.kernel, bench.device).items():
        categories = {category_of(problem) for _, problem in answers}
        allowed = (
            target
            for target, _ in fastest
            if bench.kernel.allows(configuration, target.problem)
            and (not categories or category_of(target.problem) in categories)
        )
        if configuration not in won and (target := next(allowed, None)):
            yield _check_other(bench, target, configuration, answers)


def _check_other(
    bench: Bench, target: Target, configuration: Configuration, answers: Iterable[Answer]
) -> CheckedEntry:
    try:
        if fault := _launch_fault(bench, answers):
            return CheckedEntry(target, Verdict.WRONG, fault, other=configuration)
        found = _wrong_somewhere(bench, bench.job(target.problem), configuration)
    except AutotuneError as error:
        return CheckedEntry(target, Verdict.FAILED, str(error), other=configuration)
    if found:
        return CheckedEntry(target, *verdict(found, 0.0), other=configuration)
    return CheckedEntry(target, Verdict.VERIFIED, "it answers other sizes", other=configuration)


def _answers(kernel: Kernel, device: Device) -> dict[Configuration, list[Answer]]:
    """Return the plans that lookup answers with on a device, by configuration; of the default none.

    Plans of an earlier kernel are left out: its launches may differ, and its entries are stale.
    """
    table, found = table_of(kernel.name, kernel.project), dict[Configuration, list[Answer]]()
    group = table.devices.get(table.own_records(device)) if table else None
    if table is None or group is None:
        return found
    for row in (*group.near.values(), *group.exact.values()):
        made = row.origin.record.provenance
        if changed_since(kernel, made.source, made.arguments):
            continue
        prediction = row.table.prediction if row.table else None
        costs = prediction.costs if prediction else ()
        for plan in (*row.plans, *(cost.plan for cost in costs)):
            known = found.setdefault(Configuration(plan.configuration), [])
            if not any(plan == other for other, _ in known):
                known.append((plan, table.named(row.problem, {})))
    if is_member(kernel, kernel.default(), device):
        found.setdefault(kernel.default(), [])
    return found


def _launch_fault(bench: Bench, answers: Iterable[Answer]) -> str:
    """Return why recorded launches are not those of the kernel: then they are not run; empty if they are."""
    faults = (plan_fault(("launch",), *answer, bench.kernel, bench.device) for answer in answers)
    return next(filter(None, faults), "")


def remeasure(
    bench: Bench, record: TunedRecord, entry: TunedProblem, threshold: float
) -> Remeasurement:
    """Verify a recorded winner on every data set and odd size, then race it with its rivals until decided.

    The bench must have the record's kernel and device. Its request decides the way of timing.
    """
    kernel, device = bench.kernel, bench.device
    problem, winner = Problem(dict(entry.problem)), Configuration(entry.configuration)
    if not is_member(kernel, winner, device):
        return Remeasurement(Status.PRUNED, "its configuration is not in the declared space")
    job = bench.job(problem)
    if failure := _wrong_somewhere(bench, job, winner):
        return failure
    # Rivals are compared by time. A winner for another objective may be slower than they are.
    everyone = rivals(kernel, device, entry) if record.objective == TIME else []
    others = [rival for rival in everyone if bench.verify(job, rival).status is Status.OK]
    return _raced(bench, job, entry, [winner, *others], threshold)


def _wrong_somewhere(bench: Bench, job: Job, configuration: Configuration) -> Remeasurement | None:
    """Verify a configuration on every data set and odd size of a job; return the first failure."""
    allows = bench.kernel.allows
    edges = [edge for edge in bench.other_jobs(job) if allows(configuration, edge.problem)]
    for checked in (*edges, job):
        verified = bench.verify(checked, configuration)
        if verified.status is not Status.OK:
            where = "" if checked is job else f"on {checked.problem} with other inputs: "
            return Remeasurement(verified.status, where + verified.message)
    return None


def rivals(kernel: Kernel, device: Device, entry: TunedProblem) -> list[Configuration]:
    """Return configurations that may be faster: the runners-up and the default."""
    listed = [Configuration(other.configuration) for other in entry.race.runners_up]
    winner, others = Configuration(entry.configuration), (*listed[:_MAX_RIVALS], kernel.default())
    return [
        rival
        for rival in dict.fromkeys(others)
        if rival != winner and is_member(kernel, rival, device)
    ]


def _raced(
    bench: Bench,
    job: Job,
    entry: TunedProblem,
    configurations: list[Configuration],
    threshold: float,
) -> Remeasurement:
    contenders = [
        Contender(
            configuration,
            bench.compiled(configuration, job.problem).binary,
            deterministic=bench.kernel.is_deterministic(configuration, job.problem),
        )
        for configuration in configurations
    ]
    by_stream, seed = not Timing(entry.race.timing).by_graph, bench.request.seed
    rounds: Race | None = None
    for number in range(MAX_RACES):
        rules = RaceRules(ROUNDS, seed + number, MAX_SECONDS, by_stream=by_stream)
        raced = race(bench.worker, job, contenders, rules)
        rounds = rounds.continued(raced) if rounds else raced
        found = _compared(bench, job, entry, rounds)
        if verdict(found, threshold)[0] is not Verdict.UNDECIDED:
            break
    return found


def _compared(bench: Bench, job: Job, entry: TunedProblem, raced: Race) -> Remeasurement:
    """Compare a race with the recorded one; its first contender is the recorded winner."""
    if failure := raced.samples[0].failure:
        return Remeasurement(failure.status, f"in the race with its rivals: {failure.message}")
    result = judge(raced, seed=bench.request.seed)
    winner = result.of(raced.contenders[0].configuration) if result else None
    assert result is not None and winner is not None
    work = bench.kernel.work_of(job.problem)
    is_cold = job.caches is Caches.COLD
    why = implausible(winner.time_ms.value, work, job.device, is_cold) if work else ""
    return Remeasurement(
        Status.IMPLAUSIBLE if why else Status.OK,
        why,
        Slowdown.between(result, entry.race),
        winner,
        min((found for found in result.finalists if found.tied), key=lambda f: f.time_ms.value),
        raced.device_uuid,
    )
