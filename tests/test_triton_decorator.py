"""The decorator in place of `triton.autotune`, without a GPU: interpreted, compiled, verified, recorded."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed
from sample_records import entry, plan, write
from sample_records import record as written

from autotune.calling.choice import Choice, LaunchPlan
from autotune.cli import run
from autotune.compiling.binaries import compiled_for
from autotune.compiling.job import compile_job
from autotune.data.dataset import RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import GLOBAL_SCRATCH
from autotune.devices.device import for_arch
from autotune.errors import NoAnswerError, UsageError
from autotune.files import data_path
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import complete_launches, launch_sequence, workspaces_of
from autotune.kernel.operand import Operand
from autotune.kernel.snapshot import kernel_for_run
from autotune.kernel.space import enumerate_space
from autotune.languages.registry import find_backend
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.tuned.lookup import clear_cache

pytest.importorskip("triton")

LAYERS = """
import triton
import triton.language as tl
from {module} import autotune
from triton import Config

CONFIGS = [Config({{"BLOCK": block}}, num_warps=warps) for block in (64, 128, 256) for warps in (4, 8)]


@autotune(configs=CONFIGS, key=["n"], prune_configs_by={{
    "early_config_prune": lambda configs, given, **named: [
        each for each in configs if each.kwargs["BLOCK"] <= max(64, given["n"])
    ],
    "perf_model": lambda n, BLOCK, num_warps, **named: (n % BLOCK, -num_warps),
    "top_k": 3,
}}{more})
@triton.jit
def _add(x, y, out, n, scale, BLOCK: tl.constexpr, NEGATED: tl.constexpr = False):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside) + scale * tl.load(y + offsets, mask=inside)
    if NEGATED:
        total = -total
    if BLOCK == WRONG:
        total += 1
    tl.store(out + offsets, total, mask=inside)


WRONG: tl.constexpr = tl.constexpr(0)


def zero(given):
    given["total"].zero_()


