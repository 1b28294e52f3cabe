"""Words that documents, docstrings, comments and messages do not use: plain English, as an engineer writes it."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
    ROOT / "benchmarks" / "README.md",
]
SOURCES = [
    file
    for folder in ("autotune", "benchmarks", "kernels", "spaces")
    for file in sorted((ROOT / folder).glob("**/*.py"))
]
FENCED = re.compile(r"(?ms)^ *```.*?^ *```$|`[^`\n]*`")

#: What to write instead, by pattern.
REFUSED = {
    r"\bso many\b": "a number",
    r"(?:^|[.,;:(–] )of which\b": "a sentence of its own",
    r"\bthose that\b": "the noun",
    r"\bwhere none\b": "if there is no …",
    r"\bbeside\b": "with, next to, or in addition to",
    r"\bis told\b": "gets",
    r"\b(?:is|are|was|were|be|gets?|still) right\b(?! (?:after|before|below|above|next|now|side|of))": "correct",
    r"\bright (?:answer|result|value|number|output|one)s?\b": "correct",
}
#: At most once in a page or module.
ONCE = r"\bhas to\b"
#: Modules that still have such words. An entry goes when its module is clean; none is added.
UNCLEAN = frozenset(
    {
        "benchmarks/study/claims.py",
        "benchmarks/study/notes.py",
        "benchmarks/study/page.py",
        "benchmarks/study/probes.py",
    }
)


def faults(text: str) -> list[str]:
    """Return the refused words of a text, each with what to write instead."""
    prose = " ".join(text.split())
    found = [
        f"{match[0].strip()!r}: write {instead}"
        for pattern, instead in REFUSED.items()
        for match in re.finditer(pattern, prose, re.IGNORECASE)
    ]
    often = len(re.findall(ONCE, prose, re.IGNORECASE))
    return found + [f"'has to' {often} times: write must"] * (often > 1)


def written(source: str) -> Iterator[str]:
    """Yield docstrings, comments and messages of a module: its strings with a blank, and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string.lstrip("#:! "))
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT) and comments:
            yield " ".join(comments)
            comments = []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_use_plain_words(page: Path) -> None:
    assert faults(FENCED.sub("", page.read_text(encoding="utf-8"))) == []


def test_modules_use_plain_words() -> None:
    unclean = {
        str(file.relative_to(ROOT)): found
        for file in SOURCES
        if (found := faults("\n\n".join(written(file.read_text(encoding="utf-8")))))
    }
    assert {name: found for name, found in unclean.items() if name not in UNCLEAN} == {}
    assert sorted(UNCLEAN - set(unclean)) == [], "clean now: take them off the list"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It tries configurations so many times.", 1),
        ("32 results, of which two are ties.", 1),
        ("The time of which it is the median.", 0),
        ("Kernels beside those that the record has.", 2),
        ("The answer is right, and the right\nresult.", 2),
        ("On the right side; right after the launch; is right below.", 0),
        ("It has to wait. It has to end.", 1),
        ("Options besides these; it has to wait.", 0),
    ],
)
def test_words_are_found(text: str, count: int) -> None:
    assert len(faults(text)) == count


def test_what_is_written_in_a_module_is_found() -> None:
    source = '"""Sums."""\n# why: a sum\n# of two\nx = f"is {1} right"  # or not\ny = "key"\n'
    assert [" ".join(each.split()) for each in written(source)] == [
        "is",
        "right",
        "why: a sum of two",
        "or not",
    ]
