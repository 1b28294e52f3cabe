"""Completion of words in a shell. The shell's function is click's; see docs/operations.md."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

#: Characters at which bash splits a word; its function replaces only the part after the last one.
_BREAKS = frozenset(":=")


@add_completion_class
class ColonComplete(BashComplete):
    """Bash completion of words that bash splits, such as ``kt:pso`` and ``--strategy=auto``."""

    _typed = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, joined again, and the one to complete."""
        parts = split_arg_string(os.environ["COMP_WORDS"])
        cursor = int(os.environ["COMP_CWORD"])
        words: list[str] = []
        for part in parts[1 : cursor + 1]:
            if words and (part[0] in _BREAKS or words[-1][-1] in _BREAKS):
                words[-1] += part
            else:
                words.append(part)
        if cursor < len(parts):
            self._typed = words.pop()
        return words, self._typed

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion without the part that bash keeps."""
        value = self._typed.rpartition("=")[2]
        kept = value[: value.rfind(":") + 1]
        return f"{item.type},{str(item.value).removeprefix(kept)}"


def kernel_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return names of kernels for the shell to complete, without running space files."""
    from autotune.kernel.catalog import space_files

    with suppress(Exception):  # the command itself reports errors
        return sorted(name for name in space_files() if name.startswith(incomplete))
    return []


def strategy_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
    """Return the search strategies that can run on this machine, with their descriptions."""
    from autotune.search.strategies import available

    return [
        CompletionItem(strategy.name, help=strategy.doc)
        for strategy in available()
        if strategy.name.startswith(incomplete) and not strategy.unavailable
    ]
