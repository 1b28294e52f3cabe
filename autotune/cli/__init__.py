"""The command `autotune`: parse arguments, print results, and exit.

Results go to stdout, all other text to stderr. An expected error prints one message and exits with the
code of its class in `autotune.errors`. A command imports the modules that it needs when it runs.

Commands are in `runs`, `kernels`, `records`, `transfer`, `upkeep`, `regression` and `machine`. They share `console`
and `completion`.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from autotune import __version__
from autotune.files import bundled_path

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PACKAGE = Path(__file__).resolve().parents[1]
#: Module and one-line help of each command.
COMMANDS = {
    "run": ("runs", "Find the fastest configuration of kernels; write record, header and report."),
    "list": ("kernels", "List kernels, search strategies or devices."),
    "show": ("kernels", "Show the search space of a kernel, or the code of one configuration."),
    "explain": ("kernels", "Explain why configurations are fast or slow, side by side."),
    "new": ("kernels", "Write a working kernel and its space file for you to edit."),
    "check": ("kernels", "Check a space file; compile a sample for each architecture."),
    "lookup": ("records", "Print the tuned configuration for a problem."),
    "results": ("records", "List measurements, or runs."),
    "report": ("records", "Write reports, or compare two tuned records."),
    "export": ("transfer", "Write tuned results in another format."),
    "import": ("transfer", "Import a tuned record, or measurements of Kernel Tuner."),
    "retune": ("upkeep", "Tune kernels again: stale, missing or named."),
    "sizes": ("upkeep", "Improve the answers for sizes that were not tuned."),
    "check-tuned": (
        "regression",
        "Verify and time tuned entries again; exit code 5 on a regression.",
    ),
    "fleet": ("machine", "Run a Dask cluster of this machine's GPUs and compilers."),
    "doctor": ("machine", "Check this machine, and print the command that fixes each problem."),
}


class LazyGroup(click.Group):
    """A group of commands that loads a command's module only when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            from autotune.errors import UsageError, unknown

            raise UsageError(unknown("command", cmd_name, COMMANDS))
        module = import_module(f"autotune.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from `COMMANDS`: loading all command modules takes a second."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=about)
            for name, (_, about) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


def _place(name: str, folder: str, about: str) -> Callable[[Any], Any]:
    """Return an option that prints a folder for C++ programs and exits."""

    def show(context: click.Context, _: click.Parameter, is_set: bool) -> None:
        if is_set:
            click.echo(bundled_path(f"cpp/{folder}"))
            context.exit()

    return click.option(
        name, is_flag=True, is_eager=True, expose_value=False, callback=show, help=about
    )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="autotune")
@_place("--include-dir", "include", "Print the folder of the shipped C++ headers, and exit.")
@_place("--cmake-dir", "cmake", "Print the folder for CMake's autotune_DIR, and exit.")
@_place("--pkg-config-dir", "pkgconfig", "Print the folder for PKG_CONFIG_PATH, and exit.")
def autotune() -> None:
    """Find the fastest verified configuration of a GPU kernel, per device and problem size.

    \b
    autotune run sgemm               tune a bundled kernel on this machine
    autotune new smooth              start a kernel of your own
    autotune lookup sgemm m=4096 n=4096 k=4096 --arch sm_90

    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 no valid configuration, 4 no usable device,
    5 regression, 6 fleet lost, 130 interrupted (results are kept).
    """


