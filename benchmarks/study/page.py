"""Writes docs/study/notes.md: a paragraph, a table and a command for each row, and the verdict of each claim."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from study.claims import CLAIMS, Found, Missing, Results

#: A column of a table: a figure of a variant; Missing where it has none.
Column = Callable[[Found], str]


def _counter(name: str, digits: str = ".3g", scale: float = 1.0) -> Column:
    return lambda found: format(found.count(name) * scale, digits)


def _figure(name: str, digits: str = ".0f") -> Column:
    return lambda found: format(found.number(name), digits)


def _widths(kind: str) -> Column:
    return lambda found: ", ".join(
        f"{count} × {width}"
        for width, count in sorted(found.code("accesses").get(kind, {}).items())
    )


def _ways(found: Found) -> str:
    return f"{found.count('wave_ld') / found.count('shared_loads'):.3g}"


COLUMNS: Mapping[str, Column] = {
    "µs": lambda found: f"{found.us:.1f}",
    "µs hot": lambda found: f"{1e3 * found.number('hot_ms'):.1f}",
    "GB/s": _figure("gb_per_s"),
    "TFLOP/s": lambda found: f"{found.number('gflop_per_s') / 1e3:.1f}",
    "registers": _figure("registers"),
    "bytes spilled": _figure("spill_bytes"),
    "occupancy": _figure("occupancy", ".0%"),
    "achieved %": _counter("occupancy", ".0f"),
    "threads active": lambda found: (
        f"{found.count('pred' if 'pred' in found.values.get('counters', {}) else 'simt'):.1f}"
    ),
    "sectors, load": _counter("sectors_ld"),
    "sectors, store": _counter("sectors_st"),
    "used, load %": _counter("used_ld"),
    "used, store %": _counter("used_st"),
    "L1 hits %": _counter("l1_hit", ".0f"),
    "L2 hits %": _counter("l2_hit", ".0f"),
    "read, MB": _counter("dram_read", ".0f", 1e-6),
    "memory %": _counter("dram", ".0f"),
    "conflicts": lambda found: f"{found.count('bank_ld', 'bank_st'):.3g}",
    "wavefronts a load": _ways,
    "local loads": _counter("local_ld"),
    "waits for memory": _counter("stall_long_scoreboard", ".1f"),
    "waits at barriers": _counter("stall_barrier", ".1f"),
    "tensor %": _counter("tensor", ".0f"),
    "global loads": _widths("global loads"),
    "shared loads": _widths("shared loads"),
    "calls": lambda found: str(found.code("calls")),
    "branches": lambda found: str(found.code("branches")),
    "predicated": lambda found: str(found.code("predicated")),
    "FFMA in the loop": lambda found: f"{found.ffma_share:.0%}",
}


@dataclass(frozen=True)
class Row:
    """A row of the notes on the page."""

    title: str
    text: str
    columns: Sequence[str] = ()
    #: Of `autotune explain`, or of another program.
    command: str = ""
    #: Row of the results with its experiments, where that is another one; and the first words of their names.
    source: str = ""
    only: str = ""
    #: Lines from what the row measured beside kernels.
    more: Callable[[Mapping[str, Any]], list[str]] | None = None


def _explain(kernel: str, problem: str, *configs: str, variants: str = "") -> str:
    named = f" --variants {variants}" if variants else ""
    options = "".join(f" --config {config}" for config in configs)
    return f"autotune explain {kernel} --problem {problem}{named}{options}"


def _winners(probe: Mapping[str, Any]) -> list[str]:
    lines = ["|kernel|winners on record|below 50 %|below 25 %|", "|---|--:|--:|--:|"]
    return lines + [
        f"|{name}|{each['known']}|{each['below_half']}|{each['below_quarter']}|"
        for name, each in probe.items()
    ]


def _steps(probe: Mapping[str, Any]) -> list[str]:
    steps = probe["ms_by_step"]
    return [
        f"|step of the CPU|{'|'.join(steps)}|",
        f"|---|{'--:|' * len(steps)}",
        f"|ms, 2^26 ints|{'|'.join(f'{ms:.0f}' for ms in steps.values())}|",
    ]


def _transfers(probe: Mapping[str, Any]) -> list[str]:
    link = probe["link_gb_per_s"]
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in probe["copy_gb_per_s"].items())
    chunks = ", ".join(f"{name} {ms:.1f}" for name, ms in probe["pipeline_ms"].items())
    small = ", ".join(f"{name} {ms:.2f}" for name, ms in probe["small_kernels_ms"].items())
    first = f"{probe['first_launch_ms']:.2f} ms, later ones {probe['later_launch_ms']:.3f} ms"
    return [
        f"- Copies, GB/s: {rates}; the link has {f'{link:.0f}' if link else 'an unknown rate'}.",
        f"- Copy in, kernel, copy out of 2^25 floats, ms by chunks on streams: {chunks}.",
        f"- Four kernels of one block, ms: {small}.",
        f"- The first launch of a kernel with the wait for its end: {first}.",
    ]


def _numbers(probe: Mapping[str, Any]) -> list[str]:
    lines = ["|attribute|value|", "|---|--:|"]
    return lines + [f"|{name}|{value:,}|" for name, value in probe.items()]


_COUNTED = ("µs", "sectors, load", "sectors, store", "memory %")

ROWS: Mapping[str, Row] = {
    "E01": Row(
        "A ladder of reductions",
        "Each rung removes one fault: idle lanes, bank conflicts, threads without work, barriers, too few loads "
        "in flight. Most of the gain is in loads, not in the tree.",
        ("µs", "GB/s", "threads active", "conflicts", "waits at barriers", "memory %"),
        _explain(
            "reduce_op",
            "n=16777216,op=sum,dtype=float32",
            variants="interleaved,sequential,wide",
        ),
    ),
    "E02": Row(
        "Copy in vectors",
        "A thread that moves 16 bytes needs a quarter of the instructions (`LDG.E.128` in SASS). Bytes in flight "
        "decide the rate; several narrow loads give as many.",
        ("µs", "GB/s", "global loads", *_COUNTED[1:]),
        _explain("copy", "n=16777216,mode=copy,offset_in=0,offset_out=0", variants="vectors,several,naive"),
    ),
    "E03": Row(
        "Prefetch",
        "With 4 warps a multiprocessor, the prefetch distance decides; with all warps resident, they hide each "
        "other's latency. Prefetched values stay in registers if the compiler knows the indices.",
        ("µs", "GB/s", "registers", "local loads", "conflicts", "waits for memory"),
        _explain(
            "prefetch",
            "n=16777216,intensity=32,warps_per_sm=4",
            variants="plain,batch",
        ),
    ),
    "E04": Row(
        "A product with two of everything",
        "Double buffering loads the next tile while the current one is used, in shared memory (*shared*) and also "
        "in registers (*both*).",
        ("µs", "TFLOP/s", "registers", "occupancy", "FFMA in the loop", "waits at barriers"),
        _explain(
            "sgemm",
            "m=2048,n=2048,k=2048",
            variants="register,double",
        ),
    ),
    "E05": Row(
        "Matrix times vector",
        "Each element of the matrix is used once, so the read rate is the limit. A block per row has "
        "more loads in flight than a warp.",
        ("µs", "GB/s", "global loads", "sectors, load", "memory %"),
        _explain("gemv", "m=4096,n=4096", variants="naive,block,vectors"),
    ),
    "E06": Row(
        "A product without tiles",
        "The lanes of a warp share a row of A, and L1 serves the rest.",
        ("µs", "TFLOP/s", "L1 hits %", "L2 hits %", "read, MB", "tensor %"),
        _explain("sgemm", "m=512,n=512,k=512", variants="naive,best"),
        only="512^3",
    ),
    "E07": Row(
        "A product with tiles in shared memory",
        "With 16 × 16 tiles each multiply-add needs two loads from shared memory. Tiles in "
        "registers (`register`) save those.",
        ("µs", "TFLOP/s", "FFMA in the loop", "shared loads", "L1 hits %", "read, MB"),
        _explain("sgemm", "m=2048,n=2048,k=2048", variants="tile,register"),
        source="E06",
        only="2048^3",
    ),
    "E08": Row(
        "Gather",
        "Memory moves sectors of 32 bytes.",
        (*_COUNTED[:3], "used, load %", "L2 hits %", "read, MB"),
        _explain("gather", "n=1048576,pattern=stride,stride=17,side=load", variants="naive"),
    ),
    "E09": Row(
        "Alignment and pitch",
        "Vectors lose most; `PEEL=shift` realigns them in registers.",
        ("µs", "GB/s", *_COUNTED[1:]),
        _explain("pitch", "m=16384,n=1001,ldx=1008,ldo=1008", variants="vectors"),
    ),
    "E10": Row(
        "Select",
        "Short paths become predicates or selects, long ones branches. `sorted` puts the even elements of a "
        "block first.",
        ("µs", "threads active", "branches", "predicated", "sectors, store"),
        _explain(
            "branch",
            "n=1048576,pattern=alternating,work=512",
            variants="stores,ternary,sorted",
        ),
    ),
    "E11": Row(
        "Lookup table",
        "An array with an unknown index is a chain of selects or lies in local memory.",
        ("µs", "GB/s", "threads active", "calls", "branches"),
        _explain(
            "table",
            "n=16777216,entries=16,index=random,table_in=array",
            variants="pointers,shared",
        ),
    ),
    "E12": Row(
        "Unrolling",
        "Unrolled steps share address arithmetic and need more registers.",
        ("µs", "TFLOP/s", "registers", "occupancy", "shared loads", "FFMA in the loop"),
        _explain("unroll", "m=2048,n=2048,k=2048", "UNROLL=1", "UNROLL=8", "UNROLL=0"),
    ),
    "E13": Row(
        "A cap on registers",
        "Compilers ignore `-maxrregcount` for kernels with launch bounds; `__maxnreg__` works.",
        ("µs", "registers", "bytes spilled", "occupancy", "local loads"),
        _explain("unroll", "m=2048,n=2048,k=2048", variants="square_cap_64,square"),
    ),
    "E14": Row(
        "Occupancy",
        "Shared memory limits the blocks of a transpose here. The second table counts the recorded winners.",
        ("µs", "GB/s", "occupancy", "achieved %", "waits for memory"),
        _explain(
            "transpose",
            "m=4096,n=4096",
            "ALG=shared,TILE_Y=64,TILE_X=64,BLOCK=128,VEC=4,LAYOUT=xor,RESIDENT=3",
        ),
        more=_winners,
    ),
    "E15": Row(
        "Particles",
        "Three fields as structs of 12 or 16 bytes, as three arrays, or 32 of each in turn.",
        (*_COUNTED[:2], "used, load %", "L1 hits %", "read, MB", "GB/s"),
        _explain("particles", "n=16777216,layout=aos12,fields=1", variants="direct,shared"),
    ),
    "E16": Row(
        "Half-precision product on tensor cores",
        "One instruction multiplies whole matrices: m16n8k16 for `mma.sync`, 64 rows and up to 256 columns for "
        "`wgmma`.",
        ("µs", "TFLOP/s", "tensor %", "registers", "occupancy"),
        "autotune explain hgemm",
    ),
    "E17": Row(
        "Inline PTX",
        "PTX reaches instructions without an intrinsic: `cp.async`, `ldmatrix`, `wgmma`.",
        ("µs", "GB/s", "registers", "memory %"),
        _explain(
            "prefetch",
            "n=16777216,intensity=8,warps_per_sm=4",
            variants="shared,asynchronous",
        ),
    ),
    "E18": Row(
        "Launch shape",
        "A block is whole warps: of 100 threads the last warp has 28 idle lanes.",
        ("µs",),
        _explain("elementwise", "n=8388608,op=add,m=8388608", "BLOCK=48,VEC=1", "BLOCK=256,VEC=1"),
    ),
    "E19": Row(
        "A ladder of latencies",
        "Each load names the place of the next. Time over steps is the latency of the level that holds the chain.",
        ("µs", "µs hot"),
        _explain("chase", "n=8192,steps=16384,gap=32", variants="global,shared"),
    ),
    "E20": Row(
        "Strides and lines",
        "Reading every second element moves the same lines as reading all.",
        ("µs", "sectors, load", "used, load %", "read, MB"),
        _explain("gather", "n=4194304,pattern=every,stride=8,side=load", variants="naive"),
        more=_steps,
    ),
    "E21": Row(
        "Reverse",
        "Lanes in reverse order read the same sectors, so shared memory or shuffles gain little.",
        ("µs", "GB/s", *_COUNTED[1:3]),
        _explain("gather", "n=1048576,pattern=reverse,stride=1,side=load", variants="direct,shuffle"),
    ),
    "E22": Row(
        "Banks",
        "Shared memory has 32 banks, one word wide.",
        ("µs", "wavefronts a load", "conflicts"),
        _explain("banks", "n=262144,stride=32,reads=1024", variants="plain,padded,xor"),
    ),
    "E23": Row(
        "Convolution",
        "Outputs per thread, vectors and constant memory save load instructions. With 8 outputs or more, stores "
        "are the limit.",
        ("µs", "GB/s", "registers", "FFMA in the loop", "L1 hits %", "memory %"),
        _explain(
            "conv1d",
            "n=16777216,taps=31,mask_in=array",
            variants="naive,window,vectors,staged",
        ),
        only="31 taps",
    ),
    "E24": Row(
        "Sparse times dense",
        "A team per row is best if rows have one length. If one row has thousands of entries, all teams of a "
        "block share it (`block`), or each team has the same number of entries (`split`).",
        ("µs", "GB/s", "L2 hits %", "memory %", "achieved %"),
        _explain(
            "spmm",
            "kind=powerlaw,m=131072,k=131072,n=32,each=16,entries=1396173",
            variants="row,block,split",
        ),
    ),
    "E25": Row(
        "Triangles",
        "Three ways to intersect two lists.",
        ("µs", "threads active", "L1 hits %", "L2 hits %", "achieved %"),
        _explain("triangles", "kind=powerlaw,n=65536,each=16", variants="merge,search,hash"),
    ),
    "E26": Row(
        "Add, aligned and not",
        "Two reads and a write of 2^23 floats, then the same one element further on.",
        ("µs", "GB/s", *_COUNTED[1:3], "L1 hits %", "L2 hits %"),
        _explain(
            "elementwise",
            "n=8388608,op=add,m=8388608,offset_a=1,offset_b=1,offset_out=1",
            variants="naive,vectors",
        ),
    ),
    "E27": Row(
        "Transpose, naive",
        "Rows are read coalesced and written a column at a time.",
        (*_COUNTED, "GB/s"),
        "autotune explain transpose --problem m=1024,n=1024 --variants naive,narrow,register",
        only="1024",
    ),
    "E28": Row(
        "Transpose, 4 × 4 in registers",
        "Each thread transposes a square of 4 × 4 floats. Tiles in shared memory write 256 bytes in one piece.",
        (*_COUNTED, "GB/s"),
        "autotune explain transpose --problem m=4096,n=4096 --variants narrow,register,best",
        source="E27",
        only="4096",
    ),
    "E29": Row(
        "Element by element",
        "After 1001 floats the second array of a join is not aligned.",
        ("µs", "GB/s", *_COUNTED[1:]),
        _explain("elementwise", "n=4194304,op=concat,m=1001", variants="vectors"),
    ),
    "E30": Row(
        "Transfers and streams",
        "The device copies pinned memory itself; pageable memory goes through a buffer of the driver. Chunks on "
        "several streams overlap copies and kernels until the link is full.",
        command="python examples/transfers/transfers.py",
        more=_transfers,
    ),
    "E31": Row(
        "The machine",
        "L1 and shared memory are one array; a multiprocessor has four schedulers.",
        command="autotune doctor",
        more=_numbers,
    ),
}  # fmt: skip


INTRODUCTION = (
    "This project began from study notes that teach CUDA by experiment. After this page you know which of "
    "their claims hold on a current GPU, and the command that shows each. Each experiment is a kernel of this "
    "repository; its variants compute the same result and differ in one idea."
)
METHOD = (
    "Times are medians of launches from cold caches, interleaved among the variants of an experiment; "
    "differences below 3 % mean nothing. Counters are Nsight Compute's, of one launch. *Sectors* (32 bytes) are "
    "per request of a warp. `make study-notes` measures all rows again and writes this page; "
    "`python benchmarks/study/notes.py --rows E08` measures one row."
)


def shown_of(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the results that the page shows: those with the most rows, and of these the newest."""

    def rank(document: Mapping[str, Any]) -> tuple[int, str]:
        rows = document["rows"]
        return len(rows), max(row["date"] for row in rows.values())

    return max(documents, key=rank)


