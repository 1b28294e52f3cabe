"""Every fenced block and inline command of the documents is true: parsed, compiled or executed.

Blocks are found, not listed. A block whose language has no check here fails; the tutorial's files
are followed by the tests at the end. Commands of the shell are run, here or as an example of ``--help``,
but for those that are listed with the reason. A Python block that begins with ``# with a GPU`` is not
executed: its imports must work, its calls fit their signatures. One that begins with ``# with torch``
is left to tests/gpu/test_torch.py. What an author shortens with "…" is no block but inline code, of
which commands, options and calls must exist.
"""

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import pytest
from cuda.pathfinder import find_nvidia_header_directory
from test_cli import EXAMPLES, missing_tests
from test_cli import NOT_RUN as PARSED_EXAMPLES
from thinned import thinned

import autotune
from autotune import load
from autotune.cli import autotune as group
from autotune.cli import run
from autotune.kernel.catalog import find_kernel

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    *(README, ROOT / "CONTRIBUTING.md", ROOT / "examples" / "cpp" / "README.md"),
    *sorted(ROOT.glob("docs/**/*.md")),
]
FOLLOWED = ROOT / "docs" / "tutorial.md"
FENCED = re.compile(r"^( *)(```+|~~~+)(.*)\n((?:.*\n)*?)\1\2 *$", re.MULTILINE)
FENCE = re.compile(r"^ *(?:```|~~~)", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
WITH_GPU = "# with a GPU\n"
WITH_TORCH = "# with torch\n"
#: Commands that are parsed only, by how they begin, and why.
NOT_RUN = {
    ". .venv/bin/activate": "changes the shell that it is typed into",
    "autotune doctor cache --clear": "would clear what the tests share; tests/test_cli.py has a cache of its own",
    "autotune retune --stale --max-hours 2": "tunes every bundled kernel; tests/test_retune.py runs it on two",
    "autotune check-tuned --threshold 5": "the same",
    "autotune retune --all": "tunes for hours; tests/test_retune.py runs it on two kernels",
    "autotune export sgemm binaries": "compiles for a minute; tests/test_production.py exports a small kernel",
    "autotune check vector_add": "needs what the line above writes; tests/test_script.py checks one",
    "autotune check layers.py:add": "stands for a reader's file; tests/test_triton_decorator.py records calls",
    "autotune lookup layers.py:add": "the same",
    "autotune report layers.py:add": "the same",
    "autotune results layers.py:add": "the same",
    "python layers.py": "the same",
    "dask": "starts processes that stay; tests/test_cluster.py does it, and ends them",
    "autotune fleet": "starts processes that stay; tests/test_cluster.py does it, and ends them",
    "autotune run": "searches for a minute; tests below shorten it, tests/gpu the rest",
    "autotune doctor merge node7.sqlite": "needs two stores; tests/test_store_shared.py merges such",
    "build/tuned": "needs a GPU; tests/test_cpp.py builds it",
    "cmake": "tests/test_cpp.py builds the example and a project of its own",
    "git": "changes the repository",
    "python -m pytest": "these tests",
    "python serve.py": "stands for a reader's program; tests/test_triton_decorator.py records calls",
    "g++": "tests/test_cpp.py compiles against what ships",
    "make": "sets up, tunes and tests for minutes; .ci/run does",
    "nvcc": "tests/test_cpp.py compiles the same file by CMake",
    "openssl": "tests/test_cluster.py makes its certificates so",
    "pip": "installs",
    "pkg-config": "tests/test_cpp.py asks it",
}
RUN_EXAMPLES = set(EXAMPLES) - set(PARSED_EXAMPLES)
#: Output and diagrams.
PROSE = ("text",)
SOURCES = [
    file.read_text(encoding="utf-8")
    for folder in ("examples", "kernels", "spaces", "autotune")
    for file in sorted((ROOT / folder).glob("**/*.*"))
    if file.suffix in (".py", ".cu", ".cuh", ".h") or file.name == "CMakeLists.txt"
]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_followed(self) -> bool:
        """True where the test of the tutorial writes it to a file and uses that."""
        return self.page == FOLLOWED and self.language != "sh"

    @property
    def is_excerpt(self) -> bool:
        """Whether it shows a source of the repository, which has tests of its own."""
        return any(self.text.strip() in source for source in SOURCES)


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks."""
    text = page.read_text(encoding="utf-8")
    found = FENCED.finditer(text)
    return [
        Block(page, text.count("\n", 0, each.start()) + 1, each[3].strip(), each[4])
        for each in found
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of(*languages: str, page: Path | None = None) -> pytest.MarkDecorator:
    """A test for each block of some languages that nothing else has checked.

    With a page, blocks of others are left to `make test-full`.
    """
    chosen = [
        block
        for block in BLOCKS
        if block.language in languages and not block.is_followed and not block.is_excerpt
    ]
    if page is not None:
        chosen = thinned(chosen, [block for block in chosen if block.page == page])
    return pytest.mark.parametrize("block", chosen, ids=str)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_fence_is_overlooked(page: Path) -> None:
    assert len(FENCE.findall(page.read_text(encoding="utf-8"))) == 2 * len(blocks_of(page))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_has_a_check(block: Block) -> None:
    known = (
        "sh",
        "python",
        "cpp",
        "sql",
        "yaml",
        *PROSE,
    )  # test_store_shared and test_cluster use the latter
    checked = block.language in known or block.is_followed or block.is_excerpt
    assert checked, f"neither {', '.join(known)} nor an excerpt of a source: {block.language!r}"


# ---------------------------------------------------------------------- shell


@of("sh")
def test_shell(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in commands_of(line):
            check_command(command)


def commands_of(line: str) -> list[list[str]]:
    """The words of each command of a line, without redirections and settings before them."""
    unnumbered = re.sub(r"(?<=\s)\d(?=[<>])", "", line)
    lexer = shlex.shlex(unnumbered, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if re.fullmatch("&?[<>]+&?", word):
            next(lexer)  # the file
        elif set(word) <= set("();|&"):
            commands.append([])
        elif commands[-1] or not re.match(r"[A-Za-z_]\w*=", word):
            commands[-1].append(word)
    return [words for words in commands if words]


def is_excused(command: str) -> bool:
    """Whether the table says why a command is not run."""
    return any(f"{command} ".startswith(f"{begin} ") for begin in NOT_RUN)


COMMANDS = {
    " ".join(words): words
    for block in BLOCKS
    if block.language == "sh" and block.page != FOLLOWED
    for line in block.text.replace("\\\n", " ").splitlines()
    for words in commands_of(line)
}
TO_RUN = [
    command for command in COMMANDS if command not in RUN_EXAMPLES and not is_excused(command)
]


@pytest.mark.full
@pytest.mark.parametrize("command", TO_RUN)
def test_commands_run(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *arguments = COMMANDS[command]
    assert name == "autotune", "what only other programs do is listed above, with what checks it"
    assert run(arguments) == 0, capsys.readouterr().err


def test_every_excuse_is_needed() -> None:
    commands = [f"{command} " for command in COMMANDS]
    assert [x for x in NOT_RUN if not any(each.startswith(f"{x} ") for each in commands)] == []
    assert missing_tests(NOT_RUN) == []


def check_command(words: list[str]) -> None:
    """Parse a command as its program would; one that is not of this project was read by bash."""
    name, *arguments = words
    if re.fullmatch(r"(.*/)?python3?", name):
        if arguments[:2] == ["-m", "autotune"]:
            check_autotune(arguments[2:])
        elif arguments and arguments[0].startswith("benchmarks/"):
            assert (ROOT / arguments[0]).is_file()
    elif name == "autotune":
        check_autotune(arguments)
    elif name == "make":
        done = subprocess.run(
            ["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    elif name == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"(?:kernel-autotune|\.)\[([^]]*)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras
    elif name.startswith((".ci/", "benchmarks/")):
        assert os.access(ROOT / name, os.X_OK), name


def check_autotune(arguments: list[str]) -> None:
    """Parse by click, which knows commands, options and what they take."""
    verb, *rest = arguments
    if verb.startswith("-"):
        assert verb in options_of(group), verb
        return
    command = command_of(verb)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        verb, *rest = rest
        command = command.commands[verb]
    with suppress(click.exceptions.Exit):  # --help
        command.make_context(verb, rest)


def command_of(verb: str) -> click.Command:
    command = group.get_command(click.Context(group), verb)
    assert command is not None, f"no command {verb!r}"
    return command


def options_of(command: click.Command) -> set[str]:
    parameters = command.get_params(click.Context(command))
    return {"-h"} | {name for option in parameters for name in option.opts + option.secondary_opts}


# ---------------------------------------------------------------------- C++


@pytest.mark.slow
@of("cpp")
def test_cpp(block: Block, tmp_path: Path) -> None:
    for kernel in re.findall(r"#include\s*<autotune/(\w+)\.hpp>", block.text):
        folder = str(tmp_path / "autotune")
        arguments = ["--from", str(ROOT / "reports"), "--out", folder]
        assert run(["export", kernel, "header", *arguments]) == 0
    for kernel in re.findall(r'#include "(\w+)_launch\.hpp"', block.text):
        assert (
            run(
                [
                    "export",
                    kernel,
                    "cuda",
                    *("--from", str(ROOT / "reports"), "--out", str(tmp_path)),
                ]
            )
            == 0
        )
    text = block.text
    errors = compile_errors(text, tmp_path)
    if errors:  # statements, then
        includes = "".join(re.findall(r"^#include.*\n", text, re.MULTILINE))
        rest = re.sub(r"^#include.*\n", "", text, flags=re.MULTILINE)
        assert not compile_errors(f"{includes}int main() {{\n{rest}\n}}\n", tmp_path), errors


def compile_errors(text: str, folder: Path) -> str:
    (folder / "main.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-Wno-unused", f"-I{folder}"]
    command += [
        "-isystem",
        str(find_nvidia_header_directory("cudart")),
        "-fsyntax-only",
        "main.cpp",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


# ---------------------------------------------------------------------- Python

#: Goes after a block that is executed.
NO_DEFAULT = """
for _name, _value in list(globals().items()):
    assert getattr(_value, "quality", "") != "default", f"{_name}: the default answers"
"""


@pytest.mark.opencl
@of("python", page=README)
def test_python(block: Block, tmp_path: Path, opencl_device: str) -> None:
    """It runs as a program, in an empty folder, and no lookup in it answers with the default."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F82", "--quiet", "-"]
    subprocess.run(command, input=block.text, text=True, check=True)
    if block.text.startswith(WITH_TORCH):
        return
    if block.text.startswith(WITH_GPU):
        check_calls(block.text)
        return
    file = tmp_path / "block.py"
    file.write_text(shortened(block.text) + NO_DEFAULT)
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def shortened(text: str) -> str:
    """The program with four evaluations of a small problem for each call of `tune`."""
    tree = ast.parse(text)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "tune":
            given = {keyword.arg: keyword for keyword in call.keywords}
            given["budget"] = _keyword("budget='4evals'")
            if "problems" not in given and isinstance(call.args[0], ast.Constant):
                small = dict(find_kernel(str(call.args[0].value)).edge_problems[-1])
                given["problems"] = _keyword(f"problems=[{small}]")
            call.keywords = list(given.values())
    return ast.unparse(tree)


