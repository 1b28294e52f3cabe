"""The shape of the house: folders import downwards only, modules stay small, and no class name has two meanings."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"

#: From the top down; what stands in one set is on one floor and ignorant of the others there.
LAYERS = (
    {"__main__"},
    {"api", "cli", "torch_ops"},
    {"doctor", "linalg", "triton"},
    {"retune"},
    {"front", "explain"},
    {"report"},
    {"export"},
    {"checking", "fleet"},
    {"calling", "run"},
    {"search", "tuned"},
    {"answers"},
    {"interop"},
    {"store"},
    {"measure"},
    {"compiling"},
    {"data"},
    {"kernel"},
    {"languages"},
    {"devices"},
    {"cache", "project"},
    {"encoding"},
    {"arrays", "element_types", "files", "syntax", "values", "vendor"},
    {"errors"},
)

MAX_MODULE_LINES, MAX_FUNCTION_LINES = 500, 80
#: Modules and functions that are still longer. An entry goes when its file is split; none is added.
LONG_MODULES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()
#: Modules that may build a `Request`. None is added.
REQUEST_BUILDERS = {
    "front.py",
    "retune/retuner.py",
    "run/request.py",
}
#: Modules that turn a record into bytes: to write it, to print it, to read it as a header's source does.
ENCODERS = {"cli/runs.py", "export/writer.py"}


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


def test_module_names_have_one_meaning() -> None:
    names = Counter(Path(name).name for name, _ in modules())
    repeated = {name for name, count in names.items() if count > 1}
    assert repeated == {"__init__.py", "base.py"}


def test_calls_and_exports_measure_only_where_asked(graph: grimp.ImportGraph) -> None:
    """The trial of a first call times, and `load(verify=True)` verifies, in a process."""
    importers = {
        module
        for folder in ("calling", "export")
        for module in graph.find_descendants(f"autotune.{folder}")
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.startswith("autotune.measure.")
    }
    assert importers == {"autotune.calling.trial", "autotune.calling.twin"}


def test_modules_are_short() -> None:
    assert {name for name, tree in modules() if _last_line(tree) > MAX_MODULE_LINES} == LONG_MODULES


def test_functions_are_short() -> None:
    found = {
        f"{name}: {node.name}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _code_lines(node) > MAX_FUNCTION_LINES
    }
    assert found == LONG_FUNCTIONS


def test_few_modules_build_a_request() -> None:
    assert {name for name, tree in modules() if "Request" in _called(tree)} == REQUEST_BUILDERS


def test_one_module_writes_records() -> None:
    imports = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autotune.tuned")
        for alias in node.names
        if alias.name == "encode"
    }
    assert imports == ENCODERS


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the path in the package and the syntax tree of each module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which several tests read."""
    return ast.parse(path.read_text())


def _last_line(tree: ast.AST) -> int:
    return max((getattr(node, "end_lineno", 0) or 0 for node in ast.walk(tree)), default=0)


def _code_lines(function: ast.FunctionDef) -> int:
    """Return the lines of a function without its docstring: a public one describes each argument."""
    first = function.body[0]
    is_described = ast.get_docstring(function) is not None
    described = _last_line(first) - first.lineno + 1 if is_described else 0
    return _last_line(function) - function.lineno + 1 - described


def _called(tree: ast.AST) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def test_class_names_have_one_meaning() -> None:
    names = Counter(
        node.name.lstrip("_")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_imports_a_private_name() -> None:
    private = [
        f"{path.name}: {node.module}.{alias.name}"
        for path in sorted(Path(__file__).parent.rglob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autotune")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert not private


@pytest.mark.parametrize(
    "folder", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
)
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
        for node in ast.walk(parsed(path))
        if isinstance(node, nodes)
        and (docstring := ast.get_docstring(node) or "")
        and docstring.split()[0] in ("What", "Whether", "How", "Nobody", "Whoever")
    ]
    assert found == []
