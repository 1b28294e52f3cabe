"""Kernels with several sources: each has its own parameters, rules and functions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune import Configuration, Kernel, Launch, Out, Problem, Source
from autotune.devices.device import Device, for_arch
from autotune.errors import SpecError, UsageError
from autotune.kernel import parsing
from autotune.kernel.catalog import load_file
from autotune.kernel.source import source_of
from autotune.kernel.space import Space, applicable, enumerate_space, is_member
from autotune.kernel.space_text import spec_fingerprint
from autotune.run.idle import unnamed
from autotune.search.lattice import Lattice
from autotune.search.surrogate import Encoding
from autotune.values import SOURCE

SM_90, SM_75 = for_arch("sm_90"), for_arch("sm_75")
OPENCL = Device("opencl", "a CPU", "opencl_cpu", warp_size=16)
WIDE = 'extern "C" __global__ void twice(float* out) { out[BM * STAGES] = WARP + ORDER; }\n'
PLAIN = 'extern "C" __global__ void twice(float* out) { out[BM * ORDER] = TEXT == TEXT_b; }\n'


def twice() -> Kernel:
    """A kernel with two sources that both have BM, with values of their own."""
    wide = Source(
        WIDE,
        seeds=[{"BM": 64}],
        default={"BM": 256},
        variants={"deep": {"STAGES": 4}},
        device_macros={"WARP": "warp_size"},
        BM=(64, 128, 256),
        STAGES=(2, 3, 4),
        TAIL=(False, True),
        ORDER=(8, 1),
    )
    plain = Source(PLAIN, default={"TEXT": "b"}, BM=(32, 64), TEXT=("a", "b"), ORDER=(1, 8))
    kernel = Kernel(sources={"wide": wide, "plain": plain}, name="twice", problems=[Problem(n=8)])

    @wide.constraint
    def runs_here(device):
        """wide: needs compute capability 8.0."""
        return device.compute_capability >= 80

    @wide.constraint
    def stages_are_few(BM, STAGES):
        return BM * STAGES <= 512

    @wide.applies("ORDER")
    def order_matters(TAIL):
        return TAIL

    @wide.launch
    def launch_wide(c, p):
        return Launch((p.n,), (c.BM,), shared_bytes=c.STAGES)

    @kernel.launch
    def launch(c, p):
        return Launch((p.n,), (c.BM,))

    @wide.exclusive
    def exclusive(c):
        return c.TAIL

    @kernel.arguments
    def arguments(p, rng):
        return {"out": Out(1)}

    kernel.validate()
    return kernel


KERNEL = twice()
SPACE = enumerate_space(KERNEL, SM_90)


def test_a_configuration_has_the_parameters_of_its_source_alone() -> None:
    wide, plain = KERNEL.default(), KERNEL.default("plain")
    assert dict(wide) == {"SOURCE": "wide", "BM": 256, "STAGES": 2, "TAIL": False, "ORDER": 8}
    assert dict(plain) == {"SOURCE": "plain", "BM": 32, "TEXT": "b", "ORDER": 1}
    assert KERNEL.seeds == ({"SOURCE": "wide", "BM": 64},)
    assert KERNEL.variants == {"deep": {"SOURCE": "wide", "STAGES": 4}}
    assert KERNEL.parameters[SOURCE] == ("wide", "plain")
    assert KERNEL.parameters["BM"] == (64, 128, 256, 32)
    assert KERNEL.is_declared(wide) and KERNEL.is_declared(plain)
    assert not KERNEL.is_declared({**plain, "STAGES": 2})
    assert not KERNEL.is_declared({name: plain[name] for name in plain if name != SOURCE})


def test_functions_of_the_kernel_serve_sources_without_their_own() -> None:
    wide, plain, problem = KERNEL.default(), KERNEL.default("plain"), Problem(n=8)
    assert KERNEL.steps(wide, problem, SM_90) == (Launch((8,), (256,), shared_bytes=2),)
    assert KERNEL.steps(plain, problem, SM_90) == (Launch((8,), (32,)),)
    assert KERNEL.is_exclusive(wide.replace(TAIL=True))
    assert not KERNEL.is_exclusive(plain)


def test_macros_are_of_the_source_and_of_the_device() -> None:
    problem = Problem(n=8)
    assert KERNEL.macros(KERNEL.default(), problem, OPENCL) == {
        **{"BM": "256", "STAGES": "2", "TAIL": "0", "ORDER": "8"},
        "WARP": "16",
    }
    assert KERNEL.macros(KERNEL.default("plain"), problem, OPENCL) == {
        **{"BM": "32", "ORDER": "1"},
        **{"TEXT": "TEXT_b", "TEXT_a": "1", "TEXT_b": "2"},
    }
    assert "STAGES" not in source_of(KERNEL, KERNEL.default("plain"), problem, SM_90)
    assert "#define WARP 32" in source_of(KERNEL, KERNEL.default(), problem, SM_90)
    assert list(unnamed(KERNEL)) == []


def test_each_source_is_enumerated_with_its_own_rules() -> None:
    wide = [c for c in SPACE if c[SOURCE] == "wide"]
    expected = {
        (bm, stages, tail, order)
        for bm in (64, 128, 256)
        for stages in (2, 3, 4)
        for tail, order in ((False, 8), (True, 8), (True, 1))
        if bm * stages <= 512
    }
    assert {tuple(c.values())[1:] for c in wide} == expected
    plain = [tuple(c.values())[1:] for c in SPACE if c[SOURCE] == "plain"]
    assert sorted(plain) == sorted(
        (bm, text, order) for bm in (32, 64) for text in "ab" for order in (1, 8)
    )
    assert len(SPACE) == len(wide) + len(plain)
    assert SPACE.cartesian == 3 * 3 * 2 * 2 + 2 * 2 * 2
    assert {c[SOURCE] for c in enumerate_space(KERNEL, SM_75)} == {"plain"}


def test_numbers_rows_and_configurations_agree() -> None:
    for number, configuration in enumerate(SPACE):
        assert SPACE.index(configuration) == number
        assert np.array_equal(SPACE.row(configuration), SPACE.rows[number])
        assert is_member(KERNEL, configuration, SM_90)
        assert list(applicable(KERNEL, configuration)) == list(configuration)
    assert np.all(np.diff(SPACE.codes) > 0)
    assert SPACE.index({**KERNEL.default(), "TEXT": "a"}) is None
    assert SPACE.index(KERNEL.default("plain").replace(BM=128)) is None
    with pytest.raises(UsageError, match="unknown parameter 'STAGES'"):
        SPACE.row({**KERNEL.default("plain"), "STAGES": 2})
    with pytest.raises(UsageError, match="value of SOURCE: 'other'"):
        SPACE.row({"SOURCE": "other"})
    assert "wide" not in [dict(SPACE.configuration(len(SPACE) - 1))[SOURCE]]


def test_a_row_is_made_canonical_for_its_source() -> None:
    wide = KERNEL.default().replace(STAGES=2, BM=64)
    row = SPACE.row(wide)
    foreign = SPACE.names.index("TEXT")
    row[foreign] = 1
    assert SPACE.find(SPACE.canonical(row)) == SPACE.index(wide)
    # ORDER does not apply without TAIL, and has the first value that the source declares.
    row[SPACE.names.index("ORDER")] = 1
    assert SPACE.find(SPACE.canonical(row)) == SPACE.index(wide)
    codes = np.array([int(row @ SPACE.strides)])
    assert SPACE.find_all(codes).tolist() == [SPACE.index(wide)]


def test_a_restriction_leaves_out_sources_without_the_parameter() -> None:
    assert {c[SOURCE] for c in SPACE.restricted({"STAGES": [2, 3]})} == {"wide"}
    assert {c[SOURCE] for c in SPACE.restricted({"TEXT": ["a"]})} == {"plain"}
    both = SPACE.restricted({"BM": [64]})
    assert {c[SOURCE] for c in both} == {"wide", "plain"}
    assert SPACE.restricted({"SOURCE": ["plain"]}).free == {"BM", "TEXT", "ORDER"}
    assert SPACE.free == set(SPACE.names)


def assert_neighbours_are_valid(space: Space) -> None:
    lattice, encoding = Lattice(space), Encoding(space)
    every = np.arange(len(space))
    assert len(np.unique(encoding.features(every), axis=0)) == len(space)
    for number in range(len(space)):
        assert lattice.find(lattice.point(number)) == number
        near = set(encoding.near(number, 1).tolist())
        assert near <= set(range(len(space))) - {number}
        assert set(lattice.changed_in_one(lattice.point(number))) == near
    sources = np.array([c[SOURCE] == "wide" for c in space])
    across = {int(n) for i in np.flatnonzero(sources) for n in encoding.near(int(i), 1)}
    assert across & set(np.flatnonzero(~sources).tolist())


def test_strategies_see_one_space_in_which_sources_are_neighbours() -> None:
    assert_neighbours_are_valid(SPACE)


def test_options_of_the_command_line_name_a_source() -> None:
    assert parsing.configuration(KERNEL, "SOURCE=plain,BM=64") == KERNEL.default("plain").replace(
        BM=64
    )
    assert parsing.configuration(KERNEL, "STAGES=3") == KERNEL.default().replace(STAGES=3)
    with pytest.raises(UsageError, match="source wide has no parameter TEXT; add SOURCE=plain"):
        parsing.configuration(KERNEL, "TEXT=a")


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        ({"a": Source("a.cu", B=(1,))}, {"B": (1, 2)}, "Kernel: B: give them to its sources"),
        ({"a": Source("a.cu", B=(1,))}, {"seeds": [{"B": 1}]}, "Kernel: seeds: give them"),
        ({"a": Source("a.cu", B=(1,)), "b": Source("b.cu", B=("x",))}, {}, "of different kinds"),
        ({"int": Source("a.cu", B=(1,))}, {}, "source 'int' is reserved"),
        ({"a": Source("a.cu", N=(1,))}, {"static": ("n",)}, "the macro N has two meanings"),
        (
            {n: Source("a.cu", variants={"v": {}}, B=(1,)) for n in ("a", "b")},
            {},
            "variant v: two sources declare it",
        ),
    ],
)
def test_a_wrong_declaration_is_refused(sources, options, message) -> None:
    with pytest.raises(SpecError, match=message):
        Kernel(sources=sources, name="k", problems=[Problem(n=8)], **options)


def test_a_rule_of_several_sources_is_declared_on_a_source() -> None:
    with pytest.raises(SpecError, match=r"@twice\.constraint: attach it to one of the sources"):
        KERNEL.constraint(lambda BM: True)
    with pytest.raises(SpecError, match="device_macros WARP: unknown attribute of a device 'name'"):
        Source("a.cu", device_macros={"WARP": "name"})
    with pytest.raises(SpecError, match="parameter SOURCE: reserved for the source"):
        Source("a.cu", SOURCE=("a",))


def test_lists_of_sources_in_other_files_make_nothing_stale(tmp_path: Path) -> None:
    """A source may be declared in a module next to the space file."""
    spaces = tmp_path / "spaces"
    spaces.mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.cu").write_text("// BM\n")
    other = spaces / "_k_fast.py"
    text = 'from autotune import Source\nfast = Source("k.cu", BM=(1, 2), seeds=[{"BM": 2}])\n'
    other.write_text(text)
    (spaces / "k.py").write_text(
        "import _k_fast\nfrom autotune import Kernel, Launch, Problem\n"
        'k = Kernel(sources={"fast": _k_fast.fast}, name="k", problems=[Problem(n=1)])\n'
        "@k.launch\ndef launch(c, p):\n    return Launch((1,), (c.BM,))\n"
        "@k.arguments\ndef arguments(p, rng):\n    return {}\n"
    )

    def fingerprint() -> str:
        kernel = load_file(spaces / "k.py")
        assert kernel.file is not None
        return spec_fingerprint(kernel.file)

    before = fingerprint()
    other.write_text(text.replace("(1, 2)", "(1, 2, 4)").replace('[{"BM": 2}]', "[]"))
    assert fingerprint() == before
    other.write_text(text + "MOST = 3\n")
    assert fingerprint() != before


def test_a_configuration_equals_no_other_source() -> None:
    plain = KERNEL.default("plain")
    assert plain != Configuration({name: plain[name] for name in plain if name != SOURCE})
    assert plain == Configuration(dict(reversed(list(plain.items()))))
    assert replace(SPACE, rows=SPACE.rows[:0]).free == set()


BUNDLED = sorted(
    file
    for folder in ("spaces", "spaces/study")
    for file in (Path(__file__).parents[1] / folder).glob("*.py")
)


@pytest.mark.parametrize("file", BUNDLED, ids=lambda file: file.stem)
def test_a_bundled_space_file_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 400


@pytest.mark.parametrize(
    "file", [file for file in BUNDLED if not file.name.startswith("_")], ids=lambda file: file.stem
)
def test_a_bundled_kernel_has_few_seeds_and_different_variants(file: Path) -> None:
    """Variants that are compared have to differ."""
    kernel = load_file(file)
    assert len(kernel.seeds) <= 10
    variants = list(map(kernel.completed, kernel.variants.values()))
    assert len(set(variants)) == len(variants)
