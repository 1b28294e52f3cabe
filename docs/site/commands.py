"""The command line for mkdocs-click: examples, which click keeps as they are by a \\b, as blocks of code."""

import re
from inspect import cleandoc

import click

from autotune.cli import autotune

EXAMPLES = re.compile(r"^\x08\n((?:.+\n?)+)", re.MULTILINE)

context = click.Context(autotune)
verbs = [autotune.get_command(context, name) for name in autotune.list_commands(context)]
groups = [verb for verb in verbs if isinstance(verb, click.Group)]
commands = [*verbs, *(command for group in groups for command in group.commands.values())]
for command in (autotune, *filter(None, commands)):
    command.help = EXAMPLES.sub(r"```sh\n\1\n```\n", cleandoc(command.help or ""))
