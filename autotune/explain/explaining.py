"""Explain a kernel: compare its variants and their limits, give advice, and ablate parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
    #: Sources of figures, and reasons why figures are missing.
    notes: Sequence[str]
    #: By parameter: the last variant with each other value of that parameter.
    ablation: Mapping[str, Sequence[Facts]]


def explain(
    setting: Setting,
    names: Sequence[str] = (),
    others: Sequence[KernelVariant] = (),
    ablate: Sequence[str] = (),
    out: Path | None = None,
) -> Explanation:
    """Explain named variants and ``others``; by default all declared variants and the best.

    Parameters
    ----------
    setting : Setting
        The kernel, device and problem. If the device is in this machine, the variants are measured.
    names : sequence of str
        Names of declared variants, and ``best``.
    others : sequence of KernelVariant
        Further variants.
    ablate : sequence of str
        Parameters whose other values the last variant is also shown with.
    out : Path, optional
        Folder of records to write the measurements to.
    """
    kernel = setting.kernel
    for name in ablate:
        if name not in kernel.parameters:
            raise UsageError(f"{kernel.name}: {unknown('parameter', name, kernel.parameters)}")
    if out is not None and not setting.is_here:
        raise UsageError(
            "--out writes measurements; give --device too, on a machine with that device"
        )
    chosen = [*(choose(setting, names) if names or not others else ()), *others]
    changed = {name: _changed(setting, chosen[-1], name) for name in ablate}
    facts = facts_of(setting, [*chosen, *chain.from_iterable(changed.values())])
    facts, notes = (measured if setting.is_here else with_recorded)(setting, facts)
    if out is not None:
        notes.append(f"wrote {write_explanation(out, setting, facts)}")
    shown, rest = facts[: len(chosen)], iter(facts[len(chosen) :])
    ablation = {name: [next(rest) for _ in values] for name, values in changed.items()}
    notes = [*filter(None, [setting.choice]), *notes, *_missing(setting, shown)]
    return Explanation(setting, shown, advice(shown, setting), notes, ablation)


def _changed(setting: Setting, variant: KernelVariant, name: str) -> list[KernelVariant]:
    """Return a variant with each other value of a parameter that gives a valid configuration."""
    own = variant.configuration
    values = setting.kernel.parameters_of(own).get(name, ())
    others = [own.replace(**{name: value}) for value in values if value != own[name]]
    return [
        KernelVariant(f"{name}={configuration[name]}", configuration)
        for configuration in others
        if is_member(setting.kernel, configuration, setting.device)
    ]


def _missing(setting: Setting, facts: Sequence[Facts]) -> list[str]:
    """Return notes on missing figures, with remedies, and on figures that need an explanation."""
    device = setting.device
    has_counters = setting.is_here or any(variant.metrics for variant in facts)
    notes = {
        "registers, occupancy and SASS exist only for NVIDIA GPUs: --arch sm_90": not device.is_cuda,
        f"no SASS: nvdisasm is not installed; run: {install('explain')}": not disassembler(),
        f"no recorded counters of {device.name}; to record them, run there: autotune explain --out": (
            not has_counters
        ),
    }
    found = [text for text, applies in notes.items() if applies]
    for variant in facts:
        if variant.launches > 1:
            found.append(
                f"{variant.name}: the time covers all {variant.launches} launches, the other figures "
                "only the main launch"
            )
        if variant.outside:
            found.append(
                f"{variant.name} is not in the search space: it breaks {', '.join(variant.outside)}"
            )
    return found
