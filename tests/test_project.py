"""Whose records answer: those of the project of the kernel, never those of another."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from sample_records import KERNEL, entry, plan, problem, record, write

from autotune import load, lookup
from autotune.cli import run
from autotune.errors import UsageError
from autotune.files import bundled_path, data_path
from autotune.kernel.catalog import find_kernel
from autotune.project import Project, bundled_project, folder_name, id_of, project_of
from autotune.tuned import lookup as looking
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import layers, user_folder

AT = problem(64, 64)
ROOT = Path(__file__).parents[1]
SAXPY = ROOT / "examples" / "saxpy"


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    clear_cache()


def declare(folder: Path, name: str = "", file: str = "pyproject.toml") -> Path:
    """Make a folder with a pyproject.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(f'[project]\nname = "{name}"\n' if name else "[tool.x]\n")
    return folder


def tuned(owner: Project, tile: int) -> None:
    """Write a record of the user for a project."""
    write(Path(user_folder(owner)), record([entry(AT, plan(tile))]))
    clear_cache()


def tile(**asked: Any) -> Any:
    return lookup(KERNEL, arch=90, **asked, **AT)["BM"]


# ---------------------------------------------------------------------- which project


@pytest.mark.parametrize(
    ("pyproject", "git", "of", "expected"),
    [
        ({"a": "heat"}, (), "a", "heat"),
        ({"a": "heat"}, (), "a/spaces", "heat"),
        ({"a": "heat"}, (), "a/deep/er/spaces", "heat:deep/er"),
        ({"a": "heat", "a/b": "sub"}, (), "a/b/spaces", "sub"),
        ({"a": "heat", "a/b": ""}, (), "a/b", "heat:b"),
        ({"a": "heat"}, ("a/b",), "a/b/spaces", "{}/a/b"),
        ({}, ("a",), "a/b/spaces", "{}/a:b"),
        ({}, (), "a/b/spaces", "{}/a/b"),
        ({}, (), "a/b", "{}/a/b"),
        ({}, (), "lib/python3/site-packages/heatlib/gpu/spaces", "heatlib:gpu"),
        ({"lib": "heat"}, (), "lib/site-packages/heatlib/spaces", "heatlib"),
    ],
)
def test_a_folder_is_of_the_nearest_project(
    pyproject: dict[str, str], git: tuple[str, ...], of: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / of).mkdir(parents=True, exist_ok=True)
    for folder, name in pyproject.items():
        declare(tmp_path / folder, name)
    for folder in git:
        (tmp_path / folder / ".git").mkdir()
    assert project_of(tmp_path / of).id == expected.format(tmp_path)


def test_the_variable_names_the_project_but_not_packages_or_what_is_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = declare(tmp_path / "a", "heat") / "deep"
    monkeypatch.setenv("AUTOTUNE_PROJECT", "other")
    assert project_of(inside).id == "other:deep"
    assert project_of(tmp_path / "b").id == "other"
    assert project_of(tmp_path / "lib/site-packages/heatlib/spaces").id == "heatlib"
    assert project_of(bundled_path("spaces")) == bundled_project()
    monkeypatch.setenv("AUTOTUNE_PROJECT", "other:place")
    assert project_of(inside).id == "other:place"


@pytest.mark.parametrize("text", ["[project", "\udcff", "[project]\nname = 5", 'project = "x"'])
def test_a_pyproject_that_names_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text, errors="surrogateescape")
    (tmp_path / "a").mkdir()
    if "name" in text or "=" in text:
        assert project_of(tmp_path / "a").id == str(tmp_path / "a")
    else:
        with pytest.warns(RuntimeWarning, match="cannot read it"):
            assert project_of(tmp_path / "a").id == f"{tmp_path}:a"


def test_a_pyproject_is_read_once_until_it_changes(tmp_path: Path) -> None:
    declare(tmp_path, "first")
    assert project_of(tmp_path).id == project_of(tmp_path).id == "first"
    declare(tmp_path, "second")
    os.utime(tmp_path / "pyproject.toml", (1, 1))
    assert project_of(tmp_path).id == "second"


@pytest.mark.parametrize("text", ["heat", "a:b/c", "/home/me/50%", "..", "/x%2Fy", "Wärme"])
def test_a_folder_of_records_tells_the_project(text: str) -> None:
    name = folder_name(text)
    assert "/" not in name and not name.startswith(".") and id_of(name) == text


def test_long_names_fit_a_file_system() -> None:
    first, second = (folder_name("/ü" * 400 + end) for end in "ab")
    assert first != second and len(first.encode()) < 255


# ---------------------------------------------------------------------- which records answer


def test_a_project_gets_its_own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (declare(tmp_path / name, name) for name in ("one", "two"))
    tuned(project_of(one), 64)
    monkeypatch.chdir(two)
    with pytest.raises(
        UsageError, match=r"in project two; it is tuned in: one; .*AUTOTUNE_PROJECT"
    ):
        tile()
    tuned(project_of(two), 128)
    assert tile() == 128
    monkeypatch.chdir(one)  # seen at once
    assert tile() == 64
    assert (tile(project="two"), tile(project=two), tile(project=project_of(two))) == (128,) * 3
    monkeypatch.setenv("AUTOTUNE_PROJECT", "two")
    assert tile() == 128


