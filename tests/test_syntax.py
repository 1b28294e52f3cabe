"""Python's parser is called by one thread at a time; see `autotune.syntax`."""

from __future__ import annotations

import ast
import re
import threading
import time
from pathlib import Path

import pytest

from autotune.syntax import parsed

PACKAGE = Path(__file__).parent.parent / "autotune"
UNPROTECTED = re.compile(
    r"(?<!parsed\(lambda: )\b(ast\.parse|ast\.literal_eval|np\.load)\((?!node)"
)


def test_one_thread_parses_at_a_time() -> None:
    inside, most = set[int](), set[int]()

    def parse() -> ast.AST:
        inside.add(threading.get_ident())
        most.add(len(inside))
        time.sleep(0.005)
        inside.discard(threading.get_ident())
        return ast.parse("a + 1")

    threads = [threading.Thread(target=parsed, args=(parse,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == {1}


def test_a_tree_that_another_thread_disturbed_is_made_again() -> None:
    attempts = iter([SystemError("AST constructor recursion depth mismatch"), None])

    def parse() -> str:
        if error := next(attempts):
            raise error
        return "tree"

    assert parsed(parse) == "tree"


def test_an_error_that_stays_is_raised() -> None:
    def parse() -> None:
        raise SystemError("stays")

    with pytest.raises(SystemError, match="stays"):
        parsed(parse)


def test_a_syntax_error_is_raised() -> None:
    with pytest.raises(SyntaxError):
        parsed(lambda: ast.parse("a +"))


def test_no_module_parses_without_protection() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}: {line.strip()}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if UNPROTECTED.search(line)
    ]
    assert found == []
