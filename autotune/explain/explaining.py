"""Explains a kernel: its variants side by side, what limits each, advice, and ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError, install, unknown
from autotune.explain.advice import Advice, advice
from autotune.explain.measuring import measured
from autotune.explain.recorded import with_recorded, write_explanation
from autotune.explain.variants import Facts, KernelVariant, Setting, choose, facts_of
from autotune.kernel.space import is_member
from autotune.measure.disassembly import disassembler


@dataclass(frozen=True)
class Explanation:
    """The variants of a kernel on a problem and a device."""

    setting: Setting
    facts: Sequence[Facts]
    advice: Sequence[Advice]
    #: Sources of figures, and reasons of missing ones.
    notes: Sequence[str]
    #: Ablation: by parameter, the last variant with each other value.
    ablation: Mapping[str, Sequence[Facts]]


def explain(
    setting: Setting,
    names: Sequence[str] = (),
    others: Sequence[KernelVariant] = (),
    ablate: Sequence[str] = (),
    out: Path | None = None,
) -> Explanation:
    """Explain variants by name, and others; without either all that are declared, and the best.

    On a device that is here they are measured, and kept below ``out``. ``ablate`` names parameters whose
    other values replace those of the last variant.
    """
    kernel = setting.kernel
    for name in ablate:
        if name not in kernel.parameters:
            raise UsageError(f"{kernel.name}: {unknown('parameter', name, kernel.parameters)}")
    if out is not None and not setting.is_here:
        raise UsageError("--out keeps what is measured: give --device, on a machine that has it")
    chosen = [*(choose(setting, names) if names or not others else ()), *others]
    changed = {name: _changed(setting, chosen[-1], name) for name in ablate}
    facts = facts_of(setting, [*chosen, *(each for values in changed.values() for each in values)])
    facts, notes = (measured if setting.is_here else with_recorded)(setting, facts)
    if out is not None:
        notes.append(f"wrote {write_explanation(out, setting, facts)}")
    shown, rest = facts[: len(chosen)], iter(facts[len(chosen) :])
    ablation = {name: [next(rest) for _ in values] for name, values in changed.items()}
    notes += _missing(setting, shown)
    return Explanation(setting, shown, advice(shown, setting), notes, ablation)


def _changed(setting: Setting, variant: KernelVariant, name: str) -> list[KernelVariant]:
    """Return a variant with each other value of a parameter that is valid on the device."""
    own = variant.configuration
    values = setting.kernel.parameters_of(own).get(name, ())
    others = [own.replace(**{name: value}) for value in values if value != own[name]]
    valid = [each for each in others if is_member(setting.kernel, each, setting.device)]
    return [KernelVariant(f"{name}={each[name]}", each) for each in valid]


def _missing(setting: Setting, facts: Sequence[Facts]) -> list[str]:
    """Return notes: figures that are missing with the remedy, and the launch that figures are of."""
    device = setting.device
    has_counters = setting.is_here or any(each.metrics for each in facts)
    notes = {
        "registers, occupancy and SASS are of NVIDIA GPUs: --arch sm_90": not device.is_cuda,
        f"no SASS: nvdisasm is not installed; run: {install('explain')}": not disassembler(),
        f"no counters of {device.name} on record; there: autotune explain --out": not has_counters,
    }
    found = [text for text, applies in notes.items() if applies]
    for each in facts:
        if each.launches > 1:
            found.append(
                f"{each.name}: figures but the time are of one of its {each.launches} launches"
            )
        if each.outside:
            found.append(f"{each.name} is not in the space: it breaks {', '.join(each.outside)}")
    return found
