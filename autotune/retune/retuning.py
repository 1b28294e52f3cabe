"""Measures stale entries again or searches them, within a time, and publishes the results."""

from __future__ import annotations

import copy
import fcntl
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from autotune import __version__
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.errors import AutotuneError, Interrupted, UsageError, unknown
from autotune.files import data_folder
from autotune.front import tune
from autotune.kernel.catalog import bundled_folder, find_kernel, listings
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status, find_objective
from autotune.measure.timing import Caches, Timing
from autotune.report.publish import amend
from autotune.retune.check import (
    THRESHOLD,
    Checked,
    Remeasured,
    Verdict,
    recorded_entries,
    remeasure,
    with_verdict,
)
from autotune.retune.stale import Action, KnownEntry, Reason, StaleQuery, Target, survey
from autotune.run.bench import LOCAL, Bench, Site
from autotune.run.portfolio import renewed
from autotune.run.recording import RunResult
from autotune.run.request import EFFORTS, Effort, Request, Search
from autotune.search.session import Budget, Listener, Phase, ignore
from autotune.tuned.reading import kernel_names, read, read_all, user_folder
from autotune.tuned.record import (
    TIME,
    Confirmed,
    Estimate,
    Portfolio,
    Provenance,
    TunedRecord,
    timestamp,
)

if TYPE_CHECKING:
    from autotune.fleet.client import Fleet

#: A winner that is slower than recorded by more than this share is searched again.
TOLERANCE = 0.02

#: Makes the listener of one job, from the kernel's name and the number of problems.
Progress = Callable[[str, int], AbstractContextManager[Listener]]


class RetuneStatus(StrEnum):
    """The result of a stale problem."""

    SEARCHED = "searched"
    #: Measured again: correct, as fast as recorded and still among the best.
    CONFIRMED = "confirmed"
    #: Not begun: the time was up, another process re-tunes the device, or it was a dry run.
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
    #: Time after which no search begins; None: no limit.
    seconds: float | None = None
    #: Share the seconds among all problems, a kernel at a time; effort and budget follow from it.
    share_seconds: bool = False
    #: List the outcomes that a run would have, as skipped.
    dry_run: bool = False
    #: Records, headers and reports go to ``out/<device>/``, as those of `autotune run` do.
    out: Path = Path("reports")
    seed: int = 0
    command: str = ""
    progress: Progress = lambda kernel, problems: nullcontext(ignore)
    #: Cards to measure on instead of this machine's devices: all of a device's model.
    fleet: Fleet | None = None
    #: Prints a message for a person.
    say: Callable[[str], None] = lambda _: None


def retune(query: StaleQuery, options: RetuneOptions) -> list[RetuneOutcome]:
    """Tune again what is stale on every device of a query.

    Where nothing is, no process is started. A device that another process is re-tuning is skipped.
    """
    failed: dict[str, RetuneOutcome] = {}
    outcomes: list[RetuneOutcome] = []
    until = Deadline(options.seconds)
    for device in query.devices:
        with nullcontext("") if options.dry_run else device_lock(device) as holder:
            found = survey(query, device)
            for failure in found.failures:
                failed[failure.kernel] = RetuneOutcome(failure.kernel, message=failure.message)
            if holder and found.targets:
                options.say(f"{device.name}: already being re-tuned by {holder}")
            if reason := "dry run" if options.dry_run else holder and f"left to {holder}":
                skipped = RetuneStatus.SKIPPED
                outcomes += [outcome(target, skipped, reason) for target in found.targets]
            elif options.share_seconds:
                outcomes += _retuned_by_kernel(device, options, until, found.targets)
            elif found.targets:
                with Retuner(device, options, until) as retuner:
                    outcomes += retuner.retune(found.targets)
    return [*failed.values(), *outcomes]


def _retuned_by_kernel(
    device: Device, options: RetuneOptions, until: Deadline, targets: Sequence[Target]
) -> list[RetuneOutcome]:
    """Tune a kernel at a time, each published before the next begins.

    A kernel's problems have as much time as all remaining problems have on average. Finals are those of
    a full run where that is as much as a quick search takes.
    """
    outcomes: list[RetuneOutcome] = []
    waiting = Counter(target.kernel.name for target in targets)
    for name in list(waiting):
        share = until.left / waiting.total()
        del waiting[name]
        quick = share < EFFORTS["quick"].seconds_per_problem
        own = replace(
            options,
            effort=EFFORTS["quick" if quick else "full"],
            budget=Budget(seconds=max(1.0, share)),
        )
        with Retuner(device, own, until) as retuner:
            outcomes += retuner.retune([each for each in targets if each.kernel.name == name])
    return outcomes


