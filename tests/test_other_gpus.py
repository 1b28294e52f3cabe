"""Shipped kernels on GPUs that nobody tuned: what answers is valid there, and compiles for them."""

import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from thinned import thinned

from autotune.calling.choice import choose
from autotune.cli import run
from autotune.cli.kernels import ptx_of
from autotune.compiling.binaries import compiled_for
from autotune.devices.base import BoundLaunch
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device, arch_of_model, for_arch
from autotune.errors import NoAnswerError, NothingValidError, UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.includes import flattened
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import is_member
from autotune.retune.stale import StaleQuery, survey
from autotune.tuned.lookup import lookup
from autotune.tuned.merged import build_table
from autotune.tuned.reading import RecordFile, read
from autotune.tuned.writing import mergeable
from autotune.values import Configuration, Problem

REPORTS = Path(__file__).parent.parent / "reports"
FILES = sorted(REPORTS.glob("*H100*/*.json"))
RECORDS = [read(file) for file in FILES if not file.name.endswith(".explain.json")]
#: One of each architecture, by the driver's name, with a kernel that is compiled for it.
GPUS = {
    "Tesla T4": "copy",
    "NVIDIA A100-SXM4-40GB": "gemv",
    "NVIDIA GeForce RTX 3090": "sgemm",
    "NVIDIA L40S": "transpose",
    "NVIDIA B200": "reduce",
    "NVIDIA GeForce RTX 5090": "prefetch",
}


@pytest.fixture(autouse=True)
def shipped_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's; a constant folder, so that the tables are made once."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(REPORTS))
    monkeypatch.setenv("XDG_DATA_HOME", str(REPORTS / "none"))


def device_of(model: str) -> Device:
    """A GPU by the published limits of its architecture."""
    return replace(for_arch(str(arch_of_model(model))), name=model)


def test_the_newest_record_of_a_gpu_says_where_the_default_runs() -> None:
    """After `make run` the newest is the CPU's, and its default looked valid on a Tesla T4."""
    shipped = next(record for record in RECORDS if record.kernel == "sgemm")
    replaced = msgspec.structs.replace
    of_cpu = replaced(
        shipped,
        device=replaced(shipped.device, backend="opencl", name="CPU", arch="opencl_cpu"),
        defaults=tuple(
            replaced(row, plans=(replaced(row.plans[0], archs=None),)) for row in shipped.defaults
        ),
        provenance=replaced(shipped.provenance, created="2031-01-01T00:00:00+00:00"),
    )
    files = [RecordFile("shipped", "gpu", shipped), RecordFile("of_cpu", "cpu", of_cpu)]
    for given, right in ((files, shipped), (files[1:], of_cpu)):
        rows = build_table(given).defaults.near.values()
        assert [row.plans for row in rows] == [row.plans for row in right.defaults]


@pytest.mark.filterwarnings("ignore:.*no recorded configuration is valid")
@pytest.mark.parametrize("model", GPUS)
@pytest.mark.parametrize(
    "is_every", [False, pytest.param(True, marks=pytest.mark.full)], ids=["sample", "every problem"]
)
def test_answers_are_valid_on_gpus_that_nobody_tuned(model: str, is_every: bool) -> None:
    """For tuned problems; lookup says so where nothing that was tuned is.

    Of every problem the answer is compiled too.
    """
    device = device_of(model)
    compiled: set[tuple[str, Configuration]] = set()
    for record in RECORDS:
        kernel = find_kernel(record.kernel)
        for entry in record.problems[:: 1 if is_every else 4]:
            problem = Problem(dict(entry.problem))
            try:
                found = lookup(kernel.name, device=model, **problem)
            except NoAnswerError:
                found = None
            if found is not None:
                assert found.quality in ("nearest_arch", "default")
                assert found.expected_fraction is None
                assert is_member(kernel, found, device)
            try:
                chosen = choose(kernel, problem, device).configuration
            except NothingValidError as error:
                needs_sm_80 = kernel.name in ("sgemm_tf32x3", "hgemm", "hmma")
                assert model == "Tesla T4" and needs_sm_80, error
                continue
            assert kernel.allows(chosen, problem)
            if found is not None:
                assert chosen == Configuration(dict(found))
            wanted = is_every or (kernel.name == GPUS[model] and not compiled)
            if wanted and (kernel.name, chosen) not in compiled:
                compiled.add((kernel.name, chosen))
                assert_fits(kernel.name, chosen, problem, device)
    assert compiled


