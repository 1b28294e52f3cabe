"""The exported header: compiles cleanly, asserts its own answers, and agrees with Python's lookup.

One program is compiled from the headers of random records and asked a thousand random questions.
"""

import json
import random
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_records import (
    FIELDS,
    KERNEL,
    PARAMETERS,
    answering,
    ceil_div,
    entry,
    expecting,
    plan,
    problem,
    random_record,
    record,
    table_of,
    vendor_call,
    with_cost,
    write,
)
from sample_spaces import write_space

from autotune.answers.table import SIXTEENTHS, Cost, sixteenths
from autotune.cli import run
from autotune.devices.device import Device
from autotune.errors import NoAnswerError, UsageError
from autotune.export import export_measurements, export_records
from autotune.export.cpp import comment, expression, identifier, taken
from autotune.export.header import render
from autotune.interop.formats import Results
from autotune.measure.measurement import Measurement, Status
from autotune.store import RunInfo, Scope, Store, default_url
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.merged import normal_arch
from autotune.tuned.reading import decode
from autotune.tuned.record import TunedRecord
from autotune.tuned.recorded_device import RecordedDevice
from autotune.tuned.writing import encode
from autotune.values import Configuration, Problem

STRICT = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
QUESTIONS = 1000
#: What `_python` returns where there is no answer; quality is its eighth value.
NONE: list[Any] = [None] * 18
CATEGORIES = ("float32", "half2", "int-8")
#: Numbers of architectures, values of ``__CUDA_ARCH__`` and the bounds between them, and nonsense.
ARCHS = (90, 90, 900, 80, 86, 75, 100, 1000, 120, 299, 300, 2999)


#: Reads "which number m n category" lines, answers with everything a configuration says. An architecture (a), a device
#: (d), or an architecture of a GPU without records whose multiprocessors `multiprocessors_of` m are (u).
ASK = """
#include <cstdio>
#include "demo_gemm.hpp"
using namespace autotune::demo_gemm;

int main() {
  char how;
  int where, category, wanted;
  long long m, n;
  const dtype_value categories[] = {CATEGORIES};
  while (std::scanf(" %c %d %lld %lld %d %d", &how, &where, &m, &n, &category, &wanted) == 6) {
    const dtype_value dtype = categories[category];
    const demand wish = static_cast<demand>(wanted);
    auto found = how == 'a' ? lookup(where, m, n, dtype, wish)
               : how == 'd' ? lookup(static_cast<device>(where), m, n, dtype, wish)
                            : lookup(where, m, n, dtype, wish, static_cast<int>(20 + m % 200));
    if (found && how == 'u' && found->hit <= quality::nearest_problem) {
      found->hit = quality::same_arch;
      found->expected_fraction = found->median_fraction = -1;
    }
    if (!found) {
      std::printf("NONE\\n");
      continue;
    }
    const config c = *found;
    const extent grid = c.grid(m, n, dtype);
    for (const launch& step : c.launches(m, n, dtype))
      std::printf("%s:%u:%u:%u:%u:%u:%u:%u,", step.entry, step.grid.x, step.grid.y, step.grid.z, step.block.x,
                  step.block.y, step.block.z, step.shared_bytes);
    std::printf(" %d %d %d %u %u %u %u %d %.17g %.17g %d %d %u %u %u %d %d\\n", c.BM, c.SWIZZLE,
                static_cast<int>(c.VARIANT), c.block.x, c.block.y, c.block.z, c.shared_bytes,
                static_cast<int>(c.hit), c.expected_fraction, c.median_fraction, c.exclusive,
                c.deterministic, grid.x, grid.y, grid.z, detail::sixteenths(m), c.verified);
  }
}
"""


def compile_and_run(folder: Path, program: str, questions: str = "") -> str:
    """Compile with every warning an error; return what the program prints."""
    (folder / "main.cpp").write_text(program)
    subprocess.run(["g++", *STRICT, "main.cpp", "-o", "main"], cwd=folder, check=True, timeout=120)
    return subprocess.run(
        ["./main"],
        cwd=folder,
        input=questions,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def opencl(made: TunedRecord) -> TunedRecord:
    """The same record as of an OpenCL device."""
    device = RecordedDevice(backend="opencl", name="Some CPU", arch="opencl_cpu")
    return msgspec.structs.replace(made, device=device)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TunedRecord]:
    """Random records of two devices of one architecture, an older one and a CPU, for lookup too."""
    made = [
        random_record(1, "GPU A", "sm_90"),
        random_record(2, "GPU B", "sm_90"),
        random_record(3, "GPU C", "sm_80"),
        opencl(random_record(4, "", "")),
    ]
    for known in made:
        write(tmp_path / "given", known)
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "given"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    clear_cache()
    return made


