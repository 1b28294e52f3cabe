"""The experiments of the study notes: which variants of which kernel each row of docs/study/notes.md measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.kernel.catalog import find_kernel
from autotune.measure.counters import FIGURES
from autotune.values import Problem, Value

#: Of a variant: parameters that are not at their first value, or the name of a variant of the space file.
Variant = Mapping[str, Value] | str

#: Counters beyond those of `autotune explain`, by short name.
FURTHER = {
    **{
        f"{what}_{side}_sum": f"l1tex__t_{what}_pipe_lsu_mem_global_op_{side}.sum"
        for what in ("requests", "sectors")
        for side in ("ld", "st")
    },
    "shared_loads": "smsp__sass_inst_executed_op_shared_ld.sum",
    "hit_ld": "l1tex__t_sector_pipe_lsu_mem_global_op_ld_hit_rate.pct",
    "hit_st": "l1tex__t_sector_pipe_lsu_mem_global_op_st_hit_rate.pct",
}
METRIC = {name: figure.metric for name, figure in FIGURES.items()} | FURTHER

SECTORS = ("sectors_ld", "sectors_st", "used_ld", "used_st", "l1_hit", "l2_hit")
RATES = ("time", "dram", "sm", "dram_read", "dram_write")
WARPS = ("simt", "pred", "occupancy", "stall_long_scoreboard", "stall_barrier", "stall_wait")
SHARED = ("wave_ld", "wave_st", "bank_ld", "bank_st", "shared_loads", "stall_short_scoreboard")


@dataclass(frozen=True)
class Experiment:
    """Variants of a kernel on a problem, raced with each other and counted."""

    name: str
    kernel: str
    problem: Problem
    variants: Mapping[str, Variant]
    #: Short names of counters; none: not counted.
    counts: tuple[str, ...] = (*RATES, *SECTORS, *WARPS)
    #: Whether calls back to back are timed too.
    is_hot: bool = False


def _ladder(
    n: int, dtype: str = "float32", **variants: Variant
) -> tuple[Problem, dict[str, Variant]]:
    return Problem(n=n, op="sum", dtype=dtype), dict(variants)


def _rung(reduction: str, tail: str = "barrier", **others: Value) -> dict[str, Value]:
    grid = "stride" if "WAVES" in others else "oneshot"
    shape = {"BLOCK": 256, "BYTES": 4, "ITEMS": 1, "GRID_MODE": grid, "FINISH": "kernel"}
    return {"BLOCK_RED": reduction, "TAIL": tail, **shape, **others}


def _wide(**others: Value) -> dict[str, Value]:
    return _rung("shuffle", "shuffle", BLOCK=512, BYTES=16, ITEMS=4, **others)


def _ahead(mode: str, distance: int = 1, **others: Value) -> dict[str, Value]:
    return {"MODE": mode, "PDIST": distance, "VEC": 4, "BLOCK": 128, **others}


def _turned(**others: Value) -> dict[str, Value]:
    tile = {"TILE_Y": 64, "TILE_X": 64, "BLOCK": 128, "VEC": 4, "LAYOUT": "xor"}
    return {"ALG": "shared", **tile, "ORDER": "column", **others}


def _copies(problem: Problem, name: str, **variants: Variant) -> Experiment:
    return Experiment(name, "copy", problem, variants)


def _copied(n: int, offset_in: int = 0, offset_out: int = 0) -> Problem:
    return Problem(n=n, mode="copy", offset_in=offset_in, offset_out=offset_out)


def _places(n: int, pattern: str, stride: int = 1, side: str = "load") -> Problem:
    return Problem(n=n, pattern=pattern, stride=stride, side=side)


def _listed(kernel: str, **fields: Value) -> Problem:
    """Return the first problem of a space file with these fields."""
    known = find_kernel(kernel).problems["cuda"]
    return next(problem for problem in known if fields.items() <= dict(problem).items())


def _declared(kernel: str) -> dict[str, Variant]:
    """Return the variants of a space file."""
    return {name: name for name in find_kernel(kernel).variants}


def _square(n: int) -> Problem:
    return Problem(m=n, n=n, k=n)


_N = 1 << 24
_LADDER = {name.replace("_", " "): name for name in find_kernel("reduce_op").variants}
_FINISHES = {finish: _wide(FINISH=finish) for finish in ("kernel", "ticket", "atomic")}
_LAUNCHES: dict[str, Variant] = {
    "two launches": {"SOURCE": "portable", "BLOCK": 512, "VEC": 4, "ITEMS": 4, "GRID_MODE": "oneshot",
                     "BLOCK_RED": "shuffle", "WARP_TAIL": "shfl_down", "FINISH": "kernel"},
    "best": "best",
}  # fmt: skip
_UNROLLED = {
    tree: {"SOURCE": "portable", "BLOCK": 256, "VEC": 1, "ITEMS": 2, "BLOCK_RED": tree,
           "WARP_TAIL": "syncwarp", "FINISH": "kernel", "GRID_MODE": "oneshot"}
    for tree in ("sequential", "unrolled")
}  # fmt: skip
_PRODUCTS: dict[str, Variant] = {
    "naive": "naive",
    "tile": {
        "SOURCE": "portable",
        "ALG": "tile",
        "BLOCK_X": 16,
        "BLOCK_Y": 16,
        "BK": 16,
        "UNROLL": 8,
    },
    "register": "register",
    "best": "best",
}
_DOUBLE = {
    name: {"SOURCE": "portable", "ALG": "register", "BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4, "UNROLL": 4,
           "DOUBLE_SHARED": shared, "DOUBLE_FRAGMENT": fragment}
    for name, shared, fragment in (
        ("single", False, False), ("shared", True, False), ("both", True, True),
    )
}  # fmt: skip
_UNROLL = {
    f"unroll {by}" if by else "no pragma": {"TILE": 16, "SIDE": 1, "UNROLL": by}
    for by in (0, 1, 2, 4, 8, 16)
}
_STRIDES = (0, 1, 2, 4, 32, 33)
_WINDOW = {"BLOCK": 256, "OUTPUTS": 4, "INPUT": "shared", "WINDOW": 1}
_CONV = {
    "direct": {"BLOCK": 256, "OUTPUTS": 1, "MASK": "global", "INPUT": "direct", "UNROLL": 1},
    "unrolled": {"BLOCK": 256, "OUTPUTS": 1, "MASK": "global", "INPUT": "direct", "UNROLL": 0},
    "shared": {"BLOCK": 256, "OUTPUTS": 1, "MASK": "shared", "INPUT": "shared", "UNROLL": 4},
    "window": {**_WINDOW, "UNROLL": 0},
    "window, registers": {**_WINDOW, "MASK": "registers"},
    **{
        f"{outputs} outputs, vectors, {mask}": {
            "BLOCK": 128,
            "OUTPUTS": outputs,
            "INPUT": "vectors",
            "MASK": mask,
        }
        for outputs in (4, 8)
        for mask in ("global", "registers")
    },
    **{
        f"16 outputs, staged, {mask}": {"BLOCK": 64, "OUTPUTS": 16, "INPUT": "staged", "MASK": mask}
        for mask in ("global", "shared")
    },
}
_TURNS: dict[str, Variant] = {
    "32 wide": "naive",
    "8 wide": "narrow",
    "4 wide": {"ALG": "naive", "BLOCK_X": 4, "BLOCK_Y": 64},
    "4 x 4": "register",
    "64 x 64 tiles": _turned(ORDER="row"),
}
_BLOCKS = {
    f"{block}": {"BLOCK": block, "VEC": 1} for block in (32, 48, 96, 100, 128, 256, 512, 1024)
}


def _particles(fields: int) -> list[Experiment]:
    return [
        Experiment(
            f"{layout}, {fields} of 3",
            "particles",
            Problem(n=_N, layout=layout, fields=fields),
            {stage: stage for stage in ("direct", *(["shared"] if layout == "aos12" else []))},
        )
        for layout in ("aos12", "aos16", "soa", "aosoa")
    ]


def _branches(pattern: str, work: int) -> Experiment:
    problem = Problem(n=1 << 20 if work else _N, pattern=pattern, work=work)
    return Experiment(f"{pattern}, {work}", "branch", problem, _declared("branch"))


def _chains() -> list[Experiment]:
    """By the level that a chain of ints fits into."""
    chains = {
        "L1": (1 << 12, 1),
        "L1, lines": (1 << 13, 32),
        "L2": (1 << 20, 32),
        "memory": (1 << 27, 32),
    }
    return [
        Experiment(
            name,
            "chase",
            Problem(n=n, steps=16384 if name != "memory" else 4096, gap=gap),
            {level: level for level in ("global", *(["shared"] if n <= 8192 else []))},
            counts=(),
            is_hot=True,
        )
        for name, (n, gap) in chains.items()
    ]


#: By row, in the order of the notes. E04, E06 and E07 share sizes, as E20 and E21 are patterns of `gather`.
ROWS: Mapping[str, list[Experiment]] = {
    "E01": [
        Experiment("ladder", "reduce_op", *_ladder(_N, **_LADDER), counts=(*RATES, *WARPS, *SHARED)),
        *(
            Experiment(f"finish, 2^{e}", "reduce_op", *_ladder(1 << e, "int32", **_FINISHES), counts=())
            for e in (18, 24, 26)
        ),
        *(
            Experiment(f"launches, 2^{e}", "reduce", Problem(n=1 << e), _LAUNCHES, counts=())
            for e in (18, 24)
        ),
        Experiment("unrolled", "reduce", Problem(n=_N), _UNROLLED, counts=()),
    ],
    "E02": [
        _copies(
            _copied(_N),
            "widths",
            **{f"{4 * vec} bytes": {"BLOCK": 256, "VEC": vec, "ITEMS": 4 // vec} for vec in (1, 2, 4)},
            **{f"{4 * vec} bytes, one load": {"BLOCK": 256, "VEC": vec, "ITEMS": 1} for vec in (1, 2)},
        )
    ],
    "E03": [
        Experiment(
            f"{warps or 'all'} warps",
            "prefetch",
            Problem(n=_N, intensity=32, warps_per_sm=warps),
            {
                "plain": _ahead("none"),
                "unrolled, 4": _ahead("unroll", 4),
                **{f"batch, {d}": _ahead("reg_batch", d) for d in (2, 4, 16)},
                "rolling": _ahead("reg_roll", 16),
                "shared": _ahead("smem_roll", 16),
                "shared, asynchronous": _ahead("smem_roll_async", 16),
                **{
                    f"own slots, {pad} spare": _ahead("smem_roll", 8, VEC=1, LAYOUT="threads", PADDING=pad)
                    for pad in (0, 1)
                },
            },
            counts=(*RATES, *WARPS, *SHARED, "local_ld"),
        )
        for warps in (4, 0)
    ],
    "E04": [Experiment("double", "sgemm", _square(2048), _DOUBLE)],
    "E05": [
        Experiment(
            "rows",
            "gemv",
            Problem(m=4096, n=4096),
            {
                "block per row": {"BLOCK": 256, "LANES": 256, "VEC": 1},
                "warp per row": {"BLOCK": 128, "LANES": 32, "VEC": 1},
                "warp, vectors": {"BLOCK": 128, "LANES": 32, "VEC": 4, "UNROLL": 4},
                "best": "best",
            },
        )
    ],
    "E06": [
        Experiment(
            f"{n}^3", "sgemm", _square(n), _PRODUCTS, counts=(*RATES, *SECTORS, "sectors_ld_sum", "tensor")
        )
        for n in (512, 2048)
    ],
    "E08": [
        *(
            Experiment(f"stride {s}, 2^{e}", "gather", _places(1 << e, "stride", s), {"direct": "naive"})
            for e, s in ((20, 1), (20, 17), (24, 1), (24, 17))
        ),
        Experiment("swapped", "gather", _places(_N, "swapped"), {"direct": "naive"}),
        Experiment("random", "gather", _places(_N, "random"), {"direct": "naive"}),
        Experiment("stride 17, store", "gather", _places(_N, "stride", 17, "store"), {"direct": "naive"}),
    ],
    "E09": [
        *(
            _copies(
                _copied(_N, offset),
                f"off by {offset}",
                **{"4 bytes": {"BLOCK": 256, "VEC": 1, "ITEMS": 4}},
                **{f"16 bytes, {peel}": {"BLOCK": 512, "VEC": 4, "ITEMS": 4, "PEEL": peel}
                   for peel in ("none", "head", "shift")},
            )
            for offset in (0, 1)
        ),
        *(
            Experiment(
                f"rows of 1001, pitch {pitch}",
                "pitch",
                Problem(m=16384, n=1001, ldx=pitch, ldo=pitch),
                {"vectors": {"BLOCK_X": 64, "BLOCK_Y": 4, "VEC": 4}},
            )
            for pitch in (1001, 1008, 1024)
        ),
    ],
    "E10": [
        *(_branches(pattern, 0) for pattern in ("uniform", "alternating")),
        *(_branches(pattern, 512) for pattern in ("uniform", "warps", "alternating", "tenth")),
        *(_branches("alternating", work) for work in (8, 32)),
    ],
    "E11": [
        *(
            Experiment(f"16, {index}, {place}", "table",
                       Problem(n=_N, entries=16, index=index, table_in=place), _declared("table"))
            for place in ("array", "constant")
            for index in ("uniform", "warps", "random")
        ),
        *(
            Experiment(f"{entries}, random", "table",
                       Problem(n=_N, entries=entries, index="random", table_in="array"), _declared("table"))
            for entries in (4096, 65536)
        ),
    ],
    "E12": [Experiment(f"{n}^3", "unroll", _square(n), _UNROLL) for n in (512, 2048)],
    "E13": [
        Experiment(
            f"{side} x {side} of a thread",
            "unroll",
            _square(2048),
            {
                f"cap {cap}" if cap else "no cap": {"TILE": 16, "SIDE": side, "UNROLL": 0, "CAP": cap}
                for cap in (0, *caps)
            },
            counts=(*RATES, "occupancy", "local_ld", "local_st", "stall_long_scoreboard"),
        )
        for side, caps in ((1, (64, 40, 32, 24)), (8, (128, 96, 64, 32)))
    ],
    "E14": [
        Experiment(
            "blocks that fit",
            "transpose",
            Problem(m=4096, n=4096),
            {f"{count or 'all'}": _turned(RESIDENT=count) for count in (0, 1, 2, 3, 4)},
        )
    ],
    "E15": [*_particles(3), *_particles(1)],
    "E16": [
        Experiment(
            f"{n}^3", "hgemm", Problem(m=n, n=n, k=n, dtype="float16", out_dtype="float16"),
            {"wmma": "naive", "mma": "mma", "wgmma": "wgmma", "best": "best"},
            counts=(*RATES, "tensor", "occupancy", "stall_barrier"),
        )
        for n in (2048, 2047)
    ],
    "E17": [
        Experiment(
            "cp.async",
            "prefetch",
            Problem(n=_N, intensity=8, warps_per_sm=4),
            {
                "through registers": _ahead("smem_roll", 16),
                "cp.async": _ahead("smem_roll_async", 16),
            },
            counts=RATES,
        )
    ],
    "E18": [
        Experiment("blocks", "elementwise", Problem(n=1 << 23, op="add", m=1 << 23), _BLOCKS, counts=()),
    ],
    "E19": _chains(),
    "E20": [
        Experiment(f"every {s}", "gather", _places(1 << 22, "every", s), {"direct": "naive"})
        for s in (1, 2, 4, 8, 16, 32)
    ],
    "E21": [
        Experiment(
            f"2^{e}", "gather", _places(1 << e, "reverse"),
            {stage: stage for stage in ("direct", "shared", "shuffle")},
        )
        for e in (20, 24)
    ],
    "E22": [
        Experiment(f"stride {s}", "banks", Problem(n=1 << 18, stride=s, reads=1024), _declared("banks"),
                   counts=("time", *SHARED))
        for s in _STRIDES
    ],
    "E23": [
        *(
            Experiment(f"{taps} taps, {place}", "conv1d", Problem(n=_N, taps=taps, mask_in=place), _CONV,
                       counts=(*RATES, *SECTORS))
            for taps in (9, 31)
            for place in ("array", "constant")
        ),
        _copies(_copied(_N), "copy", best="best"),
    ],
    "E24": [
        Experiment(
            kind, "spmm", _listed("spmm", kind=kind, n=32),
            _declared("spmm"),
        )
        for kind in ("uniform", "powerlaw")
    ],
    "E25": [
        Experiment(
            kind, "triangles", Problem(kind=kind, n=1 << 16, each=16),
            _declared("triangles"),
        )
        for kind in ("uniform", "powerlaw")
    ],
    "E26": [
        Experiment(
            f"off by {by}",
            "elementwise",
            Problem(n=1 << 23, op="add", m=1 << 23, offset_a=by, offset_b=by, offset_out=by),
            {"4 bytes": "naive", "16 bytes": "vectors"},
            counts=(*RATES, *SECTORS, *FURTHER),
        )
        for by in (0, 1)
    ],
    "E27": [
        Experiment(f"{n} x {n}", "transpose", Problem(m=n, n=n), _TURNS,
                   counts=(*RATES, *SECTORS, *FURTHER, *SHARED))
        for n in (1024, 4096)
    ],
    "E29": [
        Experiment(
            name, "elementwise", Problem(n=1 << 22, op=op, m=m),
            {"4 bytes": "naive", "16 bytes": "vectors"},
        )
        for name, op, m in (
            ("add", "add", 1 << 22), ("mul", "mul", 1 << 22),
            ("concat", "concat", 1 << 22), ("concat of 1001", "concat", 1001),
        )
    ],
}  # fmt: skip


def experiments(row: str, sm_count: int) -> list[Experiment]:
    """Return the experiments of a row; E18 asks for whole waves of blocks, which depend on the device."""
    return [*ROWS.get(row, ()), *(_waves(sm_count) if row == "E18" else ())]


def _waves(sm_count: int) -> list[Experiment]:
    """Products with a block a tile, a multiprocessor a block: whole waves, and a block more."""
    tiles = {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "UNROLL": 8, "MIN_BLOCKS": 1}
    direct = {"ALG": "register", "DOUBLE_SHARED": False, "DOUBLE_FRAGMENT": False, **tiles}
    return [
        Experiment(
            f"{count} waves{' and a block' if more else ''}",
            "sgemm",
            Problem(m=128 * (count * sm_count + more), n=128, k=256),
            {"direct": direct},
            counts=(),
        )
        for count in (1, 8)
        for more in (0, 1)
    ]
