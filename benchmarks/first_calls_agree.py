"""Measures if processes that tune on first call end with the same configurations.

``--processes`` processes with an empty store call ``--sizes`` sizes of a kernel, each in another order; when they are
done, one more process does. Then all of them call all sizes again. Counted are the sizes that all launch with the same
configuration. The processes

1. start together;
2. start together, and one is killed at a random moment, ``--kills`` times with a new store and a share of the sizes;
3. belong to two homes with caches of their own, on one shared folder of results.

    python benchmarks/first_calls_agree.py --device opencl:cpu

Without a record that answers on the device, the kernel is tuned first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from any_size_first_call import shapes
from harness import command_line, finish, provenance, write

from autotune import load
from autotune.calling.loaded import LoadedPlan
from autotune.devices.choose import choose_device
from autotune.errors import AutotuneError
from autotune.kernel.catalog import find_kernel

#: Longest wait for a process, in seconds; a longer one is a hang.
MAX_WAIT_S = 1800.0
#: Evaluations of the run that makes a record.
EVALUATIONS = 100
#: Time in which a process sees an answer of another one, in seconds: two checks.
SETTLE_S = 2.5

# ---------------------------------------------------------------------- a user's process


def serve(kernel_name: str, device_name: str, budget: str) -> None:
    """Make the first calls of the sizes on standard input, then call them again; print what was launched."""
    device, wait = choose_device(device_name), int
    if device.is_cuda:
        import cupy

        cupy.cuda.Device(device.index).use()
        wait = cupy.cuda.Device(device.index).synchronize
    kernel = load(kernel_name, tune="first_call", budget=budget)
    print("ready", flush=True)
    sizes = json.loads(sys.stdin.readline())
    rng = np.random.default_rng(1)

    def call(size: Mapping[str, int]) -> None:
        arrays: list[Any] = [
            rng.standard_normal(shape, dtype=np.float32) for shape in shapes(kernel_name, size)
        ]
        kernel(*(map(cupy.asarray, arrays) if device.is_cuda else arrays))
        wait()

    for size in sizes:
        call(size)
    print("done", flush=True)
    sys.stdin.readline()
    for size in sizes:
        call(size)
    launched = {}
    for (_, problem, *_), ready in kernel._ready.items():
        plan = ready.plan if isinstance(ready, LoadedPlan) else ready
        launched[str(problem)] = str(plan.choice.configuration)
    print(json.dumps(launched), flush=True)


class Caller:
    """A process that serves."""

    def __init__(self, options: argparse.Namespace, environ: Mapping[str, str]) -> None:
        command = [sys.executable, __file__, "--serve", "--device", options.device]
        command += ["--kernel", options.kernel, "--budget", options.budget]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )

    def say(self, text: str) -> None:
        """Write a line to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        """Return the next line of the process; raise `AutotuneError` if it ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AutotuneError(f"a process ended with {self.process.wait()}")
        return line

    def launched(self) -> dict[str, str]:
        """Let the process call all sizes again, and return the configuration of each problem."""
        self.say("")
        found: dict[str, str] = json.loads(self.heard())
        self.process.wait(MAX_WAIT_S)
        return found


# ---------------------------------------------------------------------- the three parts


def called(
    options: argparse.Namespace,
    environs: Sequence[Mapping[str, str]],
    sizes: Sequence[Mapping[str, int]],
    seed: int,
    kill_after_s: float | None = None,
) -> dict[str, Any]:
    """Let processes call sizes at once, perhaps kill the first; then let one more process call them."""
    rng = random.Random(seed)
    callers = [Caller(options, environ) for environ in environs]
    for caller in callers:
        caller.heard()
    begun = time.perf_counter()
    for caller in callers:
        caller.say(json.dumps(rng.sample(sizes, len(sizes))))
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        killed, *callers = callers
        killed.process.send_signal(signal.SIGKILL)
        was_done = bool(killed.process.communicate()[0])
    for caller in callers:
        caller.heard()
    seconds = time.perf_counter() - begun
    later = Caller(options, environs[0])
    callers.append(later)
    later.heard()
    later.say(json.dumps(sizes))
    later.heard()
    time.sleep(SETTLE_S)
    found = [caller.launched() for caller in callers]
    return {
        "sizes": len(sizes),
        "identical": sum(len({each[size] for each in found}) == 1 for size in found[0]),
        "configurations": len(set(found[0].values())),
        "seconds": round(seconds, 1),
        **({} if kill_after_s is None else {"killed_after_its_calls": was_done}),
    }


def prepared(options: argparse.Namespace, base: Path) -> None:
    """Tune the kernel in a home of its own unless a record answers on the device."""
    device, environ = choose_device(options.device), {**os.environ, "XDG_DATA_HOME": str(base)}
    script = (
        "import sys; from autotune import lookup; lookup(sys.argv[1], device=sys.argv[2], **{})"
    )
    fields = dict.fromkeys(find_kernel(options.kernel).fields, 64)
    script = script.replace("{}", repr(fields)) + ".quality == 'default' and sys.exit(1)"
    asked = [sys.executable, "-c", script, options.kernel, device.name]
    if subprocess.run(asked, env=environ, stderr=subprocess.DEVNULL, check=False).returncode:
        run = ["-m", "autotune", "run", options.kernel, "--device", options.device]
        budget = ["--budget", f"{EVALUATIONS}evals", "--out", str(base / "reports")]
        subprocess.run(
            [sys.executable, *run, *budget], env=environ, check=True, capture_output=True
        )


def told(part: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Print the result of a part; return it with its name."""
    row = {"part": part, **found}
    print(json.dumps(row), flush=True)
    return row


