"""Binaries: addressed by content, kept across processes, and a compiler that hangs or dies."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sample_spaces import SOURCE, write_space

from autotune.compiling import binaries
from autotune.compiling.binaries import CompileFailure, compile_now, compiled_for, first_error
from autotune.compiling.job import CompileJob, compile_job
from autotune.compiling.name_clashes import replaced_name, replaced_word
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, SpecError
from autotune.files import cache_folder
from autotune.kernel.catalog import load_file
from autotune.measure.compilers import CompilerPool, CompileTimes
from autotune.measure.process import ENDED
from autotune.values import Configuration, Problem

C, PROBLEM = Configuration(BLOCK=32), Problem(n=1000)


@pytest.fixture
def own_cache(monkeypatch, tmp_path_factory):
    """A cache of this test's own, empty."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def device(opencl_device):
    return choose_device(opencl_device)


@pytest.fixture
def job(tmp_path, device):
    return compile_job(load_file(write_space(tmp_path)), C, PROBLEM, device)


def cached_files():
    return list(cache_folder("binaries").rglob("*.msgpack"))


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("declared", "macro", "message"),
    [
        ("const float* x, int n", ("x", "64"), "x replaces the name x in 'float* x'"),
        ("int n) { auto& t = n; int t2[4];", ("t", "1.5"), "t replaces the name t in 'auto& t'"),
        ("T value) { struct P { int pad; };", ("value", "value_a"), "value in 'T value'"),
    ],
)
def test_a_macro_in_place_of_a_declared_name_is_named(job, declared, macro, message):
    source = f"// int y;\n#define y 1\nvoid f({declared}"
    found = replaced_name(replace(job, source=source, defines=(("y", "1"), macro)))
    assert message in found
    assert found.endswith("; rename one of the two")


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("int i = a * P; return P; case P: f(x & P); x = b[P];", "64"),
        ("void f(const P x, float* y)", "float"),
        ('char* text = "int P;"; f<float>(P);', "64"),
    ],
)
def test_a_macro_that_is_used_replaces_no_name(job, source, value):
    assert not replaced_name(replace(job, source=source, defines=(("P", value),)))


def test_a_macro_in_place_of_a_name_of_a_header_is_named(job):
    log = "h.hpp(6): error: expected a type\n  template <class T, int... I, int... K>\n      ^\n"
    macros = replace(job, defines=(("T", "float"), ("I0", "1"), ("K", "2048")))
    assert replaced_name(macros, log) == (
        "the parameter or macro K replaces the name K in 'template <class T, int... I, int... K>'; "
        "rename the parameter or field, or return the macros without it by @k.defines"
    )
    assert not replaced_name(macros, "h.hpp(6): error: no\n  x = K;\n")


def test_a_replaced_name_stands_before_the_message_of_the_compiler(job):
    failed = compile_now(replace(job, defines=(("factor", "3"), *job.defines)))
    assert re.match(
        r"the parameter or macro factor replaces .* in 'float factor'.*error:", failed.message
    )


def test_a_word_of_the_dialect_is_refused_before_the_compiler(job):
    failed = compile_now(replace(job, defines=(("SYNC", "1"), *job.defines)))
    assert failed.message == (
        "the parameter or macro SYNC is a word of dialect.h; rename it, for example SYNC_0"
    )
    math = replace(job, defines=(("MAX", "1"), ("WARP", "32"), ("NAN", "0")))
    assert not replaced_word(math)
    assert "MAX is a word of dialect_math.h" in replaced_word(
        replace(math, source='#line 1 "dialect_math.h"\n')
    )


# ---------------------------------------------------------------- keys


def keyed(folder, *edits, source=SOURCE, configuration=C, device=None):
    """The key of a configuration."""
    kernel = load_file(write_space(folder, *edits))
    (folder / "kernels" / "scale.cu").write_text(source)
    pytest.importorskip("cuda.bindings.nvrtc")
    return compile_job(kernel, configuration, PROBLEM, device or for_arch("sm_90")).key


