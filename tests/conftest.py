"""What every test gets: an environment of its own, the same random examples, and no silent skips.

With ``--fast`` (``make test-fast``) only those run that start no process and compile nothing. Tests that
ask for a device or a compiler are left out before they begin, others end as skipped where they start one.

``AUTOTUNE_TEST_NO_SKIP=1`` (set by ``.ci/run``) turns a skip into a failure, so that a machine that
should run everything cannot quietly run less. Tests marked ``gpu`` are exempt.
"""

import _posixsubprocess
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# As many processes as cores: threads of one's BLAS would wait for those of the other's. Set before
# anything imports numpy, and inherited by what the tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Where each can have a core, it keeps to that, with what it starts: threads of Intel's OpenCL that
    # wait for work spin, and take half of the time on the cores of others.
    if hasattr(os, "sched_setaffinity"):
        _cores = sorted(os.sched_getaffinity(0))
        if len(_cores) == int(os.environ["PYTEST_XDIST_WORKER_COUNT"]):
            os.sched_setaffinity(0, {_cores[int(os.environ["PYTEST_XDIST_WORKER"][2:])]})
# Tests start hundreds of processes: each would compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What a script runs in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NO_SKIP = os.environ.get("AUTOTUNE_TEST_NO_SKIP") == "1"
#: Files whose results depend on how long the OpenCL device takes.
TIMED = {
    *("test_backends", "test_check_tuned", "test_contracts", "test_evaluator", "test_experiments"),
    *("test_fleet", "test_race", "test_retune", "test_tuner", "test_verdict"),
    "test_worker",
}
#: Fixtures of a file that take seconds: who uses one runs in one process, which makes it once.
COSTLY = {"built", "launchers", "pages", "space", "notebook"}
#: Marks and fixtures of tests that `--fast` leaves out before they begin.
NOT_FAST = {"opencl", "postgres", "browser", "nvcc", "slow"}
NOT_FAST |= {
    "opencl_device",
    "kept_processes",
    "project",
    "server",
    "built",
    "launchers",
    "notebook",
}