def test_two_folders_of_a_project_may_have_a_kernel_of_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path, "mine")
    for folder, size in (("a", 64), ("b", 128)):
        (tmp_path / folder / "spaces").mkdir(parents=True)
        (tmp_path / folder / "spaces" / f"{KERNEL}.py").touch()
        if folder == "b":
            assert tile() == 64  # known in one place only, so the whole project means it
            monkeypatch.chdir(tmp_path / "b")
            with pytest.raises(UsageError, match="in project mine:b; it is tuned in: mine:a"):
                tile()
            monkeypatch.chdir(tmp_path)
        tuned(project_of(tmp_path / folder), size)
    with pytest.raises(UsageError, match="several folders of project mine: mine:a, mine:b"):
        tile()
    assert tile(project="mine:b") == 128
    monkeypatch.chdir(tmp_path / "a")
    assert tile() == 64
    monkeypatch.setenv("AUTOTUNE_PATH", str(tmp_path / "b" / "spaces"))
    assert tile() == 128


def test_an_own_kernel_hides_the_bundled_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"arch": 90, "m": 512, "n": 512, "k": 512}
    declare(tmp_path, "mine")
    assert lookup("sgemm", **asked).source.startswith("shipped:")
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "sgemm.py").touch()
    monkeypatch.setattr(looking, "RECHECK_S", -1)
    with pytest.raises(UsageError, match="no tuned record"):
        lookup("sgemm", **asked)
    assert lookup("sgemm", project="kernel-autotune", **asked).source.startswith("shipped:")


def test_records_beside_the_kernels_answer_where_the_folder_is_named(tmp_path: Path) -> None:
    write(declare(tmp_path, "mine") / "reports", record([entry(AT, plan(64))]))
    assert tile(project=tmp_path) == 64
    assert lookup(KERNEL, arch=90, project=tmp_path, **AT).source.startswith("project:")
    with pytest.raises(UsageError):  # whoever can write where a program starts chooses no launch
        tile()


def test_records_of_before_answer_nobody_and_are_named(tmp_path: Path) -> None:
    old = write(Path(data_path("tuned")), record([entry(AT, plan(64))]))
    declare(tmp_path, "mine")
    with (
        pytest.warns(RuntimeWarning, match=f"its project is unknown.*autotune import {old}"),
        pytest.raises(UsageError, match="no tuned record"),
    ):
        tile()
    tuned(project_of(tmp_path), 128)
    assert tile() == 128  # without a word: warnings are errors
    assert old.exists()


def test_tables_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "MAX_TABLES", 2)
    tuned(project_of(declare(tmp_path, "mine")), 64)
    first = lookup(KERNEL, arch=90, **AT)
    assert lookup(KERNEL, arch=90, **AT) is first
    for name in "ab":
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert tile() == 64
    monkeypatch.chdir(tmp_path)
    assert lookup(KERNEL, arch=90, **AT) is not first


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert lookup("sgemm", arch=90, m=512, n=512, k=512).source.startswith("shipped:")


# ---------------------------------------------------------------------- commands


@pytest.fixture
def two_folders(tmp_path: Path) -> Path:
    """Two loose folders, each with a kernel saxpy."""
    for name in ("one", "two"):
        shutil.copytree(SAXPY, tmp_path / name, ignore=shutil.ignore_patterns("reports"))
    return tmp_path


@pytest.mark.opencl
def test_commands_answer_for_their_folder(
    two_folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    opencl_device: str,
) -> None:
    def ran(*command: str) -> tuple[int, str, str]:
        clear_cache()
        code = run([*command])
        return code, *capsys.readouterr()

    n = "n=5003"
    monkeypatch.chdir(two_folders / "one")
    assert (
        ran("run", "saxpy", "--device", opencl_device, "--budget", "2evals", "--problem", n)[0] == 0
    )
    (made,) = Path(data_path("tuned")).rglob("saxpy.json")
    owner = project_of(two_folders / "one")
    assert made.parent.parent == Path(user_folder(owner))
    assert (
        ran("lookup", "saxpy", n)[0] == ran("export", "saxpy")[0] == ran("report", "saxpy")[0] == 0
    )
    assert ran("report")[0] == 0
    _, out, _ = ran("check-tuned", "saxpy", "--json", "--threshold", "900")
    assert {entry["layer"] for entry in json.loads(out)} == {"user"}

    monkeypatch.chdir(two_folders / "two")
    code, _, err = ran("lookup", "saxpy", n)
    assert code == 2 and f"in project {two_folders}/two; it is tuned in: {two_folders}/one" in err
    for command in ("export", "report"):
        code, _, err = ran(command, "saxpy")
        assert (
            code == 2
            and f"saxpy is not tuned in this project; it is tuned in: {two_folders}/one" in err
        )
    assert json.loads(ran("check-tuned", "saxpy", "--json")[1] or "[]") == []
    assert ran("lookup", "saxpy", n, "--spaces", "../one/spaces")[0] == 0
    kernel = find_kernel("saxpy")
    shutil.copytree(two_folders / "one" / "reports", "reports")  # as a commit brings it
    assert load(kernel).choice(n=5003, device=opencl_device).tuned.source.startswith("project:")
    assert ran("lookup", "saxpy", n)[1].count("source: project:") == 1
    assert ran("import", str(made))[0] == 0
    assert ran("lookup", "saxpy", n)[0] == 0
    assert len([*Path(data_path("tuned")).rglob("saxpy.json")]) == 2


def test_a_kernel_is_of_the_project_of_its_file(two_folders: Path) -> None:
    kernel = find_kernel(str(two_folders / "one" / "spaces" / "saxpy.py"))
    assert kernel.project.id == f"{two_folders}/one"
    assert [layer for layer, _ in layers(kernel.project)] == ["user", "project"]
