"""The proof of sight: users are told of a tolerance that would not notice a missing element."""

import json
import re

import pytest
from sample_spaces import SOURCE, changed, write_space

from autotune.cli import run as command
from autotune.data.sight import unseen_inputs
from autotune.kernel.catalog import find_kernel, load_file, space_files

BUNDLED = sorted(space_files())
SOFTMAX = (
    "return factor * x",
    "e = np.exp(x.reshape(4, -1))\n    return (e / e.sum(1, keepdims=True)).reshape(-1)",
)


def tolerance(bound):
    return (
        "@scale.launch",
        f"@scale.tolerance\ndef tolerance(p):\n    return {bound}\n\n\n@scale.launch",
    )


def sized(n):
    return ("Problem(n=1000)", f"Problem(n={n})")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def unseen(tmp_path):
    """Return the findings about ``scale``, whose factor is drawn, with pieces of its space file changed."""
    drawn = ("np.float32(FACTOR)", "rng.uniform(2, 4)")
    return lambda *edits: of_all(load_file(write_space(tmp_path, drawn, *edits)))


def of_all(kernel):
    return unseen_inputs(kernel, kernel.all_problems())


@pytest.mark.parametrize("name", BUNDLED)
def test_no_bundled_kernel_has_a_weak_check(name):
    assert of_all(find_kernel(name)) == ()


BIAS = ('"x": x,', '"x": x, "bias": rng.standard_normal(3),')


@pytest.mark.parametrize(
    "edits",
    [
        (SOFTMAX, sized(32768)),
        (tolerance(1.0),),  # exact data decide
        (("return factor * x", "return np.maximum(x, 0.5)"), tolerance(9)),
        (
            ("return factor * x", "return np.maximum(x, 0).sum()"),
            ("Out(p.n)", "Out(1)"),
            tolerance(1e3),
        ),
        (("return factor * x", "return x.max() / 3"), ("Out(p.n)", "Out(1)")),
        (BIAS, ("return factor * x", "return factor * x / 7")),  # an input that nothing reads
        (("return factor * x", "return x / np.sqrt((x * x).mean())"),),
        (
            ("dtype=np.float32", "dtype=np.float64"),
            ("return factor * x", "return x.sum()"),
            ("Out(p.n)", "Out(1, 'float64')"),
        ),  # its order changes the rounding of the reference
    ],
    ids=["softmax", "exact", "clamp", "sum of positive", "max", "unread", "norm", "order"],
)
def test_what_is_noticed_or_cannot_matter_is_no_fault(unseen, edits):
    assert unseen(*edits) == ()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (
            (SOFTMAX, sized(32768), tolerance(0.01)),
            r"missing element of x: x\[\d+\] = 0 changes out by [\d.e-]+, and 0.01 is allowed; "
            "declare a smaller @tolerance or none, give smaller edge_problems, or draw integers",
        ),
        (
            (SOFTMAX, sized(32768), tolerance(1e-5)),
            r"x: x\[\d+\] = 0 changes out elsewhere by [\d.]+e-0[678], and 1e-05 is allowed",
        ),
        (
            (("return factor * x", "return np.sqrt((x * x).sum())"), ("Out(p.n)", "Out(1)"),
             sized(1 << 20)),
            "missing element of x",
        ),
        (
            (('"x": x,', '"x": x, "bias": 1 + rng.random(p.n) / 4096,'), tolerance(1e-2),
             ("reference(x, factor)", "reference(x, bias)"), ("return factor * x", "return x / 3 + bias")),
            r"missing element of bias: bias shifted by one changes out by 0.000.*, and 0.01 is allowed",
        ),
        (
            (("return factor * x", "return x / np.sqrt((x * x).mean() + 1e-6 * factor)"),),
            "missing factor: factor = 0 changes out by .*e-0[67], and",
        ),
        (
            (('"x": x,', '"x": x, "y": x.copy(),'), ("reference(x, factor)", "reference(x, y)"),
             ("return factor * x", "return x - y + 1e-6 * x"), tolerance(1e-3)),
            "missing out: out = 0 changes out by [\\d.e-]+, and",
        ),
        (
            (("rng.standard_normal(p.n, dtype=np.float32)", "rng.integers(1, 9, p.n).astype(np.int32)"),
             ("return factor * x", "return np.sqrt((x * x).mean())"), ("Out(p.n)", "Out(1)"),
             sized(1 << 20)),
            "missing element of x",
        ),
        (
            (("rng.standard_normal(p.n, dtype=np.float32)", "rng.standard_normal(p.n).astype(np.float16)"),
             ("return factor * x", "return x / np.sqrt((x * x).mean())"),
             ("Out(p.n)", "Out(p.n, 'float16')"), sized(4104)),
            "missing element of x",
        ),
    ],
    ids=["softmax", "softmax, others", "norm of a million", "neighbours", "eps", "all", "integers", "half"],
)  # fmt: skip
def test_a_missing_element_that_would_pass_is_told_with_the_number(unseen, edits, message):
    found, *others = map(str, unseen(*edits))
    assert all("missing out: out = 0" in other for other in others)
    assert re.search(message, found)
    error, bound = map(float, re.search(r"by (\S+), and (\S+) is allowed", found).groups())
    assert 0 < error <= bound