def run(arguments: list[str]) -> int:
    """Run one command line; return its exit code."""
    from autotune.errors import AutotuneError, needing

    warnings.showwarning = _show_warning
    if "_AUTOTUNE_COMPLETE" in os.environ:
        import_module("autotune.cli.completion")  # click takes its class of bash
    os.environ.pop(
        "TRITON_INTERPRET", None
    )  # it would stop Triton from compiling, here and in workers
    try:
        with needing(shlex.join(["autotune", *arguments[:1]])):
            autotune.main(
                args=arguments,
                prog_name="autotune",
                standalone_mode=False,
                color=_color(),
                obj=tuple(arguments),  # the record of a run names its command
            )
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return int(ended.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
    except click.ClickException as error:
        return _fail(_usage(error), 2)
    except AutotuneError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted; all measurements are kept", 130)
    except BrokenPipeError:
        # The reader of stdout has closed it, as in ``autotune list | head``.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(_words_of(error), 1)
    except MemoryError as error:
        return _fail(
            f"not enough memory{f': {error}' if str(error) else ''}; try smaller problems", 1
        )
    except Exception as error:
        if os.environ.get("AUTOTUNE_DEBUG"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}; "
            "please report it with the traceback that AUTOTUNE_DEBUG=1 prints",
            1,
        )
    return 0


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any
) -> None:
    if Path(filename).is_relative_to(PACKAGE):
        warn(str(message))


def warn(text: str) -> None:
    """Warn on stderr."""
    _say("warning: ", "yellow", text)


def _color() -> bool | None:
    """Return False if NO_COLOR is set (no-color.org), else None: click decides by the stream."""
    return False if os.environ.get("NO_COLOR") else None


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # the terminal may be gone
        _say("error: ", "red", message)
    return code


def _say(kind: str, colour: str, text: str) -> None:
    click.secho(kind, fg=colour, bold=True, nl=False, err=True, color=_color())
    click.echo("\n".join(map(shown, text.split("\n"))), err=True)


def shown(text: str) -> str:
    """Escape control characters and changes of text direction, so that a terminal can show the text."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in text
    )


def _usage(error: click.ClickException) -> str:
    from autotune.errors import unknown

    context = getattr(error, "ctx", None)
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and context:
        names = [
            max(parameter.opts, key=len)
            for parameter in context.command.get_params(context)
            if parameter.opts[0].startswith("-")
        ]
        text = unknown("option", error.option_name, names)
    command = f"; see: {context.command_path} --help" if context else ""
    return f"{text[:1].lower()}{text[1:]}{command}"


def _words_of(error: OSError) -> str:
    from autotune.files import cache_path

    where = f"{error.filename}: " if error.filename else ""
    hint = "; free some space; finished results are kept" if error.errno == errno.ENOSPC else ""
    failed, cache = f"{error.filename}{os.sep}", cache_path("")
    if failed.startswith(cache) or cache.startswith(failed):
        hint += "; name another folder for the cache by AUTOTUNE_CACHE_DIR"
    return f"{where}{error.strerror or error}{hint}"


def emit_json(document: Any) -> None:
    """Print one JSON document to stdout."""
    click.echo(json_text(document))


def json_text(document: Any) -> str:
    """Return a JSON document as text."""
    import json

    return json.dumps(document, indent=1, default=str, allow_nan=False)


# ---------------------------------------------------------------------- signals

#: Signals within this time after the first are ignored, so that they do not interrupt the clean-up.
_REPEAT_S = 3.0
#: Delay before an interruption that Python dropped is sent again.
_RESEND_S = 0.05

#: Slurm, systemd and `timeout` end a command with SIGTERM, a closed terminal with SIGHUP.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

#: Time of the last signal.
_last_s = float("-inf")


def listen() -> None:
    """Raise `KeyboardInterrupt` in the main thread at Ctrl-C, SIGTERM and SIGHUP from now on.

    The interruption keeps results and ends child processes. Signals that the caller ignores stay ignored,
    for example under ``nohup``. A program that uses the API keeps its own handlers.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = _send_again


def stop_listening(handler: signal.Handlers) -> None:
    """Set a standard handler for these signals, because the command has ended."""
    for number in _SIGNALS:
        signal.signal(number, handler)
    sys.unraisablehook = sys.__unraisablehook__


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last_s
    now_s = time.monotonic()
    if now_s - _last_s > _REPEAT_S:
        _last_s = now_s
        raise KeyboardInterrupt


def _send_again(ignored: sys.UnraisableHookArgs) -> None:
    """Send an interruption again: Python drops it if it arrives in ``__del__`` or a callback."""
    global _last_s
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    _last_s = float("-inf")
    again = threading.Timer(_RESEND_S, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()
