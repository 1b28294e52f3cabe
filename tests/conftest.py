"""Fixtures and hooks of all tests: isolated environments, fixed random examples, and no silent skips.

``--fast`` (``make test-fast``) runs only tests that start no process and compile nothing. Tests that use a
device or compiler fixture are deselected. Other tests are skipped when they start a process or compiler.

``AUTOTUNE_TEST_NO_SKIP=1`` (set by ``.ci/run``) turns a skip into a failure, because a complete machine
must run all tests. Tests marked ``gpu`` are exempt.
"""

import _posixsubprocess
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# One BLAS thread per process, because there are as many processes as cores. This must be set before numpy
# is imported; child processes inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # If there are enough cores, each process and its children stay on one. Idle threads of Intel's OpenCL
    # spin, and would take half of the time of other cores.
    if hasattr(os, "sched_setaffinity"):
        _cores = sorted(os.sched_getaffinity(0))
        if len(_cores) == int(os.environ["PYTEST_XDIST_WORKER_COUNT"]):
            os.sched_setaffinity(0, {_cores[int(os.environ["PYTEST_XDIST_WORKER"][2:])]})
# Tests start hundreds of processes. Without bytecode files, each would compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Background jobs of a script ignore Ctrl-C, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NO_SKIP = os.environ.get("AUTOTUNE_TEST_NO_SKIP") == "1"
#: Test files whose results depend on times of the OpenCL device.
TIMED = {
    *("test_backends", "test_check_tuned", "test_contracts", "test_evaluator", "test_experiments"),
    *("test_fleet", "test_race", "test_retune", "test_tuner", "test_verdict"),
    "test_worker",
}
#: Module fixtures that take seconds. All tests of the file run in one process, which creates them once.
COSTLY = {"built", "launchers", "pages", "space", "notebook"}
#: Marks and fixtures of tests that `--fast` deselects.
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
    """With ``--fast``, skip tests when they start a process."""
    if config.getoption("--fast"):
        sys.addaudithook(_refuse_processes)
        _posixsubprocess.fork_exec = _refuse_process  # multiprocessing does not call the audit hook