@autotune(configs=[Config({{}}, pre_hook=zero), Config({{}}, num_warps=8, pre_hook=zero)], key=[]{more})
@triton.heuristics({{"EVEN": lambda given: given["n"] % given["BLOCK"] == 0}})
@triton.jit
def count(total, n, bias, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    if bias is not None:
        tl.atomic_add(total, tl.load(bias))
    tl.atomic_add(total, 2.0 if EVEN else 1.0)
"""
#: Prints what calls did, of ours and of Triton's, which measures nothing here: all take as long.
PROGRAM = """
import json, sys
import numpy as np
import triton
import layers
from autotune.languages.interpreter import Pointer


class Buffer(np.ndarray):
    def zero_(self):
        self[...] = 0


class Tensor(Pointer):  # as much of torch's as Triton's interpreter asks for
    def __init__(self, array):
        super().__init__(array.ctypes.data, array.dtype.name)
        self.zero_ = array.view(Buffer).zero_


def passed(array):
    return Tensor(array) if layers.autotune is triton.autotune else array.view(Buffer)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


done = []
for n, named in ((300, {}), (16, {"NEGATED": True}), (1, {})):
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    out = np.zeros(n, np.float32)
    layers._add[grid](passed(x), passed(y), passed(out), n, scale=2.5, **named)
    done.append([float(out.sum()), str(layers._add.best_config)])
total = np.full(1, 5, np.float32)
layers.count[lambda meta: (3,)](passed(total), 64, None, BLOCK=32)
done.append([float(total[0]), str(layers.count.best_config)])
print(json.dumps(done))
"""


def interpreted(folder, module="autotune.triton", more="", **environ):
    folder.mkdir(exist_ok=True)
    (folder / "layers.py").write_text(LAYERS.format(module=module, more=more))
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "TRITON_INTERPRET": "1", **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_calls_do_what_tritons_own_autotuner_does(tmp_path):
    """One import is changed: results, pruning, hooks, heuristics and errors are the same."""
    ours = interpreted(tmp_path / "ours")
    theirs = interpreted(
        tmp_path / "theirs", "triton", ", do_bench=lambda call, quantiles: [1.0, 1.0, 1.0]"
    )
    assert ours == theirs
    (sums, config), *_ = ours
    assert sums == 299 * 150 + 750 and "BLOCK: 64, num_warps: 8" in config
    assert ours[3][0] == 6.0


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A file whose calls were recorded."""
    folder = tmp_path_factory.mktemp("decorated")
    interpreted(folder, AUTOTUNE_RECORD_SIZES="1", XDG_DATA_HOME=str(folder))
    return folder / "layers.py"


@pytest.fixture
def layers(program, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(program.parent))
    return program


def test_a_recorded_call_is_a_problem(layers):
    kernel = find_kernel(f"{layers}:_add")
    assert kernel.name == "add" and kernel.static == ("n",)
    problems = kernel.problems["cuda"]
    types = "fp32-fp32-fp32-int32-float32"
    assert [dict(each) for each in problems] == [
        {"n": 300, "negated": "false", "types": types},
        {"n": 16, "negated": "true", "types": types},
        {"n": 1, "negated": "false", "types": types},
    ]
    allowed = [c for c in configurations(kernel) if kernel.allows(c, problems[0])]
    assert sorted(c["BLOCK"] for c in allowed) == [64, 128, 256]
    assert {c["num_warps"] for c in allowed} == {8}  # which were expected to be faster


def configurations(kernel):
    return list(enumerate_space(kernel, for_arch("sm_90")))


def kept(kernel):
    """Return a configuration that pruning left in all calls."""
    calls = kernel.problems["cuda"]
    return next(c for c in configurations(kernel) if all(kernel.allows(c, call) for call in calls))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_a_recorded_call_is_compiled(layers, arch):
    kernel = find_kernel(f"{layers}:_add")
    for problem, passed in zip(kernel.problems["cuda"], (5, 5, 4), strict=True):
        (entry,) = compiled_for(kernel, kept(kernel), problem, for_arch(arch)).entries
        assert len(entry.convention.passed) == passed + 2  # n = 1 is compiled in


def test_what_is_none_and_what_heuristics_compute_is_compiled_in(layers):
    kernel = find_kernel(f"{layers}:count")
    (problem,) = kernel.problems["cuda"]
    c = kernel.default()
    assert kernel.values_of(c, problem) == {"bias": None, "BLOCK": 32, "EVEN": True, **c}
    (entry,) = compiled_for(kernel, c, problem, for_arch("sm_90")).entries
    assert entry.convention.passed == (0, 1, None, None)
    fill, launch = kernel.steps(c, problem, None)
    assert (fill.name, fill.value, launch.grid) == ("total", 0.0, (3,))


def test_an_array_at_an_offset_is_a_problem_of_its_own(layers):
    """Triton compiles another binary where an address is not a multiple of 16."""
    kernel = find_kernel(f"{layers}:_add")
    (plain, *_), c = kernel.problems["cuda"], kept(kernel)
    shifted = plain.replace(types=plain["types"].replace("fp32", "fp32@1", 1))
    arguments = kernel.calls[plain].arguments
    kernel.add(
        changed(
            kernel.calls[plain],
            problem=dict(shifted),
            arguments={**arguments, "x": changed(arguments["x"], offset=1)},
        )
    )
    device, signatures = for_arch("sm_90"), {}
    for problem in (plain, shifted):
        defines = dict(compile_job(kernel, c, problem, device).defines)
        signatures[problem] = defines["(_add)"].split()[:2]
        assert compiled_for(kernel, c, problem, device).entries
    assert signatures == {plain: ["*fp32%16", "*fp32%16"], shifted: ["*fp32", "*fp32%16"]}
    dataset = prepare_dataset(kernel.of_problem(shifted), shifted, RANDOM)
    assert [argument.offset for argument in dataset.arguments] == [1, 0, 0, 0, 0]


def test_options_of_a_call_are_compiled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "layers.py").write_text(LAYERS.format(module="autotune.triton", more=""))
    program = (
        "import numpy as np, layers; x = np.ones(300, np.float32)\n"
        "for options in ({}, {'enable_fp_fusion': False}, {'launch_pdl': True}):"
        " layers._add[lambda meta: (-(-300 // meta['BLOCK']),)](x, x, x.copy(), 300, 1.5, **options)"
    )
    environ = {**os.environ, "TRITON_INTERPRET": "1", "AUTOTUNE_RECORD_SIZES": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, check=True)
    kernel = find_kernel(f"{tmp_path}/layers.py:_add")
    problems, c, device = kernel.problems["cuda"], kept(kernel), for_arch("sm_90")
    types = [problem["types"].rpartition("-")[2] for problem in problems]
    assert types == ["float32", "enable_fp_fusion=false", "launch_pdl=true"]
    fused, plain, programmatic = (compiled_for(kernel, c, p, device) for p in problems)
    assert fused.code != plain.code
    plan = launch_sequence(kernel, c, problems[2], device)
    assert complete_launches(plan, programmatic).main.programmatic
    assert not complete_launches(plan, fused).main.programmatic


