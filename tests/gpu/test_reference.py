"""While a slow reference is computed, a GPU's compilers work on what the search will ask first."""

from contextlib import closing
from pathlib import Path

import pytest
from sample_spaces import write_space

from autotune.devices.choose import choose_device
from autotune.kernel.catalog import load_file
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget, Event, SearchStarted
from autotune.store import Store
from autotune.values import Problem

#: Waits for the binaries of the whole space, at most a minute.
REFERENCE = """
    import os, pathlib, time
    made, end_s = pathlib.Path(os.environ["AUTOTUNE_CACHE_DIR"]), time.monotonic() + 60
    while len([*made.rglob("*.msgpack")]) < 2 and time.monotonic() < end_s:
        time.sleep(0.01)
    return factor * x"""


@pytest.mark.gpu
def test_the_compilers_do_not_wait_for_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    kernel = load_file(write_space(tmp_path, ("\n    return factor * x", REFERENCE)))
    device = choose_device("cuda:0")
    request = Request(
        kernel, device, (Problem(n=1000),), goal=Search("random"), budget=Budget(evaluations=2)
    )
    made: list[int] = []

    def told(event: Event) -> None:
        if isinstance(event, SearchStarted):
            made.append(len([*(tmp_path / "cache").rglob("*.msgpack")]))

    with Store.open(tmp_path / "store.sqlite") as store, closing(Run(request, store, told)) as run:
        assert run.run().solved
    assert made == [2]
