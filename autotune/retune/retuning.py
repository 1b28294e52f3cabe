"""Measures tuned entries again or searches them, within a time: re-tuning, and the regression gate."""

from __future__ import annotations

import copy
import fcntl
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from autotune import __version__
from autotune.devices.device import Device
from autotune.errors import AutotuneError, Interrupted, UsageError
from autotune.files import data_folder
from autotune.front import tune
from autotune.kernel.catalog import bundled_folder, find_kernel, listings
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.languages.registry import compiler
from autotune.measure.measurement import Status, find_objective
from autotune.measure.race import Contender, RaceRules, race
from autotune.measure.roofline import implausible
from autotune.measure.timing import Caches, Timing
from autotune.measure.worker_state import Job
from autotune.report.publish import amend
from autotune.retune.stale import Action, Reason, StaleQuery, Target, survey
from autotune.run import device_limits
from autotune.run.bench import LOCAL, Bench, Site
from autotune.run.portfolio import renewed
from autotune.run.request import EFFORTS, Effort, Request, Search
from autotune.run.verdict import judge
from autotune.search.session import Budget, Listener, Phase, ignore
from autotune.tuned.reading import read, user_folder
from autotune.tuned.record import (
    TIME,
    Confirmed,
    ContenderResult,
    Estimate,
    TunedProblem,
    TunedRecord,
    timestamp,
)
from autotune.values import Configuration, Problem

if TYPE_CHECKING:
    from autotune.fleet.client import Fleet

#: A winner that is slower than recorded by more than this share is searched again.
TOLERANCE = 0.02
#: Rounds of the race of a winner with its rivals, and the time after which no further round begins.
ROUNDS = 30
MAX_SECONDS = 10.0
#: Recorded configurations that race with the winner.
_MOST_RIVALS = 5

#: Shows the progress of one run, from the kernel's name and the number of problems.
Progress = Callable[[str, int], AbstractContextManager[Listener]]


class RetuneStatus(StrEnum):
    """The result of a stale problem."""

    SEARCHED = "searched"
    #: Measured again: correct, as fast as recorded and still among the best.
    CONFIRMED = "confirmed"
    #: Not begun: the time was up, or it was a dry run.
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class RetuneOutcome:
    """The result of one stale problem, or of a whole kernel that could not be compared."""

    kernel: str
    device: str = ""
    problem: Mapping[str, int | str] = field(default_factory=dict)
    why: str = ""
    action: str = ""
    result: RetuneStatus = RetuneStatus.FAILED
    message: str = ""
    before_ms: float | None = None
    after_ms: float | None = None


@dataclass(frozen=True)
class RetuneOptions:
    """The options of tuning again, and its time."""

    #: Least effort of a search; an entry that was tuned with more gets that again.
    effort: Effort = EFFORTS["quick"]
    strategy: str = "auto"
    #: Of the search of each problem; default: by effort.
    budget: Budget | None = None
    #: Time after which no search begins.
    seconds: float = math.inf
    #: Share the seconds among all problems, a kernel at a time; effort and budget follow from it.
    share_seconds: bool = False
    #: List the outcomes that a run would have, as skipped.
    dry_run: bool = False
    #: Records, headers and reports go to ``out/<device>/``, as those of `autotune run` do.
    out: Path = Path("reports")
    command: str = ""
    progress: Progress = lambda kernel, problems: nullcontext(ignore)
    #: Cards to measure on instead of this machine's devices: all of a device's model.
    fleet: Fleet | None = None
    #: Prints a message for a person.
    say: Callable[[str], None] = lambda _: None