hypothesis.settings.register_profile("autotune", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("autotune")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fast``."""
    parser.addoption("--fast", action="store_true", help="start no process and compile nothing")


def pytest_configure(config: pytest.Config) -> None:
    """Skip, with ``--fast``, the test that starts a process."""
    if config.getoption("--fast"):
        sys.addaudithook(_refuse_processes)
        _posixsubprocess.fork_exec = _refuse_process  # of multiprocessing, which tells no hook


def _refuse_processes(event: str, _: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.system"):
        _refuse_process()


def _refuse_process(*_: Any) -> None:
    if "PYTEST_CURRENT_TEST" in os.environ:
        pytest.skip("--fast: it starts a process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what needs torch where it is not and no GPU tests are asked for.

    With ``-m gpu`` the file is collected, and says that it skips.
    """
    needs_torch = collection_path == Path(__file__).parent / "gpu" / "test_torch.py"
    is_asked_for = "not gpu" not in config.option.markexpr
    return True if needs_torch and not is_asked_for and find_spec("torch") is None else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Apply AUTOTUNE_TEST_NO_SKIP to one test."""
    report = yield
    allowed = item.get_closest_marker("gpu")
    if NO_SKIP and report.skipped and not allowed and not hasattr(report, "wasxfail"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Apply AUTOTUNE_TEST_NO_SKIP to a module that skips itself."""
    report = yield
    if NO_SKIP and report.skipped and Path(__file__).parent / "gpu" not in collector.path.parents:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: AUTOTUNE_TEST_NO_SKIP=1 and yet: {reason}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what times the OpenCL device in one process: two would disturb each other.

    Each other file that uses the device has a process too, whichever is free, with device processes that
    are kept. What is in no group comes last: single tests end evenly what groups of minutes would not.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "opencl_device" in fixtures:
            item.add_marker("opencl")
        if item.get_closest_marker("opencl"):
            group = "times" if item.path.stem in TIMED else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
        elif COSTLY.intersection(fixtures):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    if config.getoption("--fast"):
        left_out = [item for item in items if not _is_fast(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = filter(_is_fast, items)


def _is_fast(item: pytest.Item) -> bool:
    names = {mark.name for mark in item.iter_markers()}.union(getattr(item, "fixturenames", ()))
    return not NOT_FAST & names


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the caches: expected values of large data sets are gigabytes."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        shutil.rmtree(base / "caches", ignore_errors=True)


@pytest.fixture(scope="session")
def _shared_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of caches for the session, all its processes included."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "caches"


@pytest.fixture(scope="session", autouse=True)
def _isolated_session(
    tmp_path_factory: pytest.TempPathFactory, _shared_caches: Path
) -> Iterator[None]:
    """Isolate what session and module fixtures do as well."""
    with pytest.MonkeyPatch.context() as patch:
        _isolate(patch, tmp_path_factory.mktemp("home"), _shared_caches)
        yield


@pytest.fixture(autouse=True)
def _isolated(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    _shared_caches: Path,
) -> None:
    """Give the test a home of its own and none of the caller's settings."""
    # Not by `mktemp`, which looks through all the folders of all tests before for a free number.
    homes = tmp_path_factory.getbasetemp() / "homes"
    homes.mkdir(exist_ok=True)
    _isolate(monkeypatch, Path(tempfile.mkdtemp(dir=homes)), _shared_caches)


def _isolate(patch: pytest.MonkeyPatch, home: Path, caches: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AUTOTUNE_", "XDG_")) or name in ("NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("COLUMNS", "100")  # tables are as wide everywhere
    patch.setenv("AUTOTUNE_CACHE_DIR", str(caches / "autotune"))
    patch.setenv("CUPY_CACHE_DIR", str(caches / "cupy"))
    patch.setenv("MPLCONFIGDIR", str(caches / "matplotlib"))  # its font cache takes seconds


@pytest.fixture(autouse=True)
def _few_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify the finalists of short runs at four sizes, and at no large one, as a very busy machine does.

    Tests marked `many_sizes`, and those on a GPU, have the sizes that there is time for.
    """
    if not any(map(request.node.get_closest_marker, ("many_sizes", "gpu"))):
        monkeypatch.setattr("autotune.run.sizes._MIN_S", 0.0)


@pytest.fixture(autouse=True)
def _no_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip, with ``--fast``, the test that compiles in its own process."""
    if request.config.getoption("--fast"):
        for name in ("autotune.devices.nvrtc._compiled", "autotune.languages.triton._compiled"):
            monkeypatch.setattr(name, lambda *_, **__: pytest.skip("--fast: a compiler"))


@pytest.fixture(autouse=True)
def _slow_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `check` interpret what takes longer on a very busy machine than it waits for."""
    monkeypatch.setattr("autotune.checking.interpreting.LONGEST_S", 600.0)
    monkeypatch.setattr("autotune.checking.interpreting.ALL_S", 3600.0)


@pytest.fixture(scope="session")
def nvcc() -> str:
    """The CUDA compiler driver, from the extra ``test`` or the machine."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    path = pathfinder.find_nvidia_binary_utility("nvcc") or shutil.which("nvcc")
    if path is None:
        pytest.skip("no nvcc; pip install '.[test]'")
    return str(path)


@pytest.fixture(scope="session")
def opencl_device() -> str:
    """How the command line names the OpenCL CPU device; its tests share one process."""
    intel = Path(sys.prefix, "lib", "libintelocl.so")
    others = Path("/etc/OpenCL/vendors").glob("*.icd")
    if find_spec("pyopencl") is None or not (intel.exists() or any(others)):
        pytest.skip("no OpenCL device; pip install '.[cpu]'")
    return "opencl:cpu"


@pytest.fixture(scope="session")
def server() -> Iterator[object]:
    """A running PostgreSQL: `postgresql.Server`."""
    from postgresql import running

    with running() as made:
        yield made


@pytest.fixture(scope="session")
def _kept_processes(_isolated_session: None) -> Iterator[object]:
    from kept_processes import KeptProcesses

    made = KeptProcesses()
    yield made
    made.close()


@pytest.fixture
def kept_processes(_kept_processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in device processes and compilers that earlier tests began; see `kept_processes`."""
    _kept_processes.lend(monkeypatch)


@pytest.fixture
def project(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opencl_device: str,
    kept_processes: None,
) -> Path:
    """The current folder and home: two kernels that were just tuned on the OpenCL device."""
    from tuned_project import enter_copy, tuned_once

    return enter_copy(tuned_once(tmp_path_factory), tmp_path, monkeypatch)
