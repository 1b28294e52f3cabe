"""A project whose kernel changes after it was tuned, for tests of what its records then answer."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sample_records import entry, record, write

from autotune.answers.table import Portfolio
from autotune.calling.choice import choose, with_changes
from autotune.cli import run
from autotune.devices.device import for_arch
from autotune.errors import NoAnswerError, UsageError
from autotune.kernel.catalog import load_file
from autotune.kernel.source import arguments_fingerprint, definition_of
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.project import project_of
from autotune.run.plans import default_rows, plan_of, steps_of
from autotune.run.recording import refitted
from autotune.tuned.answer import TunedConfig
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.reading import user_folder
from autotune.tuned.record import Provenance, TunedRecord
from autotune.tuned.writing import update
from autotune.values import Configuration, Problem

FILES = {
    "kernels/k.cu": """#include "dialect.h"
#include "near.h"
#include <far.h>
#ifndef BLOCK
#define BLOCK 32
#define ITEMS 4
#define FACTOR 3
#endif
KERNEL(BLOCK, 1, 0) k(GLOBAL const float* x, GLOBAL float* out, int n, GLOBAL float* part) {
    for (int j = 0; j < ITEMS; ++j) {
        const int i = (ITEMS * BID(0) + j) * BLOCK + TID(0);
        if (i < n) out[i] = FACTOR * NEAR * FAR * x[i];
    }
}
""",
    "kernels/near.h": "#define NEAR 1\n",
    "inc/far.h": "#define FAR 1\n",
    "spaces/_help.py": "def items(c):\n    return 4\n",
    "pyproject.toml": '[project]\nname = "changing"\n',
    "spaces/k.py": """import numpy as np
from _help import items
from autotune import Kernel, Launch, Out, Problem, ceil_div

k = Kernel(
    "k.cu",
    problems=[Problem(n=n) for n in (1000, 4000, 16000, 64000, 256000)],
    BLOCK=(32, 64, 128),
)


@k.defines
def defines(c, p):
    return {**c, "FACTOR": 3, "ITEMS": items(c)}


@k.options
def options(c):
    return ["-Iinc"]


@k.scratch
def scratch(c, p):
    return {"part": Out(8)}


@k.requires
def requires(c, p):
    return p.n >= 1


@k.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, items(c) * c.BLOCK),), block=(c.BLOCK,))


@k.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n, dtype=np.float32), "out": Out(p.n), "n": p.n}


@k.reference
def reference(x):
    return 3 * x


@k.tolerance
def tolerance(p):
    return 1e-5
