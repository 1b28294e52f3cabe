"""`autotune explain`: what binaries show without a GPU, counters on record, and advice with its sources.

That counters are read from a GPU is tests/gpu/test_explain.py. The text of ncu here follows its
documentation; no ncu ran.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from thinned import thinned

from autotune.cli import run
from autotune.devices.base import Binary
from autotune.devices.device import CUDA_ARCHS, for_arch
from autotune.devices.nvrtc import include_options
from autotune.devices.occupancy import Occupancy, occupancy
from autotune.devices.sass import FunctionCode, Loop, Mix, code_of
from autotune.errors import RecordError
from autotune.explain.advice import advice, limit_of
from autotune.explain.explaining import explain
from autotune.explain.variants import BEST, Facts, KernelVariant, Setting, setting_of
from autotune.kernel.catalog import find_kernel
from autotune.kernel.snapshot import origin_of
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.measure import profile
from autotune.measure.counters import FIGURES, METRICS
from autotune.measure.sanitize import Trial
from autotune.measure.worker_state import Job
from autotune.tuned.counted import CountedVariant, add_counts, file_of, read_counted
from autotune.tuned.reading import read_all, read_layers
from autotune.tuned.recorded_device import RecordedDevice
from autotune.values import Configuration, Problem

pytest.importorskip("cuda.bindings.nvrtc")
ROOT = Path(__file__).parents[1]
BUNDLED = sorted(file.stem for file in (ROOT / "spaces").rglob("[!_]*.py"))


def explained(kernel: str, *names: str, **problem: int | str) -> Any:
    """The facts of some variants on sm_90, by name."""
    setting = setting_of(find_kernel(kernel), "sm_90", None, Problem(problem) if problem else None)
    return {facts.name: facts for facts in explain(setting, names).facts}


# ---------------------------------------------------------------------- occupancy

OCCUPANCY = r"""
#include <cstdio>
#include <climits>
#include <cuda_occupancy.h>
int main() {
    cudaOccDeviceProp p;
    int threads, registers; long shared;
    while (std::scanf("%d %d %d %zu %d %d %ld", &p.computeMajor, &p.computeMinor,
            &p.maxThreadsPerMultiprocessor, &p.sharedMemPerMultiprocessor,
            &threads, &registers, &shared) == 7) {
        p.maxThreadsPerBlock = 1024; p.regsPerBlock = p.regsPerMultiprocessor = 65536;
        p.warpSize = 32; p.numSms = 1; p.sharedMemPerBlock = 49152;
        p.reservedSharedMemPerBlock = p.computeMajor >= 8 ? 1024 : 0;
        p.sharedMemPerBlockOptin = p.sharedMemPerMultiprocessor - p.reservedSharedMemPerBlock;
        cudaOccFuncAttributes a;
        a.maxThreadsPerBlock = 1024; a.numRegs = registers; a.sharedSizeBytes = 0;
        a.maxDynamicSharedSizeBytes = p.sharedMemPerBlockOptin;
        a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        cudaOccDeviceState s;
        cudaOccResult r;
        int failed = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, shared);
        std::printf("%d\n", failed ? -1 : r.activeBlocksPerMultiprocessor);
    }
}
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_occupancy_is_that_of_nvidias_own_calculator(tmp_path: Path) -> None:
    (tmp_path / "occupancy.cpp").write_text(OCCUPANCY)
    program = tmp_path / "occupancy"
    command = ["g++", "-w", *include_options(), str(tmp_path / "occupancy.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    threads, registers = (32, 96, 256, 288, 1024), (16, 33, 40, 64, 128, 255)
    cases = [
        (device, *case)
        for device in map(for_arch, CUDA_ARCHS)
        for case in itertools.product(threads, registers, (0, 1, 5000, 49152, 65536))
        if case[0] * case[1] <= 60000
    ]
    lines = "".join(
        f"{d.compute_capability // 10} {d.compute_capability % 10} {d.max_threads_per_sm} "
        f"{d.shared_bytes_per_sm} {t} {r} {s}\n"
        for d, t, r, s in cases
    )
    told = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    ours = [found.blocks if (found := occupancy(*case)) else None for case in cases]
    assert ours == [int(line) for line in told.stdout.split()]
    assert len(set(ours)) > 10


def test_occupancy_by_hand() -> None:
    hopper = for_arch("sm_90")
    # 255 registers: 8192 a warp, 2 warps in each of four parts, one block of 8 warps: 8 of 64
    one = occupancy(hopper, 256, 255, 74496)
    assert one and (one.blocks, one.share, one.limited_by) == (1, 0.125, ("registers",))
    # 45798 + 1024 bytes in pieces of 128: 4 times 46848 are within 233472
    four = occupancy(hopper, 128, 56, 45798)
    assert four and (four.blocks, four.share, four.limited_by) == (4, 0.25, ("shared memory",))
    assert occupancy(replace(hopper, arch="sm_999"), 128, 56, 0) is None


# ---------------------------------------------------------------------- what binaries show


@pytest.mark.parametrize("name", thinned(BUNDLED, ("chase", "gemv", "hmma", "rms_norm", "reduce")))
def test_bundled_kernels_are_explained_without_a_gpu(name: str) -> None:
    first = next(iter(find_kernel(name).variants), BEST)
    facts = explained(name, first)[first]
    assert facts.failure == "" and facts.registers and facts.occupancy
    assert facts.code and facts.code.mix.instructions > 20
    assert facts.code.mix.accesses["global stores"]


def test_transposes_have_the_widths_that_their_source_says() -> None:
    found = explained("transpose", "naive", "register", m=4096, n=4096)
    naive, register = found["naive"], found["register"]
    assert naive.code.mix.accesses == {"global loads": {4: 1}, "global stores": {4: 1}}
    assert naive.block == (32, 8, 1) and naive.in_flight == 2048 * 4
    for kind in ("global loads", "global stores"):
        assert register.code.mix.accesses[kind][16] == 4
    assert register.code.mix.widest_loads == (16, 4) and register.code.hottest is None


def test_products_show_why_tiles_in_registers_win() -> None:
    """At most the share of FFMA in the loop is reached of the peak: a scheduler issues one a clock."""
    setting = setting_of(find_kernel("sgemm"), "sm_90", None, Problem(m=4096, n=4096, k=4096))
    found = explain(setting, ("naive", "register"))
    naive, register = (facts.code.hottest.body for facts in found.facts if facts.code)
    assert naive.share(naive.ffma) < 0.25 and register.share(register.ffma) > 0.75
    (told,) = [each for each in found.advice if "FFMA" in each.text]
    assert told.variant == "naive" and "Programming Guide" in told.source
    assert limit_of(found.facts[0], found.advice) == told.sentence


def test_a_cap_on_registers_spills() -> None:
    kernel = find_kernel("sgemm")
    tile = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "VEC": 4}
    double = {"DOUBLE_SHARED": True, "DOUBLE_FRAGMENT": True, "MIN_BLOCKS": 4}
    capped = KernelVariant("capped", kernel.completed({"SOURCE": "portable", **tile, **double}))
    (facts,) = (found := explain(setting_of(kernel, "sm_90", None), others=[capped])).facts
    assert facts.registers == 64 and facts.spill_bytes > 1000 and facts.outside
    assert facts.code.mix.accesses["local loads"] and facts.code.mix.accesses["local stores"]
    assert "spills" in limit_of(facts, found.advice)


def test_a_triton_kernel_is_explained() -> None:
    pytest.importorskip("triton")
    kernel = find_kernel("softmax_rows", ROOT / "examples" / "softmax" / "spaces")
    (facts,) = explain(setting_of(kernel, "sm_90", None)).facts
    assert facts.failure == "" and facts.registers and facts.occupancy and facts.code
    assert facts.variant.origin == "default of the space file: nothing is tuned"


SASS = """
.text.k:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/              @!P1 LDS.U16 R8, [R9] ;
.L_x_1:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R9 ;
        /*0040*/              @!P1 BRA `(.L_x_1) ;
        /*0050*/                   FFMA R10, R4, R5, R10 ;
        /*0060*/                   IADD3 R0, R0, 0x4, RZ ;
        /*0070*/                   ISETP.GE.AND P0, PT, R0, R11, PT ;
        /*0080*/               @P2 BRA `(.L_x_2) ;
.L_x_3:
        /*0090*/              @!P0 BRA `(.L_x_0) ;
        /*00a0*/                   LDSM.16.M88.4 R12, [R9] ;
        /*00b0*/                   HFMA2.MMA R3, -RZ, RZ, 0, 0 ;
        /*00c0*/                   STL.64 [R1], R4 ;
        /*00d0*/                   EXIT ;
.L_x_2:
        /*00e0*/                   FADD R10, R10, R10 ;
        /*00f0*/                   BRA `(.L_x_3) ;
.L_x_4:
        /*0100*/                   BRA `(.L_x_4);
        /*0110*/                   NOP;

//--------------------- SYMBOLS
        /*0000*/                   LDG.E R4, desc[UR4][R2.64] ;
"""


def test_loops_are_natural_ones_that_work() -> None:
    """A loop that only waits is none, a jump back from code out of line neither, and its code belongs to the loop."""
    code = code_of(SASS, "k")
    assert code and code_of(SASS, "other") is None
    assert code.mix == Mix(
        instructions=16,
        accesses={
            "global loads": {16: 1},
            "shared loads": {2: 1, 16: 1},
            "local stores": {8: 1},
        },
        arithmetic={"FFMA": 1, "FADD": 1},
        barriers=1,
        branches=4,
        predicated=1,
    )
    (loop,) = code.loops
    assert (loop.at, loop.step, loop.body.instructions) == (0x10, 4, 11)
    assert loop.body.arithmetic == {"FFMA": 1, "FADD": 1} and code.hottest is loop


# ---------------------------------------------------------------------- ncu

NCU = """\
==PROF== Connected to process 4711 (/usr/bin/python3.11)
==PROF== Profiling "transpose" - 0: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Kernel Name","Block Size","Device","CC","{0}","{1}","{2}","{3}"
"","","","","","","","nsecond","byte","","%"
"0","4711","python3.11","transpose","(32, 8, 1)","0","9.0","31,456.00","67,108,864","n/a","12.50"
"1","4711","python3.11","transpose","(32, 8, 1)","0","9.0","1","1","1","1"
"""
ASKED = [FIGURES[name].metric for name in ("time", "dram_read", "tensor", "used_st")]


def test_counters_are_read_from_the_table_of_ncu() -> None:
    words = NCU.format(*ASKED)
    of_first = {ASKED[0]: 31456.0, ASKED[1]: 67108864.0, ASKED[3]: 12.5}
    assert profile.parsed_counters(words, ASKED) == [of_first, dict.fromkeys(ASKED, 1.0)]
    in_microseconds = words.replace('"nsecond"', '"usecond"')
    first = profile.parsed_counters(in_microseconds, ASKED)[0]
    assert first[ASKED[0]] == pytest.approx(31456e3)
    assert profile.parsed_counters("==PROF== Connected\n==ERROR== no kernels\n", ASKED) == []


def test_a_reason_for_no_counters_has_a_remedy() -> None:
    words = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in profile.why_none(words)
    assert profile.why_none("==ERROR== Cannot profile\n") == "ncu: Cannot profile"
    assert profile.why_none("==PROF== fine\n") == ""
    assert profile.refused(f"==ERROR== Failed to find metric {ASKED[2]}\n", ASKED) == {ASKED[2]}
    assert profile.refused(f"==ERROR== Failed to find metric {ASKED[2]}.x\n", ASKED) == set()


def test_a_metric_that_the_device_lacks_is_absent_and_not_0(tmp_path: Path) -> None:
    """A program stands for ncu: it refuses one metric, as long as that is asked for."""
    (tmp_path / "table").write_text(NCU.format(*ASKED))
    ncu = tmp_path / "ncu"
    ncu.write_text(
        "#!/bin/sh\n"
        'until [ "$1" = --log-file ]; do case "$1" in *'
        + ASKED[3]
        + "*) lacks=1;; esac; shift; done\n"
        f'[ "$lacks" ] && echo "==ERROR== Failed to find metric {ASKED[3]}" > "$2" && exit 1\n'
        f'cp {tmp_path}/table "$2"; echo done\n'
    )
    ncu.chmod(0o755)
    kernel, problem = find_kernel("transpose"), Problem(m=64, n=64)
    job = Job(origin_of(kernel), problem, for_arch("sm_90"), ())
    trial = Trial(job, kernel.completed({"BLOCK_X": 32, "BLOCK_Y": 8}), Binary(b"", (), "", ""))
    first, second, third = profile.counters_of(str(ncu), [trial] * 3, ASKED)
    assert first.values == {ASKED[0]: 31456.0, ASKED[1]: 67108864.0} and first.failure == ""
    assert first.absent == (ASKED[2], ASKED[3])
    assert second.values == dict.fromkeys(ASKED[:3], 1.0) and second.absent == (ASKED[3],)
    assert not third.values and "no launch" in third.failure  # the table has two


# ---------------------------------------------------------------------- counters on record, and advice


def test_recorded_counters_are_shown_without_the_device_and_advise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel, problem = find_kernel("transpose"), Problem(m=4096, n=4096)
    setting = setting_of(kernel, "sm_90", None, problem)
    counters = {"sectors_ld": 4.0, "sectors_st": 32.0, "used_ld": 100.0, "used_st": 12.5}
    naive = CountedVariant(
        problem=dict(problem),
        configuration=dict(kernel.completed(kernel.variants["naive"])),
        time_ms=0.21,
        counters={FIGURES[name].metric: value for name, value in counters.items()},
        absent=(FIGURES["tensor"].metric,),
        source=source_fingerprint(kernel),
        arguments=arguments_fingerprint(kernel, problem),
        created="2026-11-24T00:00:00+00:00",
    )
    file = file_of(tmp_path, setting.device.folder, kernel.name)
    device = RecordedDevice.of(setting.device)
    add_counts(file, kernel.name, device, [naive])
    add_counts(file, kernel.name, device, [naive])
    assert read_counted(file) == (naive,)
    assert read_all(tmp_path) == []  # it is no record
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    command = ["explain", "transpose", "--arch", "sm_90", "--variants", "naive", "--problem"]
    assert run([*command, "m=4096,n=4096"]) == 0
    told = capsys.readouterr().out
    assert (
        "each request of its global stores moves 32 sectors of 32 bytes and uses 12.5 % of the bytes"
        in told
    )
    assert re.search(r"sectors per load request +4\n", told)
    assert re.search(r"time +0.21 ms", told)
    assert f"counters of {setting.device.name}, 2026-11-24" in told
    assert f"metrics that this device lacks: {FIGURES['tensor'].metric}" in told
    add_counts(file, kernel.name, device, [replace_field(naive, source="0" * 64)])
    assert run([*command, "m=4096,n=4096"]) == 0
    assert "are not shown: the kernel has changed since" in capsys.readouterr().out
    file.write_text("{")
    with pytest.raises(RecordError, match="not a file of `autotune explain`, or damaged"):
        read_counted(file)


def replace_field(counted: CountedVariant, **changes: Any) -> CountedVariant:
    """A recorded variant with other fields."""
    return CountedVariant(
        **{name: getattr(counted, name) for name in counted.__struct_fields__} | changes
    )


def facts(counters: dict[str, float] | None = None, **known: Any) -> Facts:
    """A variant of which little is known."""
    metrics = {FIGURES[name].metric: value for name, value in (counters or {}).items()}
    given = {"grid": (1 << 20, 1, 1), **known}
    return Facts(KernelVariant("x", Configuration()), metrics=metrics, **given)


def setting(kernel: str = "sgemm", **fields: Any) -> Setting:
    """A product on Hopper, of which there are records; a device without records where fields say so."""
    problem = {"sgemm": Problem(m=4096, n=4096, k=4096), "copy": None}[kernel]
    return replace(setting_of(find_kernel(kernel), "sm_90", None, problem), **fields)


def resident(blocks: int, warps: int) -> Occupancy:
    """An occupancy that registers limit."""
    return Occupancy(blocks, warps, 64, {"registers": blocks, "threads": 99})


LOCAL = FunctionCode(Mix(99, {"local loads": {4: 8}}, {}))
SLOW_LOOP = FunctionCode(Mix(99, {}, {}), (Loop(0, Mix(50, {}, {"FFMA": 10})),))


@pytest.mark.parametrize(
    ("given", "words", "fine"),
    [
        (facts(spill_bytes=76), "spills 76 bytes", facts(spill_bytes=0)),
        (facts(code=LOCAL), "an array is in local memory", facts(spill_bytes=0)),
        (
            facts({"used_st": 25.0, "sectors_st": 16.0}),
            "stores moves 16 sectors of 32 bytes and uses 25 %",
            facts({"used_st": 100.0, "sectors_st": 16.0, "used_ld": 100.0, "sectors_ld": 4.0}),
        ),
        (
            facts({"wave_ld": 100.0, "bank_ld": 97.0}),
            "97% of the wavefronts of its shared loads are bank conflicts",
            facts({"wave_ld": 100.0, "bank_ld": 0.0, "bank_st": 5.0}),
        ),
        (facts({"simt": 16.5}), "16.5 of a warp's 32 threads", facts({"simt": 31.9})),
        (
            facts(in_flight=8192),
            "at most 8 KB of loads in flight, but needs 32 KB",
            facts(in_flight=40000),
        ),
        (
            facts(code=SLOW_LOOP),
            "10 of the 50 instructions in its hottest loop are FFMA",
            facts(code=FunctionCode(Mix(99, {}, {}), (Loop(0, Mix(50, {}, {"FFMA": 45})),))),
        ),
        (
            facts(occupancy=resident(4, 32), grid=(100, 1, 1)),
            "100 blocks leave 32 of 132 multiprocessors without work",
            facts(occupancy=resident(4, 32), grid=(4 * 132, 1, 1)),
        ),
        (
            facts(occupancy=resident(1, 32), grid=(140, 1, 1)),
            "140 blocks are 1.06 waves of 132: 94% of the last is empty",
            facts(occupancy=resident(1, 32), grid=(2 * 132, 1, 1)),
        ),
        (
            facts({"stall_barrier": 2.0, "stall_wait": 0.5, "stall_long_scoreboard": 7.0}),
            "wait for data from global or local memory (7), then other warps at a barrier (2)",
            facts({"stall_barrier": 2.0, "dram": 91.0}),
        ),
        (
            facts(occupancy=resident(1, 8)),
            "occupancy is 12.5%, limited by registers",
            facts(occupancy=resident(2, 16)),
        ),
    ],
)
def test_each_rule_speaks_of_its_figure_and_is_quiet_otherwise(
    given: Facts, words: str, fine: Facts
) -> None:
    told = advice([given], setting(device=replace(for_arch("sm_90"), sm_count=132), records=()))
    assert [each for each in told if words in each.text and each.source and not each.refuted]
    assert not advice([fine], setting())


def test_a_rule_that_measurement_contradicts_is_said_to_be_refuted() -> None:
    """Occupancy below 25 % is slow, it is said; most winners of sgemm on record have less."""
    low = facts(occupancy=resident(1, 8))
    (told,) = advice([low], setting())
    below, known = map(int, (told.refuted.split()[0], told.refuted.split()[3]))
    assert known > 100 and below / known > 0.5
    assert limit_of(low, [told]) == "not known from these figures; counters may show it"
    (told,) = advice([facts(in_flight=8192, limit_share=0.99, limit_name="copy")], setting("copy"))
    assert told.refuted == "it reaches 99% of the measured copy bandwidth"


def test_a_busy_unit_is_what_limits() -> None:
    assert limit_of(facts({"dram": 91.2}), []) == "the memory, at 91.2 % of peak"
    at_limit = facts(limit_share=0.83, limit_name="ffma")
    assert limit_of(at_limit, []).startswith("FP32 arithmetic, at 83%")
    at_limit = facts(limit_share=0.83, limit_name="tensor")
    assert limit_of(at_limit, []).startswith("the tensor cores, at 83%")
    assert limit_of(facts(failure="no"), []) == "cannot run: no"


def test_metrics_are_those_of_a_device_by_their_form() -> None:
    assert len(set(METRICS)) == len(METRICS) == len(FIGURES)
    assert all(metric.count("__") == 1 and "." in metric for metric in METRICS)


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "nave"], "unknown variant 'nave'; did you mean 'naive'"),
        (["--ablate", "VECS"], "unknown parameter 'VECS'; did you mean 'VEC'"),
        (["--config", "VEC=3"], "unknown value of VEC"),
        (["--arch", "sm_33"], "unknown architecture"),
        (["--arch", "sm_90", "--device", "opencl:cpu"], "give --arch or --device, not both"),
        (["--arch", "sm_90", "--out", "."], "--out writes measurements; give --device"),
        (["--problem", "m=4"], "lacks n"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["explain", "transpose", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and words in told.err and told.err.count("\n") == 1


def test_json_and_markdown_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "transpose", "--arch", "sm_90", "--variants", "naive,narrow"]
    command += ["--problem", "m=300,n=500"]  # which nobody counted
    assert run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    naive = told["variants"][0]
    assert naive["name"] == "naive" and naive["config"]["BLOCK_X"] == 32
    assert naive["occupancy"]["limited_by"] == ["threads"] and naive["occupancy"]["share"] == 1.0
    assert naive["code"]["accesses"]["global loads"] == {"4": 1} and naive["hottest_loop"] is None
    assert (naive["time_ms"], naive["metrics"], naive["spill_bytes"]) == (None, {}, 0)
    assert run([*command, "--markdown"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# transpose (m=") and "| occupancy |" in page
    assert "## From naive to narrow" in page and "- BLOCK_X: 32 → 8\n" in page


def test_committed_counters_are_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The sectors of the study notes, as an H200 had them."""
    command = ["explain", "transpose", "--arch", "sm_90", "--variants", "naive,narrow,register"]
    assert run([*command, "--problem", "m=1024,n=1024", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    sectors = [
        [each["metrics"][FIGURES[f"sectors_{side}"].metric] for side in ("ld", "st")]
        for each in told["variants"]
    ]
    assert sectors == [[4, 32], [4, 8], [16, 16]]
    assert any("counters of NVIDIA H200" in note for note in told["notes"])


@pytest.mark.opencl
def test_ablation_times_the_other_values_on_a_device(
    opencl_device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spaces = str(ROOT / "examples" / "saxpy" / "spaces")
    command = ["explain", "saxpy", "--spaces", spaces, "--device", opencl_device, "--json"]
    assert (
        run([*command, "--problem", "n=10000", "--config", "BLOCK=128", "--ablate", "ITEMS"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    values = told["ablation"]["ITEMS"]
    assert len(values) == 3 and all(each["time_ms"] > 0 for each in [*told["variants"], *values])
    assert not any(each["is_recorded"] or each["registers"] for each in values)
    assert any("--arch sm_90" in note for note in told["notes"])


# ---------------------------------------------------------------------- the device


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.devices.cuda_backend.CudaBackend.devices", lambda self: [])


@pytest.mark.usefixtures("_no_gpu")
def test_without_a_gpu_the_device_is_that_of_the_newest_record() -> None:
    kernel = find_kernel("transpose")
    setting = setting_of(kernel, None, None)
    files = [file for file in read_layers("transpose", kernel.project) if file.record.is_tuned]
    newest = max(files, key=lambda file: file.record.provenance.created).record.device
    assert (setting.device.name, setting.is_here) == (newest.name, False)
    assert setting.choice == (
        f"for {newest.name}, the device of the newest record; this machine has no GPU"
    )
    assert setting_of(kernel, newest.arch, None).choice == ""


def test_a_recorded_device_is_named() -> None:
    setting = setting_of(find_kernel("transpose"), None, "NVIDIA H200")
    assert (setting.device.name, setting.is_here) == ("NVIDIA H200", False)
    assert setting.own_records and not setting.choice


def test_a_gpu_without_a_record_is_named_with_those_of_the_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(for_arch("sm_80"), name="Other GPU", backend="cuda")
    monkeypatch.setattr("autotune.devices.cuda_backend.CudaBackend.devices", lambda self: [other])
    setting = setting_of(find_kernel("transpose"), None, None)
    assert setting.device is other and setting.is_here
    assert setting.choice.startswith("measured on Other GPU, the GPU of this machine; ")
    assert "NVIDIA H200" in setting.choice and setting.choice.endswith("with --device")