def test_header_and_lookup_agree(records: list[TunedRecord], tmp_path: Path) -> None:
    header = render(records)
    rng = random.Random(20261121)
    folders = re.findall(r"^  (\w+),?  ///< [^,]*, (?:sm_|opencl)", header, re.MULTILINE)
    assert len(folders) == len(records)
    asked = [_question(rng, records, folders) for _ in range(QUESTIONS)]
    answers = agreed(tmp_path, header, asked, folders)
    assert {answer[7] for answer in answers} >= {0, 1, 2, 3, 4, None}
    assert {answer[-1].count(",") for answer in answers if answer[-1]} == {1, 2, 3}
    assert {(answer[7], answer[-2]) for answer in answers} >= {
        (0, 1),
        (1, 0),
        (1, 1),
        (3, 1),
        (4, 0),
    }


#: The product of 7 and another number is the largest integer.
LARGEST = 2**63 - 1


@pytest.fixture
def bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TunedRecord]:
    """Records of two architectures as near to a third, with plans that few problems or none may use."""
    archs = ("sm_90", "sm_100", "sm_110")
    fits = ["and", ["<=", 1, ["+", "m", "n"]], ["<=", 1, ["*", "m", "n"]]]
    here, least = problem(64, 64), plan(32, archs=("sm_90",))
    table = table_of(plan(64, archs=archs), at=here, expected=expecting(0.9, 70))
    made = [
        record(
            [
                entry(here, plan(bm, archs=archs, grid=("m", 1, 1))),
                entry(problem(64, 64, "half2"), plan(bm, archs=archs, requires=fits)),
                entry(problem(64, 64, "int-8"), plan(bm, archs=())),
            ],
            arch,
            arch,
            default=least,
            portfolio=portfolio,
        )
        for arch, bm, portfolio in (
            ("sm_90", 128, answering(table)),
            ("sm_110", 64, answering()),
        )
    ]
    for known in made:
        write(tmp_path / "given", known)
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "given"))
    clear_cache()
    return made


def test_header_and_lookup_agree_at_bounds(bounded: list[TunedRecord], tmp_path: Path) -> None:
    """Of extents, sums, products, distances and steps; between architectures; where no plan is valid."""
    steps = [root // 2 for root in SIXTEENTHS if root % 2 == 0]
    asked = [
        *(("a", 90, m, 64, "float32", False) for m in (1, 69, 70, 71, *steps)),
        *(("a", 110, m, 64, "float32", False) for m in (0, 1, 2**31 - 1, 2**31)),
        *(("a", 90, m, n, "half2", False) for m, n in ((LARGEST - 1, 1), (LARGEST, 1))),
        *(("a", 90, m, n, "half2", False) for m, n in ((7, LARGEST // 7), (7, LARGEST // 7 + 1))),
        *(("a", arch, 64, 64, "float32", False) for arch in (80, 90, 100, 110, 120)),
        *(("a", arch, 64, 64, "int-8", False) for arch in (80, 90, 100, 110)),
    ]
    folders = [known.device.folder for known in bounded]
    answers = agreed(tmp_path, render(bounded), asked, folders)
    shares = [answer[8] for answer in answers[:4]]
    assert shares == [0.9, 0.9, 0.9, -1.0]
    assert [answer is NONE for answer in answers[-4:]] == [True, False, True, False]


def test_header_and_lookup_agree_where_the_plan_of_no_row_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration of the nearest row's fit answers; where none of these runs either, the default does."""
    own, *others = (
        plan(bm, requires=["<=", "m", most], deterministic=True)
        for bm, most in ((64, 100), (128, 5000), (32, 900))
    )
    costs = [
        Cost(plan=each, fixed=(), waves=((2**31 - 1, ((factor, ("m",)),)),), misaligned={})
        for each, factor in zip(others, (3e-6, 2e-6), strict=True)
    ]
    table = table_of(own, costs=costs, expected=expecting(0.9, 10**4))
    entries = [entry(problem(64, 64, dtype), own) for dtype in CATEGORIES]
    made = record(entries, portfolio=answering(table))
    write(tmp_path / "given", made)
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "given"))
    clear_cache()
    folders = [made.device.folder]
    asked = [("d", 0, m, 64, "float32", wanted) for m in (65, 500, 901) for wanted in (0, 1)]
    answers = agreed(tmp_path, render([made]), asked, folders)
    assert [(each[0], each[7]) for each in answers[::2]] == [(32, 1), (32, 1), (128, 1)]
    assert [each[8] for each in answers] == [0.9] * len(answers)
    (answer,) = agreed(tmp_path, render([made]), [("d", 0, 5001, 64, "float32", 0)], folders)
    assert (answer[0], answer[7]) == (32, 4)


def test_header_and_lookup_expect_no_speed_of_a_plan_that_no_prediction_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    even = plan(128, requires=["==", ["%", "n", 2], 0])
    cost = Cost(plan=even, fixed=((1.0, ()),), waves=())
    table = table_of(plan(64), costs=[cost], expected=expecting(0.9, 10**4))
    entries = [entry(problem(64, 64, dtype), plan(64)) for dtype in CATEGORIES]
    made = record(entries, portfolio=answering(table))
    write(tmp_path / "given", made)
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "given"))
    clear_cache()
    asked = [("d", 0, 100, n, "float32", False) for n in (10, 11)]
    answers = agreed(tmp_path, render([made]), asked, [made.device.folder])
    assert [(each[0], *each[8:10]) for each in answers] == [(128, 0.9, 1.0), (64, -1.0, -1.0)]


