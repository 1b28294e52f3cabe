"""A kernel's declaration is checked as it is made, and every message says how to mend it."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from autotune.checking.kernel_check import check_kernel
from autotune.devices.device import for_arch
from autotune.errors import SpecError, UsageError
from autotune.kernel import parsing
from autotune.kernel.catalog import find_kernel
from autotune.kernel.expression import ceil_div
from autotune.kernel.launches import requirement, trace_launches, traced_grid
from autotune.kernel.names import fault
from autotune.kernel.spec import Kernel, Launch, Out
from autotune.run.plans import default_rows
from autotune.run.request import Request, VerifyOne
from autotune.run.run import execute
from autotune.store import Store
from autotune.values import Configuration, Problem

DEVICE = for_arch("sm_90")


def kernel(**options):
    """A kernel with two parameters; options as given."""
    given = {"problems": [Problem(n=64)], "BLOCK": (32, 64), "KIND": ("plain", "tiled"), **options}
    return Kernel(given.pop("source", "add.cu"), **given)


def test_a_declaration_reads_back():
    k = kernel(default={"BLOCK": 64}, seeds=[{"KIND": "tiled"}])
    assert k.name == "add"
    assert k.file == Path(__file__).resolve()
    assert k.parameters == {"BLOCK": (32, 64), "KIND": ("plain", "tiled")}
    assert k.default() == Configuration(BLOCK=64, KIND="plain")
    assert k.completed(k.seeds[0]) == Configuration(BLOCK=32, KIND="tiled")
    assert k.problems["cuda"] == k.quick_problems["opencl"] == (Problem(n=64),)
    assert k.fields == ("n",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"BLOCK": ()}, r"parameter BLOCK: expected a non-empty tuple of values, got \(\)"),
        ({"BLOCK": (32, 32)}, r"parameter BLOCK: a value occurs twice"),
        ({"BLOCK": (1, True)}, r"parameter BLOCK: values must be all numbers, all bool or all str"),
        ({"BLOCK": (0.5, float("nan"))}, r"parameter BLOCK: a value of .* is not a finite number"),
        ({"BLOCK": (1, 1.0)}, r"parameter BLOCK: a value occurs twice"),
        ({"KIND": ("a b",)}, r"parameter KIND: \['a b'\] cannot be part of a C identifier"),
        ({"n": (1, 2)}, r"n is a parameter and a problem field; rename one"),
        ({"lda": (1, 2), "layout": {"lda": 0}}, r"lda is a parameter and a problem field"),
        ({"backends": ["hip"]}, r"backends: unknown backend 'hip'.*known: cuda, opencl"),
        ({"problems": [Problem(N=1)]}, r"problem field 'N' must be in lower case: 'n'"),
        (
            {"problems": [Problem(n=1), Problem(m=1)]},
            r"problem \(m=1\) has other fields than \(n\)",
        ),
        ({"static": ("m",)}, r"static: unknown problem field 'm'.*known: n"),
        ({"seeds": [{"BLOCKS": 32}]}, r"seeds: unknown parameter 'BLOCKS'; did you mean 'BLOCK'"),
        ({"default": {"BLOCK": 48}}, r"default: BLOCK=48 is not among its values \(32, 64\)"),
        ({"variants": {"naive": {"BLOCK": 7}}}, r"variant naive: BLOCK=7 is not among its values"),
        ({"variants": {"best": {}}}, r"variant 'best' is reserved"),
        (
            {"source": "my-kernel.cu"},
            r"kernel name 'my-kernel': expected a letter, ",
        ),
        ({"name": "../../x"}, r"kernel name '../../x': "),
        ({"name": "k" * 101}, r"at most 100 characters"),
        ({"BLOCK__X": (1,)}, r"parameter 'BLOCK__X': .*single underscores"),
        ({"problems": [Problem(n_=1, n=1)]}, r"problem field 'n_': "),
        ({"problems": [Problem(arch=1)]}, r"problem field 'arch' is reserved"),
        (
            {"KIND": ("X",), "KIND_X": (1,)},
            r"the macro KIND_X has two meanings",
        ),
        (
            {"BLOCK": (1, 0x9E3779B97F4A7C15)},
            r"BLOCK: \[11400714819323198485\] needs more than 63 bits.*@k.defines: \{'BLOCK': '0x",
        ),
        (
            {"problems": [Problem(n=2**63)]},
            r"problem field n=9.* needs more than 63 bits.*np.uint64",
        ),
        ({"problems": [Problem(keys=1)]}, r"problem field 'keys' is reserved; .* 'keys_0'"),
        ({"replace": (1, 2)}, r"parameter 'replace' is reserved"),
        ({"source": None}, r"either one source or sources"),
        ({"layout": {"lda": 1.5}}, r"problem field lda=1.5 must be an int"),
        (
            {"layout": {"offset_x": -1}},
            r"layout field offset_x=-1: the offset must be at least 0 elements",
        ),
        (
            {"layout": {"lda": 0}, "problems": [Problem(n=64, lda=65)]},
            r"problem \(n=64, lda=65\): .*; give other values of lda in edge_problems",
        ),
    ],
)
def test_a_wrong_declaration_is_refused(options, message):
    with pytest.raises(SpecError, match=message):
        kernel(**options)


def test_a_define_beyond_63_bits_is_refused():
    k = kernel()
    k.defines(lambda c, p: {"SEED": 2**63})
    with pytest.raises(SpecError, match=r"SEED=9\d+ needs more than 63 bits; .*'SEED': '9\d+ull'"):
        k.macros(k.default(), Problem(n=1), DEVICE)


def strided(**options):
    """A kernel whose rows may lie apart, and that may begin past a boundary."""
    edges = [Problem(n=7), Problem(n=7, lda=9, offset_x=0), Problem(n=8, offset_x=3)]
    return kernel(layout={"lda": 0, "offset_x": 0}, edge_problems=edges, **options)


def test_layout_fields_are_no_part_of_what_is_tuned():
    k = strided()
    assert k.fields == ("n",)
    assert k.edge_problems == (Problem(n=7), Problem(n=7, lda=9), Problem(n=8, offset_x=3))
    plain = Problem(offset_x=0, n=7, lda=0)
    assert k.normal(plain) == Problem(n=7)
    assert k.filled(Problem(n=7)) == plain
    assert k.layout_of(plain) == Problem()
    assert k.layout_of(Problem(n=7, lda=9)) == Problem(lda=9)


def test_every_hook_sees_the_whole_layout():
    k = strided()
    seen: dict[str, Problem] = {}

    @k.launch
    def launch(c, p):
        seen["launch"] = p
        return Launch(grid=(ceil_div(p.n + p.lda, c.BLOCK),), block=(c.BLOCK,))

    @k.scratch
    def scratch(c, p):
        seen["scratch"] = p
        return {}

    @k.requires
    def requires(c, p):
        seen["requires"] = p
        return (p.offset_x % 4 == 0) & (p.lda <= p.n)

    @k.tolerance
    def tolerance(p):
        seen["tolerance"] = p
        return float(p.lda)

    c, p = k.default(), Problem(n=64, lda=96)
    assert not k.allows(c, p)
    k.workspaces(c, p, DEVICE)
    assert k.tolerance_of(p) == 96.0
    k.steps(c, p, DEVICE)
    assert seen == dict.fromkeys(seen, Problem(n=64, lda=96, offset_x=0))
    assert traced_grid(trace_launches(k, c, DEVICE), k.name) == (
        ["-", 0, ["//", ["-", 0, ["+", "n", 0]], 32]],
    )
    assert requirement(k, c, p) == ["and", ["==", ["%", "offset_x", 4], 0], ["<=", "lda", "n"]]


def test_what_lies_otherwise_is_verified_and_not_tuned():
    k = strided()
    views = (Problem(n=7, lda=9), Problem(n=7, offset_x=0), Problem(n=7))
    with pytest.raises(UsageError, match=r"add: lda=9 is a layout, .* verify one configuration"):
        Request(k, DEVICE, views).with_default_problems()
    verified = Request(k, DEVICE, views, goal=VerifyOne(k.default())).with_default_problems()
    assert verified.problems == (Problem(n=7, lda=9), Problem(n=7))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n=2^10", Problem(n=1024)),
        ("n=5,lda=0", Problem(n=5)),
        ("offset_x=1,n=5", Problem(n=5, offset_x=1)),
    ],
)
def test_problems_of_the_command_line_may_name_the_layout(text, problem):
    assert parsing.problem(strided(), text) == problem


def test_an_unknown_field_of_the_command_line_is_told_the_layout_too():
    with pytest.raises(UsageError, match=r"unknown problem field 'ldb'.*n, lda, offset_x"):
        parsing.problem(strided(), "n=5,ldb=7")
    with pytest.raises(UsageError, match=r"problem 'lda=7' lacks n; give for example n="):
        parsing.problem(strided(), "lda=7")


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        ("kernel name", ["int", "device", "Copy2D", "a_1"], ["_a", "a b", "", "a\n", "a-b"]),
        ("parameter", ["EOF", "LONG_MAX", "block_size_x", "p"], ["int", "threadIdx", "device"]),
        ("problem field", ["p", "row", "int", "number", "item"], ["lambda", "device", "items"]),
        ("argument", ["x", "Out", "n", "arch"], ["../x", "a/b", "x.expected", "None", 3, ""]),
    ],
)
def test_names_that_every_format_can_hold(kind, allowed, refused):
    assert {name: fault(kind, name) for name in allowed} == dict.fromkeys(allowed, "")
    assert all(f"{kind} {name!r}" in fault(kind, name) for name in refused)


def test_a_scratch_buffer_has_a_name_as_arguments_have():
    k = kernel()
    k.scratch(lambda c, p: {"a/b": Out(1)})
    with pytest.raises(SpecError, match=r"argument 'a/b': "):
        k.workspaces(k.default(), Problem(n=1), DEVICE)


def test_rules_name_parameters_that_exist():
    k = kernel()

    def misspelt(BLOK):
        """Whole warps."""
        return True

    with pytest.raises(
        SpecError, match=r"constraint 'misspelt': unknown parameter 'BLOK'; did you"
    ):
        k.constraint(misspelt)
    with pytest.raises(SpecError, match=r"applies: unknown parameter 'SIZE'"):
        k.applies("SIZE")
    with pytest.raises(SpecError, match=r"applies 'by_device': unknown parameter 'device'"):

        @k.applies("BLOCK")
        def by_device(device):
            return True


@pytest.mark.parametrize(
    ("hook", "function", "message"),
    [
        ("launch", lambda p, c: None, r"launch takes \(c, p\) and optionally device, not \(p, c\)"),
        ("arguments", lambda p: None, r"arguments takes \(p, rng\)"),
        ("tolerance", lambda: None, r"tolerance takes \(p\) and optionally device, not \(\)"),
        ("options", lambda c, p: None, r"options takes \(c\) and optionally device"),
        ("exclusive", lambda c, p: None, r"exclusive takes \(c\) and optionally device"),
    ],
)
def test_hooks_take_what_they_are_given(hook, function, message):
    with pytest.raises(SpecError, match=message):
        getattr(kernel(), hook)(function)


@pytest.mark.parametrize(
    "bound",
    [math.nan, math.inf, -1e-6, "1e-6", None, True, 2**1025, 1j, np.ones(2)],
    ids=lambda bound: str(bound)[:6],
)
def test_a_tolerance_that_bounds_nothing_is_refused_before_anything_is_measured(bound, tmp_path):
    """NaN and inf let every result pass; each is told by `check` and by a run, of odd sizes too."""
    k = kernel(edge_problems=[Problem(n=7)])
    k.tolerance(lambda p: bound if p.n == 7 else np.float32(1e-6))
    k.check_problem(Problem(n=64))
    message = r"tolerance: returned .* for \(n=7\), expected a finite number of at least 0"
    with pytest.raises(SpecError, match=message):
        check_kernel(k, ["sm_90"], samples=1, seed=0)
    with Store.open(tmp_path / "s.sqlite") as store, pytest.raises(SpecError, match=message):
        execute(Request(k, DEVICE, k.problems["cuda"]), store)


def test_a_missing_hook_says_how_to_attach_it():
    with pytest.raises(SpecError, match=r"no launch function; attach one with @add\.launch"):
        kernel().hook("launch")
    with pytest.raises(SpecError, match=r"no arguments function"):
        kernel().validate()


def test_a_kernel_says_of_which_configurations_launches_must_not_overlap():
    k = kernel()
    tiled = k.completed({"KIND": "tiled"})
    assert not k.is_exclusive(tiled)
    k.exclusive(lambda c: c.KIND == "tiled")
    assert k.is_exclusive(tiled)
    assert not k.is_exclusive(k.default())


def test_a_kernel_says_which_configurations_give_the_same_bits():
    k = kernel(static=("dtype",), problems=[Problem(n=64, dtype="half")])
    tiled, half = k.completed({"KIND": "tiled"}), Problem(n=64, dtype="half")
    assert not k.is_deterministic(tiled, half)
    k.deterministic(lambda c, p: c.KIND == "tiled" and p.dtype == "half")
    assert k.is_deterministic(tiled, half)
    assert not k.is_deterministic(k.default(), half)
    assert not k.is_deterministic(tiled, Problem(n=64, dtype="single"))
    k.deterministic(lambda c, p: p.n > 9)
    with pytest.raises(SpecError, match="deterministic: AttributeError"):
        k.is_deterministic(tiled, half)


def test_all_configurations_may_be_declared_deterministic():
    k = kernel(deterministic=True)
    assert all(k.is_deterministic(k.completed({"BLOCK": b}), Problem(n=64)) for b in (32, 64))
    assert "deterministic" not in k.parameters
    k.deterministic(lambda c, p: c.BLOCK == 64)  # the more exact answer
    assert not k.is_deterministic(k.default(), Problem(n=64))


def test_a_default_is_deterministic_if_it_is_for_every_problem_of_its_categories():
    for name, expected in (("copy", {True, False}), ("gemv", {True})):
        rows = default_rows(find_kernel(name), DEVICE)
        assert {row.plans[0].deterministic for row in rows} == expected, name


def test_bundled_kernels_are_exclusive_where_they_keep_something_in_their_module():
    for name, values, expected in (
        ("reduce", {"SOURCE": "cuda", "COLLECT": "words"}, True),
        ("reduce", {"SOURCE": "cuda", "COLLECT": "pair"}, True),
        ("reduce", {"SOURCE": "portable", "FINISH": "ticket"}, False),
        ("sgemm", {"SOURCE": "cuda", "GRIDK": 3}, True),
        ("sgemm", {"SOURCE": "cuda", "GRIDK": 1, "SPLITK": 8}, False),
        ("gemv", {"FINISH": "ticket"}, False),
        ("gemv_columns", {"GRIDK": 8}, True),
        ("gemv_columns", {"GRIDK": 1}, False),
    ):
        bundled = find_kernel(name)
        assert bundled.is_exclusive(bundled.completed(values)) == expected, (name, values)


def test_bundled_kernels_are_deterministic_but_for_atomic_sums():
    for name, values, fields, expected in (
        ("reduce", {"SOURCE": "cuda", "COLLECT": "words"}, {}, True),
        ("reduce", {"SOURCE": "cuda", "COLLECT": "pair"}, {}, False),
        ("gemv", {"SPLIT": 8, "FINISH": "atomic"}, {}, False),
        ("gemv", {"SPLIT": 8, "FINISH": "ticket"}, {}, True),
        ("copy", {}, {"mode": "copy"}, True),
        ("copy", {}, {"mode": "read"}, False),
        *((name, {}, {}, True) for name in ("sgemm", "sgemm_tf32x3", "transpose", "ffma")),
        ("gemv_columns", {"GRIDK": 8}, {}, True),
        ("hmma", {}, {"dtype": "float16"}, True),
        ("prefetch", {}, {"intensity": 1}, True),
    ):
        bundled = find_kernel(name)
        found = bundled.is_deterministic(bundled.completed(values), Problem(fields))
        assert found == expected, (name, values, fields)


def test_defines_tell_text_values_apart():
    k = kernel(static=("n",), FAST=(False, True))
    defines = k.macros(Configuration(BLOCK=64, KIND="tiled", FAST=True), Problem(n=7), DEVICE)
    assert defines == {
        "BLOCK": "64",
        "KIND_plain": "1",  # what is not declared is 0 in #if
        "KIND_tiled": "2",
        "KIND": "KIND_tiled",
        "FAST": "1",
        "N": "7",
    }


def test_values_of_any_library_are_pythons_own():
    k = kernel(
        block_size_x=range(32, 97, 32),
        tile=np.arange(1, 4),
        scale=[np.float32(0.5), 2, -0.0],
        seeds=[{"scale": 2}],
    )
    assert k.parameters["block_size_x"] == (32, 64, 96)
    assert k.parameters["tile"] == (1, 2, 3)
    assert repr(k.parameters["scale"]) == "(0.5, 2.0, 0.0)"
    assert [type(value) for value in k.parameters["tile"]] == [int] * 3
    assert repr(k.seeds[0]["scale"]) == "2.0"  # one form, which keys and stores know
    macros = k.macros(k.completed(k.seeds[0]), Problem(n=1), DEVICE)
    assert (macros["block_size_x"], macros["scale"]) == ("32", "2.0")


def test_macros_are_what_the_hook_says_and_see_what_is_compiled_in_alone():
    k = kernel(problems=[Problem(n=8, width=3)], static=("width",), layout={"lda": 0})
    k.defines(lambda c, p: {**c, "image_width": p.width, "real": "unsigned int", "scale": 0.5})
    chosen = Configuration(BLOCK=64, KIND="tiled")
    assert k.macros(chosen, Problem(n=8, width=3), DEVICE) == {
        **{"BLOCK": "64", "KIND": "tiled"},
        **{"image_width": "3", "real": "unsigned int", "scale": "0.5"},
    }
    k.defines(lambda c, p: {"N": p.n})
    with pytest.raises(SpecError, match=r"unknown problem field 'n' \(known: width\)"):
        k.macros(chosen, Problem(n=8, width=3), DEVICE)
    k.defines(lambda c, p: {"LDA": p.lda})
    with pytest.raises(SpecError, match=r"unknown problem field 'lda' \(known: width\)"):
        k.macros(chosen, Problem(n=8, width=3), DEVICE)


def test_what_is_no_dict_of_macros_is_refused():
    k = kernel()
    k.defines(lambda c, p: None)
    with pytest.raises(SpecError, match="defines: returned None, expected a dict"):
        k.macros(k.default(), Problem(n=1), DEVICE)


def test_a_launch_that_would_depend_on_data_is_told_what_to_do():
    with pytest.raises(SpecError, match="depends only on parameters and problem fields"):
        kernel().launch(lambda c, p, rows: Launch((1,), (1,)))


def test_sources_are_looked_for_beside_the_space_file(tmp_path):
    (tmp_path / "spaces").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "add.cu").write_text("// portable\n")
    k = kernel()
    k.file = tmp_path / "spaces" / "add.py"
    assert k.source_file(k.default()) == tmp_path / "kernels" / "add.cu"
    (tmp_path / "kernels" / "add.cu").unlink()
    with pytest.raises(SpecError, match=r"source 'add.cu' is in neither .*kernels nor .*spaces"):
        k.source_file(k.default())


# ---------------------------------------------------------------------- Configurations and


def test_equality_and_hash_do_not_depend_on_the_order_of_names():
    first, second = Configuration(BM=64, BN=32), Configuration(BN=32, BM=64)
    assert first == second
    assert hash(first) == hash(second)
    assert {first: "kept"}[second] == "kept"


@pytest.mark.parametrize(
    "other", [Configuration(BM=64), Configuration(BM=64, BN=33), Configuration(BM=64, BN=32, X=1)]
)
def test_a_missing_another_or_a_further_value_makes_it_unequal(other):
    assert Configuration(BM=64, BN=32) != other


def test_it_equals_a_plain_dict_and_nothing_that_is_no_mapping():
    assert Problem(m=1) == {"m": 1}
    assert Problem(m=1) != (("m", 1),)


def test_values_are_attributes_and_an_unknown_name_lists_the_known():
    configuration = Configuration({"BM": 64}, VARIANT="portable")
    assert (configuration.BM, configuration.VARIANT) == (64, "portable")
    with pytest.raises(AttributeError, match=r"unknown parameter 'BMM' \(known: BM, VARIANT\)"):
        configuration.BMM  # noqa: B018
    with pytest.raises(AttributeError, match=r"unknown problem field 'k' \(known: m\)"):
        Problem(m=1).k  # noqa: B018


def test_nothing_can_be_assigned():
    configuration = Configuration(BM=64)
    with pytest.raises(AttributeError, match="immutable"):
        configuration.BM = 32
    with pytest.raises(TypeError):
        configuration["BM"] = 32
    assert configuration.BM == 64


def test_it_does_not_share_the_mapping_it_was_made_from():
    values = {"BM": 64}
    configuration = Configuration(values)
    values["BM"] = 32
    assert configuration.BM == 64


def test_replace_makes_another_one_of_the_same_kind():
    configuration = Configuration(BM=64, BN=32)
    assert configuration.replace(BN=16) == Configuration(BM=64, BN=16)
    assert type(configuration.replace(BN=16)) is Configuration
    assert configuration.BN == 32


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_copies_are_equal_in_value_kind_and_hash(again):
    """A configuration crosses to the worker process and must be the same key there and back."""
    original = Configuration(UNROLL=True, BM=64, VARIANT="portable")
    hash(original)
    copied = again(original)
    assert (copied, type(copied), hash(copied)) == (original, Configuration, hash(original))
    assert copied.UNROLL is True
    assert list(copied) == list(original)


def test_canonical_json_is_the_same_for_equal_values_and_keeps_types():
    assert Configuration(B=1, A="x").canonical_json() == '{"A":"x","B":1}'
    assert Configuration(A="x", B=1).canonical_json() == '{"A":"x","B":1}'
    assert Configuration(A=True).canonical_json() != Configuration(A=1).canonical_json()


def test_text_for_a_person_keeps_the_order_and_writes_truth_as_a_number():
    assert str(Configuration(B=64, A=True, V="x")) == "B=64, A=1, V=x"
    assert repr(Problem(m=1)) == "Problem(m=1)"


def test_fields_named_like_the_first_argument_are_fields():
    assert dict(Problem({"m": 1}, values=2)) == {"m": 1, "values": 2}
