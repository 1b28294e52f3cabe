"""Time variants on a device, and read their counters if Nsight Compute is installed."""

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
    """Verify and time variants and read their counters; return them with notes on the figures.

    The variants are timed one after the other, without a race: differences of a few per cent are noise.
    """
    kernel, device, problem = setting.kernel, setting.device, setting.problem
    request = Request.without_search(kernel, device, [problem], command="autotune explain")
    wanted = dict.fromkeys(
        variant.variant.configuration for variant in facts if not variant.failure
    )
    found = list(facts)
    notes = [f"times on {device.name} by this command, without a race: accurate to a few per cent"]
    with closing(Bench(request)) as bench:
        job, rule = bench.job(problem), replace(stopping_rule(device), false_stop=0.0)
        evaluator = DeviceEvaluator(kernel, job, bench.compilers, bench.worker, rule)
        with evaluator:
            results = {result.configuration: result for result in evaluator.measure(wanted)}
        trials = {}
        for i, variant in enumerate(facts):
            configuration = variant.variant.configuration
            result = results.get(configuration)
            if result and result.median_ms is None:
                found[i] = replace(variant, failure=f"{result.status}: {result.message}")
            elif result and result.median_ms is not None:
                found[i] = with_time(setting, variant, result.median_ms, False)
                binary = evaluator.binary(configuration)
                if binary:
                    trials[i] = Trial(job, configuration, binary)
        program = profiler() if device.is_cuda else ""
        if device.is_cuda and not program:
            notes.append(f"no counters: {MISSING}")
        counted = counters_of(program, list(trials.values()), METRICS) if program and trials else []
        for i, counters in zip(trials, counted, strict=False):
            found[i] = replace(found[i], metrics=counters.values, absent=counters.absent)
        failures = dict.fromkeys(counters.failure for counters in counted if counters.failure)
        notes += [f"no counters: {failure}" for failure in failures]
    return found, notes
