"""Whatever a kernel does, the run goes on: one row per configuration, innocent ones unharmed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from autotune.compiling.job import compile_job
from autotune.devices.choose import choose_device
from autotune.errors import NothingValidError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.measure.measurement import Status
from autotune.measure.race import Contender, RaceRules, race
from autotune.run.bench import Bench
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget, Measured
from autotune.store import Store

SPACES = Path(__file__).parents[1] / "data" / "spaces"

#: The ways to end that are right for each fault.
EXPECTED = {
    "none": {Status.OK, Status.STOPPED_EARLY},
    "syntax_error": {Status.COMPILE_FAILED},
    "too_much_shared": {Status.PRUNED},
    "k_step_dropped": {Status.WRONG_RESULT},
    "element_doubled": {Status.WRONG_RESULT},
    "nan": {Status.WRONG_RESULT},
    "unwritten": {Status.WRONG_RESULT},
    "only_over_nan": {Status.WRONG_RESULT},
    "late_wrong": {Status.WRONG_RESULT, Status.STOPPED_EARLY},  # which is not looked at again
    "far_out_of_bounds": {Status.WRONG_RESULT},
    "input_overwritten": {Status.WRONG_RESULT},
    "hang": {Status.TIMED_OUT},
    "out_of_bounds": {Status.WRONG_RESULT},
    "illegal_address": {Status.CRASHED},
}
#: What the message must say.
WORDS = {
    "syntax_error": "error",
    "too_much_shared": "shared",
    "k_step_dropped": "exact data",
    "element_doubled": "out[3]",
    "nan": "out[2] is nan",
    "unwritten": "not written",
    "only_over_nan": "(not written), expected",
    "late_wrong": "timed launches: out[0] is",
    "far_out_of_bounds": "outside the bounds of out",
    "input_overwritten": "changed its input a",
    "hang": "no result after",
    "out_of_bounds": "outside the bounds of out",
}


class FaultContract:
    """Subclass with ``selector``, the device to run on."""

    selector: str
    timeout_s = 10.0

    def tuned(self, store, **fixed):
        kernel = find_kernel("faulty", SPACES)
        request = Request(
            kernel=kernel,
            device=choose_device(self.selector),
            problems=kernel.problems["cuda"],
            goal=Search("exhaustive", fixed),
            budget=Budget(),
            timeout_s=self.timeout_s,
        )
        with Store.open(store) as opened:
            tuning = Run(request, opened)
            try:
                return tuning.run()
            finally:
                tuning.close()

    def test_every_fault_gets_its_status_and_the_innocent_survive(self, tmp_path):
        """All faults in one run, interleaved with right configurations."""
        run = self.tuned(tmp_path / "s.sqlite", BLOCK=(32, 64), FAULT=tuple(EXPECTED))
        (result,) = run.problems
        asked = Counter(measurement.configuration for measurement in result.measured)
        assert set(asked.values()) == {1}
        assert len(asked) == 2 * len(EXPECTED) - 1  # the space has one hang only
        for measurement in result.measured:
            fault, status = str(measurement.configuration["FAULT"]), measurement.status
            assert status in EXPECTED[fault], f"{fault}: {status} {measurement.message}"
            if status is not Status.STOPPED_EARLY:
                assert WORDS.get(fault, "") in measurement.message, (
                    f"{fault}: {measurement.message}"
                )
        with Store.open(tmp_path / "s.sqlite") as store:
            rows = Counter(row.measurement.configuration for row in store.rows())
        out = Counter(measurement.configuration for measurement in result.disqualified)
        assert rows == asked + out  # what a final finds out is a row of its own
        assert {str(configuration["FAULT"]) for configuration in out} <= {"late_wrong"}
        assert result.winner is not None
        assert result.winner["FAULT"] == "none"

    def test_too_many_threads_are_pruned_before_compiling(self, tmp_path):
        run = self.tuned(tmp_path / "s.sqlite", BLOCK=(64, 16384), FAULT=("none",))
        pruned = _only(run, Status.PRUNED)
        assert "16384 threads" in pruned.message
        assert pruned.compile_s == 0

    @pytest.mark.parametrize("fault", ["k_step_dropped", "nan"])
    def test_a_kernel_that_is_only_wrong_has_no_winner(self, tmp_path, fault):
        with pytest.raises(NothingValidError, match="no configuration passed verification"):
            self.tuned(tmp_path / "s.sqlite", BLOCK=(32, 64), FAULT=(fault,))

    def test_a_worker_killed_from_outside_costs_no_row(self, tmp_path):
        """Killed after each result, as the system does when memory is short."""
        kernel = find_kernel("faulty", SPACES)
        request = Request(
            kernel=kernel,
            device=choose_device(self.selector),
            problems=kernel.problems["cuda"],
            goal=Search("exhaustive", {"BLOCK": (32, 64, 128), "FAULT": ("none", "nan")}),
            budget=Budget(),
        )
        killed = []

        def kill(event):
            if isinstance(event, Measured):
                killed.append(tuning.worker.actor.pid)
                os.kill(tuning.worker.actor.pid, signal.SIGKILL)

        with Store.open(tmp_path / "s.sqlite") as store:
            tuning = Run(request, store, kill)
            try:
                run = tuning.run()
            finally:
                tuning.close()
            rows = Counter(row.measurement.configuration for row in store.rows())
        assert len(set(killed)) >= 3  # results that were ready together came from one worker
        assert set(rows.values()) == {1} and len(rows) == 6
        for measurement in run.problems[0].measured:
            assert measurement.status in EXPECTED[str(measurement.configuration["FAULT"])]

    def test_a_race_goes_on_without_those_that_hang_break_the_context_or_become_wrong(self):
        """As finalists may that were right whenever they ran alone."""
        kernel, device = find_kernel("faulty", SPACES), choose_device(self.selector)
        space = enumerate_space(kernel, device).restricted(
            {"FAULT": ("none", "hang", "illegal_address", "late_wrong"), "BLOCK": (32, 64)}
        )
        faults = [str(configuration["FAULT"]) for configuration in space]
        assert set(faults) == {"none", "hang", "illegal_address", "late_wrong"}
        bench = Bench(Request(kernel, device, kernel.problems["cuda"], timeout_s=self.timeout_s))
        try:
            job = bench.job(kernel.problems["cuda"][0])
            compiled = [
                bench.compilers.result(compile_job(kernel, configuration, job.problem, device))
                for configuration in space
            ]
            contenders = [
                Contender(configuration, found.binary)
                for configuration, found in zip(space, compiled, strict=True)
            ]
            raced = race(bench.worker, job, contenders, RaceRules(9, seed=1, max_seconds=60.0))
        finally:
            bench.close()
        counts = [len(samples.times_ms) for samples in raced.samples]
        assert counts == [9 * (fault == "none") for fault in faults]
        ends = {faults[place]: failure.status for place, failure in raced.failures.items()}
        assert ends == {
            "hang": Status.TIMED_OUT,
            "illegal_address": Status.CRASHED,
            "late_wrong": Status.WRONG_RESULT,
        }
        # Of the heat that went through; a CPU does not say.
        assert (raced.clocks.sm_mhz is not None) == (device.backend == "cuda")

    def test_a_wrong_result_says_where_and_by_how_much(self, tmp_path):
        run = self.tuned(tmp_path / "s.sqlite", BLOCK=(32,), FAULT=("none", "element_doubled"))
        wrong = _only(run, Status.WRONG_RESULT)
        (check,) = wrong.checks
        assert check.first_wrong == 3
        assert check.dataset == "exact"
        assert check.bound == 0


def _only(run, status):
    (only,) = [found for found in run.problems[0].measured if found.status is status]
    return only