def test_an_answer_of_another_architecture_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """On the command line, of a call, and in C++."""
    sizes = Problem(m=512, n=512, k=512)
    asked = ["lookup", "sgemm", *(f"{name}={size}" for name, size in sizes.items())]
    why = "no record of sm_100: this answer was measured on NVIDIA H100 80GB HBM3 (sm_90); "
    assert run([*asked, "--arch", "sm_100"]) == 0
    printed = capsys.readouterr().out
    assert f"  {why}to tune it there, run: autotune run sgemm\n" in printed
    assert "  quality: nearest_arch\n" in printed
    assert run([*asked, "--arch", "sm_90"]) == 0
    assert "no record" not in capsys.readouterr().out
    chosen = choose(find_kernel("sgemm"), sizes, device_of("NVIDIA B200"))
    assert chosen.why.startswith("nearest_arch of AUTOTUNE_TUNED:NVIDIA_H100_80GB_HBM3/sgemm")
    assert why in chosen.why


def test_a_header_says_that_an_answer_is_of_another_architecture(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++; apt-get install g++")
    lines = [
        "#include <autotune/sgemm.hpp>",
        "using namespace autotune::sgemm;",
        "static_assert(lookup(90, 512, 512, 512)->hit == quality::exact);",
        "static_assert(lookup(100, 512, 512, 512)->hit == quality::nearest_arch);",
        "static_assert(lookup(100, 512, 512, 512)->expected_fraction < 0);",
    ]
    (tmp_path / "main.cpp").write_text("\n".join(lines))
    include = REPORTS.parent / "cpp" / "include"
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{include}", "main.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)


def test_only_records_of_its_chip_are_a_gpus_own() -> None:
    """For `retune`, under any name; a run is refused before it would be merged into another chip's record."""
    kernel = find_kernel("copy")
    own = next(record for record in RECORDS if record.kernel == "copy").device.planned_for()
    for name in (own.name, "H100 of a manufacturer"):
        device = replace(own, name=name, driver="")
        query = StaleQuery((device,), ("copy",), records=REPORTS)
        targets, _ = survey(query, device)
        assert {bool(target.known) for target in targets} == {True}
        assert not [*mergeable(REPORTS, replace(device, name="Another GPU"), kernel, "time")]
    cut = replace(own, sm_count=100, uuid="")
    targets, _ = survey(StaleQuery((cut,), ("copy",), records=REPORTS), cut)
    assert targets and {target.why for target in targets} == {"never tuned here"}
    with pytest.raises(
        UsageError, match=r"copy\.json: it is of another NVIDIA H100 80GB HBM3; this"
    ):
        next(mergeable(REPORTS, cut, kernel, "time"))
    assert [*mergeable(REPORTS, own, kernel, "time")]


def assert_fits(name: str, configuration: Configuration, problem: Problem, device: Device) -> None:
    """It compiles, and every launch keeps the limits of the device."""
    kernel = find_kernel(name)
    binary = compiled_for(kernel, configuration, problem, device)
    for launch in launch_sequence(kernel, configuration, problem, device).launches:
        function = binary.entry(launch.entry)
        assert function is not None
        threads = math.prod(launch.block)
        assert threads <= device.max_threads_per_block
        # Registers are handed out to warps, eight a thread at a time.
        registers = 8 * math.ceil((function.registers or 0) / 8) * 32 * math.ceil(threads / 32)
        assert registers <= device.registers_per_sm
        shared_bytes = launch.shared_bytes + (function.shared_bytes or 0)
        assert shared_bytes <= device.shared_bytes_per_block