def agreed(folder: Path, header: str, asked: list[Any], folders: list[str]) -> list[list[Any]]:
    """The answers of `lookup`, after the header gave the same."""
    (folder / f"{KERNEL}.hpp").write_text(header)
    enumerators = ", ".join(f"dtype_value::{identifier(category)}" for category in CATEGORIES)
    lines = "".join(
        f"{how} {where} {m} {n} {CATEGORIES.index(dtype)} {wanted:d}\n"
        for how, where, m, n, dtype, wanted in asked
    )
    answers = compile_and_run(folder, ASK.replace("CATEGORIES", enumerators), lines).splitlines()
    expected = [_python(question, folders) for question in asked]
    for question, right, answer in zip(asked, expected, answers, strict=True):
        _compare(question, right, answer.split())
    return expected


def _question(rng: random.Random, records: list[TunedRecord], folders: list[str]) -> Any:
    how = rng.choice("adu")
    where = rng.choice(ARCHS)
    if how == "d":
        where = rng.randrange(len(folders))
    if rng.random() < 0.3:
        known = rng.choice(rng.choice(records).problems).problem
        return how, where, known["m"], known["n"], known["dtype"], rng.random() < 0.5
    sizes = [
        rng.choice(
            (
                rng.randrange(1, 5000),
                2 ** rng.randrange(63) + rng.randrange(-1, 2),
                rng.randrange(2**63),
                rng.randrange(2**40),
                0,
            )
        )
        for _ in range(2)
    ]
    return how, where, *sizes, rng.choice(CATEGORIES), rng.random() < 0.5


def multiprocessors_of(m: int) -> int:
    return 20 + m % 200


def _python(question: Any, folders: list[str]) -> list[Any]:
    how, where, m, n, dtype, wanted = question
    place: dict[str, Any] = {"arch": where} if how == "a" else {}
    if how == "d":
        place = {"device": folders[where]}
    if how == "u":
        count = multiprocessors_of(m)
        place = {"device": Device("cuda", "Unknown GPU", str(normal_arch(where)), sm_count=count)}
    try:
        c = lookup(KERNEL, **place, deterministic=wanted, m=m, n=n, dtype=dtype)
    except NoAnswerError:
        return NONE
    assert c.deterministic or not wanted
    launches = "".join(
        ":".join(
            map(str, (known.entry, *(known.grid or (0, 0, 0)), *known.block, known.shared_bytes))
        )
        + ","
        for known in c.launches
    )
    return [
        c["BM"],
        int(c["SWIZZLE"]),
        PARAMETERS["VARIANT"].index(c["VARIANT"]),
        *c.block,
        c.shared_bytes,
        ("exact", "nearest_problem", "same_arch", "nearest_arch", "default").index(c.quality),
        -1.0 if c.expected_fraction is None else c.expected_fraction,
        -1.0 if c.median_fraction is None else c.median_fraction,
        int(c.exclusive),
        int(c.deterministic),
        *(c.grid or (0, 0, 0)),
        sixteenths(m),
        int(c.verified),
        launches,
    ]