DESCRIPTORS = """
import sys
import numpy as np
import triton
import triton.language as tl
from autotune.triton import autotune


@autotune(M=(64, 32), N=(64,), key=["rows"])
@triton.jit
def doubled(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    read = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    written = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    place = [tl.program_id(0) * M, tl.program_id(1) * N]
    written.store(place, read.load(place) * 2)


if __name__ == "__main__":
    x = np.ones((128, 256), np.float32)
    doubled[lambda meta: (triton.cdiv(128, meta["M"]), triton.cdiv(256, meta["N"]))](x, x.copy(), 128, 256)
"""


def test_a_descriptor_made_on_the_device_has_a_workspace(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    file = tmp_path / "rows.py"
    file.write_text(DESCRIPTORS)
    record(file)
    kernel = find_kernel(f"{file}:doubled")
    (problem,), c, device = kernel.problems["cuda"], kernel.default(), for_arch("sm_90")
    binary = compiled_for(kernel, c, problem, device)
    (out,) = workspaces_of(kernel, c, problem, device, binary).values()
    blocks = 2 * 4
    assert out.shape == (blocks * binary.entries[0].convention.scratch_bytes,) != (0,)
    plan = launch_sequence(kernel, c, problem, device)
    args = complete_launches(plan, binary, ["x", "out", "rows", "columns"]).main.args
    assert args == ("x", "out", "rows", "columns", GLOBAL_SCRATCH, 0)
    assert run(["check", f"{file}:doubled", "--arch", "sm_90"]) == 0
    assert "interpreter: verified on 1 of 1 problems" in "".join(capsys.readouterr())


def test_a_call_is_planned_as_load_plans_it(layers):
    from autotune.triton.calls import resolved_call

    kernel = find_kernel(f"{layers}:_add")
    problem, c = kernel.problems["cuda"][0], kept(kernel)
    operands = {
        name: Operand((300,), (1,), source=place) for place, name in enumerate(("x", "y", "out"))
    }
    bound = {**dict.fromkeys(operands), "n": 300, "scale": 2.0}
    resolved = resolved_call(kernel, problem, bound, operands, {})
    choice = Choice(kernel.name, problem, c, None)
    main = LaunchPlan.of(resolved, for_arch("sm_90"), choice=choice).sequence.main
    assert (main.entry, main.grid, main.block) == ("_add", (5, 1, 1), (256, 1, 1))
    assert main.args[:5] == ("x", "y", "out", "n", "scale")


def test_a_wrong_configuration_is_named(tmp_path, capsys):
    """Four of six agree; the others add 1."""
    text = LAYERS.format(module="autotune.triton", more="").replace(
        "constexpr(0)", "constexpr(256)"
    )
    (tmp_path / "layers.py").write_text(
        text.replace("prune_configs_by=", "prune_configs_by={} and ")
    )
    program = (
        "import numpy as np, layers; x = np.ones(300, np.float32); "
        "layers._add[lambda meta: (-(-300 // meta['BLOCK']),)](x, x, x.copy(), 300, 1.0)"
    )
    environ = {**os.environ, "TRITON_INTERPRET": "1", "AUTOTUNE_RECORD_SIZES": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, check=True)
    assert run(["check", f"{tmp_path}/layers.py:_add", "--arch", "sm_90", "--samples", "6"]) == 3
    said = "".join(capsys.readouterr())
    assert "interpreter: 2 of the sample failed" in said and "verified on 1 of 1 problems" in said
    assert re.search(r"out\[0\] is -?\d+, expected -?\d+ on exact data", said)


def test_configurations_agree_on_copies_of_the_callers_arrays(layers, tmp_path, monkeypatch):
    """Run the data of a first call in a worker that interprets."""
    from autotune.triton.calls import with_data
    from autotune.triton.decorated_kernel import DecoratedKernel

    monkeypatch.syspath_prepend(str(layers.parent))
    import layers as module

    arrays = {
        name: np.full(300, number, np.float32) for number, name in enumerate(("x", "y", "out"))
    }
    operands = {name: Operand((300,), (1,)) for name in arrays}
    call = with_data(next(iter(module._add.kernel.calls.values())), arrays, operands, tmp_path)
    listed = [each.configuration for each in call.launches]
    kernel = DecoratedKernel(module._add.base_fn, "add", listed, [call])
    (device,), (problem,) = find_backend("interpreter").devices(), kernel.calls
    with closing(Bench(Request(kernel_for_run(kernel), device, (problem,)))) as bench:
        job = bench.job(problem)
        binary = bench.compilers.result(bench.compile_job(kernel.default(), problem)).binary
        assert bench.worker.check(job, kernel.default(), binary).status == "ok"
    exact, random = job.datasets
    assert [each.agreed for each in job.datasets] == [3, 3]
    np.testing.assert_array_equal(random.array("out"), arrays["out"])
    np.testing.assert_array_equal(random.expected("out"), np.full(300, 2.5))
    assert np.any(exact.array("out") != arrays["out"])  # so that what is not written shows
    assert all((each == number).all() for number, each in enumerate(arrays.values()))
    checked = DecoratedKernel(
        module._add.base_fn, "add", listed, [call], lambda y, x, scale: {"out": x + scale * y}, 0.5
    )
    data = prepare_dataset(checked, problem, RANDOM)
    assert data.bounds == dict.fromkeys(arrays, 0.5)
    np.testing.assert_array_equal(data.expected("out"), np.full(300, 2.5))
    np.testing.assert_array_equal(data.expected("y"), arrays["y"])


def test_a_reference_is_known_by_all_that_decides_its_results(layers, monkeypatch):
    """Data sets are kept by the fingerprint, so expected outputs of another reference never answer."""
    from autotune.triton.decorated_kernel import DecoratedKernel

    monkeypatch.syspath_prepend(str(layers.parent))
    import layers as module

    call = next(iter(module._add.kernel.calls.values()))
    listed = [each.configuration for each in call.launches]

    def scaled(factor):
        return lambda x: {"out": x * factor}

    references = (
        None,
        *(lambda x: {"out": x * 2.0}, lambda x: {"out": x * 3.0}),
        *(scaled(2.0), scaled(3.0)),
    )
    kernels = [
        DecoratedKernel(module._add.base_fn, "add", listed, [call], each) for each in references
    ]
    assert len({kernel.fingerprint for kernel in kernels}) == len(references)
    again = DecoratedKernel(module._add.base_fn, "add", listed, [call], scaled(3.0))
    assert again.fingerprint == kernels[-1].fingerprint


def test_as_many_calls_as_were_recorded_are_problems(layers, monkeypatch):
    from autotune.triton.decorated_kernel import DecoratedKernel

    monkeypatch.syspath_prepend(str(layers.parent))
    import layers as module

    call = next(iter(module._add.kernel.calls.values()))
    listed = [each.configuration for each in call.launches]
    calls = [changed(call, problem={**call.problem, "n": n}) for n in range(1, 1101)]
    kernel = DecoratedKernel(module._add.base_fn, "add", listed, calls)
    for problem in kernel.problems["cuda"]:
        kernel.check_problem(problem)
    assert len(kernel.calls) == 1100


def test_host_arrays_are_left_to_triton_where_nothing_interprets(layers, monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(layers.parent))
    import layers as module

    x = np.ones(4, np.float32)
    with pytest.raises((RuntimeError, ValueError)):  # Triton finds no driver, or no GPU array
        module._add[(1,)](x, x, x, 4, 1.0)
    assert "_add: left to triton.autotune: a call has no array on a GPU" in caplog.text
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        module._add[(1,)](x, x, x, 4, 1.0, BLOCK=64)
    with pytest.raises(UsageError, match=r"layers.py has no function 'zero' decorated"):
        find_kernel(f"{layers}:zero")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"give configs=\[...\], or parameters"),
        ({"BLOCK": (1, 2), "tune": "now"}, "unknown tune 'now'"),
        ({"BLOCK": range(200), "num_warps": range(200)}, "40000 configurations, more than 20000"),
        ({"BLOCK": (1, 2), "budget": "long"}, "budget 'long'"),
        ({"BLOCK": (1, 2), "budget": 60}, "budget '60': expected for example 90s"),
        ({"BLOCK": 64}, r"BLOCK=64: give a tuple of values, as BLOCK=\(64, 128\)"),
        ({"BLOCK": ()}, r"BLOCK=\(\): give a tuple of values"),
        ({"BLOCK": "64"}, "BLOCK='64': give a tuple of values"),
        ({"configs": [], "BLOCK": (1, 2)}, r"give configs=\[...\], or parameters"),
        ({"BLOCK": (1, 2), "key": "MNK"}, r"key='MNK': give a list of names"),
    ],
)
def test_wrong_arguments_are_refused(given, message):
    from autotune.triton import autotune

    with pytest.raises(UsageError, match=message):
        autotune(**given)