def with_content(content, reference):
    """Return edits by which the argument ``w`` takes the place of ``factor``."""
    return (
        ('"factor": rng.uniform(2, 4)', f'"w": {content}'),
        ("reference(x, factor)", "reference(x, w)"),
        ("return factor * x", f"return {reference}"),
        ("import Kernel", "import BFloat16, Constant, InOut, Kernel"),
        ("x = rng.standard_normal(p.n", "x = rng.standard_normal(8 * p.n"),
    )


@pytest.mark.parametrize(
    ("content", "reference", "told", "draw"),
    [
        ("np.ones(p.n, np.float32)", "x[::8] * w", "1.0", "rng.uniform(0.5, 1, p.n)"),
        ("BFloat16(np.ones(p.n))", "x[::8] * w", "1.0", "rng.uniform(0.5, 1, p.n)"),
        ("np.zeros(p.n, np.float16)", "x[::8] + w", "0.0",
         'rng.uniform(0, 1, p.n).astype("float16")'),
        ("InOut(np.zeros(p.n, np.int32))", "{'out': x[::8], 'w': w + (x[::8] > 0)}", "0",
         "rng.integers(0, 2, p.n)"),
        ("np.ones((p.n, 8), bool)", "(x.reshape(-1, 8) * w).sum(1)", "True",
         'rng.integers(0, 2, (p.n, 8), dtype="bool")'),
        ("np.ones(8 * p.n, bool)", "np.full(1000, x[w].sum())", "True",
         'rng.integers(0, 2, 8000, dtype="bool")'),
        ("(np.arange(p.n) % 2 * 55 + 200).astype(np.uint8)", "x[::8] * w", "a regular pattern",
         'rng.integers(200, 256, p.n, dtype="uint8")'),
        ("np.arange(p.n, dtype=np.int64)", "x[w]", "a regular pattern",
         'rng.permutation(p.n).astype("int64")'),
        ("np.arange(p.n, dtype=np.int32)[::-1]", "x[w]", "a regular pattern",
         "rng.integers(0, 1000, p.n)"),
        ("np.arange(0, 8 * p.n, 8, np.int32)", "[np.add.reduceat(x, w)][7992 - w[-1]]",
         "a regular pattern", "np.sort(rng.integers(0, 7993, p.n))"),
        ("np.repeat(np.arange(p.n, dtype=np.int32), 8)", "np.bincount(w, x)", "a regular pattern",
         "np.sort(rng.integers(0, 1000, 8000))"),
        ("np.full(p.n, 8, np.int32)", "(x.reshape(-1, 8) * (np.arange(8) < w[:, None])).sum(1)", "8",
         "rng.integers(4, 9, p.n)"),
        ("np.full(p.n, rng.random())", "x[::8] * w", "a regular pattern", "rng.uniform("),
        ("np.linspace(0, 1, p.n, dtype=np.float32)", "x[::8] * w", "a regular pattern",
         "np.sort(rng.uniform(0, 1, p.n))"),
        ("Constant(np.float32([1, 4, 6, 4, 1]))", "np.convolve(x, w, 'same')[::8]", "the same",
         "rng.uniform(1, 6, 5)"),
        ("np.where(np.arange(p.n) < 9, 0.0, -np.inf)", "np.exp(x[::8] + w)", "a regular pattern",
         'rng.uniform(0, 1, p.n).astype("float64")'),
        ("3", "sum(np.roll(x, d) for d in range(-w, w + 1))[::8]", "3", "rng.integers(1, 4)"),
        ("np.uint64(2**63)", "x[::8] + w % 1001", "9223372036854775808", "rng.integers("),
        ("np.bool_(True)", "x[::8] if w else -x[::8]", "True", 'rng.integers(0, 2, dtype="bool")'),
        ("[2.5][p.n % 500]", "w * x[::8]", "2.5", "rng.uniform(1.25, 2.5)"),  # raises at other sizes
        ("np.float64(0)", "w + x[::8]", "0.0", 'rng.uniform(0, 1).astype("float64")'),
    ],
)  # fmt: skip
def test_content_that_a_kernel_could_hold_is_told_with_the_draw(
    unseen, content, reference, told, draw
):
    (found,) = unseen(*with_content(content, reference))
    text = f"weak check: w is {told} in all data, so that a kernel without it would pass; draw it, for "
    assert str(found).startswith(f"{text}example {draw}")