def _refuse_processes(event: str, _: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.system"):
        _refuse_process()


def _refuse_process(*_: Any) -> None:
    if "PYTEST_CURRENT_TEST" in os.environ:
        pytest.skip("--fast: it starts a process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the torch tests if torch is not installed and GPU tests are deselected.

    With ``-m gpu`` the file is collected and reported as skipped.
    """
    needs_torch = collection_path == Path(__file__).parent / "gpu" / "test_torch.py"
    is_selected = "not gpu" not in config.option.markexpr
    return True if needs_torch and not is_selected and find_spec("torch") is None else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Apply AUTOTUNE_TEST_NO_SKIP to a test."""
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
    report.longrepr = f"{report.nodeid}: skipped although AUTOTUNE_TEST_NO_SKIP=1: {reason}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests by process, mark those of tests/trust, and deselect tests with ``--fast``.

    Tests that time the OpenCL device run in one process, because two would disturb each other. Any other
    file that uses the device runs in one process too, which keeps its device processes. Tests without a
    group run last, because single tests balance the processes better than groups of minutes.
    """
    for item in items:
        if item.path.parent.name == "trust":
            item.add_marker("trust")
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


def pytest_collection_finish() -> None:
    """Leave tests and modules out of later garbage collections, which would take a third of a second each."""
    gc.freeze()


def _is_fast(item: pytest.Item) -> bool:
    names = {mark.name for mark in item.iter_markers()}.union(getattr(item, "fixturenames", ()))
    return not NOT_FAST & names


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the caches, which have gigabytes of expected values of large data sets."""
    gc.unfreeze()  # nanobind would report its functions as leaked
    if "PYTEST_XDIST_WORKER" not in os.environ:
        base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        shutil.rmtree(base / "caches", ignore_errors=True)


@pytest.fixture(scope="session")
def _shared_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of caches that all processes of the session share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "caches"


@pytest.fixture(scope="session", autouse=True)
def _isolated_session(
    tmp_path_factory: pytest.TempPathFactory, _shared_caches: Path
) -> Iterator[None]:
    """Isolate session and module fixtures too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # no test ends with a power failure
        _isolate(patch, tmp_path_factory.mktemp("home"), _shared_caches)
        yield


@pytest.fixture(autouse=True)
def _isolated(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    _shared_caches: Path,
) -> None:
    """Give the test its own home folder, and remove the caller's settings."""
    # `mktemp` of pytest is slow here: it searches the folders of all earlier tests for a free number.
    homes = tmp_path_factory.getbasetemp() / "homes"
    homes.mkdir(exist_ok=True)
    _isolate(monkeypatch, Path(tempfile.mkdtemp(dir=homes)), _shared_caches)


def _isolate(patch: pytest.MonkeyPatch, home: Path, caches: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AUTOTUNE_", "XDG_")) or name in ("NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("COLUMNS", "100")  # the same width of tables everywhere
    patch.setenv("AUTOTUNE_CACHE_DIR", str(caches / "autotune"))
    patch.setenv("CUPY_CACHE_DIR", str(caches / "cupy"))
    patch.setenv("MPLCONFIGDIR", str(caches / "matplotlib"))  # its font cache takes seconds


@pytest.fixture(autouse=True)
def _few_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify finalists at two sizes near the problem only, and winners on no extreme values.

    Tests marked `many_sizes` or `gpu` verify them at all sizes.
    """
    if not any(map(request.node.get_closest_marker, ("many_sizes", "gpu"))):
        from autotune.run.request import EFFORTS

        monkeypatch.setattr("autotune.run.other_sizes.MAX_NEAR", 2)
        monkeypatch.setattr("autotune.run.other_sizes.extreme_sizes", lambda *_: [])
        monkeypatch.setattr("autotune.run.extreme_checks._MAX_ELEMENTS", 0)
        quick = EFFORTS["quick"]
        monkeypatch.setitem(EFFORTS, "quick", replace(quick, rounds=10))


@pytest.fixture(autouse=True)
def _no_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--fast``, skip tests when they compile in their own process."""
    if request.config.getoption("--fast"):
        for name in ("autotune.devices.nvrtc._compiled", "autotune.languages.triton._compiled"):
            monkeypatch.setattr(name, lambda *_, **__: pytest.skip("--fast: a compiler"))


@pytest.fixture(autouse=True)
def _slow_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of `check` for Triton's interpreter, for very busy machines."""
    monkeypatch.setattr("autotune.checking.interpreting.LONGEST_S", 600.0)
    monkeypatch.setattr("autotune.checking.interpreting.ALL_S", 3600.0)


@pytest.fixture(scope="session")
def nvcc() -> str:
    """Return the path of nvcc, from the extra ``test`` or the machine."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    path = pathfinder.find_nvidia_binary_utility("nvcc") or shutil.which("nvcc")
    if path is None:
        pytest.skip("no nvcc; pip install '.[test]'")
    return str(path)


@pytest.fixture(scope="session")
def opencl_device() -> str:
    """Return the command-line name of the OpenCL CPU device; its tests share one process."""
    intel = Path(sys.prefix, "lib", "libintelocl.so")
    others = Path("/etc/OpenCL/vendors").glob("*.icd")
    if find_spec("pyopencl") is None or not (intel.exists() or any(others)):
        pytest.skip("no OpenCL device; pip install '.[cpu]'")
    return "opencl:cpu"


@pytest.fixture(scope="session")
def server() -> Iterator[object]:
    """Yield a running PostgreSQL server, a `postgresql.Server`."""
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
    """Reuse the device and compiler processes of earlier tests; see `kept_processes`."""
    _kept_processes.lend(monkeypatch)


@pytest.fixture
def wrong_kernel(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opencl_device: str,
    kept_processes: None,
) -> Callable[[str], object]:
    """Return a function that makes a `wrong_kernels.Trial`, whose searches begin before the reference."""
    from wrong_kernels import Trial

    from autotune.run.bench import Site

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(Site, "uses_references", lambda *_: True)
    return lambda name: Trial(name, tmp_path, opencl_device)


@pytest.fixture
def project(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opencl_device: str,
    kept_processes: None,
) -> Path:
    """Return the current folder and home, with two kernels tuned on the OpenCL device."""
    from tuned_project import enter_copy, tuned_once

    return enter_copy(tuned_once(tmp_path_factory), tmp_path, monkeypatch)