""",
}
#: A file and its edit, by what changes.
CHANGES = {
    "source": ("kernels/k.cu", "FAR * x[i]", "(FAR * x[i])"),
    "include": ("kernels/near.h", "NEAR 1", "NEAR (1)"),
    "header of -I": ("inc/far.h", "FAR 1", "FAR (1)"),
    "launch": ("spaces/k.py", "items(c) * c.BLOCK),)", "items(c) * c.BLOCK) + 1,)"),
    "helper module": ("spaces/_help.py", "return 4", "return 1"),
    "requires": ("spaces/k.py", "p.n >= 1", "p.n % 4 == 0"),
    "arguments": ("spaces/k.py", "rng.standard_normal(p.n,", "rng.uniform(1, 2, p.n,"),
    "reference": ("spaces/k.py", "3 * x", "x * 3"),
    "tolerance": ("spaces/k.py", "1e-5", "2e-5"),
    "scratch": ("spaces/k.py", "Out(8)", "Out(16)"),
    "options": ("spaces/k.py", '["-Iinc"]', '["-Iinc", "-DNEW=1"]'),
    "parameter lists": ("spaces/k.py", "BLOCK=(32, 64, 128)", "BLOCK=(32, 256)"),
    "defines": ("spaces/k.py", '"FACTOR": 3', '"NEW": 1, "FACTOR": 3'),
}
#: Edits that change no answer.
HARMLESS = {
    "comment": ("spaces/k.py", "import numpy as np", "import numpy as np  # arrays"),
    "line ends": ("kernels/near.h", "\n", "\r\n"),
    "new value": ("spaces/k.py", "BLOCK=(32, 64, 128)", "BLOCK=(32, 64, 128, 256)"),
    "comment of a module": ("spaces/_help.py", "def items", "# Items of a thread.\ndef items"),
}
SIZES = (1000, 4000, 16000, 64000, 256000)
ASKED = (*SIZES, 1, 50_000, 90_001)
DEVICE = for_arch("sm_90")


def edit(folder: Path, name: str, old: str, new: str) -> None:
    file = folder / name
    text = file.read_text()
    assert text.count(old) >= 1
    file.write_bytes(text.replace(old, new).encode())


def write_project(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def tuned(kernel: Kernel, sizes: tuple[int, ...], created: str) -> TunedRecord:
    """Return the record that a run of some sizes would write; times are invented."""
    made = definition_of(kernel)
    blocks = kernel.parameters["BLOCK"]
    best = {size: blocks[-1 - number % 2] for number, size in enumerate(sizes)}

    def entry_of(size: int) -> Any:
        problem, chosen = Problem(n=size), kernel.completed({"BLOCK": best[size]})
        plan = plan_of(kernel, chosen, problem, DEVICE)
        return entry(
            dict(problem),
            plan,
            steps=steps_of(kernel, chosen, problem, DEVICE),
            source=made.source,
            arguments=arguments_fingerprint(kernel, problem),
            options=kernel.compiler_options(chosen, DEVICE),
            checks=None,
        )

    known = record(
        [entry_of(size) for size in sizes],
        kernel="k",
        fields={"n": "integer"},
        parameters=kernel.parameters,
        defaults=default_rows(kernel, DEVICE),
        provenance=Provenance(
            version="0.1.0",
            toolchain="NVRTC 13.0",
            driver="580.1",
            created=created,
            **made._asdict(),
        ),
    )
    matrix = Portfolio(
        configurations=tuple({"BLOCK": block} for block in blocks),
        problems=tuple({"n": size} for size in sizes),
        median_ms=tuple(
            tuple(1e-6 * size + 1e-3 * abs(block - best[size]) for size in sizes)
            for block in blocks
        ),
    )
    return refitted(known, kernel, matrix)


@dataclass
class Changed:
    """A project whose kernel changed after five sizes were tuned."""

    folder: Path
    kernel: Kernel

    @property
    def tuned(self) -> Path:
        return Path(user_folder(project_of(self.folder)))

    def fits(self, found: Mapping[str, Any], n: int) -> bool:
        """Return whether an answer is the plan that a run of the current kernel would record."""
        if not is_member(self.kernel, found, DEVICE):
            return False
        chosen = Configuration(dict(found))
        now = plan_of(self.kernel, chosen, Problem(n=n), DEVICE)
        assert isinstance(found, TunedConfig)
        blocks = self.kernel.call_hook("launch", chosen, Problem(n=n)).grid[0]
        return (found.block, found.grid) == (now.block, (blocks, 1, 1)) and now.allows({"n": n})


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that tunes five sizes, edits a file, and tunes one size again if asked."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("AUTOTUNE_ARCH", "sm_90")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def change(what: tuple[str, str, str], again: bool) -> Changed:
        folder = write_project(tmp_path / "project")
        monkeypatch.chdir(folder)
        place = Path(user_folder(project_of(folder)))
        space = folder / "spaces" / "k.py"
        write(place, tuned(load_file(space), SIZES, "2026-11-21T00:00:00+00:00"))
        assert lookup("k", n=1000).stale_reasons == ()
        assert run(["export", "k", "header", "--out", "before"]) == 0
        edit(folder, *what)
        kernel = load_file(space)
        if again:
            update(place, tuned(kernel, (16000,), "2026-11-22T00:00:00+00:00"))
        clear_cache()
        return Changed(folder, kernel)

    yield change
    clear_cache()
    shutil.rmtree(tmp_path / "project", ignore_errors=True)


def check_answers(
    project: Changed, what: str, again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check what five readers say after a change: lookup, its command, `load`, and two exports.

    With ``again`` one size was tuned after the change; then no answer is stale. Otherwise all are.
    """
    capsys.readouterr()
    stale = 0
    for n in ASKED:
        try:
            found = lookup("k", n=n)
        except NoAnswerError:
            assert run(["lookup", "k", f"n={n}", "--json"]) == 3
            continue
        assert run(["lookup", "k", f"n={n}", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["config"], printed["grid"]) == (dict(found), [*(found.grid or ())])
        assert printed["stale_reasons"] == [*found.stale_reasons]
        with suppress(UsageError):  # of no configuration that accepts the size
            choice = with_changes(choose(project.kernel, Problem(n=n), DEVICE), project.kernel)
            assert is_member(project.kernel, choice.configuration, DEVICE)
            assert choice.tuned is None or {*found.stale_reasons} <= {*choice.tuned.stale_reasons}
        assert found.stale_reasons or project.fits(found, n), (n, found)
        stale += bool(found.stale_reasons)
        if again:
            assert found.stale_reasons == ()
    assert stale == 0 if again else stale > 0
    assert what == "parameter lists" or again or stale == len(ASKED)
    for format in ("header", "cuda"):
        assert run(["export", "k", format, "--out", format]) == 0
        text = (project.folder / format / "k.hpp").read_text()
        assert ("// Stale: its " in text) is not again
    capsys.readouterr()
    assert run(["export", "k", "header", "--check", "--out", "header"]) == (0 if again else 5)
    assert run(["export", "k", "header", "--check", "--out", "before"]) == 5
    assert "run: autotune" in capsys.readouterr().err