def _keyword(text: str) -> ast.keyword:
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return call.keywords[0]


def check_calls(text: str, names: dict[str, Any] | None = None) -> None:
    """Import what is of this project, and bind calls to their signatures; nothing is called."""
    tree, names = ast.parse(text), dict(names or {})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and "autotune" in ast.unparse(node):
            exec(ast.unparse(node), names)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (function := function_of(call, names)):
            keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            inspect.signature(function).bind(*call.args, **keywords)


def function_of(call: ast.Call, names: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What is called, where that is one of `names` or what `load` returns."""
    text = ast.unparse(call.func)
    if text.startswith("load(") and isinstance(call.func, ast.Call):
        return load(ast.literal_eval(call.func.args[0])).kernel.hook("call")
    first, *members = text.split(".")
    if not text.replace(".", "").isidentifier() or first not in names:
        return None
    function: Callable[..., Any] = attrgetter(*members)(names[first]) if members else names[first]
    return function


# ---------------------------------------------------------------------- inline


def prose(page: Path) -> str:
    """A page without its blocks."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_inline_code(page: Path) -> None:
    everything = {name: getattr(autotune, name) for name in autotune.__all__}
    for found in INLINE.findall(prose(page)):
        words = found.split()
        if words[:1] == ["autotune"] and len(words) > 1:
            check_named(words[1], words[2:])
        elif re.match(r"from autotune\b|(tune|load|lookup)\((?!\))", found):
            check_calls(found.replace("…", "..."), everything)


def check_named(verb: str, words: list[str]) -> None:
    """A command that need not be complete: it and its options exist."""
    command = group if verb.startswith("-") else command_of(verb)
    if isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words[0]]
    options = {word.partition("=")[0] for word in [verb, *words] if word.startswith("-")}
    assert options <= options_of(command), f"{verb}: {options - options_of(command)}"