def page(results: Results) -> str:
    """Return the page."""
    document = results.document
    dates = sorted({str(row["date"])[:10] for row in document["rows"].values() if "date" in row})
    when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)
    verdicts = [claim.judged(results) for claim in CLAIMS]
    return "\n".join(
        [
            "# The study notes, measured",
            "",
            textwrap.fill(INTRODUCTION, 118),
            "",
            textwrap.fill(f"Measured on {document['device']}, {when}. {METHOD}", 118),
            "",
            "## Claims",
            "",
            *_claims(verdicts),
            *(line for name, row in ROWS.items() for line in _row(name, row, results)),
        ]
    )  # fmt: skip


def _claims(verdicts: Sequence[tuple[str, str]]) -> list[str]:
    counted = {
        verdict: len(list(group)) for verdict, group in groupby(sorted(v for v, _ in verdicts))
    }
    summary = ", ".join(f"{verdict} {count}" for verdict, count in counted.items())
    lines = [f"{len(CLAIMS)} claims: {summary}.", ""]
    lines += ["||claim|measured|verdict|why|", "|---|---|---|---|---|"]
    for claim, (verdict, figures) in zip(CLAIMS, verdicts, strict=True):
        title = f"[{claim.row}](#{_anchor(claim.row, ROWS[claim.row].title)})"
        lines.append(f"|{title}|{claim.text}|{figures}|**{verdict}**|{claim.why}|")
    return [*lines, ""]