def retune(query: StaleQuery, options: RetuneOptions) -> list[RetuneOutcome]:
    """Tune again what is stale on every device of a query; where nothing is, start no process."""
    failed: dict[str, str] = {}
    outcomes: list[RetuneOutcome] = []
    until_s = time.monotonic() + options.seconds
    for device in query.devices:
        with nullcontext() if options.dry_run else device_lock(device, options.say):
            targets, failures = survey(query, device)
            failed |= failures
            if options.dry_run:
                skipped = RetuneStatus.SKIPPED
                outcomes += [outcome(target, skipped, "dry run") for target in targets]
            elif options.share_seconds:
                outcomes += _retuned_by_kernel(device, options, until_s, targets)
            else:
                outcomes += Retuner(device, options, until_s).retune(targets)
    return [*(RetuneOutcome(kernel, message=text) for kernel, text in failed.items()), *outcomes]


def _retuned_by_kernel(
    device: Device, options: RetuneOptions, until_s: float, targets: Sequence[Target]
) -> list[RetuneOutcome]:
    """Tune a kernel at a time, each published before the next begins.

    A kernel's problems have as much time as all remaining problems have on average. Finals are those of
    a full run where that is as much as a quick search takes.
    """
    outcomes: list[RetuneOutcome] = []
    waiting = Counter(target.kernel.name for target in targets)
    for name in list(waiting):
        share = (until_s - time.monotonic()) / waiting.total()
        del waiting[name]
        quick = share < EFFORTS["quick"].seconds_per_problem
        own = replace(
            options,
            effort=EFFORTS["quick" if quick else "full"],
            budget=Budget(seconds=max(1.0, share)),
        )
        those = [target for target in targets if target.kernel.name == name]
        outcomes += Retuner(device, own, until_s).retune(those)
    return outcomes


def all_sizes(query: StaleQuery, options: RetuneOptions) -> tuple[StaleQuery, RetuneOptions]:
    """Return query and options for all sizes that have no current entry in the output folder.

    The kernels of the device's limits come first: winners of the others are compared with these.
    """
    device, bundled = query.devices[0], bundled_folder("spaces")
    of_limits = set(device_limits.KERNELS.values())
    names = query.kernels or tuple(
        listing.name
        for listing in sorted(listings(query.spaces), key=lambda each: each.name not in of_limits)
        if listing.file.is_relative_to(bundled)
        and device.backend in find_kernel(listing.name, query.spaces).backends
    )
    wider = replace(
        query,
        devices=(device,),
        kernels=names,
        effort="full",
        max_age_days=None,
        only_stale=True,
        records=options.out,
    )
    seconds = 3600.0 if options.seconds == math.inf else options.seconds
    return wider, replace(options, effort=EFFORTS["full"], seconds=seconds, share_seconds=True)


def measure_portfolio(
    name: str, device: Device, options: RetuneOptions, out: Path | None, spaces: Path | None
) -> None:
    """Measure the portfolio of a kernel's record in a folder, by default the user's, again; say which is kept."""
    budget_s = options.budget.seconds if options.budget else 60.0
    if budget_s is None:
        raise UsageError("retune --portfolio: --budget is a time, for example 90s")
    kernel = find_kernel(name, spaces)
    folder = out or Path(user_folder(kernel.project))
    path = folder / device.folder / f"{kernel.name}.json"
    if not path.exists():
        raise UsageError(f"{path}: nothing is tuned there; run: autotune run {kernel.name}")
    record = read(path)
    with options.progress(kernel.name, len(record.problems)) as listener:
        record = renewed(record, kernel, device, budget_s, listener)
    kept = amend(folder, record).portfolio
    if kept.median_ms != record.portfolio.median_ms:
        fewer = len(record.portfolio.configurations)
        options.say(
            f"portfolio: {fewer} configurations were measured; more are kept; raise --budget"
        )
    width = f"{len(kept.configurations)} configurations on {len(kept.problems)} problems"
    options.say(f"portfolio: {width}; record: {path}")


def outcome(
    target: Target, result: RetuneStatus, message: str = "", after_ms: float | None = None
) -> RetuneOutcome:
    return RetuneOutcome(
        kernel=target.kernel.name,
        device=target.device.name,
        problem=target.problem,
        why=target.why,
        action=str(target.action),
        result=result,
        message=message,
        before_ms=target.known.entry.median_ms if target.known else None,
        after_ms=after_ms,
    )