def scale(x, n, BLOCK): ...


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"BLOK": (1, 2)}, "scale: unknown parameter 'BLOK'; did you mean 'BLOCK'"),
        ({"BLOCK": (1, 2), "num_warp": (4, 8)}, "'num_warp'; did you mean 'num_warps'"),
        ({"BLOCK": (1, 2), "key": ["m"]}, r"scale: unknown key 'm' \(known: x, n, BLOCK\)"),
        ({"BLOCK": (1, 2)}, ""),
        ({"BLOCK": (1, 2), "enable_fp_fusion": (True, False)}, ""),
    ],
)
def test_names_that_a_function_does_not_have_are_refused_where_it_is_decorated(given, message):
    import triton

    from autotune.triton import Decorated, autotune

    if message:
        with pytest.raises(UsageError, match=message):
            autotune(**given)(triton.jit(scale))
        with pytest.raises(UsageError, match=message):
            autotune(**given)(triton.heuristics({"n": len})(triton.jit(scale)))
    else:
        assert isinstance(autotune(**given)(triton.jit(scale)), Decorated)


def test_a_function_without_jit_and_a_wrong_variable_are_refused(monkeypatch):
    from autotune.triton import autotune

    with pytest.raises(
        UsageError, match=r"scale is not a Triton function; write @triton\.jit below"
    ):
        autotune(BLOCK=(1, 2))(scale)
    monkeypatch.setenv("AUTOTUNE_TUNE", "frist_call")
    with pytest.raises(UsageError, match="unknown AUTOTUNE_TUNE 'frist_call'; did you mean"):
        autotune(BLOCK=(1, 2))


