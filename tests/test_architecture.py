"""The shape of the house: folders import downwards only, keep to their size, and share no class name."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"

#: From the top down; what stands in one set is on one floor and ignorant of the others there.
LAYERS = (
    {"__main__"},
    {"api"},
    {"cli", "torch_ops"},
    {"doctor", "linalg", "triton"},
    {"retune"},
    {"front", "explain"},
    {"report"},
    {"export"},
    {"fleet"},
    {"calling", "run"},
    {"search", "tuned"},
    {"interop"},
    {"store"},
    {"measure"},
    {"kernel"},
    {"languages"},
    {"devices"},
    {"project"},
    {"arrays", "files", "values", "vendor"},
    {"errors"},
)

#: Lines of Python that each folder may have; "" is the root. A feature that needs more raises its
#: folder's number in its own commit, with the reason.
LINES = {
    "": 1800,
    "calling": 2815,
    "cli": 2853,
    "devices": 2650,
    "doctor": 402,
    "explain": 900,
    "export": 1227,
    "fleet": 1270,
    "interop": 1030,
    "kernel": 3525,
    "languages": 1153,
    "measure": 5993,
    "report": 1570,
    "retune": 1120,
    "run": 4901,
    "search": 2431,
    "store": 1396,
    "triton": 1166,
    "tuned": 3630,
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """All imports, those inside functions and for types too; but not the names of the package."""
    graph = grimp.build_graph("autotune", cache_dir=None)
    for module in graph.find_modules_directly_imported_by("autotune"):
        graph.remove_import(importer="autotune", imported=module)
    return graph


def test_every_module_is_in_a_layer(graph: grimp.ImportGraph) -> None:
    children = {name.removeprefix("autotune.") for name in graph.find_children("autotune")}
    assert children == set().union(*LAYERS)


def test_imports_point_downwards(graph: grimp.ImportGraph) -> None:
    illegal = graph.find_illegal_dependencies_for_layers(LAYERS, containers={"autotune"})
    routes = [f"{d.importer} -> {d.imported}: {sorted(d.routes, key=str)[0]}" for d in illegal]
    assert not routes, "\n".join(routes)


def test_no_two_modules_import_each_other(graph: grimp.ImportGraph) -> None:
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_folders_keep_to_their_lines() -> None:
    lines: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        folder = path.relative_to(PACKAGE).parent.parts
        lines["/".join(folder[:1])] += len(path.read_text().splitlines())
    over = {folder: n for folder, n in lines.items() if n > LINES.get(folder, 0)}
    assert not over, (
        f"lines over the budget of { ({folder: LINES.get(folder) for folder in over}) }: {over}"
    )


def test_class_names_have_one_meaning() -> None:
    names = Counter(
        node.name.lstrip("_")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_imports_a_private_name() -> None:
    private = [
        f"{path.name}: {node.module}.{alias.name}"
        for path in sorted(Path(__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autotune")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert not private


@pytest.mark.parametrize("folder", sorted(set(LINES) - {""}))
def test_a_folder_names_its_public_modules(folder: str) -> None:
    described = ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text())) or ""
    modules = {path.stem for path in (PACKAGE / folder).glob("*.py")} - {"__init__"}
    assert [name for name in sorted(modules) if f"`{name}`" not in described] == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """The pronouns that a sentence of riddles begins with; the rest is the reader's judgement."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = [
        f"{path.name}: {docstring.partition(chr(10))[0]}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, nodes)
        and (docstring := ast.get_docstring(node) or "")
        and docstring.split()[0] in ("What", "Whether", "How", "Nobody", "Whoever")
    ]
    assert found == []