def all_sizes(query: StaleQuery, options: RetuneOptions) -> tuple[StaleQuery, RetuneOptions]:
    """Return query and options for all sizes that have no current entry in the output folder."""
    device, bundled = query.devices[0], bundled_folder("spaces")
    names = query.kernels or tuple(
        listing.name
        for listing in listings(query.spaces)
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
    seconds = 3600.0 if options.seconds is None else options.seconds
    return wider, replace(options, effort=EFFORTS["full"], seconds=seconds, share_seconds=True)


def measure_portfolio(
    name: str, device: Device, options: RetuneOptions, folder: Path, spaces: Path | None
) -> tuple[Path, Portfolio, Portfolio]:
    """Measure the portfolio of a kernel's record in a folder again.

    Return the record's file, the portfolio that was measured, and the one that is kept.
    """
    budget_s = options.budget.seconds if options.budget else 60.0
    if budget_s is None:
        raise UsageError("retune --portfolio: --budget is a time, for example 90s")
    kernel = find_kernel(name, spaces)
    path = folder / device.folder / f"{kernel.name}.json"
    if not path.exists():
        raise UsageError(f"{path}: nothing is tuned there; run: autotune run {kernel.name}")
    record = read(path)
    with options.progress(kernel.name, len(record.problems)) as listener:
        record = renewed(record, kernel, device, budget_s, listener)
    return path, record.portfolio, amend(folder, record).portfolio


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


@dataclass(frozen=True)
class GateReport:
    """The verdict of every entry, and the outcomes of those that were tuned again."""

    checked: tuple[Checked, ...]
    retuned: tuple[RetuneOutcome, ...] = ()


def check_tuned(
    names: Sequence[str],
    devices: Sequence[Device],
    options: RetuneOptions,
    *,
    spaces: Path | None = None,
    threshold: float = THRESHOLD,
    retune: bool = False,
) -> GateReport:
    """Verify and measure the entries that lookup answers with on some devices.

    Without names all kernels that have a record are checked. With ``retune`` the entries that are slower
    than recorded by more than the threshold, or wrong, are searched again.
    """
    checked: list[Checked] = []
    retuned: list[RetuneOutcome] = []
    until = Deadline(options.seconds)
    listed = [(device, list(recorded_entries(names, device, spaces))) for device in devices]
    found = {entry.kernel for _, entries in listed for entry in entries}
    for name in names:
        if name not in found:
            files = {kernel for device in devices for kernel in kernel_names(device.folder)}
            recorded = sorted(files - {name})  # its own would be one that cannot be read
            message = unknown("tuned kernel", name, recorded)
            raise UsageError(f"{message}; make a record with: autotune run {name}")
    for device, entries in listed:
        if not any(entry.verdict is Verdict.HELD for entry in entries):
            checked += entries
            continue
        with device_lock(device, options.say), Retuner(device, options, until) as retuner:
            judged = _judged(retuner, entries, threshold)
            checked += judged
            if retune:
                retuned += retuner.search([o.target for o in judged if o.verdict.is_regression])
    return GateReport(tuple(checked), tuple(retuned))


def _judged(retuner: Retuner, entries: Sequence[Checked], threshold: float) -> list[Checked]:
    """Measure what can be, in the order it was listed."""
    held = [entry.target for entry in entries if entry.verdict is Verdict.HELD]
    found = {id(target.known): now for target, now in retuner.measured(held)}
    return [
        with_verdict(entry, found[id(entry.known)], threshold)
        if id(entry.known) in found
        else entry
        for entry in entries
    ]


@contextmanager
def device_lock(device: Device, waiting: Callable[[str], None] | None = None) -> Iterator[str]:
    """Hold the lock of a device model's records; yield its other holder, empty where it is ours.

    The system releases it however its process ends. It lies with the tuned records, so machines that
    share those share it, where the file system can. With ``waiting`` it waits for another holder, after
    it called ``waiting`` with a message.
    """
    with open(data_folder("locks") / f"{device.folder}.lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held_by = os.pread(file.fileno(), 200, 0).decode(errors="replace").strip()
            holder = held_by or "another process"
            if waiting is None:
                yield holder
                return
            waiting(f"{device.name}: waiting for {holder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: records are replaced whole either way
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield ""


class Deadline:
    """A time after which no search begins."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    @property
    def is_past(self) -> bool:
        return self.left <= 0


class Retuner(ExitStack):
    """The re-tuning of one device, whose lock the caller holds; a context manager."""

    def __init__(self, device: Device, options: RetuneOptions, until: Deadline) -> None:
        super().__init__()
        self.device, self.options, self.until = device, options, until

    def retune(self, targets: Sequence[Target]) -> list[RetuneOutcome]:
        """Tune again entries that may be wrong, then those to confirm, then new problems."""
        searched = [target for target in targets if target.action is Action.SEARCH]
        outcomes = self.search([target for target in searched if target.known])
        confirmed, fallen = self.remeasure([t for t in targets if t.action is Action.REMEASURE])
        outcomes += confirmed
        outcomes += self.search(fallen)
        return outcomes + self.search([target for target in searched if not target.known])

    # ------------------------------------------------------------------ measuring again

    def remeasure(self, targets: Sequence[Target]) -> tuple[list[RetuneOutcome], list[Target]]:
        """Confirm the entries that hold; return the others as targets of a search."""
        outcomes: list[RetuneOutcome] = []
        fallen: list[Target] = []
        for target, now in self.measured(targets):
            if now is None:
                outcomes.append(outcome(target, RetuneStatus.SKIPPED, "no time left"))
            elif isinstance(now, AutotuneError):
                outcomes.append(outcome(target, RetuneStatus.FAILED, str(now)))
            elif why := reason_to_search(now):
                fallen.append(replace(target, reasons=(*target.reasons, why)))
            else:
                outcomes.append(self._confirm(target, now))
        return outcomes, fallen

    def measured(
        self, targets: Sequence[Target]
    ) -> Iterator[tuple[Target, Remeasured | AutotuneError | None]]:
        """Verify and measure the winners of targets again; yield None where the time is up."""
        for _, group in groupby(sorted(targets, key=_alike), key=_alike):
            listed = list(group)
            if self.until.is_past:
                yield from ((target, None) for target in listed)
                continue
            try:
                request = self._request(listed, EFFORTS["quick"])
            except UsageError as error:  # its objective is of another version
                yield from ((target, error) for target in listed)
                continue
            bench = Bench(request, self._site)
            with self._progress(request) as listener, closing(bench):
                for target in listed:
                    now = None if self.until.is_past else _remeasured(bench, listener, target)
                    bench.forget_data()  # no problem comes twice
                    yield target, now

    def _confirm(self, target: Target, now: Remeasured) -> RetuneOutcome:
        """Record that the times hold; they stay, so that small losses cannot add up."""
        known, ratio = target.known, now.ratio
        assert known is not None and ratio is not None
        try:
            self._refresh(known, self._confirmed(known, ratio))
        except AutotuneError as error:
            return outcome(target, RetuneStatus.FAILED, str(error))
        low, high = ratio.interval
        message = f"{ratio.value:.3f} of its recorded time ({low:.3f} … {high:.3f})"
        now_ms = now.now.time_ms.value if now.now else None
        return outcome(target, RetuneStatus.CONFIRMED, message, now_ms)

    def _confirmed(self, known: KnownEntry, ratio: Estimate) -> TunedRecord:
        """Return a record of the one entry, with its confirmation."""
        low, high = ratio.interval
        now, toolchain = timestamp(), backend(self.device.backend).toolchain()
        made = Provenance(
            version=__version__,
            toolchain=toolchain,
            driver=self.device.driver,
            source=known.record.provenance.source,
            created=now,
        )
        confirmed = Confirmed(
            on=now,
            driver=made.driver,
            toolchain=toolchain,
            ratio=_brief(ratio.value),
            ratio_interval=(_brief(low), _brief(high)),
        )
        entry = msgspec.structs.replace(known.entry, confirmed=confirmed)
        return msgspec.structs.replace(known.record, problems=(entry,), provenance=made)

    def _refresh(self, known: KnownEntry, record: TunedRecord) -> None:
        """Write a confirmed entry where lookup finds it, and to ``out`` where it is the same."""
        own = [known.directory] if known.layer != "shipped" else []
        mine = [Path(user_folder())] if record.objective == TIME else []
        for directory in {*mine, *own}:
            amend(directory, record)
        for other in read_all(self.options.out, record.kernel):
            in_out = other.tuned(known.entry.problem)
            if other.device.folder != record.device.folder or in_out is None:
                continue
            winner = known.entry.configuration, known.entry.median_ms
            if winner == (in_out.configuration, in_out.median_ms):
                amend(self.options.out, record)

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
            with self._progress(request) as listener:
                result, _ = tune(request, out, listener, self._site, first - {out})
        except Interrupted:
            raise
        except (AutotuneError, OSError) as error:
            return [outcome(target, RetuneStatus.FAILED, str(error)) for target in targets]
        if isinstance(result.ended, Interrupted):
            raise result.ended
        return _outcomes(targets, result, str(result.ended or "nothing was right in time"))

    def _how_many(self, effort: Effort, count: int) -> int:
        """Return how many problems there is time for; those of a quick search share its time."""
        if self.until.is_past:
            return 0
        own = self.options.budget.seconds if self.options.budget else effort.seconds_per_problem
        if own is None or (effort.shared and self.options.budget is None):
            return count
        return count if own * count <= self.until.left else max(1, int(self.until.left // own))

    def _budget(self, effort: Effort, count: int) -> Budget:
        given = self.options.budget
        if given is None:
            seconds = effort.seconds_per_problem * (1 if effort.shared else count)
            return Budget(seconds=min(seconds, self.until.left))
        left = None if self.until.left == math.inf else max(1.0, self.until.left)
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
        return Request(
            kernel=_seeded(first.kernel, targets),
            device=self.device,
            problems=tuple(target.problem for target in targets),
            effort=effort,
            goal=Search(self.options.strategy, fresh=any(reason.fresh for reason in first.reasons)),
            budget=self._budget(effort, len(targets)),
            seed=self.options.seed,
            caches=_caches(first),
            objective=find_objective(_objective(first)),
            command=self.options.command,
        )

    def _effort(self, target: Target) -> Effort:
        """Return the entry's effort if it is more than that of the options: less would not replace it."""
        known = EFFORTS[target.known.entry.origin.effort] if target.known else self.options.effort
        return max(known, self.options.effort, key=lambda effort: effort.seconds_per_problem)

    def _searched_alike(self, target: Target) -> tuple[Any, ...]:
        fresh = any(reason.fresh for reason in target.reasons)
        return (*_alike(target), self._effort(target).name, fresh)

    def _progress(self, request: Request) -> AbstractContextManager[Listener]:
        return self.options.progress(request.kernel.name, len(request.problems))


def reason_to_search(now: Remeasured) -> Reason | None:
    """Return the reason to search for a winner that was measured again; None where it holds."""
    if now.status is not Status.OK:
        return Reason(f"it is {now.status}: {now.message}", Action.SEARCH, fresh=True)
    assert now.ratio is not None
    if now.ratio.interval[0] > 1 + TOLERANCE:
        loss = f"{now.ratio.value - 1:.1%}"
        return Reason(f"it is slower by {loss}", Action.SEARCH, fresh=True)
    if not now.is_tied:
        share = 1 - now.fastest_share
        return Reason(f"a runner-up is faster by {share:.1%}", Action.SEARCH, fresh=True)
    return None


def _outcomes(targets: Iterable[Target], result: RunResult, why_not: str) -> list[RetuneOutcome]:
    """Return the outcomes of a search: a winner, or the reason why there is none."""
    times = {won.problem: won.result.winner.time_ms.value for won in result.problems if won.result}
    return [
        outcome(target, RetuneStatus.SEARCHED, "", times[target.problem])
        if target.problem in times
        else outcome(target, RetuneStatus.FAILED, why_not)
        for target in targets
    ]


def _remeasured(bench: Bench, listener: Listener, target: Target) -> Remeasured | AutotuneError:
    assert target.known is not None
    listener(Phase(target.problem, "the winner and its runners-up, again"))
    try:
        return remeasure(bench, target.known.record, target.known.entry)
    except AutotuneError as error:
        return error


def _alike(target: Target) -> tuple[str, str, str]:
    """Return the facts that the targets of one run share."""
    return target.kernel.name, _caches(target) or "", _objective(target)


def _objective(target: Target) -> str:
    return target.known.record.objective if target.known else TIME


def _caches(target: Target) -> Caches | None:
    return Timing(target.known.entry.race.timing).caches if target.known else None


def _seeded(kernel: Kernel, targets: Iterable[Target]) -> Kernel:
    """Return the kernel with the old winners among its seeds."""
    old = [target.known.entry.configuration for target in targets if target.known]
    seeded = copy.copy(kernel)
    seeded.seeds = (*kernel.seeds, *(dict(configuration) for configuration in old))
    return seeded


def _brief(ratio: float) -> float:
    """Round to five significant digits: a small ratio stays above 0, which no record may hold."""
    return float(f"{ratio:.5g}")