def _compare(question: Any, expected: list[Any], answer: list[str]) -> None:
    launches, *facts = answer
    got = [float(text) if i in (8, 9) else int(text) for i, text in enumerate(facts)]
    assert ([*got, launches] if got else NONE) == expected, question


def test_plans_for_other_layouts_are_in_no_header() -> None:
    made = [record(portfolio=answering(table_of(plan(64), *more))) for more in ((), (plan(128),))]
    one, more = (re.sub(r"and records \w+", "", render([each])) for each in made)
    assert one == more


def test_equal_records_give_equal_bytes(records: list[TunedRecord]) -> None:
    assert render(records) == render(records[::-1]) == render(records)


def test_a_config_is_a_constant_expression(tmp_path: Path) -> None:
    chosen = plan(128, "3xtf32", swizzle=True)
    (tmp_path / f"{KERNEL}.hpp").write_text(render([record([entry(problem(512, 512), chosen)])]))
    program = """
#include "demo_gemm.hpp"
#include "demo_gemm.hpp"
#include <cstdio>
namespace demo = autotune::demo_gemm;
template <int BM, bool SWIZZLE, demo::VARIANT_value VARIANT> int tile() { return BM; }
int main(int count, char**) {
  constexpr demo::config c = *demo::lookup(90, 512, 512, demo::dtype_value::float32);
  static_assert(c.VARIANT == demo::VARIANT_value::v3xtf32 && c.hit == demo::quality::exact);
  static_assert(demo::lookup(demo::device::Test_GPU_A, 512, 512, c.dtype_of)->BM == 128);
  const demo::extent grid = c.grid(1000 * count, 64, demo::dtype_value::float32);
  std::printf("%d %u", tile<c.BM, c.SWIZZLE, c.VARIANT>(), grid.x);
}
""".replace("c.dtype_of", "demo::dtype_value::float32")
    assert compile_and_run(tmp_path, program) == "128 8"


def test_the_header_asserts_its_own_answers(tmp_path: Path) -> None:
    header = render([record([entry(problem(512, 512), plan(128)), entry(problem(8, 8), plan(64))])])
    asked = "lookup(90, 512, 512, dtype_value::float32)"
    assert f"static_assert(detail::is({asked}, 2, quality::exact));" in header
    broken = header.replace("{{512, 512, ", "{{513, 512, ")
    assert broken != header
    for text, compiles in ((header, True), (broken, False)):
        (tmp_path / "x.hpp").write_text(text)
        command = ["g++", *STRICT, "-fsyntax-only", "-x", "c++", "x.hpp"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == compiles, done.stderr


#: A tuned member as a template argument of a kernel.
IN_HOST_CODE = """
template <int BM> __global__ void tiles(int* out) { out[threadIdx.x] = BM; }
void start(int* out, int m) {
  constexpr demo::config c = *demo::lookup(90, 512, 512, demo::dtype_value::float32);
  const demo::extent grid = c.grid(m, 512, demo::dtype_value::float32);
  tiles<c.BM><<<dim3(grid.x, grid.y), dim3(c.block.x, c.block.y), c.shared_bytes>>>(out);
}
"""
IN_DEVICE_CODE = """
__global__ void tile(int* out) {
#ifdef __CUDA_ARCH__
  constexpr demo::config c = *demo::lookup(__CUDA_ARCH__, 512, 512, demo::dtype_value::float32);
  static_assert(c.hit == demo::quality::exact);
  *out = c.BM;
#endif
}
"""


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("program", "flags"),
    [(IN_HOST_CODE, ()), (IN_DEVICE_CODE, ("--expt-relaxed-constexpr",))],
    ids=["host", "device"],
)
def test_nvcc_takes_the_header(
    program: str, flags: tuple[str, ...], nvcc: str, tmp_path: Path
) -> None:
    header = render([record([entry(problem(512, 512), plan(128))])])
    (tmp_path / f"{KERNEL}.hpp").write_text(header)
    namespace = "namespace demo = autotune::demo_gemm;"
    (tmp_path / "main.cu").write_text(f'#include "{KERNEL}.hpp"\n{namespace}{program}')
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", *flags, "-c"]
    subprocess.run([*command, "main.cu"], cwd=tmp_path, check=True, timeout=300)