# ---------------------------------------------------------------------- frozen and pinned calls


@pytest.fixture
def new_call(layers, monkeypatch):
    """A first call of `_add`, whose arrays are in no memory, and what `chosen` needs for it."""
    from autotune.triton.function import NewCall

    monkeypatch.syspath_prepend(str(layers.parent))
    import layers as module

    function = module._add._function
    recorded = next(iter(module._add.kernel.calls.values()))
    call = NewCall({}, (1,), function.configurations, recorded, {})
    return function, function.kernel([recorded]), call


def chosen_for(new_call, device="sm_90"):
    from autotune.triton.tuning import chosen

    return chosen(*new_call, for_arch(device), lambda call: pytest.fail("it searches"))


def test_a_frozen_call_is_answered_by_the_record(new_call, tmp_path, monkeypatch):
    from autotune.tuned.reading import user_folder

    function, kernel, call = new_call
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_FROZEN", "1")
    command = r"autotune run \S+layers\.py:_add$"
    with pytest.raises(NoAnswerError, match=rf"AUTOTUNE_RECORD_SIZES=1, then: {command}"):
        chosen_for(new_call)
    c = list(function.configurations)[-1]
    values = {"configuration": dict(c), "block": (256, 1, 1), "grid": None}
    shape = {"kernel": kernel.name, "default": plan(**values), "parameters": kernel.parameters}
    fields = {
        n: "integer" if isinstance(v, int) else "categorical" for n, v in call.problem.items()
    }
    made = [entry(dict(call.problem), plan(**values))]
    write(Path(user_folder(kernel.project)), written(made, fields=fields, **shape))
    clear_cache()
    expected = (
        "_add|add.*: frozen calls need an exact answer; the best answer is same_arch of user:"
    )
    with pytest.raises(NoAnswerError, match=expected):
        chosen_for(new_call)
    monkeypatch.setenv("AUTOTUNE_FROZEN", "nearest")
    choice, is_settled = chosen_for(new_call)
    assert choice.configuration == c and is_settled


