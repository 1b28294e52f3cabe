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
    """Return the findings about ``scale`` with some pieces of its space file changed."""
    return lambda *edits: of_all(load_file(write_space(tmp_path, *edits)))


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
    ],
    ids=["softmax", "exact", "clamp", "sum of positive", "max", "unread", "norm"],
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
            r"x: x\[\d+\] = 0 changes out elsewhere by [\d.]+e-0[67], and 1e-05 is allowed",
        ),
        (
            (("return factor * x", "return np.sqrt((x * x).sum())"), ("Out(p.n)", "Out(1)"),
             sized(1 << 20)),
            "missing element of x",
        ),
        (
            (BIAS, ("reference(x, factor)", "reference(x, bias)"), tolerance(1e-4),
             ("return factor * x", "return x / 3 + 1e-5 * bias[1]")),
            r"missing element of bias: bias shifted by one changes out by .*e-0., and 0.0001 is allowed",
        ),
        (
            (("return factor * x", "return x / np.sqrt((x * x).mean() + 1e-6 * factor)"),),
            "missing factor: factor = 0 changes out by .*e-07, and",
        ),
        (
            (("x = rng.standard_normal(p.n, dtype=np.float32)", "x = rng.uniform(0.9, 1.1, p.n)"),
             ("return factor * x", "return ((((x - 5) * x + 10) * x - 10) * x + 5) * x - 1")),
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
    ids=["softmax", "softmax, others", "norm of a million", "small term", "eps", "all", "integers", "half"],
)  # fmt: skip
def test_a_missing_element_that_would_pass_is_told_with_the_number(unseen, edits, message):
    found, *others = unseen(*edits)
    assert [other.change for other in others] in ([], ["out = 0"])
    assert 0 < found.error <= found.bound
    assert re.search(message, str(found))


@pytest.mark.parametrize(
    ("value", "reference", "told"),
    [
        ("1.0", "factor * x", "factor is 1 in all data, so that a kernel without it would pass"),
        ("0.0", "factor + x", "factor is 0 in all data, so that a kernel without it would pass"),
        ("0.0", "x + 0.0", ""),
        ("1.5", "factor * x", ""),
    ],
)
def test_a_number_that_may_be_left_out_is_told(unseen, value, reference, told):
    edits = (
        ("np.float32(FACTOR)", f"np.float32({value})"),
        ("return factor * x", f"return {reference}"),
    )
    assert [re.search(told, str(each)) is not None for each in unseen(*edits)] == [True] * bool(
        told
    )


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
    assert first.change.startswith("x[")
    assert unseen(*edits) == (first, second)
    assert len((tmp_path / "calls").read_text()) == calls < 24


def test_a_reference_that_refuses_a_change_says_nothing(unseen):
    edit = ("return factor * x", "assert x.all()\n    return x / 7")
    assert unseen(edit, tolerance(1e9)) != ()
    assert unseen(edit) == ()


@pytest.mark.opencl
def test_check_run_record_and_report_say_what_could_not_show(
    tmp_path, capsys, opencl_device, monkeypatch
):
    """A weak check, and values that the data never hold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autotune.run.extreme_checks._MAX_ELEMENTS", 1 << 20)
    write_space(tmp_path, ("return factor * x", "return factor * x / 1.0001"), tolerance(50))
    capped = changed(SOURCE, ("factor * x[i]", "factor * fmin(x[i], 9.0f)"))
    (tmp_path / "kernels" / "scale.cu").write_text(capped)
    differs = "differs from the reference on values that the data never hold: x times 8192: out["
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
    assert entry["checks"]["unseen"] == ["x", "factor", "out"]
    assert entry["checks"]["differs"][0].startswith("x times 8192: out[")
    report = record.with_suffix(".md").read_text()
    assert "a missing element of x and factor and out would not have been noticed" in report
    assert "on values that the data never hold, x times 8192: out" in report
