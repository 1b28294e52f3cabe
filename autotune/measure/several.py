"""Measures on several devices of one model at once; yields each result as soon as it is there.

Knows which evaluator is free, not what measuring is. Times of two cards of one model differ by a few
per cent: each evaluator stops early by the best of its own, and who won is for one card to say.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from autotune.errors import AutotuneError
from autotune.measure.compiler import CompileJob
from autotune.measure.evaluator import PER_DEVICE, DeviceEvaluator
from autotune.measure.measurement import Measurement
from autotune.values import Configuration

#: Seconds after which the main thread gives way to one that has a device's next task.
_SWITCH_S = 0.0002


class SeveralEvaluator:
    """See `autotune.measure.evaluator.Evaluator`, but for the order of results.

    Parameters
    ----------
    evaluators : sequence of DeviceEvaluator
        One per device, the first's first: a batch of one goes to it.
    """

    def __init__(self, evaluators: Sequence[DeviceEvaluator]) -> None:
        first = evaluators[0]
        #: Plans what is hinted, in the caller's thread; measures nothing.
        self._planner = DeviceEvaluator(first.kernel, first.job, first.compilers, first.worker)
        self.lanes = [_Lane(one) for one in evaluators]
        # What the caller does with one result must not hold up the thread that has the next task: a
        # thread that computes gives way after 5 ms by default, which is longer than many a task.
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_s, _SWITCH_S))
        for lane in self.lanes:
            lane.prepare()

    def hint(self, configurations: Sequence[Configuration]) -> None:
        self._planner.hint(configurations)

    def recall(self, measurement: Measurement) -> None:
        for lane in self.lanes:
            if lane.uuid == (measurement.device_uuid or self.lanes[0].uuid):
                lane.evaluator.recall(measurement)

    def measure(self, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        """Yield one measurement per configuration, each as soon as it is there.

        Those of one device come in the order in which it began them.
        """
        self.hint(configurations)
        waiting = deque(configurations)
        try:
            while waiting or any(lane.begun for lane in self.lanes):
                while waiting and (lane := self._idlest()):
                    configuration = waiting.popleft()
                    lane.begin(configuration, self._planner.planned(configuration))
                first = {lane.begun[0][1]: lane for lane in self.lanes if lane.begun}
                done = wait(first, return_when=FIRST_COMPLETED).done
                for future, lane in first.items():
                    if future not in done:
                        continue
                    try:
                        measurement = future.result()
                    except AutotuneError as error:
                        self._give_up(lane, error)
                        waiting.extendleft(reversed([one for one, _ in lane.begun]))
                        continue
                    lane.begun.popleft()
                    yield measurement
        finally:
            for lane in self.lanes:
                while lane.begun:
                    lane.begun.popleft()[1].cancel()

    def __enter__(self) -> SeveralEvaluator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for what is being measured though nobody asks for it any more; not on Ctrl-C."""
        sys.setswitchinterval(self._switch_s)
        for lane in self.lanes:
            lane.threads.shutdown(wait=kind is None, cancel_futures=True)

    def _idlest(self) -> _Lane | None:
        """The device with least to do; None where all have enough."""
        lane = min(self.lanes, key=lambda one: len(one.begun))
        return lane if len(lane.begun) < PER_DEVICE else None

    def _give_up(self, lane: _Lane, error: AutotuneError) -> None:
        """Go on without a device that failed for good; not without the first, which decides."""
        if lane is self.lanes[0]:
            raise error
        if lane in self.lanes:
            self.lanes.remove(lane)
            lane.threads.shutdown(wait=False)
            device = lane.evaluator.job.device
            warnings.warn(
                f"{device.selector} ({device.uuid}) is left out from here on, and the other "
                f"devices go on: {error}",
                stacklevel=2,
            )


class _Lane:
    """One device: its evaluator, and its threads.

    While one waits for the worker, another gets the next configuration ready for it.
    """

    def __init__(self, evaluator: DeviceEvaluator) -> None:
        self.evaluator = evaluator
        self.uuid = evaluator.job.device.uuid
        self.threads = ThreadPoolExecutor(PER_DEVICE)
        #: What was begun and not yielded, in that order.
        self.begun: deque[tuple[Configuration, Future[Measurement]]] = deque()
        #: What was given to the threads last.
        self._last: Future[Any] | None = None

    def prepare(self) -> None:
        """Have data uploaded beside the others; a failure shows at the first measurement."""
        self._last = self.threads.submit(self.evaluator.worker.prepare, self.evaluator.job)

    def begin(self, configuration: Configuration, planned: CompileJob | Measurement) -> None:
        future = self.threads.submit(self.evaluator.carried_out, configuration, planned, self._last)
        self._last = future
        self.begun.append((configuration, future))
