"""Advice from rules. A rule is a function of a variant's figures and names its source.

If a measurement contradicts a rule, the advice is still shown, together with that measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from autotune.devices.occupancy import attainable, bytes_to_fill
from autotune.explain.variants import Facts, Setting, winners_below
from autotune.measure.counters import STALLS, stalls
from autotune.report.wording import limit_words

#: Occupancy, as a share of the maximum warps, below which `low_occupancy` applies.
_LOW_OCCUPANCY = 0.25
#: Per cent of a unit's peak or of a measured limit above which the unit limits the kernel.
_BUSY_PERCENT = 80.0
#: `uncoalesced` applies if less than this percentage of the moved bytes is used.
_MIN_USED_PERCENT = 50.0
#: `bank_conflicts` applies if conflicts exceed this share of the wavefronts.
_MAX_CONFLICT_SHARE = 0.1
#: `divergence` applies if fewer of a warp's 32 threads are active on average.
_MIN_ACTIVE_THREADS = 28.0
#: `issue_share` applies if the instruction mix of a loop allows at most this share of the FP32 peak.
_MAX_ISSUE_SHARE = 0.75
_GUIDE = "CUDA C++ Best Practices Guide"
#: The hardware behind each measured limit; the memory for all other limits.
_LIMITING = {"ffma": "FP32 arithmetic", "tensor": "the tensor cores"}


@dataclass(frozen=True)
class Advice:
    """The meaning of a variant's figure, and what to change."""

    variant: str
    text: str
    source: str
    #: The measurement that contradicts the rule; may be empty.
    refuted: str = ""

    @property
    def sentence(self) -> str:
        """The text, the measurement that refutes it, and the source."""
        refuted = f". Refuted by measurement: {self.refuted}" if self.refuted else ""
        return f"{self.text}{refuted} [{self.source}]"


#: Text, source, and the measurement that refutes it; None if the rule does not apply.
Finding: TypeAlias = tuple[str, str, str] | None
Rule: TypeAlias = Callable[[Facts, Setting], Finding]


def spills(facts: Facts, setting: Setting) -> Finding:
    """Values that did not fit into registers."""
    if not facts.spill_bytes:
        return None
    text = (
        f"spills {facts.spill_bytes} bytes to local memory: keep fewer values per thread, or allow "
        "more registers per thread (smaller MIN_BLOCKS, a higher register limit)"
    )
    return text, f"{_GUIDE}, Register Pressure", ""


def local_arrays(facts: Facts, setting: Setting) -> Finding:
    """An array in local memory, without spilled registers."""
    accesses = facts.code.mix.accesses if facts.code else {}
    if facts.spill_bytes or not accesses.keys() & {"local loads", "local stores"}:
        return None
    text = (
        "an array is in local memory, because its index is known only at run time: unroll its loop"
    )
    return text, f"{_GUIDE}, Local Memory", ""


def uncoalesced(facts: Facts, setting: Setting) -> Finding:
    """Memory sectors that are moved but mostly unused."""
    for side, verb in (("ld", "loads"), ("st", "stores")):
        used, sectors = facts.counters.get(f"used_{side}"), facts.counters.get(f"sectors_{side}")
        if used is not None and sectors is not None and used < _MIN_USED_PERCENT:
            text = (
                f"each request of its global {verb} moves {sectors:.3g} sectors of 32 bytes and uses "
                f"{used:.3g} % of the bytes: let neighbouring threads access neighbouring words"
            )
            return text, f"{_GUIDE}, Coalesced Access to Global Memory", ""
    return None


def bank_conflicts(facts: Facts, setting: Setting) -> Finding:
    """Bank conflicts that add wavefronts of shared memory."""
    for side, verb in (("ld", "loads"), ("st", "stores")):
        waves = facts.counters.get(f"wave_{side}", 0.0)
        conflicts = facts.counters.get(f"bank_{side}", 0.0)
        if waves and conflicts > _MAX_CONFLICT_SHARE * waves:
            text = (
                f"{conflicts / waves:.0%} of the wavefronts of its shared {verb} are bank conflicts: "
                "pad rows, or swizzle"
            )
            return text, f"{_GUIDE}, Shared Memory and Memory Banks", ""
    return None


def divergence(facts: Facts, setting: Setting) -> Finding:
    """Instructions that few threads of a warp execute."""
    active = facts.counters.get("simt")
    if active is None or active >= _MIN_ACTIVE_THREADS:
        return None
    text = (
        f"{active:.3g} of a warp's 32 threads are active on average: let all threads of a warp take "
        "the same branch"
    )
    return text, f"{_GUIDE}, Branching and Divergence", ""


def loads_in_flight(facts: Facts, setting: Setting) -> Finding:
    """Too few loads in flight to hide the latency of memory."""
    found, needed = facts.in_flight, bytes_to_fill(setting.device)
    if not found or found >= needed:
        return None
    text = (
        f"a multiprocessor has at most {found / 1024:.3g} KB of loads in flight, but needs "
        f"{needed // 1024} KB to keep the memory busy: issue more or wider loads per thread"
    )
    reached = facts.limit_share or 0.0
    refuted = f"it reaches {reached:.0%} of the measured {limit_words(facts.limit_name)}"
    source = "NVIDIA CUB, cc_to_min_bytes_in_flight of DeviceTransform"
    return text, source, refuted if reached >= _BUSY_PERCENT / 100 else ""


