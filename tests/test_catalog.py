"""Space files: found nearest first, listed without being run, refused with a message to act on."""

import json
import os
import subprocess
import sys

import pytest
from sample_spaces import SPACE, write_space

from autotune.cli import run
from autotune.errors import SpecError, UsageError
from autotune.kernel.catalog import (
    bundled_folder,
    find_kernel,
    listings,
    load_file,
    space_folders,
)
from autotune.kernel.space_text import spec_fingerprint
from autotune.project import bundled_project


@pytest.fixture
def spaces(tmp_path, monkeypatch):
    """A project's spaces folder, with one kernel; the current folder is the project."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return write_space(tmp_path).parent


# ---------------------------------------------------------------- finding


def test_a_kernel_is_found_by_the_path_of_its_file(spaces, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert find_kernel(str(spaces / "scale.py")).name == "scale"
    with pytest.raises(UsageError, match=r"gone\.py: no such space file"):
        find_kernel("gone.py")


def test_the_nearest_folder_wins(spaces, tmp_path_factory, monkeypatch):
    """--spaces before AUTOTUNE_PATH, in its order, before the project."""
    first, second, given = (tmp_path_factory.mktemp(name) for name in ("one", "two", "given"))
    for folder in (first, second, given):
        write_space(folder)
    assert find_kernel("scale").file == spaces / "scale.py"
    monkeypatch.setenv("AUTOTUNE_PATH", f"{first / 'spaces'}:/nowhere::{second / 'spaces'}")
    assert find_kernel("scale").file == first / "spaces" / "scale.py"
    assert find_kernel("scale", given / "spaces").file == given / "spaces" / "scale.py"
    assert space_folders()[:3] == [first / "spaces", second / "spaces", spaces]
    assert [listing.file for listing in listings() if listing.name == "scale"] == [
        first / "spaces/scale.py"
    ]


# ---------------------------------------------------------------- listing


def test_a_list_runs_nothing_and_tells_what_is_broken(spaces):
    """One broken file hurts no other, and listing must not run code that nobody asked for."""
    (spaces / "runs.py").write_text(f"open({str(spaces / 'ran')!r}, 'w')\nraise SystemExit(3)\n")
    (spaces / "broken.py").write_text("def broken(:\n")
    (spaces / "binary.py").write_bytes(b"\xff\xfe\x00")
    (spaces / "_helper.py").write_text('"""Not a kernel."""\n')
    by_name = {listing.name: listing for listing in listings(spaces)}
    assert by_name["scale"].doc == "scale: out = factor * x."
    assert not by_name["scale"].broken
    assert by_name["broken"].broken
    assert "line 1: syntax error" in by_name["broken"].doc
    assert by_name["binary"].broken
    assert not by_name["runs"].broken
    assert "_helper" not in by_name
    assert not (spaces / "ran").exists()


def test_a_file_that_cannot_be_parsed_has_its_own_line_in_the_list(spaces):
    """Minus signs by the thousand ended the list in a RecursionError, a pipe never."""
    (spaces / "deep.py").write_text("x = " + "-" * 200_000 + "1\n")
    os.mkfifo(spaces / "pipe.py")
    by_name = {listing.name: listing for listing in listings(spaces)}
    assert by_name["deep"].broken and not by_name["scale"].broken
    with pytest.raises(SpecError, match=r"deep\.py: "):
        find_kernel("deep")
    with pytest.raises(UsageError, match=r"unknown kernel 'pipe'"):
        find_kernel("pipe")


def test_kernels_that_teach_are_found_by_name_and_listed_on_demand(capsys):
    """Their sources are in kernels/study, and their records are those of the package."""
    kernel = find_kernel("chase")
    assert kernel.find_source("chase.cu").parent == bundled_folder("kernels") / "study"
    assert kernel.project == bundled_project()
    shown = {}
    for options in ([], ["--all"]):
        assert run(["list", "--json", *options]) == 0
        shown[len(options)] = {row["kernel"] for row in json.loads(capsys.readouterr().out)}
    assert len(shown[1] - shown[0]) == 9
    assert "chase" in shown[1] and "chase" not in shown[0] >= {"sgemm", "reduce"}


def test_a_byte_order_mark_is_no_syntax_error(spaces):
    """Which editors on Windows write; Python takes it, and a fingerprint does not tell it apart."""
    file = spaces / "scale.py"
    before = spec_fingerprint(file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert find_kernel("scale").name == "scale"
    assert spec_fingerprint(file) == before


def test_only_the_file_asked_for_is_run(spaces):
    (spaces / "other.py").write_text(f"open({str(spaces / 'ran')!r}, 'w')\n")
    find_kernel("scale")
    assert not (spaces / "ran").exists()


def test_running_a_space_file_leaves_no_bytecode(spaces, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    find_kernel("scale")
    assert not list(spaces.rglob("__pycache__"))
    assert sys.dont_write_bytecode is False


# ---------------------------------------------------------------- refusing

KERNEL = SPACE[SPACE.index("scale = Kernel(") : SPACE.index("def blocks")]
WRONG = {
    "a syntax error": [("FACTOR = 3", "FACTOR = = 3"), r"scale\.py:7: syntax error"],
    "a null byte": [("FACTOR = 3", "FACTOR = 3\0"), r"scale\.py.*null byte"],
    "a misspelt parameter": [
        ("def whole_warps(BLOCK):", "def whole_warps(BLOK):"),
        r"unknown parameter 'BLOK'; did you mean 'BLOCK'\? .*scale\.py:2\d",
    ],
    "a misspelt hook": [
        ("@scale.launch", "@scale.lunch"),
        r"AttributeError: .*lunch.*scale\.py:27\)",
    ],
    "wrong hook arguments": [
        ("def arguments(p, rng)", "def arguments(p)"),
        r"arguments takes \(p, rng\) and optionally device, not \(p\)",
    ],
    "an absent source": [
        ('"scale.cu"', '"scael.cu", name="scale"'),
        r"source 'scael\.cu' is in neith",
    ],
    "what no code raises": [
        ("FACTOR = 3", "raise GeneratorExit"),
        r"GeneratorExit: +\(scale\.py:7",
    ],
    "endless recursion": [
        ("FACTOR = 3", "def f():\n    f()\n\n\nf()"),
        "RecursionError",
    ],
}


@pytest.mark.parametrize(("edit", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_space_file_is_refused_with_its_name_and_what_to_mend(tmp_path, edit, message):
    with pytest.raises(SpecError, match=message) as caught:
        load_file(write_space(tmp_path, edit))
    assert "scale.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_declares_no_kernel_is_refused(tmp_path):
    file = write_space(tmp_path)
    file.write_text("from autotune import Kernel\n")
    with pytest.raises(SpecError, match=r"declares 0 kernels.*write scale = autotune\.Kernel"):
        load_file(file)


def test_a_file_that_declares_two_kernels_is_refused_unless_one_has_its_name(tmp_path):
    edit = ("def blocks", KERNEL.replace("scale = Kernel(", "second = Kernel(") + "def blocks")
    with pytest.raises(SpecError, match="declares 2 kernels, expected one"):
        load_file(write_space(tmp_path, edit))
    named = (edit[0], edit[1].replace('"scale.cu",', '"scale.cu", name="other",', 1))
    assert load_file(write_space(tmp_path, named)).name == "scale"


def test_modules_of_bundled_space_files_are_not_left_behind() -> None:
    """Each call of a space file's function would hide them again, which looks through all modules."""
    kernel = find_kernel("softmax")
    assert kernel.work_of(kernel.problems["cuda"][0]) is not None
    assert "_rows" not in sys.modules


def test_a_kernel_imported_from_elsewhere_is_not_the_files_own(tmp_path, monkeypatch):
    other = write_space(tmp_path, name="scale")
    monkeypatch.syspath_prepend(other.parent)
    monkeypatch.delitem(sys.modules, "scale", raising=False)
    own = write_space(
        tmp_path, ("FACTOR = 3", "from scale import scale as elsewhere\n\nFACTOR = 3"), name="own"
    )
    try:
        assert load_file(own).file == own
    finally:
        sys.modules.pop("scale", None)


def test_a_sticky_folder_is_good_enough(tmp_path):
    """In /tmp and its like others may add files, but not replace this one."""
    file = write_space(tmp_path)
    file.parent.chmod(0o1777)
    assert load_file(file).name == "scale"


def test_ctrl_c_in_a_space_file_is_ctrl_c(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        load_file(write_space(tmp_path, ("FACTOR = 3", "raise KeyboardInterrupt")))


def test_a_list_imports_nothing_heavy(spaces):
    """`autotune list` answers at once: numpy and the devices stay where they are."""
    code = (
        "import sys; from autotune.kernel.catalog import listings; listings(); "
        "print([m for m in ('numpy', 'pyopencl', 'pandas', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