def test_a_pinned_call_runs_the_configuration(new_call, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_FROZEN", "1")
    monkeypatch.setenv("AUTOTUNE_PIN", "add:BLOCK=128,num_warps=8")
    choice, is_settled = chosen_for(new_call)
    assert choice.configuration == {"BLOCK": 128, "num_warps": 8, "num_stages": 3}
    assert is_settled
    assert choice.why == "pinned by AUTOTUNE_PIN"
    monkeypatch.setenv("AUTOTUNE_PIN", "add:BLOCK=512")
    with pytest.raises(UsageError, match="AUTOTUNE_PIN: add: unknown value of BLOCK: '512'"):
        chosen_for(new_call)
    function, kernel, call = new_call
    pruned = replace(call, kept=dict(list(call.kept.items())[:1]))
    monkeypatch.setenv("AUTOTUNE_PIN", "add:BLOCK=256")
    with pytest.raises(
        UsageError, match=r"is pruned; allowed: BLOCK=64, num_warps=4, num_stages=3$"
    ):
        chosen_for((function, kernel, pruned))


def test_a_wrong_rule_is_refused_where_a_function_is_decorated(monkeypatch):
    from autotune.triton import autotune

    monkeypatch.setenv("AUTOTUNE_FROZEN", "yes")
    with pytest.raises(UsageError, match="unknown AUTOTUNE_FROZEN 'yes'"):
        autotune(BLOCK=(1, 2))


@pytest.mark.parametrize("rule", [("AUTOTUNE_FROZEN", "1"), ("AUTOTUNE_PIN", "add:BLOCK=64")])
def test_calls_with_a_rule_are_not_left_to_triton(layers, monkeypatch, rule):
    """Triton would tune them."""
    monkeypatch.syspath_prepend(str(layers.parent))
    import layers as module

    monkeypatch.setenv(*rule)
    x = np.ones(300, np.float32)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"^_add: .* not left to triton\.autotune: a call has"):
            module._add[(5,)](x, x, x.copy(), 300, 1.0)


@pytest.mark.parametrize(("recording", "frozen"), [("1", "1"), ("0", "0")])
def test_frozen_programs_and_the_value_0_record_no_call(tmp_path, recording, frozen):
    interpreted(tmp_path / "program", AUTOTUNE_RECORD_SIZES=recording, AUTOTUNE_FROZEN=frozen)
    assert not list(Path(data_path()).rglob("*.json"))


# ---------------------------------------------------------------------- recorded calls

SUM = """
import sys
import numpy as np
import triton
import triton.language as tl
from autotune.triton import autotune


def small(configs, given, **named):
    return [each for each in configs if each.kwargs["BLOCK"] <= max(64, given["n"])]


@autotune(BLOCK=(256, 128, 64), num_warps=(4, 8), key=["n"], prune_configs_by={"early_config_prune": small})
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr = ""):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside)
    if y is not None:
        total += tl.load(y + offsets, mask=inside)
    if ACTIVATION == "wrong":
        total += BLOCK
    if ACTIVATION == "slow":
        for _ in range(0, 20000):
            total += 1
    tl.store(out + offsets, total, mask=inside)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        n, _, activation = text.partition(":")
        x = np.ones(int(n), np.float32)
        y = None if activation == "none" else x
        grid = (1,) if int(n) > 1e6 else lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)
        add[grid](x, y, x.copy(), int(n), ACTIVATION=activation)
"""


@pytest.fixture
def add_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    file = tmp_path / "add.py"
    file.write_text(SUM)
    return file


def record(file, *calls):
    """Run a file that records calls such as ``64:relu``."""
    environ = {**os.environ, "TRITON_INTERPRET": "1", "AUTOTUNE_RECORD_SIZES": "1"}
    subprocess.run([sys.executable, str(file), *calls], env=environ, check=True)


def checked(capsys, file, *more):
    """Check a function; return the exit code and all that was printed."""
    code = run(["check", f"{file}:add", "--arch", "sm_90", *more])
    return code, "".join(capsys.readouterr())


def test_check_verifies_each_recorded_call(add_file, capsys):
    """The default is pruned for the smallest; the largest, of another category, is wrong."""
    record(add_file, "64", "300:relu", "1000:none", "2000:wrong")
    types = [p["types"] for p in find_kernel(f"{add_file}:add").calls]
    assert sorted(types) == ["fp32-fp32-fp32-int32"] * 3 + ["fp32-none-fp32-int32"]
    code, said = checked(capsys, add_file, "--samples", "1")
    assert code == 3 and "verified on 3 of 4 problems" in said
    assert "pruned" not in said
    assert re.search(r"error: .*n=2000, activation=.*configurations must agree", said)
    assert "BLOCK=256, num_warps=4" in said