def check_tuned(
    query: StaleQuery, options: RetuneOptions, threshold: float
) -> tuple[list[Checked], dict[str, str]]:
    """Verify and measure the entries that lookup answers with; return the kernels that failed too."""
    checked: list[Checked] = []
    failed: dict[str, str] = {}
    until_s = time.monotonic() + options.seconds
    for device in query.devices:
        with device_lock(device, options.say):
            targets, failures = survey(replace(query, only_stale=False), device)
            failed |= failures
            known = [target for target in targets if target.known]
            checked += Retuner(device, options, until_s).checked(known, threshold)
    return checked, failed


@contextmanager
def device_lock(device: Device, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a device model's records; say so and wait where another process has it.

    The system releases it however its process ends. It lies with the tuned records, so machines that
    share those share it, where the file system can.
    """
    with open(data_folder("locks") / f"{device.folder}.lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file.fileno(), 200, 0).decode(errors="replace").strip()
            say(f"{device.name}: waiting for {holder or 'another process'}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: records are replaced whole either way
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield


@dataclass(frozen=True)
class Retuner:
    """The re-tuning of one device, whose lock the caller holds."""

    device: Device
    options: RetuneOptions
    #: Time of `time.monotonic` after which no search begins.
    until_s: float

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def retune(self, targets: Sequence[Target]) -> list[RetuneOutcome]:
        """Tune again entries that may be wrong, then those to confirm, then new problems."""
        searched = [target for target in targets if target.action is Action.SEARCH]
        outcomes = self.search([target for target in searched if target.known])
        again = [target for target in targets if target.action is Action.REMEASURE]
        confirmed, fallen = self.remeasure(again)
        outcomes += confirmed + self.search(fallen)
        return outcomes + self.search([target for target in searched if not target.known])

    # ------------------------------------------------------------------ measuring again

    def remeasure(self, targets: Sequence[Target]) -> tuple[list[RetuneOutcome], list[Target]]:
        """Confirm the entries that hold; return the others as targets of a search."""
        outcomes: list[RetuneOutcome] = []
        fallen: list[Target] = []
        for found in self.checked(targets, TOLERANCE):
            if found.verdict is Verdict.UNCHECKED:
                outcomes.append(outcome(found.target, RetuneStatus.SKIPPED, found.message))
            elif found.verdict is Verdict.FAILED:
                outcomes.append(outcome(found.target, RetuneStatus.FAILED, found.message))
            elif found.verdict in (Verdict.HELD, Verdict.FASTER):
                outcomes.append(self._confirm(found.target, found.now))
            else:
                why = Reason(f"it is {found.verdict}: {found.message}", Action.SEARCH, fresh=True)
                fallen.append(replace(found.target, reasons=(*found.target.reasons, why)))
        return outcomes, fallen

    def checked(self, targets: Sequence[Target], threshold: float) -> Iterator[Checked]:
        """Verify and measure the winners of targets again, as long as there is time."""
        for _, group in groupby(sorted(targets, key=_alike), key=_alike):
            listed = list(group)
            request = self._request(listed, EFFORTS["quick"])
            bench = Bench(request, self._site)
            progress = self.options.progress(request.kernel.name, len(listed))
            with progress as listener, closing(bench):
                for target in listed:
                    if self.left_s <= 0:
                        yield Checked(target, Verdict.UNCHECKED, "no time left")
                        continue
                    listener(Phase(target.problem, "the winner and its runners-up, again"))
                    yield _checked(bench, target, threshold)

    def _confirm(self, target: Target, now: Remeasured | None) -> RetuneOutcome:
        """Write a confirmed entry to the user's records, and where lookup finds it.

        Its times stay, so that small losses cannot add up.
        """
        known, changed, on = target.known, msgspec.structs.replace, timestamp()
        assert known is not None and now is not None and now.ratio is not None
        ratio, record = now.ratio, known.record
        versions = {
            "driver": self.device.driver,
            "toolchain": compiler(target.kernel.language_on(self.device.backend)).toolchain(),
        }
        confirmed = Confirmed(on=on, ratio=ratio.value, ratio_interval=ratio.interval, **versions)
        made = changed(record.provenance, version=__version__, created=on, **versions)
        entry = changed(known.entry, confirmed=confirmed)
        own = [known.directory] if known.layer not in ("shipped", "project") else []
        mine = [Path(user_folder(target.kernel.project))] if record.objective == TIME else []
        try:
            for directory in {*mine, *own}:
                amend(directory, changed(record, problems=(entry,), provenance=made))
        except AutotuneError as error:
            return outcome(target, RetuneStatus.FAILED, str(error))
        message = "{:.3f} of its recorded time ({:.3f} … {:.3f})".format(
            ratio.value, *ratio.interval
        )
        now_ms = now.now.time_ms.value if now.now else None
        return outcome(target, RetuneStatus.CONFIRMED, message, now_ms)

    # ------------------------------------------------------------------ searching

    def search(self, targets: Sequence[Target]) -> list[RetuneOutcome]:
        """Search the problems of targets, one run per kernel and way of timing."""
        outcomes: list[RetuneOutcome] = []
        for _, group in groupby(sorted(targets, key=self._searched_alike), self._searched_alike):
            listed = list(group)
            effort = self._effort(listed[0])
            fitting = listed[: self._how_many(effort, len(listed))]
            if fitting:
                outcomes += self._search(fitting, effort)
            late = listed[len(fitting) :]
            outcomes += [outcome(target, RetuneStatus.SKIPPED, "no time left") for target in late]
        return outcomes

    def _search(self, targets: list[Target], effort: Effort) -> list[RetuneOutcome]:
        known = [target.known for target in targets if target.known]
        # Also where the environment makes lookup look first.
        first = {entry.directory for entry in known if entry.layer == "AUTOTUNE_TUNED"}
        try:
            request = self._request(targets, effort)
            out = known[0].directory if request.objective.needs_energy else self.options.out
            if self.options.fleet is not None:
                cards = self.options.fleet.others(self.device)
                request = replace(request, others=tuple(cards))
            with self.options.progress(request.kernel.name, len(targets)) as listener:
                result, _ = tune(request, out, listener, self._site, first - {out})
        except Interrupted:
            raise
        except (AutotuneError, OSError) as error:
            return [outcome(target, RetuneStatus.FAILED, str(error)) for target in targets]
        if isinstance(result.ended, Interrupted):
            raise result.ended
        times = {
            each.problem: each.result.winner.time_ms.value
            for each in result.problems
            if each.result
        }
        searched, failed = RetuneStatus.SEARCHED, RetuneStatus.FAILED
        why_not = str(result.ended or "nothing was right in time")
        return [
            outcome(target, searched, "", times[target.problem])
            if target.problem in times
            else outcome(target, failed, why_not)
            for target in targets
        ]

    def _how_many(self, effort: Effort, count: int) -> int:
        """Return how many problems there is time for; those of a quick search share its time."""
        if self.left_s <= 0:
            return 0
        own = self.options.budget.seconds if self.options.budget else effort.seconds_per_problem
        if own is None or (effort.shared and self.options.budget is None):
            return count
        return count if own * count <= self.left_s else max(1, int(self.left_s // own))

    def _budget(self, effort: Effort, count: int) -> Budget:
        given = self.options.budget
        if given is None:
            seconds = effort.seconds_per_problem * (1 if effort.shared else count)
            return Budget(seconds=min(seconds, self.left_s))
        left = None if self.left_s == math.inf else max(1.0, self.left_s)
        times = [seconds for seconds in (given.seconds and given.seconds * count, left) if seconds]
        evaluations = given.evaluations and given.evaluations * count
        return Budget(min(times, default=None), evaluations)

    # ------------------------------------------------------------------ requests

    @property
    def _site(self) -> Site:
        if self.options.fleet is None:
            return LOCAL
        from autotune.fleet.site import FleetSite

        return FleetSite(self.options.fleet)

    def _request(self, targets: Sequence[Target], effort: Effort) -> Request:
        first = targets[0]
        _, caches, objective = _alike(first)
        return Request(
            kernel=_seeded(first.kernel, targets),
            device=self.device,
            problems=tuple(target.problem for target in targets),
            effort=effort,
            goal=Search(self.options.strategy, fresh=any(reason.fresh for reason in first.reasons)),
            budget=self._budget(effort, len(targets)),
            caches=Caches(caches) if caches else None,
            objective=find_objective(objective),
            command=self.options.command,
        )

    def _effort(self, target: Target) -> Effort:
        """Return the entry's effort if it is more than that of the options: less would not replace it."""
        known = EFFORTS[target.known.entry.origin.effort] if target.known else self.options.effort
        return max(known, self.options.effort, key=lambda effort: effort.seconds_per_problem)

    def _searched_alike(self, target: Target) -> tuple[Any, ...]:
        fresh = any(reason.fresh for reason in target.reasons)
        return (*_alike(target), self._effort(target).name, fresh)


def _alike(target: Target) -> tuple[str, str, str]:
    """Return kernel, caches (empty: as declared) and objective, which the targets of one run share."""
    if target.known is None:
        return target.kernel.name, "", TIME
    timing = Timing(target.known.entry.race.timing)
    return target.kernel.name, timing.caches, target.known.record.objective


def _seeded(kernel: Kernel, targets: Iterable[Target]) -> Kernel:
    old = [target.known.entry.configuration for target in targets if target.known]
    seeded = copy.copy(kernel)
    seeded.seeds = (*kernel.seeds, *(dict(configuration) for configuration in old))
    return seeded


# ---------------------------------------------------------------------- one entry


@dataclass(frozen=True)
class Remeasured:
    """A recorded winner, measured again."""

    #: `OK`, or how its verification or its race ended.
    status: Status
    message: str = ""
    #: Its time now over the recorded one; None where nothing was timed.
    ratio: Estimate | None = None
    #: The winner in its race, and the fastest of those that raced; None where nothing was timed.
    now: ContenderResult | None = None
    fastest: ContenderResult | None = None
    #: The device of the race.
    device_uuid: str = ""


class Verdict(StrEnum):
    """The state of a recorded entry."""

    HELD = "held"
    FASTER = "faster"
    SLOWER = "slower"
    #: As fast as recorded, but a runner-up is faster.
    BEATEN = "beaten"
    #: Wrong results, a crash, a time-out, or no longer a valid configuration.
    WRONG = "wrong"
    #: Nothing could be compared; the message says why.
    UNCHECKED = "unchecked"
    FAILED = "failed"


@dataclass(frozen=True)
class Checked:
    """A recorded entry and its verdict."""

    target: Target
    verdict: Verdict
    message: str = ""
    now: Remeasured | None = None


def verdict(now: Remeasured, threshold: float) -> tuple[Verdict, str]:
    """Return the verdict and its message; slower, beaten and faster only where that is sure."""
    if now.status is not Status.OK:
        return Verdict.WRONG, f"{now.status}: {now.message}"
    assert now.ratio is not None
    low, high = now.ratio.interval
    if low > 1 + threshold:
        return Verdict.SLOWER, f"{now.ratio.value:.3f} of its recorded time"
    if now.now and now.fastest and not now.now.tied:
        share = now.fastest.time_ms.value / now.now.time_ms.value
        if share < 1 - threshold:
            return Verdict.BEATEN, f"a runner-up needs {share:.3f} of its time"
    return (Verdict.FASTER if high < 1 - threshold else Verdict.HELD), ""


def _checked(bench: Bench, target: Target, threshold: float) -> Checked:
    assert target.known is not None
    record, entry = target.known.record, target.known.entry
    if Timing(entry.race.timing) is Timing.OTHER:
        text = f"timed in another way ({entry.race.timing})"
        return Checked(target, Verdict.UNCHECKED, text)
    try:
        now = remeasure(bench, record, entry)
    except AutotuneError as error:
        return Checked(target, Verdict.FAILED, str(error))
    return Checked(target, *verdict(now, threshold), now)


def remeasure(bench: Bench, record: TunedRecord, entry: TunedProblem) -> Remeasured:
    """Verify a recorded winner on every data set and odd size, then race it with its rivals.

    The bench is of the record's kernel and device, and times as its request says.
    """
    kernel, device = bench.kernel, bench.device
    problem, winner = Problem(dict(entry.problem)), Configuration(entry.configuration)
    if not is_member(kernel, winner, device):
        return Remeasured(Status.PRUNED, "its configuration is not in the declared space")
    job = bench.job(problem)
    edges = [edge for edge in bench.other_jobs(job) if kernel.allows(winner, edge.problem)]
    for checked in (*edges, job):
        verified = bench.verify(checked, winner)
        if verified.status is not Status.OK:
            where = "" if checked is job else f"on {checked.problem} with other inputs: "
            return Remeasured(verified.status, where + verified.message)
    # Those of another objective may well be faster.
    everyone = rivals(kernel, device, entry) if record.objective == TIME else []
    others = [rival for rival in everyone if bench.verify(job, rival).status is Status.OK]
    return _raced(bench, job, entry, [winner, *others])


def rivals(kernel: Kernel, device: Device, entry: TunedProblem) -> list[Configuration]:
    """Return who else may be the fastest: the runners-up and the default."""
    listed = [Configuration(other.configuration) for other in entry.race.runners_up]
    winner, others = Configuration(entry.configuration), (*listed[:_MOST_RIVALS], kernel.default())
    return [
        rival
        for rival in dict.fromkeys(others)
        if rival != winner and is_member(kernel, rival, device)
    ]


def over_recorded(now: Estimate, then: Estimate) -> Estimate:
    """Return the time now over the recorded one, with its 95 % interval.

    The interval of a ratio from the intervals of two independent medians (MOVER on logarithms:
    Zou & Donner, Statistics in Medicine 27, 2008). A recorded interval that does not hold its
    own median says nothing, and is taken to have no width.
    """
    low, high = now.interval
    then_low, then_high = then.interval
    if not 0 < then_low <= then.value <= then_high:
        then_low = then_high = then.value
    down = math.hypot(math.log(now.value / low), math.log(then_high / then.value))
    up = math.hypot(math.log(high / now.value), math.log(then.value / then_low))
    value = now.value / then.value
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def _raced(
    bench: Bench, job: Job, entry: TunedProblem, configurations: list[Configuration]
) -> Remeasured:
    contenders = [
        Contender(
            configuration,
            bench.compiled(configuration, job.problem).binary,
            deterministic=bench.kernel.is_deterministic(configuration, job.problem),
        )
        for configuration in configurations
    ]
    by_stream = not Timing(entry.race.timing).by_graph
    rules = RaceRules(ROUNDS, bench.request.seed, MAX_SECONDS, by_stream=by_stream)
    raced = race(bench.worker, job, contenders, rules)
    if failure := raced.samples[0].failure:
        return Remeasured(failure.status, f"in the race with its rivals: {failure.message}")
    result = judge(raced, seed=bench.request.seed)
    now = result.of(configurations[0]) if result else None
    assert result is not None and now is not None
    work = bench.kernel.work_of(job.problem)
    is_cold = job.caches is Caches.COLD
    why = implausible(now.time_ms.value, work, job.device, is_cold) if work else ""
    return Remeasured(
        Status.IMPLAUSIBLE if why else Status.OK,
        why,
        over_recorded(now.time_ms, entry.winner.time_ms),
        now,
        min((e for e in result.finalists if e.tied), key=lambda each: each.time_ms.value),
        raced.device_uuid,
    )
