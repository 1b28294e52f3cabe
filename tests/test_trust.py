"""Whose code is run: nobody's but root's and mine, by name, path, link, include and import.

As root the tests give files to another user and see which place is named. Where they are not run as
root, the process is taken for another user's instead, and that the code is refused is all they see.
"""

import marshal
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

import pytest
from sample_spaces import SOURCE, write_space

from autotune.cli import run
from autotune.compiling import binaries
from autotune.compiling.binaries import compiled_for
from autotune.data.prepare import prepare_dataset
from autotune.devices import opencl_devices
from autotune.devices.choose import choose_device
from autotune.doctor import checks
from autotune.doctor.hardware import Nvidia
from autotune.errors import AutotuneError, SpecError
from autotune.kernel.catalog import find_kernel, listings, load_file
from autotune.kernel.modules import fault_of, home_of
from autotune.kernel.source import source_fingerprint
from autotune.measure.process import ChildActor
from autotune.values import Problem

ROOT = Path(__file__).parents[1]
IS_ROOT = os.geteuid() == 0
EVE = 54321
RUN = ("FACTOR = 3", "open(__file__ + '.ran', 'w')\nFACTOR = 3")
HELPED = ("FACTOR = 3", "from _tables import FACTOR")


@pytest.fixture
def give(monkeypatch):
    """Gives files to another user, with all that is in folders."""

    def give(*places):
        for place in (inner for outer in places for inner in (outer, *outer.rglob("*"))):
            if IS_ROOT:
                os.chown(place, EVE, EVE, follow_symlinks=False)
        if not IS_ROOT:
            monkeypatch.setattr(os, "geteuid", lambda: EVE)

    return give


def nothing_ran(folder):
    return not list(folder.rglob("*.ran"))


# ---------------------------------------------------------------- attacks


def others_file(folder, give):
    give(write_space(folder, RUN))
    return folder / "spaces" / "scale.py", "scale.py: belongs to user 54321, not to you"


def others_folder(folder, give):
    file = write_space(folder, RUN)
    give(folder / "spaces")
    folder.chmod(0o1777)
    return file, "spaces: belongs to user 54321, not to you"


def open_file(folder, _):
    file = write_space(folder, RUN)
    file.chmod(0o666)
    return file, f"all users may write it, and scale.py is code; run: chmod go-w {file}"


def open_parent(folder, _):
    file = write_space(folder, RUN)
    folder.chmod(0o777)
    return file, f"all users may write it, and scale.py is code; run: chmod go-w {folder}"


def link_in_an_open_folder(folder, _):
    (folder / "open").mkdir()
    (folder / "open" / "link.py").symlink_to(write_space(folder, RUN))
    (folder / "open").chmod(0o777)
    return folder / "open" / "link.py", "open: all users may write it, and link.py is code"


def link_to_an_open_folder(folder, _):
    (folder / "open").mkdir()
    (folder / "link.py").symlink_to(write_space(folder / "open", RUN))
    (folder / "open").chmod(0o777)
    return folder / "link.py", "open: all users may write it"


def others_link(folder, give):
    write_space(folder, RUN)
    (folder / "link.py").symlink_to("spaces/scale.py")
    give(folder / "link.py")
    return folder / "link.py", "link.py: belongs to user 54321"