def test_check_says_what_it_did_not_verify(add_file, capsys, monkeypatch):
    from autotune.checking import interpreting

    record(add_file, "64", "64:slow", "20000000")
    monkeypatch.setattr(interpreting, "LONGEST_S", 0.2)
    code, said = checked(capsys, add_file, "--samples", "1")
    assert code == 0 and "verified on 1 of 3 problems" in said, said
    assert re.search(r'not verified: \(n=64, activation="slow".*took too long', said)
    assert re.search(r"not verified: \(n=20000000.*larger problems are not interpreted", said)


def test_a_configuration_that_no_call_was_recorded_with_is_named(add_file, capsys):
    record(add_file, "64", "300")
    add_file.write_text(SUM.replace("(256, 128, 64)", "(256, 128, 64, 32)"))
    again = "record the calls again: run the program with AUTOTUNE_RECORD_SIZES=1"
    code, said = checked(capsys, add_file)
    assert code == 0 and "add: 2 of 8 configurations are new since" in said
    assert again in said
    kernel = find_kernel(f"{add_file}:add")
    small, large = kernel.calls
    new, pruned = ({"BLOCK": b, "num_warps": 4, "num_stages": 3} for b in (32, 256))
    with pytest.raises(UsageError, match=f"is not recorded for .*; {again}"):
        kernel.steps(kernel.completed(new), large, None)
    with pytest.raises(UsageError, match=r"was pruned for \(n=64,[^;]*$"):
        kernel.steps(kernel.completed(pruned), small, None)


def test_calls_that_do_not_fit_any_more_are_named_and_replaced(add_file, tmp_path, capsys):
    record(add_file, "64", "300")
    (calls,) = (tmp_path / "data" / "autotune" / "calls").rglob("add.json")
    for old, new in (
        ('key=["n"]', 'key=["x"]'),
        ("out, n", "n, out"),
        ("BLOCK", "SIZE"),
    ):
        add_file.write_text(SUM.replace(old, new))
        code, said = checked(capsys, add_file)
        assert code == 2 and "error: add: 2 of 2 recorded calls no longer fit" in said
        assert "record the calls again: run the program with AUTOTUNE_RECORD_SIZES=1" in said
        assert str(calls) in said
    add_file.write_text(SUM)
    old = calls.read_bytes().replace(b'"n"', b'"m"', 1)
    calls.write_bytes(old)
    code, said = checked(capsys, add_file, "--samples", "1")
    assert code == 0 and "add: 1 of 2 recorded calls no longer fit" in said and "left out" in said
    record(add_file, "128")
    assert [each["problem"]["n"] for each in json.loads(calls.read_text())] == [300, 128]
    code, said = checked(capsys, add_file, "--samples", "1")
    assert code == 0 and "left out" not in said


