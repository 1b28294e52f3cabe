"""Advice by rules: each a function of a variant's figures, with the source that it follows.

A rule that a measurement of ours contradicts is not left out: the advice says that it is refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from autotune.devices.occupancy import attainable, bytes_to_fill
from autotune.explain.variants import Facts, Setting, winners_below
from autotune.measure.counters import STALLS, stalls

#: Share of warps below which the study notes call a kernel slow.
_LOW_OCCUPANCY = 0.25
#: Percentage of a unit's peak, or of a measured limit, from which it counts as the limit.
_BUSY = 80.0
#: Thresholds of advice, in per cent: sectors used below; conflicts among wavefronts above; active threads
#: below.
_LITTLE_USED, _CONFLICTS, _ACTIVE = 50.0, 0.1, 28.0
#: Share of FP32's peak that the instructions of a loop allow; below it the instructions are the limit.
_ISSUE = 0.75
_GUIDE = "CUDA C++ Best Practices Guide"
#: The unit that is busy at a measured limit; at other limits it is the memory.
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
    """Values that did not fit in registers."""
    if not facts.spill_bytes:
        return None
    text = (
        f"spills {facts.spill_bytes} bytes to local memory: give a thread fewer values, or allow it "
        "more registers (fewer MIN_BLOCKS, a higher cap)"
    )
    return text, f"{_GUIDE}, Register Pressure", ""


def local_arrays(facts: Facts, setting: Setting) -> Finding:
    """Local memory that holds no spilled registers."""
    accesses = facts.code.mix.accesses if facts.code else {}
    if facts.spill_bytes or not accesses.keys() & {"local loads", "local stores"}:
        return None
    text = "an array lies in local memory, as its index is known only at run time: unroll its loop"
    return text, f"{_GUIDE}, Local Memory", ""


def uncoalesced(facts: Facts, setting: Setting) -> Finding:
    """Sectors that are moved and mostly not used."""
    for side, verb in (("ld", "loads"), ("st", "stores")):
        used, sectors = facts.counters.get(f"used_{side}"), facts.counters.get(f"sectors_{side}")
        if used is not None and sectors is not None and used < _LITTLE_USED:
            text = (
                f"a request of its {verb} moves {sectors:.3g} sectors of 32 bytes and uses {used:.3g} % "
                "of them: let neighbouring threads access neighbouring words"
            )
            return text, f"{_GUIDE}, Coalesced Access to Global Memory", ""
    return None


def bank_conflicts(facts: Facts, setting: Setting) -> Finding:
    """Wavefronts of shared memory that conflicts add."""
    for side, verb in (("ld", "loads"), ("st", "stores")):
        waves = facts.counters.get(f"wave_{side}", 0.0)
        conflicts = facts.counters.get(f"bank_{side}", 0.0)
        if waves and conflicts > _CONFLICTS * waves:
            text = (
                f"{conflicts / waves:.0%} of the wavefronts of its shared {verb} are bank conflicts: "
                "pad rows, or swizzle"
            )
            return text, f"{_GUIDE}, Shared Memory and Memory Banks", ""
    return None


def divergence(facts: Facts, setting: Setting) -> Finding:
    """Instructions that few threads of a warp execute."""
    active = facts.counters.get("simt")
    if active is None or active >= _ACTIVE:
        return None
    text = f"{active:.3g} of a warp's 32 threads are active on average: let whole warps take one branch"
    return text, f"{_GUIDE}, Branching and Divergence", ""


def loads_in_flight(facts: Facts, setting: Setting) -> Finding:
    """Too few loads under way to hide the latency of memory."""
    found, needed = facts.in_flight, bytes_to_fill(setting.device)
    if not found or found >= needed:
        return None
    text = (
        f"the threads of a multiprocessor have at most {found / 1024:.3g} KB of loads under way, and "
        f"{needed // 1024} KB keep the memory busy: give a thread more or wider loads at once"
    )
    reached = facts.limit_share or 0.0
    refuted = f"it reaches {reached:.0%} of the measured {facts.limit_name} rate"
    source = "NVIDIA CUB, cc_to_min_bytes_in_flight of DeviceTransform"
    return text, source, refuted if reached >= _BUSY / 100 else ""


def issue_share(facts: Facts, setting: Setting) -> Finding:
    """A loop that spends its instructions on other things than multiply-adds."""
    loop = facts.code.hottest if facts.code else None
    is_fp32 = setting.work is not None and setting.work.pipe == "fp32"
    if not loop or not is_fp32 or not loop.body.ffma or loop.body.tensor:
        return None
    most = attainable(loop.body.share(loop.body.ffma), setting.device)
    if most > _ISSUE or setting.is_memory_bound:
        return None
    text = (
        f"{loop.body.ffma} of the {loop.body.instructions} instructions in its hottest loop are FFMA, and "
        f"a scheduler issues one instruction a clock: at most {most:.0%} of the FP32 peak. Compute more "
        "with each value loaded (a larger tile per thread), and unroll"
    )
    return text, "CUDA C++ Programming Guide, Arithmetic Instructions", ""


def small_grid(facts: Facts, setting: Setting) -> Finding:
    """Fewer blocks than multiprocessors, or a last wave that is mostly empty."""
    count, resident = setting.device.sm_count, facts.occupancy
    if resident is None or not resident.blocks or count < 2:
        return None
    blocks, at_once = prod(facts.grid), resident.blocks * count
    waves = blocks / at_once
    if blocks < count:
        text = (
            f"{blocks} blocks leave {count - blocks} of {count} multiprocessors without work: smaller "
            "tiles, or several blocks for a tile"
        )
    elif 1 < waves < 4 and 0 < waves % 1 <= 0.5:
        text = f"{blocks} blocks are {waves:.2f} waves of {at_once}: {1 - waves % 1:.0%} of the last is empty"
    else:
        return None
    return text, "NVIDIA, Matrix Multiplication Background: Wave Quantization", ""


def low_occupancy(facts: Facts, setting: Setting) -> Finding:
    """Less than a quarter of the warps."""
    resident = facts.occupancy
    if resident is None or resident.share >= _LOW_OCCUPANCY:
        return None
    below, known = winners_below(setting.records, _LOW_OCCUPANCY)
    text = (
        f"occupancy is {resident.share:.1%}, limited by {' and '.join(resident.limited_by)}: less than "
        f"{_LOW_OCCUPANCY:.0%} cannot hide latency"
    )
    refuted = f"{below} of the {known} winners of this kernel on {setting.device.arch} have less"
    return text, f"{_GUIDE}, Occupancy", refuted if below else ""


def top_stalls(facts: Facts, setting: Setting) -> Finding:
    """The two reasons for which warps wait most."""
    found = [(name, warps) for name, warps in stalls(facts.counters)[:2] if warps > 0]
    if not found or max(facts.counters.get(unit, 0.0) for unit in ("dram", "sm")) >= _BUSY:
        return None
    words = ", then ".join(f"{STALLS[name]} ({warps:.3g})" for name, warps in found)
    text = f"its warps wait for {words} (waiting warps per issued instruction)"
    return text, "Nsight Compute, Kernel Profiling Guide, Warp States", ""


#: The most telling rule comes first.
RULES: tuple[Rule, ...] = (
    *(spills, local_arrays, uncoalesced, bank_conflicts, divergence, loads_in_flight, issue_share),
    *(small_grid, top_stalls, low_occupancy),
)


def advice(facts: Sequence[Facts], setting: Setting) -> list[Advice]:
    """Return the advice of all rules about the variants that run."""
    found = ((each, rule(each, setting)) for each in facts if not each.failure for rule in RULES)
    return [Advice(each.name, *said) for each, said in found if said]


def limit_of(facts: Facts, said: Sequence[Advice]) -> str:
    """Return the limit of a variant, with the figure that shows it."""
    if facts.failure:
        return f"it cannot run: {facts.failure}"
    for unit, words in (("dram", "the memory"), ("sm", "the multiprocessors")):
        if (busy := facts.counters.get(unit, 0.0)) >= _BUSY:
            return f"{words}, at {busy:.3g} % of the peak"
    if facts.limit_share is not None and facts.limit_share >= _BUSY / 100:
        unit = _LIMITING.get(facts.limit_name, "the memory")
        return (
            f"{unit}, at {facts.limit_share:.0%} of the device's measured {facts.limit_name} rate"
        )
    own = (each.sentence for each in said if each.variant == facts.name and not each.refuted)
    return next(own, "no figure here shows it; counters may")