def main() -> int:
    """Print a line of JSON for each part; return 1 if an answer differs."""
    parser = command_line(__doc__, "first_calls_agree-DEVICE.json", "opencl:cpu")
    parser.add_argument("--kernel", default="transpose", help="a bundled kernel")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--sizes", type=int, default=200)
    parser.add_argument("--largest", type=int, default=600, help="largest field of a size")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--budget", default="1s", help="longest time to measure a size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.kernel, options.device, options.budget)
        return 0
    rng, fields = random.Random(options.seed), find_kernel(options.kernel).fields
    sizes: list[dict[str, int]] = []
    while len(sizes) < options.sizes:
        size = {name: rng.randint(17, options.largest) for name in fields}
        sizes += [] if size in sizes else [size]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepared(options, folder / "base")

        def environs(name: str, homes: int = 1) -> list[dict[str, str]]:
            data = folder / name
            if (base := folder / "base/autotune/tuned").exists():
                shutil.copytree(base, data / "autotune/tuned")
            return [
                {"XDG_DATA_HOME": str(data), "HOME": home, "AUTOTUNE_CACHE_DIR": f"{home}/cache"}
                for home in (f"{folder}/home{i % homes}" for i in range(options.processes))
            ]

        found = called(options, environs("together"), sizes, options.seed)
        results = [told("together", found)]
        share = max(1, options.sizes // max(1, options.kills))
        for kill in range(options.kills):
            some = sizes[kill * share :][:share] or sizes[:share]
            moment_s = rng.uniform(0, 0.7 * found["seconds"] * share / options.sizes)
            killed = called(options, environs(f"kill{kill}"), some, kill, moment_s)
            results.append(told(f"kill after {moment_s:.2f} s", killed))
        homes = called(options, environs("homes", homes=2), sizes, options.seed + 1)
        results.append(told("two homes", homes))
    device = choose_device(options.device)
    result = {**provenance(device), "kernel": options.kernel, "rows": results}
    write(options.out / f"first_calls_agree-{device.folder}.json", result)
    return int(any(each["identical"] < each["sizes"] for each in results))


if __name__ == "__main__":
    finish(main)