@pytest.mark.parametrize(
    ("content", "reference"),
    [
        ("np.ones(p.n, np.float32)", "x[::8]"),  # the reference does not depend on it
        ("0.0", "x[::8] + 0.0"),
        ("-(-p.n // 32)", "w * x[::8]"),  # a function of the sizes
        ("p.n ** -0.5", "w * x[::8]"),
        ("np.array([1, p.n, 2, 4], np.int32)", "x.reshape(w).sum((0, 2, 3))"),
        ("rng.uniform(0.5, 2, 2)", "w[0] * x[::8] + w[1]"),
        ("rng.uniform(1, 2)", "w * x[::8]"),
        ("int(rng.integers(0, 2))", "x[::8] if w else -x[::8]"),
        ("np.float32(rng.choice([0.5, 2]))", "w * x[::8]"),
        ("rng.permutation(p.n)", "x[w]"),
        ("rng.random(p.n) < 0.5", "x[::8] * w"),
        ("np.sort(rng.integers(0, 8 * p.n, p.n))", "np.add.reduceat(x, w)"),
        ("rng.uniform(0.5, 2, 1)", "w * x[::8]"),
        ("np.cos(np.arange(p.n)).astype('f4')", "w * x[::8]"),  # a kernel may compute a table
        ("256", "np.bincount(x.astype(int) & 255, minlength=w)[np.arange(1000) % 256]"),
    ],
)
def test_content_that_varies_or_does_not_matter_is_no_fault(unseen, content, reference):
    assert unseen(*with_content(content, reference)) == ()


@pytest.mark.parametrize("content", ["p.radius", "int(p.kind == 'even')"])
def test_a_field_of_the_problem_is_no_fault(unseen, content):
    fields = ("Problem(n=1000)", "Problem(n=1000, radius=3, kind='even')")
    assert unseen(*with_content(content, "w * x[::8]"), fields) == ()


def test_content_that_another_problem_changes_is_no_fault(unseen):
    """Its starts of rows are regular for one kind of matrix alone."""
    edits = (
        ("problems=[Problem(n=1000)]", "problems=[Problem(n=99, kind=k) for k in ('even', 'odd')]"),
        *with_content(
            "np.minimum(np.arange(p.n) ** (2 if p.kind == 'odd' else 1), 8 * p.n - 1)", "x[w]"
        ),
    )
    assert unseen(*edits) == ()
    assert unseen(*edits, ("p.kind == 'odd'", "p.kind == 'none'")) != ()


def test_the_smallest_problem_with_enough_elements_is_tried_once(tmp_path, unseen):
    """Elements of a tiny problem show, and say nothing of others."""
    count = f"open({str(tmp_path / 'calls')!r}, 'a').write('.')"
    edits = (
        (SOFTMAX[0], f"{count}\n    {SOFTMAX[1]}"),
        ("problems=[Problem(n=1000)]", "problems=[Problem(n=n) for n in (65536, 4, 32768)]"),
        tolerance(0.01),
    )
    first, second = unseen(*edits)
    calls = len((tmp_path / "calls").read_text())
    assert "x[" in str(first)
    assert unseen(*edits) == (first, second)
    assert len((tmp_path / "calls").read_text()) == calls < 24


@pytest.mark.parametrize("sign", "<>")
def test_an_element_that_shows_is_looked_for(unseen, sign):
    edit = ("return factor * x", f"return np.where(x {sign} 0, x, 0) / 3")
    assert "missing element of x: x[" in str(unseen(edit, tolerance(9))[0])


def test_a_reference_that_refuses_a_change_says_nothing(unseen):
    edit = ("return factor * x", "assert x.all()\n    return x / 7")
    assert unseen(edit, tolerance(1e9)) != ()
    assert unseen(edit) == ()


@pytest.mark.opencl
def test_check_run_record_and_report_say_what_could_not_show(
    tmp_path, capsys, opencl_device, kept_processes, monkeypatch
):
    """A weak check, and values that the data never hold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autotune.run.extreme_checks._MAX_ELEMENTS", 1 << 20)
    write_space(tmp_path, ("return factor * x", "return factor * x / 1.0001"), tolerance(50))
    capped = changed(SOURCE, ("factor * x[i]", "factor * fmin(x[i], 9.0f)"))
    (tmp_path / "kernels" / "scale.cu").write_text(capped)
    differs = "differs from the reference on values that the data never hold: x["
    assert command(["check", "scale", "--samples", "1", "--arch", "sm_90"]) == 0
    told = capsys.readouterr().out
    assert "verified, weak check" in told
    assert "weak check: this tolerance would not notice a missing element of x: x[" in told
    assert f"scale {differs}" in " ".join(told.split())
    flags = ["--device", opencl_device, "--budget", "2evals", "--out", "reports"]
    assert command(["run", "scale", *flags]) == 0
    (table, warned), (record,) = capsys.readouterr(), tmp_path.glob("reports/*/scale.json")
    assert "weak check)" in table
    assert "scale: weak check: this tolerance would not notice a missing element of x" in warned
    assert warned.count(differs) == 1 and "draw such values if callers have them" in warned
    (entry,) = json.loads(record.read_text())["problems"]
    assert entry["checks"]["unseen"] == ["factor", "x", "out"]
    assert entry["checks"]["differs"][0].startswith("x[")
    report = record.with_suffix(".md").read_text()
    assert "a missing element of factor and x and out would not have been noticed" in report
    assert "on values that the data never hold, x" in report
