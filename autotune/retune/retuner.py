"""Re-tunes the entries of one device: confirms entries that are still good, searches the others."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from autotune import __version__
from autotune.compiling.binaries import Compiled
from autotune.compiling.job import compile_job
from autotune.devices.base import Binary
from autotune.devices.device import Device
from autotune.devices.nvml import clocks_of
from autotune.errors import AutotuneError, Interrupted
from autotune.front import tune
from autotune.kernel.spec import Kernel
from autotune.languages.registry import compiler
from autotune.measure.compilers import CompilerPool
from autotune.measure.measurement import find_objective
from autotune.measure.timing import Caches, Timing
from autotune.report.publish import amend
from autotune.retune.gate import (
    CheckedEntry,
    Remeasurement,
    Verdict,
    check_entry,
    check_others,
)
from autotune.retune.outcomes import RetuneOptions, RetuneOutcome, RetuneStatus
from autotune.retune.stale import Action, KnownEntry, Reason, Target, has_measured_code
from autotune.run.bench import LOCAL, Bench, Site
from autotune.run.request import EFFORTS, Effort, Request, Search
from autotune.search.session import Budget, Phase
from autotune.tuned.dates import timestamp
from autotune.tuned.reading import user_folder
from autotune.tuned.record import TIME, Confirmation, TunedProblem
from autotune.values import Configuration

#: Maximum slowdown of a confirmed winner, as a share of its recorded time.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Retuner:
    """The re-tuning of one device. The caller must hold the device's lock."""

    device: Device
    options: RetuneOptions
    #: Time of `time.monotonic` after which no search begins.
    until_s: float

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def retune(self, targets: Sequence[Target]) -> list[RetuneOutcome]:
        """Search entries that may be wrong, then confirm entries, then search new problems."""
        searched = [target for target in targets if target.action is Action.SEARCH]
        outcomes = self.search([target for target in searched if target.known])
        outdated = [target for target in targets if target.action is Action.RECOMPILE]
        same, changed = self.recompile(outdated)
        again = [target for target in targets if target.action is Action.REMEASURE]
        confirmed, failed = self.remeasure([*again, *changed])
        outcomes += same + confirmed + self.search(failed)
        return outcomes + self.search([target for target in searched if not target.known])

    # ------------------------------------------------------------------ compiling again

    def recompile(self, targets: Sequence[Target]) -> tuple[list[RetuneOutcome], list[Target]]:
        """Confirm entries whose winner has the machine code that was measured; return the others.

        Nothing is measured, except if the device is throttled now.
        """
        clocks = clocks_of(self.device.uuid)
        same: list[Target] = []
        changed: list[Target] = []
        for target, binary in self._compiled(targets):
            is_same = has_measured_code(target.kernel, self.device, _known(target).entry, binary)
            (same if is_same and not clocks.is_throttled else changed).append(target)
        sampled = f"; the SM clock is {clocks.sm_mhz} MHz" if clocks.sm_mhz else ""
        message = f"the compiler makes the machine code that was measured{sampled}"
        outcomes: list[RetuneOutcome] = []
        for _, group in groupby(sorted(same, key=_file_of), key=_file_of):
            found = [(target, _still_of(_known(target).entry)) for target in group]
            outcomes += self._confirm(found, message)
        return outcomes, changed

    def _compiled(self, targets: Sequence[Target]) -> Iterator[tuple[Target, Binary | None]]:
        """Compile the winners of targets at once; None for a winner that fails, and if no time is left."""
        if not targets or self.left_s <= 0:
            yield from ((target, None) for target in targets)
            return
        request = self._request(targets[:1], EFFORTS["quick"])
        with self._site.compilers(request) as compilers:
            compilers.start()
            made = [self._submitted(compilers, target) for target in targets]
            for target, compiled in zip(targets, made, strict=True):
                yield target, compiled.result().binary if compiled else None

    def _submitted(self, compilers: CompilerPool, target: Target) -> Future[Compiled] | None:
        configuration = Configuration(_known(target).entry.configuration)
        with suppress(AutotuneError):  # measuring says what is wrong
            return compilers.submit(
                compile_job(target.kernel, configuration, target.problem, self.device)
            )
        return None

    # ------------------------------------------------------------------ measuring again

    def remeasure(self, targets: Sequence[Target]) -> tuple[list[RetuneOutcome], list[Target]]:
        """Confirm entries that are still good; return the other entries as targets of a search."""
        outcomes: list[RetuneOutcome] = []
        failed: list[Target] = []
        for found in self.checked(targets, TOLERANCE):
            if found.verdict is Verdict.UNCHECKED:
                outcomes.append(RetuneOutcome.of(found.target, RetuneStatus.SKIPPED, found.message))
            elif found.verdict is Verdict.FAILED:
                outcomes.append(RetuneOutcome.of(found.target, RetuneStatus.FAILED, found.message))
            elif found.verdict in (Verdict.HELD, Verdict.FASTER, Verdict.UNDECIDED):
                outcomes += self._held(found.target, found.remeasurement)
            else:
                why = Reason(f"it is {found.verdict}: {found.message}", Action.SEARCH, fresh=True)
                failed.append(replace(found.target, reasons=(*found.target.reasons, why)))
        return outcomes, failed

    def checked(
        self, targets: Sequence[Target], threshold: float, with_others: bool = False
    ) -> Iterator[CheckedEntry]:
        """Verify and measure the winners of targets again, while there is time.

        With ``with_others`` also verify the other configurations that lookup answers with.
        """
        ordered = sorted(targets, key=_alike)
        for _, group in groupby(ordered, key=_alike):
            listed = list(group)
            request = self._request(listed, EFFORTS["quick"])
            bench = Bench(request, self._site)
            progress = self.options.progress(request.kernel.name, len(listed))
            with progress as listener, closing(bench):
                for target in listed:
                    if self.left_s <= 0:
                        yield CheckedEntry(target, Verdict.UNCHECKED, "no time left")
                        continue
                    listener(Phase(target.problem, "the winner and its runners-up, again"))
                    yield check_entry(bench, target, threshold)
                of_kernel = [t for t in ordered if t.kernel.name == bench.kernel.name]
                if with_others and listed[-1] is of_kernel[-1] and self.left_s > 0:
                    others = check_others(bench, of_kernel)
                    yield from itertools.takewhile(lambda _: self.left_s > 0, others)

    def _held(self, target: Target, found: Remeasurement | None) -> list[RetuneOutcome]:
        """Confirm an entry that was measured again; it keeps its times, so that small losses cannot add up."""
        assert found is not None and found.slowdown is not None
        ratio, winner = found.slowdown.ratio, found.winner
        confirmed = Confirmation(
            on=timestamp(),
            ratio=ratio.value,
            ratio_interval=ratio.interval,
            code=winner.code if winner else "",
        )
        message = "{:.3f} times its recorded time ({:.3f} … {:.3f})".format(
            ratio.value, *ratio.interval
        )
        return self._confirm(
            [(target, confirmed)], message, winner.time_ms.value if winner else None
        )

    def _confirm(
        self,
        found: Sequence[tuple[Target, Confirmation]],
        message: str,
        now_ms: float | None = None,
    ) -> list[RetuneOutcome]:
        """Write confirmations of entries of one record, with today's driver and compiler.

        They go to the user's records and to the record that lookup reads.
        """
        targets, changed = [target for target, _ in found], msgspec.structs.replace
        kernel, known = targets[0].kernel, _known(targets[0])
        record, on = known.record, timestamp()
        versions = {
            "driver": self.device.driver,
            "toolchain": compiler(kernel.language_on(self.device.backend)).toolchain(),
        }
        made = changed(record.provenance, version=__version__, created=on, **versions)
        entries = tuple(
            changed(_known(target).entry, confirmed=changed(confirmed, **versions))
            for target, confirmed in found
        )
        own = [known.directory] if known.layer not in ("shipped", "project") else []
        mine = [Path(user_folder(kernel.project))] if record.objective == TIME else []
        status = RetuneStatus.CONFIRMED
        try:
            for directory in {*mine, *own}:
                amend(directory, changed(record, problems=entries, provenance=made))
        except AutotuneError as error:
            status, message, now_ms = RetuneStatus.FAILED, str(error), None
        return [RetuneOutcome.of(target, status, message, now_ms) for target in targets]

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
            outcomes += [
                RetuneOutcome.of(target, RetuneStatus.SKIPPED, "no time left") for target in late
            ]
        return outcomes

    def _search(self, targets: list[Target], effort: Effort) -> list[RetuneOutcome]:
        known = [target.known for target in targets if target.known]
        # Also the folders of AUTOTUNE_TUNED, which lookup reads first.
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
            return [RetuneOutcome.of(target, RetuneStatus.FAILED, str(error)) for target in targets]
        if isinstance(result.ended, Interrupted):
            raise result.ended
        times = {
            tuned.problem: tuned.result.winner.time_ms.value
            for tuned in result.problems
            if tuned.result
        }
        searched, failed = RetuneStatus.SEARCHED, RetuneStatus.FAILED
        why_not = str(result.ended or "no configuration passed verification in time")
        return [
            RetuneOutcome.of(target, searched, "", times[target.problem])
            if target.problem in times
            else RetuneOutcome.of(target, failed, why_not)
            for target in targets
        ]

    def _how_many(self, effort: Effort, count: int) -> int:
        """Return the number of problems that fit in the remaining time; all, if they share a budget."""
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
            goal=Search(
                self.options.strategy,
                fresh=any(reason.fresh for reason in first.reasons),
                strategy_options=self.options.strategy_options,
            ),
            budget=self._budget(effort, len(targets)),
            caches=Caches(caches) if caches else None,
            objective=find_objective(objective),
            command=self.options.command,
        )

    def _effort(self, target: Target) -> Effort:
        """Return the larger of the entry's effort and the options': a smaller one replaces no entry."""
        known = EFFORTS[target.known.entry.origin.effort] if target.known else self.options.effort
        return max(known, self.options.effort, key=lambda effort: effort.seconds_per_problem)

    def _searched_alike(self, target: Target) -> tuple[Any, ...]:
        fresh = any(reason.fresh for reason in target.reasons)
        return (*_alike(target), self._effort(target).name, fresh)


def _known(target: Target) -> KnownEntry:
    assert target.known is not None  # only an entry can be confirmed
    return target.known


def _file_of(target: Target) -> tuple[str, str, str]:
    """Return what identifies the record of a target's entry."""
    known = _known(target)
    return target.kernel.name, str(known.directory), known.record.device.folder


def _still_of(entry: TunedProblem) -> Confirmation:
    """Return the last confirmation of an entry; the date of its tuning without one."""
    return entry.confirmed or Confirmation(on=entry.origin.tuned_on, code=entry.winner.code)


def _alike(target: Target) -> tuple[str, str, str]:
    """Return the properties that the targets of one run share: kernel, caches and objective.

    Empty caches are the caches that the kernel declares.
    """
    if target.known is None:
        return target.kernel.name, "", TIME
    timing = Timing(target.known.entry.race.timing)
    return target.kernel.name, timing.caches, target.known.record.objective


def _seeded(kernel: Kernel, targets: Iterable[Target]) -> Kernel:
    old = [target.known.entry.configuration for target in targets if target.known]
    seeded = copy.copy(kernel)
    seeded.seeds = (*kernel.seeds, *(dict(configuration) for configuration in old))
    return seeded