ATTACKS = [
    others_file,
    others_folder,
    open_file,
    open_parent,
    link_in_an_open_folder,
    link_to_an_open_folder,
    others_link,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_space_file_that_others_may_change_is_not_run(tmp_path, monkeypatch, give, attack):
    """By its path and, where its folder is listed in AUTOTUNE_PATH, by its name."""
    file, message = attack(tmp_path, give)
    message = message if IS_ROOT else "belongs to|all users may write it"
    with pytest.raises(SpecError, match=message) as caught:
        load_file(file)
    assert "set AUTOTUNE_TRUST=" in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setenv("AUTOTUNE_PATH", str(file.parent))
    with pytest.raises(SpecError, match=message):
        find_kernel(file.stem)
    (listed,) = (listing for listing in listings() if listing.name == file.stem)
    assert listed.broken and listed.doc.startswith("not allowed to run: ")
    found = list(checks.spaces(Nvidia(present=False)))
    assert {finding.state for finding in found} == {"bad"}
    assert all(finding.remedy.startswith(("chmod ", "export AUTOTUNE_TRUST=")) for finding in found)
    assert nothing_ran(tmp_path)


@pytest.mark.parametrize("name", ["scale.cu", "scale.h"])
@pytest.mark.parametrize("way", ["open", "others"])
def test_a_source_or_include_that_others_may_change_is_not_compiled(tmp_path, give, name, way):
    kernel = load_file(write_space(tmp_path))
    folder = tmp_path / "kernels"
    (folder / "scale.h").write_text("int x;\n")
    (folder / "scale.cu").write_text(f'#include "scale.h"\n{SOURCE}')
    (folder / name).chmod(0o666) if way == "open" else give(folder / name)
    where = name if way == "open" or IS_ROOT else ""
    with pytest.raises(SpecError, match=f"{where}: (all users may write it|belongs to).*is code"):
        source_fingerprint(kernel)


@pytest.mark.parametrize("name", ["_tables.py", "_tables/__init__.py", "_tables/inner.py"])
@pytest.mark.parametrize("way", ["open", "others"])
def test_a_module_that_others_may_change_is_not_run(tmp_path, give, name, way):
    """Which the space file imports from its folder, itself or through another module."""
    file = write_space(tmp_path, HELPED)
    module = file.parent / name
    module.parent.mkdir(exist_ok=True)
    module.write_text("open(__file__ + '.ran', 'w')\nFACTOR = 3\n")
    if name == "_tables/inner.py":
        (module.parent / "__init__.py").write_text("from .inner import FACTOR\n")
    module.chmod(0o666) if way == "open" else give(module)
    with pytest.raises(SpecError, match=r"all users may write it|belongs to"):
        load_file(file)
    assert nothing_ran(tmp_path)


@pytest.mark.parametrize(
    "way",
    [
        "from _elsewhere import inner",
        "import _mine",  # which imports it
        "import importlib; importlib.import_module('_elsewhere.inner')",
        "import _mine; _mine.later()",
    ],
)
def test_a_module_found_by_a_path_that_the_space_file_adds_is_not_run(tmp_path, monkeypatch, way):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    (tmp_path / "library" / "_elsewhere").mkdir(parents=True)
    (tmp_path / "library" / "_elsewhere" / "__init__.py").touch()
    later = "def later():\n    " if "later" in way else ""
    (tmp_path / "library" / "_mine.py").write_text(f"{later}import _elsewhere.inner\n")
    module = tmp_path / "library" / "_elsewhere" / "inner.py"
    module.write_text("open(__file__ + '.ran', 'w')\n")
    module.chmod(0o666)
    library = str(tmp_path / "library")
    add = f"import sys\n\nsys.path.insert(0, {library!r})\n{way}\n"
    with pytest.raises(SpecError, match=r"inner\.py: all users may write it"):
        load_file(write_space(tmp_path, ("FACTOR = 3", f"{add}\nFACTOR = 3")))
    assert nothing_ran(tmp_path)


def test_bytecode_is_not_run(tmp_path, monkeypatch):
    """Python takes it for the module beside it if it says the same time and size, whoever wrote it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    module = tmp_path / "_elsewhere.py"
    module.write_text("FACTOR = 3\n")
    status, ran = module.stat(), tmp_path / "bytecode.ran"
    stamp = struct.pack("<III", 0, int(status.st_mtime), status.st_size)  # PEP 552
    code = marshal.dumps(compile(f"open({str(ran)!r}, 'w')\nFACTOR = 3", str(module), "exec"))
    bytecode = Path(cache_from_source(module))
    bytecode.parent.mkdir()
    bytecode.write_bytes(MAGIC_NUMBER + stamp + code)
    load_file(write_space(tmp_path, ("FACTOR = 3", "from _elsewhere import FACTOR")))
    assert nothing_ran(tmp_path)
    del sys.modules["_elsewhere"]
    __import__("_elsewhere")
    assert ran.exists()  # Python itself would have


CACHE_ATTACKS = {
    "others": lambda folder, give: give(folder),
    "open": lambda folder, give: folder.chmod(0o777),
    "others in a sticky folder": lambda folder, give: (
        [inner.chmod(0o1777) for inner in (folder, folder / "data", folder / "binaries")],
        give(*(folder / "data").iterdir(), *(folder / "binaries").iterdir()),
    ),
}


@pytest.mark.parametrize("attack", CACHE_ATTACKS.values(), ids=CACHE_ATTACKS)
def test_a_cache_that_others_may_change_is_not_used(
    tmp_path, monkeypatch, give, opencl_device, attack
):
    """A binary is code; and whoever writes the reference says which kernels are right."""
    caches = tmp_path / "caches"
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(caches))
    kernel, problem = load_file(write_space(tmp_path)), Problem(n=1000)
    device = choose_device(opencl_device)
    mask = os.umask(0)
    try:
        binary = compiled_for(kernel, {"BLOCK": 32}, problem, device)
        prepare_dataset(kernel, problem, "exact")
    finally:
        os.umask(mask)
    for folder in (caches, *(path for path in caches.rglob("*") if path.is_dir())):
        assert folder.stat().st_mode & 0o777 == 0o700
    binaries.write_cached(replace(binary, code=b"theirs"))
    assert binaries.read_cached(binary.key).binary.code == b"theirs"
    attack(caches, give)
    assert binaries.read_cached(binary.key) is None
    with pytest.raises(AutotuneError, match=r"references are kept there; .*AUTOTUNE_CACHE_DIR"):
        prepare_dataset(kernel, problem, "exact")
    monkeypatch.setenv("AUTOTUNE_TRUST", str(caches))
    assert binaries.read_cached(binary.key).binary.code == b"theirs"
    prepare_dataset(kernel, problem, "exact")


def test_the_doctor_names_a_cache_that_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    (found,) = checks.cache(Nvidia())
    assert (found.state, found.remedy) == ("bad", f"chmod go-w {tmp_path}")


def test_intels_runtime_is_named_where_it_is_installed(monkeypatch, opencl_device):
    """And not by a file of the cache: the loader runs whatever library such a file names."""
    library = Path(sys.prefix, "lib", "libintelocl.so")
    if not library.exists():
        pytest.skip("another OpenCL implementation")
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    opencl_devices._show_intel_runtime(library.parent)
    assert os.environ["OCL_ICD_VENDORS"] == str(library)


def test_a_group_may_write_only_where_it_is_the_owners_own(tmp_path):
    """As files are with umask 002; not as root, the group is mine, which may have others in it."""
    file = write_space(tmp_path)
    file.chmod(0o664)
    if IS_ROOT:
        os.chown(file, 0, 0)
        assert load_file(file).name == "scale"
        os.chown(file, 0, EVE)
        with pytest.raises(SpecError, match=r"the group 54321 may write it.*chmod go-w"):
            load_file(file)
    else:
        user, group = (
            subprocess.run(["id", which], capture_output=True, text=True).stdout
            for which in ("-un", "-gn")
        )
        assert (fault_of(file) is None) == (user == group)


# ---------------------------------------------------------------- trust


def test_a_trusted_folder_may_be_anybodys(tmp_path, monkeypatch, give):
    """It and the way into it; neither what lies beside it nor what a link in it leads to."""
    (tmp_path / "mine").mkdir()
    file = write_space(tmp_path / "mine", HELPED)
    (file.parent / "_tables.py").write_text("FACTOR = 3\n")
    for name in ("beside", "linked"):
        (tmp_path / name).mkdir()
        write_space(tmp_path / name, RUN)
    (tmp_path / "mine" / "link.py").symlink_to("../linked/spaces/scale.py")
    give(tmp_path / "mine")
    for folder in (file.parent, tmp_path, *(tmp_path / name for name in ("beside", "linked"))):
        folder.chmod(0o777)
    monkeypatch.setenv("AUTOTUNE_TRUST", f":/nowhere:{tmp_path / 'mine'}:")
    assert len(source_fingerprint(load_file(file))) == 64
    for other in (tmp_path / "beside/spaces/scale.py", tmp_path / "mine/link.py"):
        with pytest.raises(SpecError, match="set AUTOTUNE_TRUST="):
            load_file(other)
    assert nothing_ran(tmp_path)


def refusal(file):
    """In another process: why it does not run a space file; empty where it does."""
    try:
        return load_file(file).name and ""
    except SpecError as error:
        return str(error)


@pytest.mark.slow
def test_other_processes_have_the_rule_and_the_trust(tmp_path, monkeypatch):
    files = []
    for name in ("trusted", "open"):
        (tmp_path / name).mkdir()
        files.append(write_space(tmp_path / name, HELPED))
        (files[-1].parent / "_tables.py").write_text("FACTOR = 3\n")
        files[-1].parent.chmod(0o777)
    monkeypatch.setenv("AUTOTUNE_TRUST", str(tmp_path / "trusted"))
    with ChildActor() as child:
        assert child.ask(refusal, files[0], timeout_s=60) == ""
        assert "all users may write it" in child.ask(refusal, files[1], timeout_s=60)


def test_trust_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AUTOTUNE_TRUST", "")  # and back to what it was
    folder = write_space(tmp_path).parent
    folder.chmod(0o777)
    command = ["show", "scale", "--device", "sm_90", "--spaces", str(folder)]
    assert run(command) == 2
    assert f"set AUTOTUNE_TRUST={tmp_path}" in capsys.readouterr().err
    monkeypatch.setenv("AUTOTUNE_TRUST", str(tmp_path))
    assert run(command) == 0


def test_the_package_runs_its_own_files_whoever_installed_it(tmp_path, give):
    """Its Python runs already: a copy that belongs to another user, and a project that does."""
    for name in ("autotune", "spaces", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name)
    (tmp_path / "copy" / "pyproject.toml").touch()
    write_space(tmp_path)
    code = (
        ("" if IS_ROOT else f"import os; os.geteuid = lambda: {EVE}\n")
        + "from autotune.kernel.catalog import find_kernel\n"
        "print(find_kernel('copy').file)\n"
        "find_kernel('scale')\n"
    )
    give(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "copy")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(tmp_path / "copy" / "spaces" / "copy.py")
    assert "belongs to" in done.stderr.splitlines()[-1]


def test_packages_beside_their_metadata_are_installed(tmp_path, monkeypatch):
    """As ``pip --target`` leaves them, in a folder of PYTHONPATH: no own modules of a person."""
    for name, metadata in (("target", "widget-1.0.dist-info"), ("own", "notes")):
        (tmp_path / name / f"{name}_widget").mkdir(parents=True)
        (tmp_path / name / f"{name}_widget" / "__init__.py").touch()
        (tmp_path / name / metadata).mkdir()
        monkeypatch.syspath_prepend(str(tmp_path / name))
    assert home_of("target_widget") is None
    assert home_of("own_widget") == tmp_path / "own"
