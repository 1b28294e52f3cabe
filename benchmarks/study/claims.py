"""The claims of the study notes, and whether what was measured on a device bears them out.

Each is a function of the results that returns a verdict with the figures it rests on. A figure that is not on record
leaves its claim open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HOLDS, IN_PART, MOVED_ON, OPEN = "holds", "in part", "moved on", "open"
#: Ratios of times that are closer to 1 than this say nothing.
_TIE = 0.03


class Missing(Exception):
    """A figure that is not on record."""


@dataclass(frozen=True)
class Found:
    """A variant as measured."""

    where: str
    values: Mapping[str, Any]

    @property
    def us(self) -> float:
        """Microseconds from cold caches."""
        return 1e3 * self.number("cold_ms")

    @property
    def rate(self) -> float:
        """GB/s."""
        return self.number("gb_per_s")

    @property
    def ffma_share(self) -> float:
        """Share of FFMA in the hottest loop; Missing where the code is straight."""
        if not (loop := self.values.get("loop")):
            raise Missing(f"{self.where}: straight code")
        return float(loop["ffma"] / loop["instructions"])

    def number(self, name: str) -> float:
        """Return a figure of the variant."""
        if self.values.get(name) is None:
            raise Missing(f"{self.where}: {self.values.get('failure') or f'no {name}'}")
        return float(self.values[name])

    def count(self, *names: str) -> float:
        """Return the sum of counters."""
        counters = self.values.get("counters", {})
        for name in names:
            if name not in counters:
                raise Missing(f"{self.where}: no counter {name}")
        return float(sum(counters[name] for name in names))

    def code(self, name: str) -> Any:
        """Return a figure of the SASS."""
        if "code" not in self.values:
            raise Missing(f"{self.where}: no SASS")
        return self.values["code"][name]


@dataclass(frozen=True)
class Results:
    """Measurements of one device."""

    document: Mapping[str, Any]

    def of(self, row: str, experiment: str, variant: str = "direct") -> Found:
        """Return a variant; Missing where it is not there."""
        where = f"{row}, {experiment}, {variant}"
        if "error" in self.row(row):
            raise Missing(f"{row}: {self.row(row)['error']}")
        found = self.row(row).get("experiments", {}).get(experiment, {}).get("variants", {})
        if variant not in found:
            raise Missing(f"{where}: not measured")
        return Found(where, found[variant])

    def names(self, row: str, experiment: str) -> list[str]:
        """Return the variants of an experiment that were timed."""
        found = self.row(row)["experiments"][experiment]["variants"]
        return [name for name, values in found.items() if "cold_ms" in values]

    def row(self, row: str) -> Mapping[str, Any]:
        """Return all of a row."""
        if row not in self.document["rows"]:
            raise Missing(f"not measured yet: python benchmarks/study/notes.py --rows {row}")
        return dict(self.document["rows"][row])

    def probe(self, row: str) -> Mapping[str, Any]:
        """Return what a row measured beside kernels."""
        if "probe" not in self.row(row):
            raise Missing(f"{row}: {self.row(row).get('error', 'not measured')}")
        return dict(self.row(row)["probe"])


#: A verdict and the figures.
Verdict = tuple[str, str]


@dataclass(frozen=True)
class Claim:
    """A claim of the notes, what was expected of Hopper, why, and how it is judged."""

    row: str
    text: str
    expected: str
    why: str
    judge: Callable[[Results], Verdict]

    def judged(self, results: Results) -> Verdict:
        """Return the verdict; open where a figure is not there."""
        try:
            return self.judge(results)
        except Missing as error:
            return OPEN, str(error)


def _faster(a: Found, b: Found) -> float:
    """Return how many times as fast a is as b."""
    return b.us / a.us


def _pays(plain: tuple[str, Found], changed: tuple[str, Found]) -> Verdict:
    """Return whether a change makes a variant faster by more than 5 %; both with their names."""
    gain = _faster(changed[1], plain[1])
    times = (f"{name} {_us(found)}" for name, found in (plain, changed))
    return HOLDS if gain > 1.05 else MOVED_ON, f"{', '.join(times)}, {gain:.2f} times"


def _us(found: Found) -> str:
    return f"{found.us:.1f} µs"


def _pair(a: Found, b: Found) -> str:
    return f"{_us(a)} against {_us(b)}"


def interleaved_is_slowest(r: Results) -> Verdict:
    names = ("interleaved", "spread", "sequential", "two loads")
    ladder = {name: r.of("E01", "ladder", name) for name in names}
    first, converged = ladder["interleaved"], ladder["sequential"]
    slowest = max(ladder, key=lambda name: ladder[name].us)
    diverges = first.count("pred") < 0.95 * converged.count("pred")
    figures = (
        f"{first.count('pred'):.1f} of 32 threads do something, {converged.count('pred'):.1f} in "
        f"sequential order; {_pair(first, converged)}; slowest is {slowest}, {_us(ladder[slowest])}"
    )
    if slowest == "interleaved" and diverges:
        return HOLDS, figures
    return IN_PART if slowest == "interleaved" or diverges else MOVED_ON, figures


def sequential_has_no_conflicts(r: Results) -> Verdict:
    spread, sequential = (r.of("E01", "ladder", name) for name in ("spread", "sequential"))
    two = r.of("E01", "ladder", "two loads")
    conflicts = [each.count("bank_ld", "bank_st") for each in (spread, sequential)]
    share = conflicts[1] / max(1.0, conflicts[0])
    figures = (
        f"{conflicts[0]:.3g} bank conflicts spread, {conflicts[1]:.3g} sequential; "
        f"adding while loading: {_pair(two, sequential)}"
    )
    return HOLDS if share < 0.05 and _faster(two, sequential) > 1 + _TIE else IN_PART, figures


def a_warp_needs_no_barrier(r: Results) -> Verdict:
    barrier, warp = (r.of("E01", "ladder", name) for name in ("two loads", "syncwarp"))
    return _pays(("barriers", barrier), ("`__syncwarp`", warp))


def unrolling_a_tree_pays(r: Results) -> Verdict:
    loop, whole = (r.of("E01", "unrolled", name) for name in ("sequential", "unrolled"))
    return _pays(("loop", loop), ("unrolled", whole))


def atomics_are_bad(r: Results) -> Verdict:
    found = {name: r.of("E01", "finish, 2^24", name) for name in ("kernel", "ticket", "atomic")}
    best = min(each.us for each in found.values())
    figures = ", ".join(f"{name} {_us(each)}" for name, each in found.items())
    return MOVED_ON if found["atomic"].us < best * (1 + _TIE) else HOLDS, f"2^24 int32: {figures}"


def a_second_launch_is_needed(r: Results) -> Verdict:
    pairs = {
        e: [r.of("E01", f"launches, 2^{e}", name) for name in ("two launches", "best")]
        for e in (18, 24)
    }
    figures = ", ".join(f"{_pair(one, two)} at 2^{e}" for e, (two, one) in pairs.items())
    faster = all(one.us < two.us for two, one in pairs.values())
    return MOVED_ON if faster else IN_PART, f"one launch and two: {figures}"


def wide_accesses_win(r: Results) -> Verdict:
    wide, narrow, single = (
        r.of("E02", "widths", n) for n in ("16 bytes", "4 bytes", "4 bytes, one load")
    )
    figures = (
        f"16 bytes {wide.rate:.0f} GB/s, four loads of 4 bytes {narrow.rate:.0f}, "
        f"one load of 4 bytes {single.rate:.0f}"
    )
    same = wide.rate < narrow.rate * (1 + _TIE)
    return IN_PART if same else HOLDS, figures


def more_ahead_is_better(r: Results) -> Verdict:
    few, many = "4 warps", "all warps"
    ahead = [r.of("E03", few, name) for name in ("plain", "batch, 2", "batch, 4", "batch, 16")]
    full = [r.of("E03", many, name) for name in ("plain", "batch, 4")]
    in_registers = all(each.count("local_ld") == 0 for each in ahead)
    rates = " ".join(f"{each.rate:.0f}" for each in ahead)
    figures = (
        f"4 warps a multiprocessor, 1, 2, 4, 16 ahead: {rates} GB/s; all warps, 1 and 4: "
        f"{full[0].rate:.0f} {full[1].rate:.0f}; local loads: "
        f"{'none' if in_registers else 'some'}"
    )
    array = r.of("E11", "16, random, array", "registers").code("accesses").get("local loads", {})
    figures += f"; an array with an index from memory: {sum(array.values())} local loads"
    always = full[1].rate > full[0].rate * (1 + _TIE)
    return HOLDS if always and ahead[3].rate > ahead[0].rate else IN_PART, figures


def naive_reads_from_memory(r: Results) -> Verdict:
    naive = r.of("E06", "2048^3", "naive")
    asked, moved = 32 * naive.count("sectors_ld_sum") / 1e6, naive.count("dram_read") / 1e6
    figures = (
        f"at 2048: {asked:.0f} MB asked of L1, {moved:.0f} MB read from memory, "
        f"L1 hits {naive.count('l1_hit'):.0f} %"
    )
    return MOVED_ON if moved < asked / 10 else HOLDS, figures


def tiles_are_much_faster(r: Results) -> Verdict:
    gains = []
    for size in ("512^3", "2048^3"):
        naive, tile = (r.of("E06", size, name) for name in ("naive", "tile"))
        gains.append((size, _faster(tile, naive)))
    figures = ", ".join(f"{size}: {gain:.2f} times" for size, gain in gains)
    return HOLDS if gains[1][1] > 8 else IN_PART if gains[1][
        1
    ] > 1.2 else MOVED_ON, f"{figures}; a factor 16 in loads"


def strides_waste_sectors(r: Results) -> Verdict:
    near, far = (r.of("E08", f"stride {s}, 2^20") for s in (1, 17))
    large = [r.of("E08", f"stride {s}, 2^24") for s in (1, 17)]
    figures = (
        f"{far.count('sectors_ld'):.0f} sectors a request, {far.count('used_ld'):.3g} % used, "
        f"against {near.count('sectors_ld'):.0f} and {near.count('used_ld'):.0f} %; "
        f"{far.us / near.us:.1f} times as long at 2^20, {large[1].us / large[0].us:.1f} at 2^24"
    )
    return MOVED_ON if far.count("used_ld") < 20 else HOLDS, figures


def order_is_free(r: Results) -> Verdict:
    straight, swapped = r.of("E10", "uniform, 0", "chosen"), r.of("E08", "swapped")
    same = abs(_faster(swapped, straight) - 1) < _TIE
    figures = (
        f"{swapped.count('sectors_ld'):.3g} sectors a request; {_us(swapped)}, and {_us(straight)} "
        "of `branch`, which moves as much in order"
    )
    return HOLDS if same and swapped.count("sectors_ld") < 4.01 else MOVED_ON, figures


def off_by_one_costs_a_transaction(r: Results) -> Verdict:
    straight, off = (r.of("E09", f"off by {n}", "4 bytes") for n in (0, 1))
    best = [
        min(
            (r.of("E09", f"off by {n}", f"16 bytes, {p}") for p in ("none", "head", "shift")),
            key=lambda each: each.us,
        )
        for n in (0, 1)
    ]
    figures = (
        f"a copy, single floats: {_pair(off, straight)}; vectors, realigned in registers: "
        f"{_pair(best[1], best[0])}"
    )
    return IN_PART if off.us < straight.us * 1.1 else HOLDS, figures


def off_by_one_is_five_sectors(r: Results) -> Verdict:
    straight, off = (r.of("E26", f"off by {n}", "4 bytes") for n in (0, 1))
    counts = [
        f"{each.count('sectors_ld'):.3g} and {each.count('sectors_st'):.3g}"
        for each in (straight, off)
    ]
    figures = (
        f"sectors a request: {counts[0]} aligned, {counts[1]} off by one "
        f"({off.count('sectors_ld_sum'):,.0f} and {off.count('sectors_st_sum'):,.0f} in all); "
        f"{_pair(off, straight)}"
    )
    exact = [round(each.count("sectors_ld"), 2) for each in (straight, off)] == [4, 5]
    return HOLDS if exact else MOVED_ON, figures


def hit_rates_are_those_of_the_notes(r: Results) -> Verdict:
    straight, off = (r.of("E26", f"off by {n}", "4 bytes") for n in (0, 1))
    figures = (
        f"L2 {straight.count('l2_hit'):.1f} % aligned; "
        f"off by one L1 {off.count('hit_ld'):.1f} % of loads, "
        f"{off.count('hit_st'):.1f} % of stores"
    )
    third = abs(straight.count("l2_hit") - 33.3) < 4
    same = abs(off.count("hit_ld") - 13.23) < 2 and abs(off.count("hit_st") - 31.15) < 2
    return HOLDS if third and same else IN_PART if third or same else MOVED_ON, figures


def _heaviest(r: Results) -> int:
    """The most multiply-adds a path that E10 was measured with."""
    return max(int(name.split(", ")[1]) for name in r.row("E10").get("experiments", {"0, 0": {}}))


def ternary_is_faster(r: Results) -> Verdict:
    work = _heaviest(r)
    stores, ternary = (r.of("E10", "alternating, 0", form) for form in ("stores", "ternary"))
    heavy = [r.of("E10", f"warps, {work}", form) for form in ("stores", "ternary")]
    figures = (
        f"no work: `if` {_us(stores)}, ternary {_us(ternary)}; {work} multiply-adds a path, "
        f"warps that agree: `if` {_us(heavy[0])}, ternary {_us(heavy[1])}"
    )
    return HOLDS if _faster(ternary, stores) > 1 + _TIE else MOVED_ON, figures


def divergence_halves(r: Results) -> Verdict:
    work = _heaviest(r)
    agree, differ, sorted_ = (
        r.of("E10", f"{p}, {work}", f)
        for p, f in (("warps", "chosen"), ("alternating", "chosen"), ("alternating", "sorted"))
    )
    factor = differ.us / agree.us
    figures = (
        f"{work} multiply-adds a path: {_us(agree)} where warps agree, "
        f"{_us(differ)} where lanes alternate ({factor:.2f} times; "
        f"{differ.count('simt'):.1f} of 32 threads active); sorted first {_us(sorted_)}"
    )
    return HOLDS if factor > 1.6 else IN_PART if factor > 1.2 else MOVED_ON, figures


def constant_tables_are_good(r: Results) -> Verdict:
    one, many = (r.of("E11", f"16, {index}, constant", "global") for index in ("uniform", "random"))
    cached = r.of("E11", "16, random, array", "global")
    figures = (
        f"constant memory, one index {_us(one)}, random {_us(many)}; global memory, "
        f"random {_us(cached)}"
    )
    return IN_PART if many.us > one.us * (1 + _TIE) else HOLDS, figures


def unrolling_by_hand_pays(r: Results) -> Verdict:
    none, four, eight = (
        r.of("E12", "2048^3", name) for name in ("no pragma", "unroll 4", "unroll 8")
    )
    registers = [int(each.number("registers")) for each in (none, four, eight)]
    figures = (
        f"no pragma, 4, 8: {none.us:.0f}, {four.us:.0f}, {eight.us:.0f} µs with {registers[0]}, "
        f"{registers[1]}, {registers[2]} registers at 2048^3"
    )
    return HOLDS if min(four.us, eight.us) < none.us / (1 + _TIE) else MOVED_ON, figures


def unrolling_helps_memory(r: Results) -> Verdict:
    plain, four = (r.of("E03", "4 warps", name) for name in ("plain", "unrolled, 4"))
    one, sixteen = (r.of("E12", "2048^3", name) for name in ("unroll 1", "unroll 16"))
    figures = (
        f"4 warps that load: {plain.rate:.0f} becomes {four.rate:.0f} GB/s; a product: "
        f"{one.us:.0f} becomes {sixteen.us:.0f} µs, FFMA from {one.ffma_share:.0%} to "
        f"{sixteen.ffma_share:.0%} of the loop"
    )
    memory, arithmetic = four.rate > plain.rate * 1.1, one.us > sixteen.us * 1.1
    return IN_PART if memory and arithmetic else HOLDS if memory else MOVED_ON, figures


def a_cap_of_32_spills(r: Results) -> Verdict:
    free, capped = (r.of("E13", "1 x 1 of a thread", name) for name in ("no cap", "cap 32"))
    squares = {
        cap: r.of("E13", "8 x 8 of a thread", cap)
        for cap in ("no cap", "cap 128", "cap 64", "cap 32")
    }
    spills = ", ".join(
        f"{name} {each.number('spill_bytes'):.0f} bytes, {each.us:.0f} µs"
        for name, each in squares.items()
    )
    figures = (
        f"an element a thread: {capped.number('spill_bytes'):.0f} bytes spilled, "
        f"{_pair(capped, free)}; 8 × 8: {spills}"
    )
    return HOLDS if capped.us > 2 * free.us else MOVED_ON, figures


def a_cap_raises_occupancy(r: Results) -> Verdict:
    free, capped = (r.of("E13", "1 x 1 of a thread", name) for name in ("no cap", "cap 32"))
    square, squeezed = (r.of("E13", "8 x 8 of a thread", name) for name in ("no cap", "cap 64"))
    figures = (
        f"an element a thread: {free.number('occupancy'):.0%} ({free.number('registers'):.0f} "
        f"registers) to {capped.number('occupancy'):.0%} ({capped.number('registers'):.0f}); "
        f"8 × 8: {square.number('occupancy'):.0%} to {squeezed.number('occupancy'):.0%} at a "
        f"cap of 64"
    )
    raised = [
        capped.number("occupancy") > free.number("occupancy"),
        squeezed.number("occupancy") > square.number("occupancy"),
    ]
    return HOLDS if all(raised) else IN_PART if any(raised) else MOVED_ON, figures


def low_occupancy_is_poor(r: Results) -> Verdict:
    counted = r.probe("E14")
    sgemm, every = counted["sgemm"], [each for each in counted.values() if each["known"]]
    below, known = (sum(each[name] for each in every) for name in ("below_quarter", "known"))
    few = r.of("E03", "4 warps", "shared, asynchronous")
    figures = (
        f"{below} of {known} recorded winners have less than 25 %, "
        f"of sgemm {sgemm['below_quarter']} of {sgemm['known']}; "
        f"4 warps (6 %) with 16 loads ahead move {few.rate:.0f} GB/s"
    )
    return MOVED_ON if below > known / 10 else HOLDS, figures


def soa_is_faster(r: Results) -> Verdict:
    three, one = (r.of("E15", f"soa, {n} of 3") for n in (3, 1))
    structs = [r.of("E15", f"aos12, {n} of 3") for n in (3, 1)]
    figures = (
        f"3 fields: {_pair(three, structs[0])}, {three.count('sectors_ld'):.3g} and "
        f"{structs[0].count('sectors_ld'):.3g} sectors a request; 1 field: "
        f"{_pair(one, structs[1])}"
    )
    ties = abs(_faster(three, structs[0]) - 1) < 0.1
    return IN_PART if ties and _faster(
        one, structs[1]
    ) > 1.2 else HOLDS if not ties else MOVED_ON, figures


def tensor_cores_win(r: Results) -> Verdict:
    plain, tensor = r.of("E06", "2048^3", "tile"), r.of("E16", "2048^3", "wmma")
    best = r.of("E16", "2048^3", "best")
    figures = (
        f"WMMA {tensor.number('gflop_per_s') / 1e3:.0f} TFLOP/s, "
        f"the float32 tiles {plain.number('gflop_per_s') / 1e3:.1f}, "
        f"the best half-precision kernel {best.number('gflop_per_s') / 1e3:.0f}; "
        f"tensor pipe {tensor.count('tensor'):.0f} %"
    )
    return HOLDS if tensor.number("gflop_per_s") > 3 * plain.number(
        "gflop_per_s"
    ) else MOVED_ON, figures


def odd_sizes_lose_tensor_cores(r: Results) -> Verdict:
    odd, even = (r.of("E16", size, "best") for size in ("2047^3", "2048^3"))
    figures = (
        f"2047³: tensor pipe {odd.count('tensor'):.0f} % busy, "
        f"{odd.number('gflop_per_s') / 1e3:.0f} TFLOP/s; 2048³: {even.count('tensor'):.0f} %, "
        f"{even.number('gflop_per_s') / 1e3:.0f}"
    )
    return MOVED_ON if odd.count("tensor") > 1 else HOLDS, figures


def ptx_gives_ten_per_cent(r: Results) -> Verdict:
    plain, copies = (r.of("E17", "cp.async", name) for name in ("through registers", "cp.async"))
    figures = (
        f"copies to shared memory past the registers: "
        f"{plain.rate:.0f} becomes {copies.rate:.0f} GB/s, {copies.rate / plain.rate:.2f} times"
    )
    gain = copies.rate / plain.rate
    return HOLDS if gain > 1.1 else IN_PART if gain > 1 + _TIE else MOVED_ON, figures


def whole_waves_win(r: Results) -> Verdict:
    times = {n: [r.of("E18", f"{n} waves{more}") for more in ("", " and a block")] for n in (1, 8)}
    longer = {n: b.us / a.us for n, (a, b) in times.items()}
    figures = ", ".join(
        f"{n} full wave{'s' if n > 1 else ''} and a block more: {x:.2f} times as long"
        for n, x in longer.items()
    )
    return IN_PART if longer[1] > 1.2 > longer[8] else HOLDS if longer[
        8
    ] > 1.2 else MOVED_ON, figures


def clocks_of(r: Results, experiment: str, variant: str) -> float:
    """Clocks of one step of a chain: of a chain that caches hold hot, else cold."""
    found, mhz = r.of("E19", experiment, variant), r.probe("E31")["ClockRate"] / 1e3
    steps = r.row("E19")["experiments"][experiment]["problem"]["steps"]
    return 1e3 * found.number("cold_ms" if experiment == "memory" else "hot_ms") / steps * mhz


def shared_takes_20_clocks(r: Results) -> Verdict:
    levels = {
        "shared": clocks_of(r, "L1", "shared"),
        "L1": clocks_of(r, "L1, lines", "global"),
        "L2": clocks_of(r, "L2", "global"),
        "memory": clocks_of(r, "memory", "global"),
    }
    figures = ", ".join(f"{name} {clocks:.0f}" for name, clocks in levels.items())
    close = levels["shared"] > levels["L1"] * 0.9
    return HOLDS if levels[
        "shared"
    ] < 25 else IN_PART if close else MOVED_ON, f"clocks at the highest rate: {figures}"


def lines_not_elements_cost(r: Results) -> Verdict:
    cpu = r.probe("E20")["ms_by_step"]
    gpu = {
        step: r.of("E20", f"every {step}").count("dram_read") / 1e6 for step in (1, 2, 8, 16, 32)
    }
    figures = (
        f"CPU, steps 1, 2, 8, 16, 32: "
        f"{' '.join(f'{cpu[str(step)]:.0f}' for step in (1, 2, 8, 16, 32))} ms; GPU, "
        f"2^22 floats read every 1, 2, 8, 16, 32: "
        f"{' '.join(f'{mb:.0f}' for mb in gpu.values())} MB"
    )
    by_element = gpu[8] > gpu[2] * 3
    return HOLDS if cpu["8"] > cpu["2"] * 0.85 and by_element else IN_PART, figures


def clocks_of_conflicts(r: Results) -> Verdict:
    found = {stride: r.of("E22", f"stride {stride}", "plain") for stride in (1, 2, 4, 32)}
    ways = {
        stride: each.count("wave_ld") / each.count("shared_loads") for stride, each in found.items()
    }
    figures = (
        f"strides 1, 2, 4, 32: {' '.join(f'{way:.3g}' for way in ways.values())} wavefronts a "
        f"load; {' '.join(f'{each.us:.0f}' for each in found.values())} µs"
    )
    exact = all(abs(ways[stride] - stride) < 0.05 * stride for stride in ways)
    return IN_PART if exact else MOVED_ON, figures


def padding_cures(r: Results) -> Verdict:
    found = {layout: r.of("E22", "stride 32", layout) for layout in ("plain", "padded", "xor")}
    ways = [each.count("wave_ld") / each.count("shared_loads") for each in found.values()]
    figures = (
        f"stride 32, plain, padded, xor: {' '.join(f'{way:.3g}' for way in ways)} wavefronts a "
        f"load, {' '.join(f'{each.us:.0f}' for each in found.values())} µs"
    )
    return HOLDS if max(ways[1:]) < 1.1 < ways[0] else IN_PART, figures


def one_flop_an_access_limits(r: Results) -> Verdict:
    copy, shown = r.of("E23", "copy", "best"), list[str]()
    read = r.of("E23", "9 taps, array", "direct").count("dram_read") / 1e6
    for taps in (9, 31):
        direct = r.of("E23", f"{taps} taps, array", "direct")
        places = [f"{taps} taps, {place}" for place in ("array", "constant")]
        name, best = max(
            (
                (name, r.of("E23", place, name))
                for place in places
                for name in r.names("E23", place)
            ),
            key=lambda each: each[1].rate,
        )
        shown.append(f"{taps} taps {direct.rate:.0f}, at best {best.rate:.0f} ({name})")
    figures = (
        f"GB/s with a load for each multiply-add: {'; '.join(shown)}; a copy has {copy.rate:.0f}; "
        f"{read:.0f} MB are read from memory, once"
    )
    return MOVED_ON if read < 1.2 * copy.count("dram_read") / 1e6 else HOLDS, figures


def eight_wide_is_naives_best(r: Results) -> Verdict:
    wide, eight, four = (r.of("E27", "1024 x 1024", f"{n} wide") for n in (32, 8, 4))
    large = [r.of("E27", "4096 x 4096", f"{n} wide") for n in (32, 8, 4)]
    counts = [
        f"{each.count('sectors_ld'):.3g}/{each.count('sectors_st'):.3g}"
        for each in (wide, eight, four)
    ]
    figures = (
        f"blocks 32, 8, 4 wide: {' '.join(counts)} sectors a request; "
        f"{' '.join(_us(each) for each in large)} at 4096²"
    )
    exact = counts[:2] == ["4/32", "4/8"]
    best = large[1].us <= min(large[0].us, large[2].us) * (1 + _TIE)
    return HOLDS if exact and best else IN_PART if exact or best else MOVED_ON, figures


def squares_reach_the_bandwidth(r: Results) -> Verdict:
    squares, tiles = (r.of("E27", "4096 x 4096", name) for name in ("4 x 4", "64 x 64 tiles"))
    counts = f"{squares.count('sectors_ld'):.3g}/{squares.count('sectors_st'):.3g}"
    figures = f"{counts} sectors a request, {squares.rate:.0f} GB/s; 64 × 64 tiles {tiles.rate:.0f}"
    exact, most = counts == "16/16", squares.rate > 0.9 * tiles.rate
    return HOLDS if exact and most else IN_PART if exact or most else MOVED_ON, figures


def scattered_sectors_are_free(r: Results) -> Verdict:
    squares, tiles = (r.of("E27", "4096 x 4096", name) for name in ("4 x 4", "64 x 64 tiles"))
    figures = (
        f"pieces of 32 to 64 bytes {_us(squares)}, of 256 bytes {_us(tiles)}; "
        f"memory throughput {squares.count('dram'):.0f} and {tiles.count('dram'):.0f} % of the "
        f"peak"
    )
    return HOLDS if squares.us < tiles.us * (1 + _TIE) else MOVED_ON, figures


CLAIMS: tuple[Claim, ...] = (
    Claim("E01", "interleaved addressing diverges and is slowest", "holds",
          "idle lanes cost instructions, but starting blocks takes most of the time; bank conflicts cost more",
          interleaved_is_slowest),
    Claim("E01", "sequential addressing has no bank conflicts, and adding while loading pays", "holds",
          "neighbouring lanes read neighbouring words; without the first addition half of the threads idle",
          sequential_has_no_conflicts),
    Claim("E01", "the last warp needs no barrier", "moved on",
          "five barriers of the block are saved; since Volta, `__syncwarp` must replace them",
          a_warp_needs_no_barrier),
    Claim("E01", "unrolling the whole tree pays", "moved on",
          "the bounds are constants, so the compiler unrolls",
          unrolling_a_tree_pays),
    Claim("E01", "atomics are bad for large data", "moved on",
          "one atomic a block costs nothing; but the order of float additions differs from run to run",
          atomics_are_bad),
    Claim("E01", "a second launch must add up the blocks", "moved on",
          "a counter tells the last block to add them up",
          a_second_launch_is_needed),
    Claim("E02", "accesses of 16 bytes win", "in part",
          "bytes in flight decide; several narrow loads have as many",
          wide_accesses_win),
    Claim("E03", "the further ahead the better; small arrays lie in registers", "in part",
          "32 KB a multiprocessor in flight are enough, and many warps have them anyway; "
          "arrays are in registers if the compiler knows the index",
          more_ahead_is_better),
    Claim("E06", "without tiles every use of an element is a read from memory", "moved on",
          "L1 and L2 serve the repeats",
          naive_reads_from_memory),
    Claim("E07", "tiles are much faster than naive", "in part",
          "L1 has the reuse already and is about as fast as shared memory; tiles in registers save loads",
          tiles_are_much_faster),
    Claim("E08", "a stride of 17 uses 30 % of what is loaded, against 100 %", "moved on",
          "each lane has a sector of its own, with 4 of 32 bytes used",
          strides_waste_sectors),
    Claim("E08", "the order of lanes within a warp is free", "holds",
          "memory moves sectors, in any order of lanes",
          order_is_free),
    Claim("E09", "one element off costs a second transaction", "in part",
          "neighbouring warps share the extra sector through the cache",
          off_by_one_costs_a_transaction),
    Claim("E26", "one element off is 5 sectors for 4", "count holds, time does not",
          "32 floats from byte 4 touch 5 sectors; a neighbour needs the fifth, so the time hardly changes",
          off_by_one_is_five_sectors),
    Claim("E26", "a third of L2 accesses hit; off by one 13 and 31 % hit in L1", "first holds",
          "the write hits the lines that it allocates; the L1 rates of the notes are those of Ada",
          hit_rates_are_those_of_the_notes),
    Claim("E10", "a ternary is faster than `if`", "moved on",
          "without work neither branches, but two predicated stores are two requests; with heavy paths the ternary "
          "always runs both",
          ternary_is_faster),
    Claim("E10", "divergence halves the rate", "holds",
          "a warp runs both paths, one after the other, if they are too long for predicates",
          divergence_halves),
    Claim("E11", "a table in constant memory is good", "for one index only",
          "a constant read serves one address at a time",
          constant_tables_are_good),
    Claim("E12", "unrolling by 4 or 8 is faster than no pragma", "moved on",
          "no pragma is full unrolling already",
          unrolling_by_hand_pays),
    Claim("E12", "unrolling helps what memory limits, not arithmetic", "in part",
          "it adds loads in flight, or a larger share of FFMA",
          unrolling_helps_memory),
    Claim("E13", "a cap of 32 registers makes the product 8 times slower", "moved on",
          "nothing spills there; 64 accumulators a thread spill under a cap of 64",
          a_cap_of_32_spills),
    Claim("E13", "a cap raises occupancy", "holds",
          "registers limit the resident warps",
          a_cap_raises_occupancy),
    Claim("E14", "occupancy below 25 % is poor, 50 to 70 % is best", "moved on",
          "more loads in flight per thread replace threads",
          low_occupancy_is_poor),
    Claim("E15", "a struct of arrays is faster", "tie with 3 fields, wins with 1",
          "with all fields both move the same bytes; with one field a struct moves three times the bytes",
          soa_is_faster),
    Claim("E16", "WMMA is faster than tiles", "holds",
          "the tensor pipe has 15 times the rate of FP32",
          tensor_cores_win),
    Claim("E16", "sizes that are not multiples of 16 fall back to CUDA cores", "moved on",
          "kernels pad with zeros",
          odd_sizes_lose_tensor_cores),
    Claim("E17", "inline PTX gives 10 to 30 %", "only where no C++ says it",
          "`cp.async` saves registers and instructions; `wgmma` has no intrinsic",
          ptx_gives_ten_per_cent),
    Claim("E18", "blocks should be a multiple of the multiprocessors", "in part",
          "one block more doubles a single wave and is lost among many",
          whole_waves_win),
    Claim("E19", "shared memory takes 20 clocks, about as L1", "about 30, L1 40",
          "on Hopper both are one array, and L1 also looks up tags",
          shared_takes_20_clocks),
    Claim("E20", "every second element takes as long as every eighth", "CPU holds; GPU up to a sector",
          "a CPU moves lines of 64 bytes; a GPU requests sectors of 32 bytes, and its memory answers with 64",
          lines_not_elements_cost),
    Claim("E22", "1, 2 and 32 ways take 30, 64 and 124 clocks", "ways hold, clocks do not",
          "each way is a wavefront; with many warps the rate counts, not one latency",
          clocks_of_conflicts),
    Claim("E22", "padding cures bank conflicts", "holds",
          "33 and 32 have no common divisor; `xor` needs no space and keeps vectors aligned",
          padding_cures),
    Claim("E23", "one multiply-add for each access limits a convolution", "moved on",
          "caches serve the repeats; load instructions are the limit, and outputs per thread save them",
          one_flop_an_access_limits),
    Claim("E27", "4 and 32 sectors a request, 8 wide 4 and 8; 8 wide is naive's best", "holds",
          "8 floats fill a sector of 32 bytes",
          eight_wide_is_naives_best),
    Claim("E28", "4 × 4 squares have 16 and 16, and most of the bandwidth", "count holds, rate does not",
          "rows are still written in short pieces",
          squares_reach_the_bandwidth),
    Claim("E28", "sectors that lie apart do not matter", "moved on",
          "memory is faster with 256 bytes in one piece",
          scattered_sectors_are_free),
)  # fmt: skip
