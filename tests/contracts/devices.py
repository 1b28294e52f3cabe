"""Several devices of one host in one run: every row once, by its own device, whatever happens.

One device under two uuids stands for two of one model: the same code runs, in two processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from thinned import thinned

from autotune.devices.choose import choose_device
from autotune.errors import Interrupted
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Measurement, Status
from autotune.run.bench import LOCAL, Bench, Site
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget, Measured, SearchStarted, ignore
from autotune.store import Store
from contracts.faults import EXPECTED, SPACES

TWIN = "the other of the same model"
LATE = "another that came to a fleet after the run began"
TIMED = {Status.OK, Status.STOPPED_EARLY}


def by_name(measured):
    """In an order of their own: rows are in the order in which they were done."""
    return sorted(measured, key=lambda measurement: measurement.configuration.canonical_json())


class LateSite(Site):
    """Where one more device has measured than the run began with."""

    def remembered(self, request):
        return (*super().remembered(request), LATE)


class SeveralDevicesContract:
    """Subclass with ``selector``, the device to open twice."""

    selector: str

    def request(self, *faults, twins=True):
        kernel, device = find_kernel("faulty", SPACES), choose_device(self.selector)
        return Request(
            kernel=kernel,
            device=device,
            problems=kernel.problems["cuda"],
            goal=Search("exhaustive", {"BLOCK": (32, 64, 128), "FAULT": faults}),
            budget=Budget(),
            timeout_s=10.0,
            others=(replace(device, uuid=TWIN),) if twins else (),
        )

    def tuned(self, request, file, listener=ignore, site=LOCAL):
        waited: list[int] = []

        def together(event):
            """After the first result wait for all: else a quick device may do what is there alone."""
            if isinstance(event, Measured) and not waited:
                waited.extend(
                    worker.actor.ask(os.getpid, timeout_s=60) for worker in self.tuning.workers
                )
            listener(event)

        with Store.open(file) as store:
            tuning = Run(request, store, together, site)
            self.tuning = tuning
            try:
                return tuning.run()
            finally:
                tuning.close()

    def rows(self, file):
        """What the store holds; each row names the device that its column does."""
        with Store.open(file) as store:
            rows = store.rows()
        for row in rows:
            assert row.measurement.device_uuid in ("", row.device_uuid)
        return [row.measurement for row in rows]

    def test_both_devices_measure_and_results_are_in_the_order_asked(self, tmp_path):
        faults = ("none", "nan", "syntax_error", "unwritten", "too_much_shared")
        result = self.tuned(self.request(*faults), tmp_path / "two.sqlite")
        alone = self.tuned(self.request(*faults, twins=False), tmp_path / "one.sqlite")
        (several,), (single,) = result.problems, alone.problems
        assert [measurement.configuration for measurement in several.measured] == [
            measurement.configuration for measurement in single.measured
        ]
        for measured in several.measured:
            assert measured.status in EXPECTED[str(measured.configuration["FAULT"])]
        rows = self.rows(tmp_path / "two.sqlite")
        assert by_name(rows) == by_name(several.measured)
        ran = Counter(row.device_uuid for row in rows if row.device_uuid)
        assert set(ran) == {result.request.device.uuid, TWIN}
        assert ran.total() == sum(
            row.status in (*TIMED, Status.WRONG_RESULT, Status.LAUNCH_FAILED) for row in rows
        )

    def test_one_device_measures_all_of_a_batch_on_a_cpu_in_its_order(self):
        """On a GPU what is compiled first comes first."""
        request = self.request("none", "syntax_error", "too_much_shared", twins=False)
        space = enumerate_space(request.kernel, request.device).restricted(request.goal.fixed)
        asked = sorted(
            space, key=lambda configuration: (configuration["BLOCK"], configuration["FAULT"])
        )
        bench = Bench(request)
        try:
            job = bench.job(request.problems[0])
            with DeviceEvaluator(request.kernel, job, bench.compilers, bench.worker) as evaluator:
                measured = list(evaluator.measure(asked))
        finally:
            bench.close()
        if request.device.is_cuda:
            measured.sort(key=lambda measurement: asked.index(measurement.configuration))
        assert [measurement.configuration for measurement in measured] == asked
        for measurement in measured:
            assert measurement.status in EXPECTED[str(measurement.configuration["FAULT"])]

    def test_finals_hold_the_best_of_each_device_on_the_first(self, tmp_path):
        result = self.tuned(self.request("none"), tmp_path / "s.sqlite")
        outcome = result.problems[0].result
        assert outcome is not None
        right = [m for m in result.problems[0].measured if m.status is Status.OK]
        entered = [found.configuration for found in outcome.finalists]
        for uuid in {measurement.device_uuid for measurement in right}:
            best = min((m for m in right if m.device_uuid == uuid), key=lambda m: m.median_ms or 0)
            assert best.configuration in entered

    @pytest.mark.full
    def test_finals_hold_the_best_of_a_device_that_came_later(self, tmp_path):
        request, file = self.request("none"), tmp_path / "s.sqlite"
        self.tuned(replace(request, others=(replace(request.device, uuid=LATE),)), file)
        result = self.tuned(request, file, site=LateSite())
        late = {m.configuration for m in result.problems[0].measured if m.device_uuid == LATE}
        assert late & {entrant.configuration for entrant in result.problems[0].race.finalists}

    def test_a_later_run_remembers_what_either_measured(self, tmp_path):
        """On both devices again nothing is measured; on one, only what the other had."""
        file = tmp_path / "s.sqlite"
        events: list[Measured] = []

        def note(event):
            if isinstance(event, Measured):
                events.append(event)

        self.tuned(self.request("none", "nan"), file)
        before = self.rows(file)
        self.tuned(self.request("none", "nan"), file, note)
        assert [event.is_remembered for event in events] == [True] * 6
        assert self.rows(file) == before
        events.clear()
        self.tuned(self.request("none", "nan", twins=False), file, note)
        by_twin = {row.configuration for row in before if row.device_uuid == TWIN}
        assert {
            event.measurement.configuration for event in events if not event.is_remembered
        } == by_twin

    def test_a_worker_that_is_killed_costs_no_row(self, tmp_path):
        """The second device's process goes at the first result, in the middle of what it does."""
        second: list[int] = []
        killed: list[int] = []

        def kill(event):
            if isinstance(event, SearchStarted):
                second.append(self.tuning.workers[1].actor.ask(os.getpid, timeout_s=60))
            elif isinstance(event, Measured) and not killed:
                killed.extend(second)
                os.kill(second[0], signal.SIGKILL)

        result = self.tuned(self.request("none", "nan"), tmp_path / "s.sqlite", kill)
        rows = self.rows(tmp_path / "s.sqlite")
        assert killed and self.tuning.workers[1].actor.pid not in second
        assert len(rows) == len({row.configuration for row in rows}) == 6
        assert TWIN in {row.device_uuid for row in rows}
        for measurement in result.problems[0].measured:
            expected = EXPECTED[str(measurement.configuration["FAULT"])]
            assert measurement.status in expected, measurement.message

    @pytest.mark.parametrize("strategy", thinned(["auto", "kt:pso", "optuna:tpe"], ["auto"]))
    def test_strategies_that_ask_for_batches_use_both(self, tmp_path, strategy):
        """The default among them; where all fits in the budget it would measure all in order."""
        request = replace(
            self.request("none", "nan", "unwritten"),
            goal=replace(self.request("none", "nan", "unwritten").goal, strategy=strategy),
            budget=Budget(evaluations=7),
        )
        (result,) = self.tuned(request, tmp_path / "s.sqlite").problems
        assert len(result.measured) == 7
        assert {measurement.device_uuid for measurement in result.measured} == {
            request.device.uuid,
            TWIN,
        }

    def test_an_interrupted_run_keeps_its_rows_and_leaves_no_thread(self, tmp_path):
        seen: list[Measurement] = []
        threads = set(threading.enumerate())

        switch_s = sys.getswitchinterval()

        def interrupt(event):
            if isinstance(event, Measured):
                seen.append(event.measurement)
                if len(seen) == 4:
                    raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            self.tuned(self.request("none", "nan"), tmp_path / "s.sqlite", interrupt)
        assert self.rows(tmp_path / "s.sqlite") == seen
        ended = time.monotonic() + 60
        while (left := set(threading.enumerate()) - threads) and time.monotonic() < ended:
            time.sleep(0.05)
        assert not left
        assert sys.getswitchinterval() == switch_s

    def test_a_device_that_fails_is_left_out_and_the_other_does_its_share(self, tmp_path):
        """Its process can make no context: the device has gone."""
        request = self.request("none", "nan")
        gone = replace(request.others[0], index=99)
        with pytest.warns(UserWarning, match="the run continues on the other"):
            result = self.tuned(replace(request, others=(gone,)), tmp_path / "s.sqlite")
        rows = self.rows(tmp_path / "s.sqlite")
        assert by_name(rows) == by_name(result.problems[0].measured)
        assert {row.device_uuid for row in rows} == {request.device.uuid}
        assert len(rows) == 6
