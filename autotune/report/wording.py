"""Format numbers with units and plurals; make foreign text safe to print."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from autotune.measure.roofline import ARITHMETIC

#: Text for an unknown value.
NONE = "–"

_LIMIT_WORDS = {
    "read": "read bandwidth",
    "copy": "copy bandwidth",
    "read+copy": "read + copy bandwidth",
    "ffma": "FP32 rate (FFMA)",
    "tensor": "tensor core rate",
}
#: Options that advice names, on the command line and as arguments of `tune`.
_OPTIONS = {
    "fresh": ("--fresh", "fresh=True"),
    "effort": ("--effort full", 'effort="full"'),
    "budget": ("--budget", "budget="),
}
#: A URL, which `without_paths` keeps, or an absolute path of two or more parts.
_ADDRESS_OR_PATH = re.compile(
    r"(?!file:)\b(?P<address>[A-Za-z]\w*://\S*)"
    r"|(?<![\w/.])(?:file:)?/+(?:[\w.+@~%-]+/+)+(?P<last>[\w.+@~%-]*)"
)
#: Characters that could begin markup in GitHub's Markdown: emphasis, code, links, bare
#: addresses, HTML, table cells, mathematics.
_MARKUP = re.compile(
    r"[\\`*{}\[\]<>#|~$@!&^]|:(?=//)|(?<=mailto):|(?<=xmpp):|(?<=www)\."
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
)
_TIMES = (("s", 1e3), ("ms", 1.0), ("µs", 1e-3), ("ns", 1e-6))


def number(value: float, digits: int = 4) -> str:
    """Return a number with significant digits, without exponent between 1e-4 and 1e15."""
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{max(1, digits - 1)}g}"
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e" in text else text


def time_unit(ms: float) -> tuple[str, float]:
    """Return the unit in which a time is at least 1, and its length in milliseconds."""
    return next((unit for unit in _TIMES if ms >= unit[1]), _TIMES[-1])


def time(ms: float) -> str:
    """Return a time with its unit, for example ``490.7 µs``."""
    unit, length = time_unit(ms)
    return f"{_fixed(ms / length)} {unit}"


def energy_unit(mj: float) -> tuple[str, float]:
    """Return the unit of an energy, and its size in millijoules."""
    return ("J", 1e3) if mj >= 1e3 else ("mJ", 1.0) if mj >= 1 else ("µJ", 1e-3)


def energy(mj: float, bounds_mj: tuple[float, float] | None = None) -> str:
    """Return an energy with its unit and interval, for example ``412.5 mJ (410 … 415)``."""
    unit, amount = energy_unit(mj)
    span = " … ".join(number(bound / amount) for bound in bounds_mj or ())
    return f"{number(mj / amount)} {unit}{f' ({span})' if span else ''}"


def interval(ms: float, bounds_ms: tuple[float, float]) -> str:
    """Return the bounds of a time in the time's own unit, for example ``456.9 – 591.5``."""
    _, length = time_unit(ms)
    return " – ".join(_fixed(bound / length) for bound in bounds_ms)


def ratio(value: float, bounds: tuple[float, float] | None = None) -> str:
    """Return a ratio with its interval, for example ``1.042× (1.038 – 1.047)``."""
    text = f"{value:.3f}×" if value < 100 else f"{value:.0f}×"
    return text if bounds is None else f"{text} ({bounds[0]:.3f} – {bounds[1]:.3f})"


def percent(share: float) -> str:
    """Return a share in percent to tenths; only exact values print as 0 or 100."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1 - 1e-9:  # a product and a quotient differ in the last bits
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def bandwidth(gb_per_s: float) -> str:
    """Return a rate of bytes with its unit."""
    return f"{_fixed(gb_per_s)} GB/s" if gb_per_s < 1e4 else f"{_fixed(gb_per_s / 1e3)} TB/s"


def arithmetic(gflop_per_s: float) -> str:
    """Return a rate of operations with its unit."""
    if gflop_per_s < 1e3:
        return f"{_fixed(gflop_per_s)} GFLOP/s"
    return f"{_fixed(gflop_per_s / 1e3)} TFLOP/s"


def size(count: int | None) -> str:
    """Return a number of bytes with its unit; a dash if it is unknown."""
    if count is None:
        return NONE
    if count < 10240:
        return f"{count} B"
    power, unit = next(
        (power, unit) for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if count >> power
    )
    return f"{number(count / (1 << power))} {unit}"


def count(value: int | None) -> str:
    """Return a number with thin spaces between thousands; a dash if it is unknown."""
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def plural(number: int, noun: str) -> str:
    """Return ``1 problem`` or ``2 problems``."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def listed(words: Iterable[str]) -> str:
    """Return the distinct words, separated by commas."""
    return ", ".join(dict.fromkeys(words))


def value_text(value: object) -> str:
    """Return a parameter's value; booleans as 0 and 1."""
    return one_line(str(int(value)) if isinstance(value, bool) else str(value))


def limit_words(name: str) -> str:
    """Return the name of a measured limit, for example ``read bandwidth``."""
    return _LIMIT_WORDS.get(name, one_line(name))


def limit_rates(name: str, rates: Sequence[float]) -> str:
    """Return the lowest and the highest rate of a measured limit with their unit; one if they are equal."""
    text = arithmetic if name in ARITHMETIC else bandwidth
    return " to ".join(dict.fromkeys(map(text, (rates[0], rates[-1]))))


def hint(text: str, in_python: bool = False) -> str:
    """Return advice with its ``{option}`` fields as command-line options, or as arguments of `tune`."""
    return text.format(**{name: words[in_python] for name, words in _OPTIONS.items()})


def without_paths(text: str) -> str:
    """Return text with absolute paths shortened to their last part."""
    return _ADDRESS_OR_PATH.sub(lambda found: found["address"] or f"…/{found['last']}", text)


def printable(text: str) -> str:
    """Replace control characters and changes of text direction with spaces."""
    if text.isprintable():
        return text
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in text)


def one_line(text: str, limit: int = 300) -> str:
    """Return text as one line of at most ``limit`` characters, without control characters and paths."""
    line = " ".join(without_paths(printable(text)).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def markdown(text: str) -> str:
    """Escape text for Markdown paragraphs and tables."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", one_line(text, 4000))


def _fixed(value: float) -> str:
    """Return four significant digits, including trailing zeros."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:.{next((n for n in range(4) if rounded >= 10 ** (3 - n)), 3)}f}"
