"""Parameters that do nothing."""

import pytest
from sample_spaces import SOURCE, write_space

from autotune.checking.kernel_check import check_kernel
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.kernel.space import enumerate_space
from autotune.run.idle import equal_values, unnamed

TILE = ("    BLOCK=(32, 64),", "    BLOCK=(32, 64),\n    TILE=(1, 2),")


@pytest.fixture
def made(tmp_path):
    def kernel(source, *edits):
        file = write_space(tmp_path, TILE, *edits)
        (tmp_path / "kernels" / "scale.cu").write_text(source)
        return load_file(file)

    return kernel


@pytest.mark.parametrize("word", ["TILED", "// TILE", '"TILE"', "/* TILE */"])
def test_a_parameter_that_the_source_does_not_name_is_told(made, word):
    (told,) = unnamed(made(f"{SOURCE}\n#define A {word}\n"))
    assert told.startswith("scale: parameter TILE does nothing: neither the source")


@pytest.mark.parametrize(
    ("more", "edits"),
    [
        ("#define A TILE", ()),
        ("", (("def whole_warps(BLOCK)", "def whole_warps(BLOCK, TILE)"),)),
        ("", (("return ceil_div(p.n, c.BLOCK)", "return ceil_div(p.n, c.BLOCK) * c.TILE"),)),
        ("", (("grid=(blocks(p, c),)", "grid=(c['TILE'],)"),)),
        ("", (("grid=(blocks(p, c),)", "grid=(max(c.values()),)"),)),
        ('#include "of_the_compiler.h"', ()),
        (
            "",
            (
                (
                    "@scale.launch",
                    "@scale.metric\ndef m(time_ms, c):\n    return c.TILE\n\n\n@scale.launch",
                ),
            ),
        ),
        (
            "",
            (
                (
                    "@scale.launch",
                    "@scale.applies('BLOCK')\ndef a(TILE):\n    return TILE > 0\n\n\n@scale.launch",
                ),
            ),
        ),
        (
            "",
            (("@scale.launch", "@scale.defines\ndef d(c, p):\n    return {}\n\n\n@scale.launch"),),
        ),
        ("", (("grid=(blocks(p, c),)", "grid=((lambda: c.TILE)(),)"),)),
        ("#define A TILE_fast", (("TILE=(1, 2)", "TILE=('fast', 'slow')"),)),
    ],
)
def test_a_parameter_that_source_or_a_function_names_is_not(made, more, edits):
    assert list(unnamed(made(f"{SOURCE}\n{more}\n", *edits))) == []


def test_a_function_that_takes_no_configuration_names_no_parameter(made):
    edit = ("return factor * x", "TILE = factor * x\n    return TILE")
    assert len(list(unnamed(made(SOURCE, edit)))) == 1


def test_what_does_nothing_is_told_once(made):
    kernel = made(SOURCE)
    twins = {c: f"{c.BLOCK}" for c in enumerate_space(kernel, for_arch("sm_90"))}
    assert list(equal_values(kernel, [twins])) == []


def test_check_tells_of_it(made):
    report = check_kernel(made(SOURCE.replace("BLOCK + TID", "BLOCK + TID")), [], 1, 0)
    assert any("TILE does nothing" in note for note in report.notes)


@pytest.mark.parametrize(
    ("twin", "told"),
    [
        (lambda c: f"{c.BLOCK}", ["scale: TILE=1, 2 compile to the same binary"]),
        (lambda c: f"{c.BLOCK} {c.TILE if c.BLOCK == 64 else 0}", []),
        (lambda c: f"{c}", []),
    ],
)
def test_values_that_compile_alike_everywhere_are_told(made, twin, told):
    kernel = made(f"{SOURCE}\n#define A TILE\n")
    twins = {c: twin(c) for c in enumerate_space(kernel, for_arch("sm_90"))}
    found = list(equal_values(kernel, [twins]))
    assert [text[: len(start)] for text, start in zip(found, told, strict=True)] == told
    one = dict(list(twins.items())[:2])
    assert list(equal_values(kernel, [one])) == []