# ---------------------------------------------------------------------- awkward records


def syntax_check(header: str, folder: Path) -> None:
    """Compile a header alone."""
    (folder / "x.hpp").write_text(header)
    command = ["g++", *STRICT, "-fsyntax-only", "-x", "c++", "x.hpp"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)


def test_a_record_of_nothing_but_a_default(tmp_path: Path) -> None:
    syntax_check(render([record()]), tmp_path)
    only = record(fields={"dtype": "categorical"}, default=plan(32, grid=(1, 1, 1)))
    syntax_check(render([only]), tmp_path)


def test_a_kernel_without_parameters_has_a_header(tmp_path: Path) -> None:
    only = record(parameters={}, default=plan(configuration={}))
    syntax_check(render([only]), tmp_path)


def test_a_value_that_is_declared_no_more_answers_nothing() -> None:
    older = record(
        [entry(problem(64, 64), plan(64, "3xtf32"))],
        parameters={**PARAMETERS, "VARIANT": ("simt",)},
    )
    header = render([older])
    assert "v3xtf32" not in header
    assert (
        ", left out because stale: its configuration is no longer in the declared space" in header
    )


def test_keywords_and_odd_names_become_identifiers(tmp_path: Path) -> None:
    names: dict[str, Any] = {
        "parameters": {"BM": (1, 2**40), "int": ("float", "FLOAT", "default"), "__X__": (True,)},
        "fields": {"long": "integer", "arch": "categorical", "number": "integer"},
    }
    values = {"BM": 2**40, "int": "float", "__X__": True}
    chosen = plan(configuration=values, grid=(["*", "long", 2**31 - 1], ["+", "number", 9], 1))
    at = [{"long": 1, "arch": name, "number": 2} for name in ("a-b", "a b", "9", "", 'quote"\\')]
    made = record([entry(each, chosen) for each in at], default=chosen, **names)
    syntax_check(render([made]), tmp_path)


#: What a header has of its record, not of the template.
OF_THE_RECORD = {KERNEL, *PARAMETERS, *FIELDS, "VARIANT_value", "dtype_value", "Test_GPU_A"} | {
    *("simt", "v3xtf32", "auto_", "float32", f"AUTOTUNE_{KERNEL}_HPP")
}


def template_names() -> set[str]:
    """Every name in the header's text, locals included."""
    text = re.sub(r"//[^\n]*", "", render([decode(with_cost())]))
    return set(re.findall(r"\b[A-Za-z_]\w*", text)) - OF_THE_RECORD


def test_the_reserved_words_are_the_templates_and_the_standard_headers() -> None:
    names = template_names()
    assert {"p_", "row_", "lookup", "static_cast", "config"} <= names
    locals_ = {name for name in names if name.endswith("_")}
    assert names - locals_ - taken() == {"x", "y", "z"}
    assert not {name[:-1] for name in locals_} & taken()  # else a reserved name would become one
    assert {"EOF", "errno", "INT8_C", "NAN"} <= taken()  # macros of standard headers


def test_names_of_the_template_and_of_macros_are_names_of_fields_and_parameters(
    tmp_path: Path,
) -> None:
    words = {name.rstrip("_") for name in template_names()} | {"p", "row", "n", "errno", "stdin"}
    fields = dict.fromkeys(sorted(words - {"x_"}), "integer")
    parameters = dict.fromkeys(("EOF", "LONG_MAX", "NAN", "NULL", "EDOM", "INT8_C", "BM"), (1,))
    values: dict[str, Any] = dict.fromkeys(parameters, 1)
    chosen = plan(configuration=values, grid=(ceil_div("p", 2), ["+", "row", "number"], 1))
    at = dict.fromkeys(fields, 8)
    fields["dtype_value"], at["dtype_value"] = "integer", 1
    fields["dtype"], at["dtype"] = "categorical", "int"
    made = record(
        [entry(at, chosen)],
        default=chosen,
        parameters=parameters,
        fields=fields,
        kernel="namespace",
    )
    headers = ("cstdio", "climits", "cmath", "cerrno", "cstdint")
    included = "".join(f"#include <{name}>\n" for name in headers)
    syntax_check(included + render([made]), tmp_path)