@pytest.mark.parametrize("name", ["ffma", "sgemm"])
@pytest.mark.parametrize(
    ("arch", "is_paired"),
    thinned(
        [("sm_90", False), ("sm_100", True), ("sm_103", True), ("sm_120", False)],
        [("sm_100", True), ("sm_120", False)],
    ),
)
def test_multiply_adds_are_paired_where_an_instruction_has_two(
    name: str, arch: str, is_paired: bool
) -> None:
    """All of the inner loop, or none."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    kernel = find_kernel(name)
    configuration = kernel.completed(kernel.seeds[0])
    ptx = ptx_of(kernel, configuration, kernel.first_problem("cuda"), for_arch(arch))
    paired, single = ptx.count("fma.rn.f32x2"), ptx.count("fma.rn.f32 ")
    assert min(paired, single) < 0.2 * max(paired, single)
    assert (paired > single) == is_paired


# ---------------------------------------------------------------------- The portable kernels for


#: What HIP's own headers would give, which come with ROCm.
BUILTINS = Path(__file__).with_name("hip_builtins.h")
KERNELS = (
    *("copy", "ffma", "gemv", "gemv_columns", "prefetch", "reduce", "sgemm", "transpose"),
    *("reduce_op", "conv1d", "spmm", "triangles"),
    *("gather", "elementwise", "pitch", "branch", "table", "particles", "unroll", "banks", "chase"),
)
#: CDNA, whose waves have 64 lanes, and RDNA with 32.
WAVES = {"gfx90a": 64, "gfx1030": 32}
SHUFFLED = ("gemv", "gemv_columns", "reduce", "reduce_op")
CASES = [
    (kernel, arch, language) for kernel in KERNELS for arch in WAVES for language in ("hip", "cl")
]
SAMPLE = [
    (kernel, arch, language)
    for kernel, arch, language in CASES
    if (kernel, arch) == ("reduce", "gfx90a")
]


def amd_assembly(source: str, arch: str, language: str) -> str:
    """What clang makes of a source for a GPU of AMD."""
    if shutil.which("clang") is None:
        pytest.skip("no clang; apt-get install clang")
    targets = {
        "hip": [
            *("-x", "hip", f"--offload-arch={arch}", "--cuda-device-only", "-nogpuinc"),
            *("-nogpulib", "-include", str(BUILTINS)),
        ],
        "cl": [
            *("-x", "cl", "-cl-std=CL2.0", "-D__OPENCL_VERSION__=200", f"-mcpu={arch}"),
            *("--target=amdgcn-amd-amdhsa", "-nogpulib", "-Xclang", "-finclude-default-header"),
        ],
    }
    options = [f"-DWARP={WAVES[arch]}", "-O2", "-S", "-o", "-", "-"]
    done = subprocess.run(
        ["clang", *targets[language], *options], input=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert ".amdhsa_kernel" in done.stdout
    assert f".wavefront_size: {WAVES[arch]}" in done.stdout
    return done.stdout


@pytest.mark.parametrize(("name", "arch", "language"), thinned(CASES, SAMPLE))
def test_portable_kernels_compile_for_amd(name: str, arch: str, language: str) -> None:
    """To assembly; lanes of a wave are read by number where the kernel shuffles."""
    kernel = find_kernel(name)
    source = flattened(kernel.find_source(kernel.files.get("portable", f"{name}.cu"))).text
    assembly = amd_assembly(source, arch, language)
    assert ("ds_bpermute_b32" in assembly) == (name in SHUFFLED)


# ---------------------------------------------------------------------- `dialect


ROOT = Path(__file__).parents[1]
SPACES = ROOT / "tests" / "data" / "spaces"
SOURCE = """
#include "dialect.h"
KERNEL_3D(4, 2, 3, 0) k(GLOBAL float* out, int n) {
    const int block = (BID(2) * GRID(1) + BID(1)) * GRID(0) + BID(0);
    const int i = block * 24 + (TID(2) * 2 + TID(1)) * 4 + TID(0);
    if (i < n) out[i] = i % 5 == 0 ? -INFINITY : i % 5 == 1 ? NAN : i % 5 == 2 ? FLT_MAX : i;
    if (DBL_MAX < 1 || FLT_EPSILON > 1) out[0] = 0.0f;
}
"""


WORD = re.compile(
    r"#define (\w+)|\btypedef .*?(\w+);|(?:static inline|DEVICE|DIALECT_OVERLOAD) \w+ (\w+)\("
)


@pytest.mark.parametrize(("name", "count"), [("dialect.h", 40), ("dialect_math.h", 14)])
def test_every_word_is_in_the_reference(name: str, count: int) -> None:
    header = (ROOT / "kernels" / name).read_text()
    page = (ROOT / "docs" / "spaces.md").read_text().partition(f"\n## Words of {name}\n")[2]
    names = {word for found in WORD.findall(header) for word in found if word}
    own = {word for word in names if not word.lower().startswith("dialect_")}  # others join these
    assert len(own) > count
    assert own - set(re.findall(r"`(\w+)", page.partition("\n## ")[0])) == set()


@pytest.fixture
def compiled(tmp_path):
    def made(device, options=(), before=""):
        file = tmp_path / "k.cu"
        file.write_text(before + SOURCE)
        return backend(device.backend).compile(flattened(file).text, {}, options, device, ("k",))

    return made


def test_nvrtc_knows_the_limits_also_beside_its_own_headers(compiled):
    pytest.importorskip("cuda.bindings.nvrtc")
    for headers in ("", "#include <cuda/std/cfloat>\n#include <cuda/std/limits>\n"):
        assert compiled(for_arch("sm_90"), before=headers).entry("k").registers


@pytest.mark.opencl
def test_blocks_and_grids_have_three_dimensions(compiled, opencl_device):
    device = choose_device(opencl_device)
    executor = backend("opencl").open(device)
    count = 24 * 2 * 3 * 5
    out = executor.allocate(4 * count)
    module = executor.load(compiled(device), {})
    launch = BoundLaunch("k", (2, 3, 5), (4, 2, 3), 0, (out, np.int32(count)))
    executor.run(module, [launch])
    found = executor.read(out, np.dtype(np.float32), (count,))
    expected = np.arange(count, dtype=np.float32)
    limits = (-np.inf, np.nan, np.finfo(np.float32).max)
    for first, limit in enumerate(limits):
        expected[first::5] = limit
    np.testing.assert_array_equal(found, expected)


WORDS = """
#ifndef WARP
#define WARP 32
#endif
#include "dialect_math.h"
KERNEL(64, 1, 1) words(GLOBAL float* floats, GLOBAL int* ints, GLOBAL unsigned* counts) {
    SHARED int shared_ints[8];
    SHARED unsigned shared_counts[8];
    SHARED float shared_floats[1];
    const int t = TID(0);
    if (t < 8) shared_ints[t] = t == 2 ? 99 : t == 3 ? -1 : 0, shared_counts[t] = 0;
    if (t == 0) shared_floats[0] = 0;
    SYNC();
    ATOMIC_ADD(&shared_floats[0], 0.5f);
    ATOMIC_ADD(&shared_ints[0], -1);
    ATOMIC_MAX(&shared_ints[1], t);
    ATOMIC_MIN(&shared_ints[2], t - 7);
    ATOMIC_AND(&shared_ints[3], ~(1 << t % 4));
    ATOMIC_OR(&shared_ints[4], 1 << t % 5);
    if (ATOMIC_EXCHANGE(&shared_ints[5], 5) == 0) ATOMIC_ADD(&shared_ints[6], 1);
    if (ATOMIC_CAS(&shared_ints[7], 0, 9) == 0) ATOMIC_ADD(&shared_ints[6], 1);
    ATOMIC_ADD(&shared_counts[0], 3u);
    ATOMIC_MAX(&shared_counts[1], 0x80000000u + t);
    ATOMIC_ADD(&floats[0], 0.25f);
    counts[ATOMIC_ADD(&ints[0], 1)] = 7u; /* every place once */
    ATOMIC_MIN(&counts[64], 0x80000000u + t);
    SYNC();
    if (t > 0 && t < 8) ints[t] = shared_ints[t];
    const float x = t + 1;
    const float sum = WARP_SUM(x), most = WARP_MAX(-x), least = WARP_MIN(x);
    if (t == WARP - 1) {
        floats[1] = shared_floats[0], floats[2] = EXP(1.0f), floats[3] = LOG(2.0f);
        floats[4] = SQRT(3.0f), floats[5] = RSQRT(4.0f);
        floats[6] = MAX(NAN, 1.0f), floats[7] = MIN(-INFINITY, 2.0f);
        floats[8] = sum, floats[9] = most, floats[10] = least;
        ints[8] = shared_ints[0], ints[9] = MAX(-16777217, -16777218), ints[10] = MIN(-1, 1);
        counts[65] = shared_counts[0], counts[66] = shared_counts[1];
        counts[67] = MAX(0x80000001u, 1u), counts[68] = MIN(0x80000001u, 1u);
    }
}
"""


@pytest.fixture
def words(tmp_path: Path) -> str:
    file = tmp_path / "words.cu"
    file.write_text(WORDS)
    return flattened(file).text


@pytest.mark.opencl
def test_words_of_numbers_atomics_and_warps(words: str, opencl_device: str) -> None:
    device = choose_device(opencl_device)
    opened = backend("opencl")
    binary = opened.compile(words, {"WARP": 16}, (), device, ("words",))
    executor = opened.open(device)
    contents = (np.zeros(11, np.float32), np.zeros(11, np.int32), np.zeros(69, np.uint32))
    contents[2][64] = 0xFFFFFFFF
    arrays = tuple(executor.allocate(content.nbytes) for content in contents)
    for array, content in zip(arrays, contents, strict=True):
        executor.write(array, content)
    launch = BoundLaunch("words", (1, 1, 1), (64, 1, 1), 0, arrays)
    executor.run(executor.load(binary, {}), [launch])
    floats, ints, counts = (
        executor.read(array, content.dtype, content.shape)
        for array, content in zip(arrays, contents, strict=True)
    )
    expected = [16, 32, math.e, math.log(2), 3**0.5, 0.5, 1, -math.inf, 136, -1, 1]
    np.testing.assert_allclose(floats, expected, rtol=1e-6)
    assert ints.tolist() == [64, 63, -7, -16, 31, 5, 2, 9, -64, -16777217, -1]
    assert set(counts[:64]) == {7}
    assert counts[64:].tolist() == [1 << 31, 192, (1 << 31) + 63, (1 << 31) + 1, 1]


def test_words_compile_with_nvrtc_in_single_precision(words: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from autotune.devices.nvrtc import compile_ptx

    ptx = compile_ptx(words, ["--gpu-architecture=compute_90"])
    assert "f64" not in ptx
    assert ptx.count("atom.shared") + ptx.count("red.shared") > 8


@pytest.mark.nvcc
def test_words_compile_with_nvcc(words: str, nvcc: str, tmp_path: Path) -> None:
    (tmp_path / "flat.cu").write_text(words)
    flags = ["-arch=sm_90", "-Werror", "all-warnings", "-cubin", "-o", os.devnull]
    subprocess.run([nvcc, *flags, "flat.cu"], check=True, cwd=tmp_path)


@pytest.mark.parametrize(("arch", "language"), [("gfx90a", "hip"), ("gfx1030", "cl")])
def test_words_compile_for_amd(words: str, arch: str, language: str) -> None:
    assembly = amd_assembly(words, arch, language)
    assert "ds_bpermute_b32" in assembly
    assert "ds_max_i32" in assembly or "atomic_max" in assembly


@pytest.mark.opencl
def test_a_softmax_of_ones_own_is_tuned(
    opencl_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    where = ["--spaces", str(SPACES), "--device", opencl_device, "--out", str(tmp_path / "out")]
    assert run(["run", "softmax", *where]) == 0
    (file,) = (tmp_path / "out").rglob("softmax.json")
    assert read(file).problems[0].configuration["WARP"] == choose_device(opencl_device).warp_size


def test_a_softmax_of_ones_own_compiles_for_a_gpu() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    kernel = find_kernel("softmax", SPACES)
    configuration = kernel.completed({"BLOCK": 256})
    assert "shfl.sync.bfly" in ptx_of(
        kernel, configuration, kernel.first_problem("cuda"), for_arch("sm_90")
    )
