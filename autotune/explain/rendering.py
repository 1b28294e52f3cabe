"""Render an explanation as tables and sentences, Markdown, or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any, TypeAlias

from autotune.devices.sass import ACCESSES
from autotune.explain.advice import limit_of
from autotune.explain.explaining import Explanation
from autotune.explain.variants import Facts
from autotune.kernel.space import applicable
from autotune.measure.counters import FIGURES
from autotune.report.text_table import Table
from autotune.report.wording import limit_words, percent

#: Return the text of a variant's figure; empty if the figure is not known.
Words: TypeAlias = Callable[[Facts], str]


def _accesses(kind: str) -> Words:
    def words(facts: Facts) -> str:
        widths = facts.code.mix.accesses.get(kind, {}) if facts.code else {}
        return ", ".join(f"{widths[width]} × {width}" for width in sorted(widths, reverse=True))

    return words


def _count(name: str) -> Words:
    return lambda facts: str(getattr(facts.code.mix, name) or "") if facts.code else ""


def _known(number: int | None) -> str:
    return "" if number is None else str(number)


def _rate(facts: Facts) -> str:
    flops, moved = facts.gflop_per_s or 0.0, facts.gb_per_s or 0.0
    return f"{flops / 1e3:.3g} TFLOP/s" if flops > moved * 4 else f"{moved:.4g} GB/s" * bool(moved)


def _occupancy(facts: Facts) -> str:
    found = facts.occupancy
    return f"{found.share:.1%}, {found.warps} of {found.max_warps} warps" if found else ""


def _loop(facts: Facts) -> str:
    loop = facts.code.hottest if facts.code else None
    step = f", counter {loop.step:+d}" if loop and loop.step else ""
    none = "none: the code has no loop" if facts.code else ""
    return f"{loop.body.instructions} instructions{step}" if loop else none


def _arithmetic(facts: Facts) -> str:
    loop = facts.code.hottest if facts.code else None
    counts = loop.body.arithmetic.items() if loop else ()
    return ", ".join(f"{n} {name} ({loop.body.share(n):.0%})" for name, n in counts if loop)


#: Attributes of `autotune.devices.sass.Mix` that have a line in the table.
_COUNTS = ("bulk_copies", "barriers", "atomics", "branches", "predicated", "calls", "instructions")
#: The lines of the table of figures, by label: time, resources, code, counters.
LINES: Mapping[str, Words] = {
    "time": lambda facts: f"{facts.time_ms:.4g} ms" if facts.time_ms else "",
    "rate": _rate,
    "share of measured limit": lambda facts: (
        f"{percent(facts.limit_share)} of {limit_words(facts.limit_name)}"
        if facts.limit_share
        else ""
    ),
    "registers per thread": lambda facts: _known(facts.registers),
    "bytes spilled": lambda facts: _known(facts.spill_bytes),
    "static shared bytes": lambda facts: _known(facts.static_bytes),
    "dynamic shared bytes": lambda facts: _known(facts.dynamic_bytes or None),
    "threads per block": lambda facts: str(prod(facts.block)) if facts.block else "",
    "blocks": lambda facts: str(prod(facts.grid)) if facts.grid else "",
    "occupancy": _occupancy,
    "  limited by": lambda facts: ", ".join(facts.occupancy.limited_by) if facts.occupancy else "",
    "loads in flight per multiprocessor": lambda facts: (
        f"{facts.in_flight / 1024:.3g} KB" if facts.in_flight else ""
    ),
    **{f"{kind} × bytes": _accesses(kind) for kind in ACCESSES},
    "hottest loop": _loop,
    "  arithmetic in it": _arithmetic,
    **{name.replace("_", " "): _count(name) for name in _COUNTS},
    **{
        figure.words: lambda facts, figure=figure: figure.text(facts.metrics)  # type: ignore[misc]
        for figure in FIGURES.values()
    },
}
#: Labels of the lines that `changes` compares.
_COMPARED = (
    *("time", "registers per thread", "bytes spilled", "occupancy", "global loads × bytes"),
    *("loads in flight per multiprocessor", "  arithmetic in it"),
    *(figure.words for figure in FIGURES.values()),
)


def figures(facts: Sequence[Facts]) -> Table:
    """Return the table of variants side by side, without empty lines."""
    rows = ((name, *(words(variant) for variant in facts)) for name, words in LINES.items())
    columns = ("", *(variant.name for variant in facts))
    return Table(columns, tuple(row for row in rows if any(row[1:])))


def _relevant(explanation: Explanation, facts: Facts) -> dict[str, str]:
    configuration = facts.variant.configuration
    applies = applicable(explanation.setting.kernel, configuration)
    return {name: str(value) for name, value in configuration.items() if applies[name]}


def parameters(explanation: Explanation) -> Table:
    """Return the parameters in which variants differ; a parameter without effect has an empty cell."""
    facts = explanation.facts
    relevant = [_relevant(explanation, variant) for variant in facts]
    rows = (
        (name, *(own.get(name, "") for own in relevant))
        for name in explanation.setting.kernel.parameters
    )
    differing = tuple(row for row in rows if len(set(row[1:])) > 1 or (len(facts) == 1 and row[1]))
    return Table(("", *(variant.name for variant in facts)), differing)


def changes(explanation: Explanation) -> list[str]:
    """Return the main figures and common parameters that differ between the first and last variant."""
    first, last = explanation.facts[0], explanation.facts[-1]
    lines = {name: words for name, words in LINES.items() if name in _COMPARED}
    values = {name.strip(): (words(first), words(last)) for name, words in lines.items()}
    before, after = _relevant(explanation, first), _relevant(explanation, last)
    values |= {name: (before[name], after[name]) for name in before if name in after}
    moved = [f"{name}: {a} → {b}" for name, (a, b) in values.items() if a and b and a != b]
    hint = f"--ablate NAME shows {last.name} with other values of a parameter"
    return [*moved, hint] if moved and not explanation.ablation else moved


def limits(explanation: Explanation) -> list[str]:
    """Return the limit of each variant."""
    return [
        f"{variant.name}: {limit_of(variant, explanation.advice)}" for variant in explanation.facts
    ]


def advised(explanation: Explanation) -> list[str]:
    """Return the advice that `limits` does not show; several variants share a line."""
    names: dict[str, list[str]] = {}
    for advice in explanation.advice:
        if f"{advice.variant}: {advice.sentence}" not in limits(explanation):
            names.setdefault(advice.sentence, []).append(advice.variant)
    return [f"{', '.join(variants)}: {sentence}" for sentence, variants in names.items()]


def notes(explanation: Explanation) -> list[str]:
    """Return the sources of figures, and the missing figures."""
    origins = [
        f"{variant.name}: {variant.variant.origin}"
        for variant in explanation.facts
        if variant.variant.origin
    ]
    absent = sorted({metric for variant in explanation.facts for metric in variant.absent})
    lacking = [f"metrics that this device lacks: {', '.join(absent)}"] if absent else []
    return [*origins, *lacking, *explanation.notes]


def title(explanation: Explanation) -> str:
    """Return kernel, problem and device."""
    setting, device = explanation.setting, explanation.setting.device
    arch = f" ({device.arch})" if device.arch != device.name else ""
    return f"{setting.kernel.name} ({setting.problem}) on {device.name}{arch}"


def sections(explanation: Explanation) -> list[tuple[str, Table | list[str]]]:
    """Return the headings and parts of an explanation, without empty parts."""
    facts, last = explanation.facts, explanation.facts[-1].name
    parts: Iterable[tuple[str, Table | list[str]]] = (
        ("Parameters", parameters(explanation)),
        ("Figures", figures(facts)),
        ("Limits", limits(explanation)),
        (f"From {facts[0].name} to {last}", changes(explanation)),
        ("Advice", advised(explanation)),
        *(
            (f"{last} with other values of {name}", figures([facts[-1], *values]))
            for name, values in explanation.ablation.items()
        ),
        ("Notes", notes(explanation)),
    )
    return [
        (name, part) for name, part in parts if (part.rows if isinstance(part, Table) else part)
    ]


def markdown(explanation: Explanation) -> str:
    """Return an explanation as Markdown."""
    lines = [f"# {title(explanation)}\n"]
    for name, part in sections(explanation):
        listed = part if isinstance(part, list) else ()
        text = part.markdown() if isinstance(part, Table) else ""
        lines.append(f"## {name}\n\n{text}{''.join(f'- {line}{chr(10)}' for line in listed)}")
    return "\n".join(lines)


def document(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation for ``--json``."""
    device = explanation.setting.device
    return {
        "kernel": explanation.setting.kernel.name,
        "problem": dict(explanation.setting.problem),
        "device": device.name,
        "arch": device.arch,
        "variants": [_document(variant, explanation) for variant in explanation.facts],
        "advice": [vars(advice) for advice in explanation.advice],
        "ablation": {
            name: [_document(variant, explanation) for variant in values]
            for name, values in explanation.ablation.items()
        },
        "notes": notes(explanation),
    }


def _document(facts: Facts, explanation: Explanation) -> dict[str, Any]:
    resident, loop = facts.occupancy, facts.code.hottest if facts.code else None
    shares = {"share": resident.share, "limited_by": resident.limited_by} if resident else {}
    others = {field.name: getattr(facts, field.name) for field in fields(facts)[1:]}
    return {
        **{"name": facts.name, "origin": facts.variant.origin},
        **{
            "config": dict(facts.variant.configuration),
            "limit": limit_of(facts, explanation.advice),
        },
        **others,
        "occupancy": resident and {**vars(resident), **shares},
        "code": facts.code and vars(facts.code.mix),
        "hottest_loop": loop and {"step": loop.step, **vars(loop.body)},
    }
