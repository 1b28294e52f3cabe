"""The folders import downwards only, and no two modules import each other."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

#: From the top down; what stands in one set is on one floor and ignorant of the others there.
LAYERS = (
    {"__main__"},
    {"api"},
    {"cli", "torch_ops"},
    {"doctor", "linalg"},
    {"retune"},
    {"report"},
    {"export"},
    {"fleet"},
    {"calling", "run"},
    {"search", "tuned"},
    {"store"},
    {"measure"},
    {"kernel"},
    {"devices"},
    {"arrays", "files", "values", "vendor"},
    {"errors"},
    {"extras"},
)


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