def test_parameters_in_any_case_and_floats_are_members(tmp_path: Path) -> None:
    words = {name.rstrip("_") for name in template_names()} | {"block_size_x", "p", "row", "best"}
    fields: dict[str, Any] = {"m": "integer", "lower": "integer"}
    parameters: dict[str, Any] = dict.fromkeys(sorted(words - {*fields, ""}), (0.5, 1.0, 1e-30))
    parameters["block_size_x"], parameters["kind"] = (32, 64), ("float", "kind")
    values = {name: declared[1] for name, declared in parameters.items()}
    chosen = plan(configuration=values, grid=(ceil_div("m", 2), "lower", 1))
    at = {"m": 8, "lower": 1}
    made = record([entry(at, chosen)], default=chosen, parameters=parameters, fields=fields)
    again = decode(encode(made))
    assert [type(value) for value in again.default.configuration.values()] == list(
        map(type, values.values())
    )
    asked = "using namespace autotune::demo_gemm;constexpr config c = *lookup(90, 8, 1);"
    asked += "static_assert(c.p == 1.0 && c.block_size_x == 64 && c.kind == kind_value::kind);"
    asked += "static_assert(c.grid(8, 1).x == 4);"
    syntax_check(render([again]) + asked, tmp_path)


def test_names_of_old_records_that_a_header_cannot_tell_apart_are_refused() -> None:
    fields: dict[str, Any] = {"n": "integer", "n_": "integer"}
    with pytest.raises(UsageError, match="demo_gemm: a header cannot tell n and n_ apart"):
        render([record(fields=fields, default=plan(grid=(1, 1, 1)))])


INJECTION = 'x\n#error "injected"\\\n*/ int main() { ??/\n'


def test_text_cannot_leave_its_comment(tmp_path: Path) -> None:
    vendor = vendor_call(INJECTION, 1.0, 1.0, 0.9, 1.1)
    made = entry(problem(8, 8, INJECTION), vendor=vendor, timing=INJECTION)
    named = record([made], device=INJECTION.replace("\n", " "), arch="sm_90")
    header = render([named])
    assert not re.search(r"^#error", header, re.MULTILINE)
    syntax_check(header, tmp_path)
    assert comment("a\\") == "a/"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (["-", 0, ["//", ["-", 0, "m"], 128]], "ceil_div(m, number{128})"),
        (["//", ["+", "n", 1], "k"], "floor_div((n + number{1}), k)"),
        (["and", ["==", "m", 0], ["<=", "m", "n"]], "both((m == number{0}), (m <= n))"),
        (["min", "m", 2**70], "minimum(m, number{0, false})"),
    ],
)
def test_expressions_in_cpp(form: Any, text: str) -> None:
    assert expression(form) == text


def _other_kernel(made: TunedRecord) -> list[TunedRecord]:
    return [made, record(kernel="other")]


def _other_parameters(made: TunedRecord) -> list[TunedRecord]:
    chosen = plan(configuration={"BM": 32})
    return [made, record(parameters={"BM": (32,)}, default=chosen, device="Test GPU B")]