def test_a_recorded_call_makes_only_its_own_problem_stale(add_file, tmp_path, capsys, monkeypatch):
    from autotune.project import project_of
    from autotune.tuned.reading import user_folder

    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))

    def state():
        """Return by size what stored measurements and inputs of the recorded calls are known by."""
        kernel = find_kernel(f"{add_file}:add")
        with closing(Bench(Request(kernel, for_arch("sm_90"), tuple(kernel.calls)))) as bench:
            return {
                p["n"]: (bench.scope(p), prepare_dataset(kernel, p, RANDOM).folder)
                for p in kernel.calls
            }

    def reasons(n):
        assert run(["lookup", f"{add_file}:add", f"n={n}", "--arch", "90", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["stale_reasons"]

    record(add_file, "64")
    first = state()
    record(add_file, "300")
    both = state()
    assert both[64] == first[64]
    kernel = find_kernel(f"{add_file}:add")
    values = {"configuration": dict(kernel.default()), "block": (128, 1, 1), "grid": None}
    made = [
        entry(dict(s.problem), plan(**values), source=s.source, arguments=s.arguments)
        for s, _ in both.values()
    ]
    fields = {"n": "integer", "activation": "categorical", "types": "categorical"}
    shape = {"kernel": "add", "fields": fields, "default": plan(**values)}
    shape["parameters"] = kernel.parameters
    write(tmp_path / user_folder(project_of(tmp_path)), written(made, **shape))
    assert reasons(64) == reasons(300) == reasons(70) == []
    add_file.write_text(SUM.replace("np.ones(int(n)", "np.ones(2 * int(n)"))
    record(add_file, "64", "128")
    last = state()
    assert last[300] == both[300] and reasons(300) == []
    assert all(new != old for new, old in zip(last[64], both[64], strict=True))
    assert reasons(64) == ["its arguments, reference, launch or options changed"]
    add_file.write_text(SUM.replace('key=["n"]', 'key=["n"], tolerance=0.5'))
    assert reasons(64) and reasons(300)


def test_a_reference_gets_what_its_call_passes(add_file, tmp_path, monkeypatch):
    """Calls of one function differ in constexpr arguments, and in those that are None."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    given = "reference=lambda x, ACTIVATION: {'out': x * (3 if ACTIVATION == 'relu' else 1)}"
    add_file.write_text(SUM.replace('key=["n"]', f'key=["n"], {given}'))
    record(add_file, "64", "64:relu", "64:none")
    kernel = find_kernel(f"{add_file}:add")
    made = [prepare_dataset(kernel, problem, RANDOM) for problem in kernel.calls]
    assert [(each.expected("out") / each.array("x"))[0] for each in made] == [1, 3, 1]
    assert [list(each.bounds) for each in made] == [["x", "y", "out"]] * 2 + [["x", "out"]]


def test_calls_of_another_file_are_not_taken(add_file, tmp_path, capsys):
    other = tmp_path / "other.py"
    other.write_text(SUM)
    record(add_file, "64", "300")
    record(other, "128")
    for file, sizes in ((add_file, [64, 300]), (other, [128])):
        assert [each["n"] for each in find_kernel(f"{file}:add").calls] == sizes
    other.write_text(SUM.replace("add", "total").replace("def total", "def add"))
    code, said = checked(capsys, tmp_path / "other.py")
    assert code == 0 and "left out" not in said


def test_an_exported_interpreter_hinders_no_compiling(add_file):
    record(add_file, "300")
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    autotune = [sys.executable, "-m", "autotune"]
    done = subprocess.run(
        [*autotune, "check", f"{add_file}:add", "--arch", "sm_90", "--samples", "1"],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "registers" in done.stdout, done.stderr
    load = "from autotune.languages.triton import TritonLanguage; TritonLanguage().load_compiler()"
    subprocess.run([sys.executable, "-c", load], env=environ, check=True)  # as a compiler begins
    program = (
        "from autotune.kernel.catalog import find_kernel; "
        "from autotune.devices.device import for_arch; "
        "from autotune.compiling.binaries import compiled_for; "
        f"kernel = find_kernel('{add_file}:add'); p = next(iter(kernel.calls)); "
        "c = kernel.completed({'BLOCK': 64}); compiled_for(kernel, c, p, for_arch('sm_90'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True
    )
    assert "Triton interprets instead of compiling; unset TRITON_INTERPRET" in done.stderr


@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_was_chosen_is_looked_up_by_file_and_function(
    add_file, tmp_path, capsys, monkeypatch, is_recorded
):
    from autotune.project import project_of
    from autotune.tuned.reading import user_folder

    name = f"{add_file}:add"
    if is_recorded:
        record(add_file, "64", "300")
    for command in ("lookup", "report"):
        assert run([command, name]) == 2
        assert f"not tuned yet; run: autotune run {name}" in capsys.readouterr().err
    same = {"activation": '""', "types": "fp32-fp32-fp32-int32"}
    fields = {"n": "integer", "activation": "categorical", "types": "categorical"}
    values = {"configuration": {"BLOCK": 128, "num_warps": 4}, "block": (128, 1, 1), "grid": None}
    made = [entry({"n": n, **same}, plan(**values)) for n in (64, 300)]
    shape = {"kernel": "add", "fields": fields, "default": plan(**values)}
    shape["parameters"] = {"BLOCK": (256, 128), "num_warps": (4, 8)}
    write(tmp_path / user_folder(project_of(tmp_path)), written(made, **shape))
    assert run(["lookup", name, "n=300", "--arch", "90", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kernel"], found["config"]["BLOCK"], found["quality"]) == ("add", 128, "exact")
    assert found["problem"] == {"n": 300, **same}
    monkeypatch.chdir(tmp_path)
    assert run(["report", name, "--out", "out"]) == 0
    assert "add.md" in capsys.readouterr().out
    assert run(["results", name]) == 0
    assert f"no results of add yet; run: autotune run {name}" in capsys.readouterr().err


def test_a_file_without_a_function_names_one(add_file, capsys):
    assert run(["check", str(add_file)]) == 2
    wanted = f"declares 0 kernels, expected one; for a decorated function name {add_file.name}:add"
    assert wanted in capsys.readouterr().err