OPTIONS = "@scale.options\ndef options(c):\n    return {}\n\n\n@scale.launch"


def test_the_key_changes_with_all_that_decides_the_code(tmp_path):
    """Two configurations with one key would be measured with one of their binaries."""
    keys = {
        "plain": keyed(tmp_path),
        "source": keyed(tmp_path, source=SOURCE.replace("factor * x[i]", "x[i] * factor")),
        "value": keyed(tmp_path, configuration=Configuration(BLOCK=64)),
        "parameter": keyed(
            tmp_path, ("BLOCK=(", "ITEMS=(1,),\n    BLOCK=("), configuration=C.replace(ITEMS=1)
        ),
        "options": keyed(tmp_path, ("@scale.launch", OPTIONS.format("['-lineinfo']"))),
        "option order": keyed(tmp_path, ("@scale.launch", OPTIONS.format("['-lineinfo', '-G']"))),
        "other order": keyed(tmp_path, ("@scale.launch", OPTIONS.format("['-G', '-lineinfo']"))),
        "static": keyed(tmp_path, ("    BLOCK=(", "    static=('n',),\n    BLOCK=(")),
        "arch": keyed(tmp_path, device=for_arch("sm_80")),
        "arch feature": keyed(tmp_path, device=for_arch("sm_90a")),
    }
    assert len(set(keys.values())) == len(keys)


def test_the_key_does_not_change_with_what_does_not_decide_the_code(tmp_path, tmp_path_factory):
    plain = keyed(tmp_path)
    assert keyed(tmp_path, ("(32, 64)", "(32, 64, 128)")) == plain
    assert keyed(tmp_path, ("Problem(n=1000)", "Problem(n=5)")) == plain
    assert keyed(tmp_path, ("return factor * x", "return x")) == plain
    assert keyed(tmp_path_factory.mktemp("elsewhere")) == plain
    other = replace(for_arch("sm_90"), name="H200", uuid="GPU-2", driver="600.1", index=3)
    assert keyed(tmp_path, device=other) == plain


def test_the_key_of_an_opencl_binary_changes_with_the_driver():
    device = replace(for_arch("sm_90"), backend="opencl", arch="opencl_cpu", driver="1")
    job = CompileJob("source", (), (), device, "opencl", "opencl 1")
    updated = replace(job, device=replace(device, driver="2"))
    assert job.key != updated.key
    assert job.key != replace(job, toolchain="opencl 2").key


# ---------------------------------------------------------------- the cache


@pytest.mark.usefixtures("own_cache")
def test_a_binary_is_compiled_once(job):
    first = compile_now(job)
    assert first.binary is not None
    assert first.binary.key == job.key
    (file,) = cached_files()
    before = file.stat().st_ino
    again = compile_now(job)
    assert again.binary == first.binary
    assert file.stat().st_ino == before  # not written again
    assert cached_files() == [file]


@pytest.mark.usefixtures("own_cache")
def test_another_process_finds_the_binary(job, tmp_path):
    binary = compile_now(job).binary
    binaries.write_cached(replace(binary, code=b"from the cache"))
    code = (
        "import sys; from pathlib import Path; from autotune.kernel.catalog import load_file\n"
        "from autotune.devices.choose import choose_device; from autotune.compiling.binaries import compiled_for\n"
        "from autotune.values import Problem\n"
        "kernel = load_file(Path(sys.argv[1]))\n"
        "device = choose_device('opencl:cpu')\n"
        "print(compiled_for(kernel, {'BLOCK': 32}, Problem(n=1000), device).code)\n"
    )
    file = tmp_path / "spaces" / "scale.py"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(b"from the cache")


DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"x",
    "text": lambda data: b"not msgpack at all",
    "one bit": lambda data: data[:200] + bytes([data[200] ^ 4]) + data[201:],
    "foreign": lambda data: b"\x81\xa4code\xc0",
}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_a_miss_and_is_mended(job, damage):
    binary = compile_now(job).binary
    (file,) = cached_files()
    file.write_bytes(damage(file.read_bytes()))
    compiled = compile_now(job)
    assert compiled.binary.entries == binary.entries
    assert binaries.read_cached(job.key).binary == compiled.binary


def test_a_cache_that_cannot_be_written_only_costs_time(job, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "file"))
    assert compile_now(job).binary is not None


@pytest.mark.usefixtures("own_cache")
def test_a_failure_is_not_cached(tmp_path, device):
    """What failed for a lack of disk or memory may succeed the next time."""
    kernel = load_file(write_space(tmp_path))
    (tmp_path / "kernels" / "scale.cu").write_text(SOURCE + "oops;\n")
    failed = compile_now(compile_job(kernel, C, PROBLEM, device))
    assert failed.binary is None
    assert "scale.cu:" in failed.message
    assert "error" in failed.message
    assert "\n" not in failed.message
    assert failed.failure is CompileFailure.REJECTED
    assert cached_files() == []


def test_compiling_for_a_person_raises_with_the_first_error(tmp_path, device):
    kernel = load_file(write_space(tmp_path))
    assert compiled_for(kernel, {"BLOCK": 32}, PROBLEM, device).entry("scale")
    (tmp_path / "kernels" / "scale.cu").write_text(SOURCE + "oops;\n")
    os.utime(tmp_path / "kernels" / "scale.cu", ns=(2, 2))
    with pytest.raises(SpecError, match=r"configuration BLOCK=32 for .*scale\.cu:10.*error"):
        compiled_for(kernel, {"BLOCK": 32}, PROBLEM, device)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("warning: a\n  k.cu(3): error: b\nk.cu(4): error: c\n", "k.cu(3): error: b"),
        ("something\nfailed\n", "something"),
        ("ptxas fatal   : Error in x\n", "ptxas fatal   : Error in x"),
        ("\n \n", "the compiler gave no reason"),
        ("", "the compiler gave no reason"),
    ],
)
def test_the_first_error_of_a_log(log, line):
    assert first_error(log) == line


# ---------------------------------------------------------------- the pool


#: Processes that tests of other files left to this one, a database's for example.
OTHERS = set()


@pytest.fixture(scope="module")
def pool():
    OTHERS.update(children())
    with CompilerPool(1) as made:
        yield made


def children():
    """Process ids of this process's compilers."""
    pids = " ".join(
        file.read_text() for file in Path(f"/proc/{os.getpid()}/task").glob("*/children")
    )
    return {int(pid) for pid in pids.split() if "autotune" in command_line(pid)} - OTHERS


def command_line(pid):
    """Empty for a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def blocked(folder, job):
    """A job that blocks for ever: it includes a pipe that nobody writes to."""
    os.mkfifo(folder / "pipe.h")
    return replace(job, source=f'#include "{folder}/pipe.h"\n{job.source}')


def wait_for_reader(pipe, timeout_s=60):
    """Wait until a compiler has the pipe open for reading."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.05)
    raise AssertionError("nobody compiles")


@pytest.mark.usefixtures("own_cache")
def test_the_pool_yields_what_compiling_here_does(pool, job):
    broken = replace(job, source=job.source + "oops;\n")
    pool.submit(job)
    pool.submit(broken)
    pool.submit(job)
    found = pool.result(job)
    assert found.binary is not None
    assert found.binary.key == job.key
    assert found.seconds > 0
    assert "error" in pool.result(broken).message
    assert pool.result(job).binary == found.binary  # asked again: from the cache
    assert compile_now(job).binary == found.binary


def test_a_compiler_that_hangs_is_given_up_and_the_next_job_compiles(job, tmp_path):
    stuck, innocent = blocked(tmp_path, job), replace(job, source=job.source + "// innocent\n")
    compile_now(innocent)  # from the cache it takes no time
    with CompilerPool(1, timeout_s=2.0) as own:
        own.submit(stuck)
        own.submit(innocent)
        found = own.result(stuck)
        assert found.binary is None
        assert found.failure is CompileFailure.TIMED_OUT
        assert found.message == "compiling took longer than 2 s"
        assert own.result(innocent).binary is not None