def issue_share(facts: Facts, setting: Setting) -> Finding:
    """A loop with too many instructions other than multiply-adds."""
    loop = facts.code.hottest if facts.code else None
    is_fp32 = setting.work is not None and setting.work.pipe == "fp32"
    if not loop or not is_fp32 or not loop.body.ffma or loop.body.tensor:
        return None
    most = attainable(loop.body.share(loop.body.ffma), setting.device)
    if most > _MAX_ISSUE_SHARE or setting.is_memory_bound:
        return None
    text = (
        f"{loop.body.ffma} of the {loop.body.instructions} instructions in its hottest loop are FFMA. A "
        f"scheduler issues one instruction per clock, so the loop reaches at most {most:.0%} of the FP32 "
        "peak. Use each loaded value more often (a larger tile per thread), and unroll"
    )
    return text, "CUDA C++ Programming Guide, Arithmetic Instructions", ""


def small_grid(facts: Facts, setting: Setting) -> Finding:
    """Fewer blocks than multiprocessors, or a mostly empty last wave."""
    count, resident = setting.device.sm_count, facts.occupancy
    if resident is None or not resident.blocks or count < 2:
        return None
    blocks, at_once = prod(facts.grid), resident.blocks * count
    waves = blocks / at_once
    if blocks < count:
        text = (
            f"{blocks} blocks leave {count - blocks} of {count} multiprocessors without work: use smaller "
            "tiles, or several blocks per tile"
        )
    elif 1 < waves < 4 and 0 < waves % 1 <= 0.5:
        text = f"{blocks} blocks are {waves:.2f} waves of {at_once}: {1 - waves % 1:.0%} of the last is empty"
    else:
        return None
    return text, "NVIDIA, Matrix Multiplication Background: Wave Quantization", ""


def low_occupancy(facts: Facts, setting: Setting) -> Finding:
    """Occupancy below a quarter."""
    resident = facts.occupancy
    if resident is None or resident.share >= _LOW_OCCUPANCY:
        return None
    below, known = winners_below(setting.records, _LOW_OCCUPANCY)
    text = (
        f"occupancy is {resident.share:.1%}, limited by {' and '.join(resident.limited_by)}: below "
        f"{_LOW_OCCUPANCY:.0%} it cannot hide latency"
    )
    refuted = (
        f"{below} of the {known} winners of this kernel on {setting.device.arch} are below "
        f"{_LOW_OCCUPANCY:.0%}"
    )
    return text, f"{_GUIDE}, Occupancy", refuted if below else ""


def top_stalls(facts: Facts, setting: Setting) -> Finding:
    """The two longest stalls of a warp."""
    found = [(name, warps) for name, warps in stalls(facts.counters)[:2] if warps > 0]
    if not found or max(facts.counters.get(unit, 0.0) for unit in ("dram", "sm")) >= _BUSY_PERCENT:
        return None
    words = ", then ".join(f"{STALLS[name]} ({warps:.3g})" for name, warps in found)
    text = f"its warps wait for {words}; the numbers are waiting warps per issued instruction"
    return text, "Nsight Compute, Kernel Profiling Guide, Warp States", ""


#: All rules, the most conclusive first; `limit_of` shows the first that applies.
RULES: tuple[Rule, ...] = (
    *(spills, local_arrays, uncoalesced, bank_conflicts, divergence, loads_in_flight, issue_share),
    *(small_grid, top_stalls, low_occupancy),
)


def advice(facts: Sequence[Facts], setting: Setting) -> list[Advice]:
    """Return the advice of all rules for the variants that run."""
    findings = (
        (variant, rule(variant, setting))
        for variant in facts
        if not variant.failure
        for rule in RULES
    )
    return [Advice(variant.name, *finding) for variant, finding in findings if finding]


def limit_of(facts: Facts, all_advice: Sequence[Advice]) -> str:
    """Return the limit of a variant, with the figure that shows the limit."""
    if facts.failure:
        return f"cannot run: {facts.failure}"
    for unit, words in (("dram", "the memory"), ("sm", "the multiprocessors")):
        if (busy := facts.counters.get(unit, 0.0)) >= _BUSY_PERCENT:
            return f"{words}, at {busy:.3g} % of peak"
    if facts.limit_share is not None and facts.limit_share >= _BUSY_PERCENT / 100:
        unit = _LIMITING.get(facts.limit_name, "the memory")
        words = limit_words(facts.limit_name)
        return f"{unit}, at {facts.limit_share:.0%} of the device's measured {words}"
    own = (
        advice.sentence
        for advice in all_advice
        if advice.variant == facts.name and not advice.refuted
    )
    return next(own, "not known from these figures; counters may show it")
