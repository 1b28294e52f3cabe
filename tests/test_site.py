"""What the site needs of the pages and of the docstrings that it shows; `make docs` builds it and follows links."""

import ast
import inspect
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.cli import COMMANDS
from autotune.kernel.declaration import HOOKS, Declaration

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "autotune"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "examples").glob("*/README.md"),
    *sorted(DOCS.glob("**/*.md")),
]
#: Pages of docstrings.
REFERENCE = [DOCS / "api.md", DOCS / "spaces.md"]
#: The page of space files, and its sections by title.
SPACES = (DOCS / "spaces.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"(?ms)^## (.+?)\n(.*?)(?=^## |\Z)", SPACES))
#: Modules whose public functions are all shown, beside the names of `autotune` itself.
MODULES = ("autotune.linalg", "autotune.torch_ops")

Definition = ast.FunctionDef | ast.ClassDef | ast.Module
#: What the site shows in place of a list: the name, options, and the list.
DIRECTIVE = re.compile(
    r"(?m)^<!-- ::: (autotune[\w.]*) ?((?:\n .*)*)\n?-->\n\n((?:- .*\n(?:    .*\n)*)*)"
)
FENCED = re.compile(r"(?ms)^ *```.*?^ *```$")


def definition(name: str) -> Definition:
    """Where a name is defined, from its source: nothing is imported that a machine may lack."""
    first, *members = name.removeprefix("autotune.").split(".")
    module = [*autotune._HOMES[first].split("."), first] if first in autotune._HOMES else [first]
    path = ["autotune", *module, *members]
    depth = next(n for n in range(len(path), 0, -1) if _is_module(path[:n]))
    file = ROOT.joinpath(*path[:depth]).with_suffix(".py")
    found: Any = _parsed(file)
    for member in path[depth:]:
        (found,) = (node for node in found.body if getattr(node, "name", None) == member)
    return found


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _is_module(path: list[str]) -> bool:
    return ROOT.joinpath(*path).with_suffix(".py").is_file()


def shown(page: Path) -> Iterator[str]:
    """Every name that a page shows the docstring of: a class with the members listed, else all public ones."""
    text = page.read_text(encoding="utf-8")
    for name, options, _ in DIRECTIVE.findall(text):
        yield name
        if listed := re.search(r" members:((?:\s+- \w+)+|.*)", options):
            yield from (f"{name}.{member}" for member in re.findall(r"\w+", listed[1]))
        elif isinstance(node := definition(name), ast.ClassDef):
            members = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            yield from (f"{name}.{member}" for member in members if member[0] != "_")


SHOWN = [name for page in REFERENCE for name in shown(page)]


def listed(page: Path) -> Iterator[tuple[str, str]]:
    """The text beneath each name that the site replaces by a docstring, and the text that belongs there."""
    for name, options, text in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
        node, members = definition(name), re.search(r" members:((?:\s+- \w+)+|.*)", options)
        chosen = re.findall(r"\w+", members[1]) if members else []
        lines = [f"- `{name}{signature(node)}`: {summary(node)}", *fields(node)]
        if isinstance(node, ast.Module):
            classes = [each for each in node.body if isinstance(each, ast.ClassDef)]
            lines = [f"- `{name}.{each.name}`: {summary(each)}" for each in classes]
        for each in chosen:
            member = definition(f"{name}.{each}")
            lines.append(f"    - `{each}{signature(member)}`: {summary(member)}")
        yield text, "".join(f"{line}\n" for line in lines)


def signature(node: Definition) -> str:
    """The arguments of a function, or of a class that a person makes, without types; else nothing."""
    if isinstance(node, ast.ClassDef):
        makers = [each for each in node.body if getattr(each, "name", None) == "__init__"]
        is_made = (
            makers and isinstance(makers[0], ast.FunctionDef) and not section(node, "Attributes")
        )
        return signature(makers[0]) if is_made else ""
    if not isinstance(node, ast.FunctionDef):
        return ""
    if {ast.unparse(each) for each in node.decorator_list} & {"property", "cached_property"}:
        return ""
    bare = deepcopy(node.args)
    for each in ast.walk(bare):
        if isinstance(each, ast.arg):
            each.annotation = None
    text = ast.unparse(bare)
    return f"({re.sub(r'^self(, )?', '', text)})"


def fields(node: Definition) -> list[str]:
    """A line with the fields of a class, where it has them by name."""
    if not isinstance(node, ast.ClassDef) or signature(node):
        return []
    found = section(node, "Attributes") or section(node, "Parameters")
    names = re.findall(r"^(\w[\w, ]*?) : ", found, re.MULTILINE)
    return [f"    - Fields: {', '.join(f'`{x}`' for n in names for x in n.split(', '))}"] * bool(
        names
    )


def section(node: Definition, title: str) -> str:
    """A section of a numpydoc docstring."""
    found = re.search(rf"(?ms)^{title}\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", ast.get_docstring(node) or "")
    return found[1] if found else ""


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of the arguments of a function, itself aside."""
    taken = function.args
    given = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
    return [each.arg for each in given if each and each.arg not in ("self", "cls")]


def undescribed(names: list[str], node: Definition) -> list[str]:
    """The names that the section of parameters leaves out."""
    headings = re.findall(r"^(\S.*?)(?: : .*)?$", section(node, "Parameters"), re.MULTILINE)
    described = {name.strip("* ") for heading in headings for name in heading.split(",")}
    return [f"parameter {name}" for name in names if name not in described]


def faults(node: Definition) -> list[str]:
    """Return what a docstring leaves out: arguments or fields, the returned value, errors."""
    if isinstance(node, ast.Module) or section(node, "Attributes"):
        return []
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if getattr(each, "name", None) == "__init__"]
        if made and isinstance(made[0], ast.FunctionDef):
            return undescribed(parameters(made[0]), node)
        targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
        return undescribed([each.id for each in targets if isinstance(each, ast.Name)], node)
    missing = undescribed(parameters(node), node)
    returns = ast.unparse(node.returns) if node.returns else "None"
    is_property = {ast.unparse(each) for each in node.decorator_list} & {
        "property",
        "cached_property",
    }
    if not (is_property or returns in ("None", "Iterator[None]") or section(node, "Returns")):
        missing.append("Returns")
    if any(isinstance(each, ast.Raise) for each in ast.walk(node)) and not section(node, "Raises"):
        missing.append("Raises")
    return missing


def summary(node: Definition) -> str:
    """The first sentence of a docstring, in one line."""
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.name)
def test_a_page_of_docstrings_reads_without_the_site_too(page: Path) -> None:
    """GitHub shows no directive: beneath each, which is a comment there, stands what it is about."""
    for found, expected in listed(page):
        assert found == expected


def test_commands_are_listed_for_whoever_reads_without_the_site() -> None:
    rows = [f"- `{name}`: {about}" for name, (_, about) in COMMANDS.items()]
    assert "\n".join(rows) in (DOCS / "commands.md").read_text(encoding="utf-8")


def test_every_public_name_is_shown() -> None:
    public = {f"autotune.{name}" for name in autotune.__all__ if name != "__version__"}
    for module in MODULES:
        body = definition(module).body
        functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
        public |= {f"{module}.{name}" for name in functions if not name.startswith("_")}
    public -= {f"autotune.{name}" for name in re.findall(r"`(\w+)[`(]", SPACES)} | {
        f"autotune.{title}" for title in SECTIONS
    }
    assert sorted(public - set(SHOWN)) == []
    assert len(SHOWN) == len(set(SHOWN))


@pytest.mark.parametrize("name", sorted(set(SECTIONS) & set(autotune.__all__)))
def test_tables_name_every_argument(name: str) -> None:
    taken = inspect.signature(getattr(autotune, name)).parameters
    assert re.findall(r"(?m)^\| ?`(\w+)", SECTIONS[name]) == list(taken)


def test_tables_name_every_function_of_a_kernel() -> None:
    section = SECTIONS["Functions of a kernel"]
    decorators = [
        n for n in dir(Declaration) if (getattr(Declaration, n).__doc__ or "").startswith("Attach ")
    ]
    assert sorted(re.findall(r"(?m)^\| ?`(\w+)", section)) == sorted(decorators)
    plain = re.findall(r"(?m)^\| ?`(\w+)` ?\| ?`([\w, ]+)` ?\|", section)
    assert {name: tuple(takes.split(", ")) for name, takes in plain} == HOOKS


@pytest.mark.parametrize("name", SHOWN)
def test_docstrings_are_whole(name: str) -> None:
    node = definition(name)
    assert ast.get_docstring(node)
    assert faults(node) == []


def test_what_a_docstring_leaves_out_is_found() -> None:
    source = '''
def half(x, *, out=None) -> float:
    """Return half of it.

    Parameters
    ----------
    x : float
        Any.
    """
    raise ValueError

class Pair:
    """Two.

    Parameters
    ----------
    a : float
        The first.
    """
    a: float
    b: float
'''
    function, class_ = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef) and isinstance(class_, ast.ClassDef)
    assert faults(function) == ["parameter out", "Returns", "Raises"]
    assert faults(class_) == ["parameter b"]


def test_every_page_is_in_the_navigation_once() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"^ +- .*: (\S+\.md)", config.partition("\nnav:")[2], re.MULTILINE)
    inside = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md"))
    outside = {name for name in named if (ROOT / name).is_file()} | {"index.md"}
    assert sorted(set(named) - outside) == inside
    assert len(named) == len(set(named))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_and_tables_are_read_alike(page: Path) -> None:
    """GitHub needs no empty line before them and two columns for a list in a list; Python-Markdown one, and four."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"^(?!\||[-*] | |\d+\. |$).*\n(?:[-*] |\| ).*", text, re.MULTILINE) == []
    assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, re.MULTILINE) == []
    # Rows below an empty line are no table any more, unless they begin with a head of their own.
    assert re.findall(r"^\|.*\n\n\|.*\n(?!\|[-:| ]+\|$)", text, re.MULTILINE) == []


def test_a_change_begins_in_at_most_two_modules() -> None:
    """Each row of the table names one or two modules, or folders, that exist."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Where a change begins\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|(?! ?change|-)(.*?)\|(.*)\|$", table, re.MULTILINE)
    assert len(rows) > 30
    for change, modules in rows:
        named = re.findall(r"`([\w/.]+)`", modules.partition(":")[0])
        assert 1 <= len(named) <= 2, change
        for name in named:
            places = [ROOT / name, PACKAGE / name, ROOT / f"{name}.py", PACKAGE / f"{name}.py"]
            assert any(place.exists() for place in places), f"{change}: {name}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_are_headings(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text)
    targets = [(page.parent / target if target else page, anchor) for target, anchor in links]
    assert [
        (str(target), anchor)
        for target, anchor in targets
        if target.suffix == ".md" and anchor not in anchors(target)
    ] == []


HOW_TO = re.search(r"(?s)- How to:\n(.*?)\n  - ", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", re.findall(r": (\S+\.md)", HOW_TO[1] if HOW_TO else ""))
def test_a_how_to_is_short(name: str) -> None:
    page = DOCS / name if (DOCS / name).is_file() else ROOT / name
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 150