def _anchor(name: str, title: str) -> str:
    kept = "".join(each for each in f"{name} {title}".lower() if each.isalnum() or each in " -_")
    return kept.replace(" ", "-")


def _row(name: str, row: Row, results: Results) -> list[str]:
    lines = [f"## {name} {row.title}", "", textwrap.fill(row.text, 118), ""]
    try:
        found = results.row(row.source or name)
        if "error" in found:
            raise Missing(f"open: {found['error']}")
        if "note" in found:
            lines += [f"*{found['note']}.*", ""]
        table = _table(row, row.source or name, results, found)
        more = row.more(found["probe"]) if row.more and "probe" in found else []
        for part in (table, more):
            lines += [*part, ""] if part else []
    except Missing as error:
        lines += [f"Open: {error}.", ""]
    return [*lines, f"`{row.command}`", ""]


def _table(row: Row, name: str, results: Results, found: Mapping[str, Any]) -> list[str]:
    variants: list[tuple[str, str, Found]] = [
        (experiment, variant, results.of(name, experiment, variant))
        for experiment, measured in found.get("experiments", {}).items()
        if experiment.startswith(row.only)
        for variant in measured["variants"]
    ]
    if not variants:
        return []
    shown = [column for column in row.columns if any(_cell(column, each) for *_, each in variants)]
    lines = [f"|||{'|'.join(shown)}|", f"|---|---|{'--:|' * len(shown)}"]
    before = ""
    for experiment, variant, each in variants:
        if "failure" in each.values and "cold_ms" not in each.values:
            cells = f"{each.values['failure']}|" + "|" * (len(shown) - 1)
        else:
            cells = "|".join(_cell(column, each) for column in shown) + "|"
        lines.append(f"|{'' if experiment == before else experiment}|{variant}|{cells}")
        before = experiment
    return lines


def _cell(column: str, found: Found) -> str:
    try:
        return COLUMNS[column](found)
    except Missing:
        return ""
