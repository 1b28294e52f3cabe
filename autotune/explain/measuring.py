"""Times variants on a device, and reads their counters where Nsight Compute is installed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from autotune.explain.variants import Facts, Setting, with_time
from autotune.measure.counters import METRICS
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.profile import MISSING, counters_of, profiler
from autotune.measure.sanitize import Trial
from autotune.run.bench import Bench, stopping_rule
from autotune.run.request import Request


def measured(setting: Setting, facts: Sequence[Facts]) -> tuple[list[Facts], list[str]]:
    """Verify, time and count variants on their device; return them, and notes on the figures.

    They are timed one after the other: a difference of a few per cent means nothing here.
    """
    kernel, device, problem = setting.kernel, setting.device, setting.problem
    request = Request.without_search(kernel, device, [problem], command="autotune explain")
    wanted = dict.fromkeys(each.variant.configuration for each in facts if not each.failure)
    found, notes = list(facts), [f"times on {device.name} by this command, not raced: to a few %"]
    with closing(Bench(request)) as bench:
        job, rule = bench.job(problem), replace(stopping_rule(device), false_stop=0.0)
        evaluator = DeviceEvaluator(kernel, job, bench.compilers, bench.worker, rule)
        with evaluator:
            known = {each.configuration: each for each in evaluator.measure(wanted)}
        trials = {}
        for i, each in enumerate(facts):
            result = known.get(each.variant.configuration)
            if result and result.median_ms is None:
                found[i] = replace(each, failure=f"{result.status}: {result.message}")
            elif result and result.median_ms is not None:
                found[i] = with_time(setting, each, result.median_ms, False)
                binary = evaluator.binary(each.variant.configuration)
                if binary:
                    trials[i] = Trial(job, each.variant.configuration, binary)
        program = profiler() if device.is_cuda else ""
        if device.is_cuda and not program:
            notes.append(f"no counters: {MISSING}")
        counted = counters_of(program, list(trials.values()), METRICS) if program and trials else []
        for i, counters in zip(trials, counted, strict=False):
            found[i] = replace(found[i], metrics=counters.values, absent=counters.absent)
        failures = dict.fromkeys(each.failure for each in counted if each.failure)
        notes += [f"no counters: {failure}" for failure in failures]
    return found, notes