@pytest.mark.parametrize(
    ("records_of", "message"),
    [
        (lambda made: [], "no tuned records"),
        (_other_kernel, "one kernel, not demo_gemm, other"),
        (_other_parameters, "left out: its problem fields or parameters differ"),
    ],
)
def test_records_that_make_no_header(
    records_of: Callable[[TunedRecord], list[TunedRecord]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        render(records_of(record()))


# ---------------------------------------------------------------------- Exports


def measured(bm: int, status: Status = Status.OK, **changes: Any) -> Measurement:
    """A measurement of one tile."""
    samples = (0.3, 0.1, 0.2) if status.is_timed else ()
    values = {"BM": bm, "SWIZZLE": True, "VARIANT": "auto"}
    return Measurement(Configuration(values), status, samples_ms=samples, compile_s=1.5, **changes)


@pytest.fixture
def results() -> Results:
    """One configuration that ran and two that did not."""
    return Results(
        kernel=KERNEL,
        device_name="Test GPU A",
        problem=Problem(problem(64, 128)),
        parameters=PARAMETERS,
        measurements=(
            measured(32),
            measured(64, Status.WRONG_RESULT, message="c[5] is NaN"),
            measured(128, Status.COMPILE_FAILED),
        ),
        timestamps=("2026-11-21T00:00:00+00:00",) * 3,
    )


@pytest.fixture
def recorded() -> list[TunedRecord]:
    """Two devices, two problems on the first."""
    return [
        record([entry(problem(512, 64), plan(128)), entry(problem(64, 8, "float16"))]),
        record([entry(problem(64, 64))], "Test GPU B", "sm_80"),
    ]


# ---------------------------------------------------------------------- by name


def test_every_format_gives_equal_bytes(recorded: list[TunedRecord], results: Results) -> None:
    assert export_records("header", recorded) == export_records("header", recorded[::-1])
    for name in ("t4", "cache"):  # cuda is of a kernel that is declared: test_export_cuda
        assert export_measurements(name, results) == export_measurements(name, results)


def test_nothing_tuned_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nothing is tuned"):
        export_records("header", [])


# ---------------------------------------------------------------------- measurements


def test_t4_keeps_to_its_schema(results: Results) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    file_utils = pytest.importorskip("kernel_tuner.file_utils")
    document = json.loads(export_measurements("t4", results)[f"{KERNEL}-t4.json"])
    _, schema = file_utils.output_file_schema("results")
    jsonschema.validate(document, schema)
    rows = document["results"]
    assert [row["invalidity"] for row in rows] == ["correct", "correctness", "compile"]
    assert [row["correctness"] for row in rows] == [1, 0, 0]
    assert rows[0]["measurements"] == [{"name": "time", "value": 0.2, "unit": "ms"}]
    assert rows[0]["times"]["compilation_time"] == 1500
    assert rows[0]["configuration"] == dict(results.measurements[0].configuration)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_word_in_t4(status: Status, results: Results) -> None:
    from dataclasses import replace

    only = replace(results, measurements=(measured(32, status),), timestamps=("",))
    row = json.loads(export_measurements("t4", only)[f"{KERNEL}-t4.json"])["results"][0]
    assert (row["invalidity"] == "correct") == status.is_timed
    assert "timestamp" not in row


def test_kernel_tuner_reads_the_cache(results: Results, tmp_path: Path) -> None:
    util = pytest.importorskip("kernel_tuner.util")
    path = tmp_path / "cache.json"
    path.write_text(export_measurements("cache", results)[f"{KERNEL}-cache.json"])
    data = util.read_cache(str(path), open_cache=False)
    assert list(data["cache"]) == ["32,True,auto", "64,True,auto", "128,True,auto"]
    assert data["cache"]["32,True,auto"]["time"] == 0.2
    assert isinstance(data["cache"]["128,True,auto"]["__error__"], util.CompilationFailedConfig)
    assert data["tune_params_keys"] == list(PARAMETERS)
    assert data["problem_size"] == [64, 128]


def test_a_value_of_a_field_names_no_file_outside_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_space(tmp_path, ("Problem(n=1000)", 'Problem(mode="", other="")'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    modes = [("../../../../escaped", ""), ("1-other2", "3"), ("1", "2-other3"), ("/", "\ud800")]
    timed = measured(1)
    with Store.open(default_url()) as store:
        run_id = store.begin_run(RunInfo("scale", "GPU", "random", 0, "0.1.0", ""))
        for mode, other in modes:
            for timing in ("cold:graph", "hot", "mixed:graph"):
                scope = Scope(
                    "scale", Problem(mode=mode, other=other), "u", "GPU", "1", "n", "s", "a", timing
                )
                store.add(run_id, scope, replace(timed, configuration=Configuration(BLOCK=32)))
    for format in ("t4", "cache"):
        out = tmp_path / "deep" / "out" / format
        assert run(["export", "scale", format, "--out", str(out)]) == 0
        made = list(tmp_path.rglob(f"scale-{format}.json"))
        assert len(made) == 3 * len(modes)
        assert {file.parents[2] for file in made} == {out}