# ---------------------------------------------------------------------- What the README shows is


README_TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
README_PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("reports/*/*.md")),
]
README_BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README_TEXT, re.DOTALL)


def test_the_example_is_the_one_in_the_repository() -> None:
    (excerpt,) = (text.strip() for language, text in README_BLOCKS if "saxpy" in text)
    assert excerpt in (ROOT / "examples" / "saxpy" / "spaces" / "saxpy.py").read_text()


@pytest.mark.parametrize("page", README_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r'src(?:set)?="(.*?)"', text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_linked_once_in_an_index() -> None:
    """The README names the pages; docs/results.md those of kernels, docs/architecture.md the decisions."""
    index = re.findall(r"\]\((docs/[^)]+\.md)\)", README_TEXT.partition("## More")[2])
    for page, folder in (("results", "kernels|study"), ("architecture", "decisions")):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        index += [f"docs/{name}" for name in re.findall(rf"\]\(((?:{folder})/[^)]+\.md)\)", text)]
    assert sorted(index) == sorted(
        str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")
    )


def test_it_is_two_screens() -> None:
    prose = [line for line in README_TEXT.splitlines() if not line.startswith("|")]
    assert len(README_TEXT.splitlines()) <= 130 and max(map(len, prose)) <= 122


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_new_kernel_takes_three_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands under "Your own kernel", in an empty folder; the search is cut short."""
    (block,) = (text for language, text in README_BLOCKS if "autotune new" in text)
    commands = [line.split("#")[0].split()[1:] for line in block.strip().splitlines()]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        short = ["--budget", "3evals", "--device", "opencl:cpu"] if command[0] == "run" else []
        short += ["--arch", "sm_90"] if command[0] == "check" else []
        assert run([*command, *short]) == 0, capsys.readouterr().err
    assert list(tmp_path.glob("reports/*/smooth.hpp"))


# ---------------------------------------------------------------------- The


TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PARTS = dict(
    zip("AB", re.split(r"^## (?:Part|Next).*$", TUTORIAL, flags=re.MULTILINE)[1:3], strict=True)
)
#: First line of a block that is a file.
NAMED = re.compile(r"(?://|#) (\S+\.\w+)\n")


def blocks(part: str) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PARTS[part], re.DOTALL | re.MULTILINE)


def follow(part: str, folder: Path) -> dict[str, str]:
    """Do what a part says, in order, but search less.

    Returns
    -------
    dict
        Standard output by command.
    """
    environment = {**os.environ, "PATH": f"{_commands(folder)}:{os.environ['PATH']}"}
    here = folder / "empty"
    here.mkdir()
    printed = {}
    for language, text in blocks(part):
        if language == "sh" and not text.startswith(WITH_GPU):
            for line in text.strip().splitlines():
                short = line.replace(" 20evals", " 4evals")
                done = subprocess.run(
                    ["bash", "-c", short], cwd=here, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
                printed[line] = done.stdout
        elif language not in ("sh", "text"):
            named = NAMED.match(text)
            assert named, f"a file without its name: {text[:80]}"
            (here / named[1]).parent.mkdir(exist_ok=True)
            (here / named[1]).write_text(text)
    return printed


def _commands(folder: Path) -> Path:
    """A folder with `autotune` and `python` of the environment that runs this test."""
    commands = folder / "bin"
    commands.mkdir()
    python, root = shlex.quote(sys.executable), shlex.quote(str(ROOT))
    for name, begin in (("autotune", f"{python} -m autotune"), ("python", python)):
        command = commands / name
        command.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {begin} "$@"\n')
        command.chmod(0o755)
    return commands


@pytest.mark.full
@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_part_a_from_nothing(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    printed = follow("A", tmp_path)
    assert "26 valid of 32" in printed["autotune check smooth --arch sm_90"]
    assert "cover" in printed["autotune show smooth"]
    winner = printed["autotune lookup smooth n=1000003"].splitlines()[0]
    table = printed["autotune run smooth --budget 20evals"]
    (line,) = (line for line in table.splitlines() if line.startswith("n=1000003"))
    told = set(re.findall(r"[A-Z]+=\d+", line))  # without ADJACENT where there is one item
    assert "BLOCK" in line and told <= set(winner.split(", "))
    assert "quality: nearest_problem" in printed["autotune lookup smooth n=500000"]
    assert printed["./main"].startswith(f"{winner}: ")


def test_part_b_from_an_existing_file(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    printed = follow("B", tmp_path)
    log, ptx = (
        printed[f"autotune show rowsum --device sm_90 --config WARPS=8,UNROLL=4 --{view}"]
        for view in ("log", "ptx")
    )
    assert "app::rowsum<8, 4>" in log
    assert ".entry _ZN3app6rowsumILi8ELi4EE" in ptx


def test_part_b_shows_the_example() -> None:
    files = {NAMED.match(text)[1]: text for _, text in blocks("B") if NAMED.match(text)}  # type: ignore[index]
    folder = ROOT / "examples" / "rowsum"
    there = [str(file.relative_to(folder)) for file in folder.glob("*/*.*") if file.is_file()]
    assert sorted(files) == sorted(there)
    for name, text in files.items():
        assert text.partition("\n")[2].strip() == (folder / name).read_text().strip()


def test_what_needs_a_gpu_is_said_so() -> None:
    assert [text for _, text in blocks("A") if text.startswith(WITH_GPU)] == []
    assert len([text for _, text in blocks("B") if text.startswith(WITH_GPU)]) == 1
