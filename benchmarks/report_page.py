"""How large a report's page is, and how long a browser takes to show it, by the number of measurements.

Configurations of sgemm's space with made-up times stand for a search; nothing is measured on a device. A
headless Chromium opens the page from its folder, without a GPU: WebGL is drawn by the processor, and the page
waits for it. What the page itself computes is told by the processor time of its thread, which other work on
the machine does not lengthen.

python benchmarks/report_page.py [--measurements 20000] [--out DIR]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from autotune.devices.binary import CompiledFunction
from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.measure.measurement import Measurement, Status
from autotune.report.content import ProblemContent, ReportContent, content_of
from autotune.report.page import write_html
from autotune.tuned.reading import read
from autotune.values import Problem

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "reports" / "NVIDIA_H200" / "sgemm.json"
OPENED = 5


def made_up(count: int) -> ReportContent:
    """The recorded sgemm with a search of so many trials at its first problem."""
    record, rng = read(RECORD), np.random.default_rng(0)
    space = enumerate_space(find_kernel(record.kernel), for_arch(record.device.arch))
    weights = rng.normal(0, 0.15, space.rows.shape[1])
    chosen = space.sample(rng, count)
    logs = space.rows[chosen] @ weights + rng.normal(0, 0.05, len(chosen))
    logs -= logs.min()
    middle, fates = np.quantile(logs, 0.4), rng.random(len(chosen))
    trials = []
    for number, log, fate in zip(chosen, logs, fates, strict=True):
        time_ms = 0.03 * float(np.exp(log))
        status, message = Status.OK, ""
        if fate < 0.9 and log > middle:
            status = Status.STOPPED_EARLY
            message = f"0.03 ms is the best so far; {time_ms:.4g} ms after 3 samples"
        elif fate > 0.97:
            status, message = Status.WRONG_RESULT, f"c[{number}] is {log}, expected 0"
        trials.append(
            Measurement(
                space.configuration(number),
                status,
                message,
                samples_ms=(time_ms,) * 3 if status.is_timed else (),
                entries=(CompiledFunction("k", 40 + number % 200, 0, number % 48 * 1024),),
                compile_s=0.5,
                measure_s=0.01,
            )
        )
    problem = ProblemContent(Problem(dict(record.entries[0].problem)), tuple(trials))
    return content_of(record, [problem], space)


def opened(page: Path) -> tuple[float, float, float]:
    """Milliseconds until text and tables are there, until all is drawn, and of computing: medians."""
    sys.path.append(str(ROOT / "tests"))
    from chromium import browser

    loaded, drawn, computed = [], [], []
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as new_page:
        for _ in range(OPENED):
            tab = new_page()
            tab.call("Performance.enable", timeDomain="threadTicks")
            tab.open(page, width=1400)
            tab.wait_for("document.documentElement.dataset.drawn !== undefined")
            timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
            loaded.append(float(tab.evaluate(timing)))
            drawn.append(float(tab.evaluate("document.documentElement.dataset.drawn")))
            metrics = tab.call("Performance.getMetrics")["metrics"]
            (busy_s,) = (m["value"] for m in metrics if m["name"] == "TaskDuration")
            computed.append(1e3 * busy_s)
            tab.call("Page.navigate", url="about:blank")
    return statistics.median(loaded), statistics.median(drawn), statistics.median(computed)


def main() -> None:
    """Write both kinds of page and say what they cost."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--measurements", type=int, default=20_000)
    arguments.add_argument("--out", type=Path, help="keep the pages here")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.out or Path(scratch)
        content = made_up(given.measurements)
        begin = time.perf_counter()
        page = write_html(content, folder / "sgemm.html")
        written_s = time.perf_counter() - begin
        single = write_html(content, folder / "single.html", single=True)
        (script,) = folder.glob("plotly-*.js")
        print(f"{content.trials} measurements, written in {written_s:.1f} s")
        print(f"beside the pages of a folder: {script.name}, {script.stat().st_size / 1e6:.2f} MB")
        for name, file in (("page", page), ("single page", single)):
            loaded, drawn, computed = opened(file)
            print(
                f"{name}: {file.stat().st_size / 1e6:.2f} MB; loaded after {loaded:.0f} ms, drawn "
                f"after {drawn:.0f} ms, of which {computed:.0f} ms of computing"
            )


if __name__ == "__main__":
    main()