def test_a_compiler_process_that_dies_fails_its_own_job_only(pool, job, tmp_path):
    stuck, innocent = blocked(tmp_path, job), replace(job, source=job.source + "// bystander\n")
    assert pool.result(replace(job, source=job.source + "// warm\n")).binary is not None
    (process,) = children()
    pool.submit(stuck)
    pool.submit(innocent)
    pipe = wait_for_reader(tmp_path / "pipe.h")
    os.kill(process, signal.SIGKILL)
    os.close(pipe)
    found = pool.result(stuck)
    assert found.binary is None
    assert found.failure is CompileFailure.REJECTED
    assert "the compiler process died" in found.message
    assert pool.result(innocent).binary is not None


def test_how_long_a_compile_takes_is_learned_from_those_with_equal_symbols(job):
    times = CompileTimes()

    def of(tile, pad):
        return replace(job, defines=(("TILE", tile), ("PAD", pad)))

    assert times.longest_in_typical == 1
    for tile, pad, seconds in [("1", "0", 0.4), ("1", "1", 0.5), ("8", "0", 8.0)]:
        times.add(of(tile, pad), seconds)
    ranked = sorted(
        [of(tile, pad) for tile in "18" for pad in "01"], key=times.expected, reverse=True
    )
    assert [dict(ranked[place].defines)["TILE"] for place in range(4)] == ["8", "8", "1", "1"]
    assert times.expected(of("2", "0")) > times.expected(of("1", "0"))
    assert times.longest_in_typical == pytest.approx(8 / (0.4 * 0.5 * 8) ** (1 / 3))


def wait_until(holds, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert holds()


def test_whoever_waits_is_told_when_the_pool_is_closed(job, tmp_path):
    own, waiting = CompilerPool(1), replace(job, source=job.source + "// waits\n")
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(own.result, blocked(tmp_path, job))]
        pipe = wait_for_reader(tmp_path / "pipe.h")
        asked.append(threads.submit(own.result, waiting))
        wait_until(lambda: own._submitted)
        own.close()
        os.close(pipe)
        for future in asked:
            with pytest.raises(AutotuneError, match=ENDED):
                future.result(60)
    for ask in (own.result, own.submit):
        with pytest.raises(AutotuneError, match=ENDED):
            ask(waiting)


def test_a_template_is_instantiated_by_its_name_expression():
    """An ordinary C++ source: a namespace, a template, an include of its own, no extern "C"."""
    from autotune.devices.device import for_arch
    from autotune.kernel.catalog import find_kernel

    kernel = find_kernel("rowsum", Path(__file__).parents[1] / "examples" / "rowsum" / "spaces")
    problem = kernel.problems["cuda"][0]
    binaries = [
        compiled_for(kernel, {"WARPS": warps, "UNROLL": 2}, problem, for_arch("sm_90"))
        for warps in (4, 8)
    ]
    for binary, warps in zip(binaries, (4, 8), strict=True):
        name = f"app::rowsum<{warps}, 2>"
        entry = binary.entry(name)
        assert entry and entry.registers
        assert binary.symbol(name) == f"_ZN3app6rowsumILi{warps}ELi2EEEvPKfPfii"
        assert binary.symbol(name).encode() in binary.code
    assert binaries[0].key != binaries[1].key


def test_an_entry_that_the_source_lacks_is_a_compile_error():
    from autotune.devices.base import CompileError
    from autotune.devices.choose import backend
    from autotune.devices.device import for_arch

    with pytest.raises(CompileError, match="scales"):
        source = "__global__ void scale(float* x) { x[threadIdx.x] *= 2.0f; }"
        backend("cuda").compile(source, {}, (), for_arch("sm_90"), ("scales<2>",))
