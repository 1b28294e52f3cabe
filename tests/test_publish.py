"""Record, header and report follow together: after each command the header answers as `lookup` does."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tuned_project import record_file

from autotune import lookup
from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.store import ROTATED, RunInfo, Scope, SizeTimes, Store, default_url
from autotune.tuned.lookup import clear_cache
from autotune.values import Configuration, Problem

SHORT = ("--strategy", "random", "--budget", "4evals", "--device", "opencl:cpu")
#: Tuned sizes, their neighbours, and sizes far from all of them.
SIZES = (1, 100, 399, 400, 5003, 6000, 70001, 123456, 1 << 20, 1 << 24)
PROGRAM = """
#include <cstdio>
#include <initializer_list>
#include "saxpy.hpp"
int main() {
  for (long long n : {SIZES}) {
    const auto found = autotune::saxpy::lookup(static_cast<autotune::saxpy::device>(0), n);
    std::printf("BLOCK=%d, ITEMS=%d\\n", found->BLOCK, found->ITEMS);
  }
}
"""


def answers_of_header(header: Path, folder: Path) -> list[str]:
    (folder / "main.cpp").write_text(PROGRAM.replace("SIZES", ", ".join(map(str, SIZES))))
    command = ["g++", "-std=c++17", f"-I{header.parent.resolve()}", "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    ran = subprocess.run(
        ["./main"], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    )
    return ran.stdout.splitlines()


def answers_of_lookup() -> list[str]:
    clear_cache()
    device = record_file("saxpy").parent.name
    found = [lookup("saxpy", device=device, n=n) for n in SIZES]
    return [str(Configuration(dict(answer))) for answer in found if answer]


def add_times(project: Path) -> None:
    """Store invented times on 80 random sizes, where BLOCK=64, ITEMS=8 is fastest and nothing won."""
    kernel, device = find_kernel("saxpy", project / "spaces"), choose_device("opencl:cpu")
    problems = [Problem(n=100 + 997 * number) for number in range(80)]
    scope = Scope(
        kernel="saxpy",
        problem=problems[0],
        device_uuid=device.uuid,
        device_name=device.name,
        driver=device.driver,
        toolchain="",
        source=source_fingerprint(kernel),
        arguments=arguments_fingerprint(kernel, problems[0]),
        timing=ROTATED,
    )
    rows = [
        SizeTimes(
            p,
            {
                Configuration(BLOCK=64, ITEMS=8): 1e-3 + 1e-8 * p.n,
                Configuration(BLOCK=1024, ITEMS=2): 2e-3 + 1e-8 * p.n,
            },
        )
        for p in problems
    ]
    with Store.open(default_url()) as store:
        run_id = store.begin_run(RunInfo("saxpy", device.name, "sizes", 1, "", ""))
        store.add_sizes(run_id, [(replace(scope, problem=row.problem), row) for row in rows])


@pytest.mark.opencl
def test_the_header_answers_as_lookup_does_after_every_command(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stored times are enough.
    monkeypatch.setattr("autotune.run.answering.random_sizes", lambda *_: iter(()))
    record = record_file("saxpy")
    mine, out = record.with_suffix(".hpp"), Path("reports", record.parent.name, "saxpy.hpp")
    mine.write_text("")  # one that was made there is renewed
    colleague = tmp_path / "colleague"
    commands: dict[str, Callable[[], int]] = {
        "run": lambda: run(["run", "saxpy", "--problem", "n=400", "--problem", "n=70001", *SHORT]),
        "sizes": lambda: run(["sizes", "saxpy", "--budget", "60s", "--device", "opencl:cpu"]),
        "retune": lambda: run(["retune", "saxpy", *SHORT]),
        "import": lambda: run(["import", str(colleague / "saxpy.json")]),
    }
    colleague.mkdir()
    (colleague / "saxpy.json").write_bytes(record.read_bytes())
    seen = []
    for name, command in commands.items():
        if name == "sizes":
            add_times(project)
        assert command() == 0
        answers = answers_of_lookup()
        assert answers_of_header(mine, tmp_path) == answers, name
        if name != "import":
            assert out.read_bytes() == mine.read_bytes(), name
        seen.append(answers)
    assert seen[0] != seen[1]  # the fit answers
