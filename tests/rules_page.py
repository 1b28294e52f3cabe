"""The table of docs/decisions/15-rules-of-verification.md: each rule with a kernel that needs it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/decisions/15-rules-of-verification.md"


def rows(part: str) -> dict[str, str]:
    """Return the rules of a part of the page, each with its kernel."""
    _, _, after = PAGE.read_text().partition(f"\n|{part}|")
    lines = after.partition("\n\n")[0].splitlines()[2:]
    return {rule: kernel for _, rule, kernel, _ in (re.split(r"\|", line) for line in lines)}
