"""Finds space files and loads their kernels.

Listing only reads names and docstrings and does not run the files. So a broken file does not affect
other files.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from autotune.errors import MissingDependencyError, SpecError, UsageError, needing, unknown
from autotune.files import bundled_path
from autotune.kernel import modules
from autotune.kernel.declaration import line_of
from autotune.kernel.modules import fault_of, refuse_foreign
from autotune.kernel.spec import Kernel
from autotune.project import STUDY, bundled_project, current_folder, project_of, space_places
from autotune.syntax import parsed


@dataclass(frozen=True)
class Listing:
    """An entry in the list of kernels."""

    name: str
    file: Path
    #: First line of the file's docstring, or the reason that the file is broken.
    doc: str
    broken: bool = False

    @property
    def teaches(self) -> bool:
        """True for a study kernel: a bundled kernel that demonstrates one effect."""
        return self.file.parent == Path(bundled_path(STUDY))


def bundled_folder(kind: str) -> Path:
    """Return the folder ``kernels``, ``spaces`` or ``reports`` of the package."""
    return Path(bundled_path(kind))


def space_folders(spaces: Path | None = None) -> list[Path]:
    """Return the folders to search for space files, nearest first; links are not followed."""
    if spaces is not None and not spaces.is_dir():
        raise UsageError(f"--spaces {spaces}: not a folder")
    named: dict[Path, Path] = {}
    for folder in map(Path, space_places(spaces)):
        if folder.is_dir():
            named.setdefault(folder.resolve(), folder.absolute())
    return list(named.values())


def listings(spaces: Path | None = None) -> list[Listing]:
    """Return every kernel that can be found by name; of kernels with one name, the nearest."""
    return [_listing(file) for _, file in sorted(space_files(spaces).items())]


def project_kernels(records: Path, spaces: Path | None = None) -> list[str]:
    """Return the names of the project's own kernels, and of bundled kernels with a record in a folder.

    In the folder of the bundled kernels all of them are its own.
    """
    bundled = bundled_project()
    is_bundled = project_of(current_folder()) == bundled
    return [
        listing.name
        for listing in listings(spaces)
        if is_bundled
        or project_of(listing.file.parent) != bundled
        or any(records.glob(f"*/{listing.name}.json"))
    ]


def space_files(spaces: Path | None = None) -> dict[str, Path]:
    """Return the space file of every kernel by name, without reading the files."""
    found: dict[str, Path] = {}
    for folder in space_folders(spaces):
        for file in folder.glob("*.py"):
            if file.is_file() and not file.name.startswith("_"):
                found.setdefault(file.stem, file)
    return found


def find_kernel(name: str, spaces: Path | None = None) -> Kernel:
    """Run the space file of a kernel, given by name or path; return its validated `Kernel`.

    ``FILE.py:FUNCTION`` names the kernel of a decorated function; see `autotune.triton`.
    """
    file_name, _, function = name.rpartition(":")
    if file_name.endswith(".py"):
        return _decorated(Path(file_name), function)
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UsageError(f"{name}: no such space file")
        return load_file(Path(name))
    files = space_files(spaces)
    if name not in files:
        raise UsageError(unknown("kernel", name, sorted(files)))
    return load_file(files[name])


def known_kernel(name: str, spaces: Path | None = None) -> Kernel | None:
    """Return the kernel with a name, which may come from a record; None if there is no such kernel."""
    file = space_files(spaces).get(name)
    return load_file(file) if file else None


def _decorated(file: Path, function: str) -> Kernel:
    if not file.is_file():
        raise UsageError(f"{file}: no such file")
    found = getattr(_run(file), function, None)
    kernel = getattr(found, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise UsageError(f"{file.name} has no function {function!r} decorated by autotune.triton")
    kernel.validate()
    return kernel


def load_file(file: Path) -> Kernel:
    """Run a space file and return the kernel it declares."""
    kernel = _only_kernel(file.resolve(), list(vars(_run(file)).values()))
    kernel.validate()
    return kernel


def _run(file: Path) -> ModuleType:
    """Run a file of the user; return its module."""
    refuse_foreign(file)
    file = file.resolve()
    try:
        with needing(file.name):
            return modules.run_space(file)
    except (MissingDependencyError, KeyboardInterrupt):
        raise
    except SyntaxError as error:
        raise SpecError(f"{file.name}:{error.lineno}: syntax error: {error.msg}") from error
    except BaseException as error:  # SystemExit too
        kind = "" if isinstance(error, SpecError) else f"{type(error).__name__}: "
        place = line_of(error, str(file))
        raise SpecError(f"{file.name}: {kind}{error}{place}") from error


def is_of_file(kernel: Kernel) -> bool:
    """Return whether the file identifies a kernel; its functions identify a kernel of a script.

    The file is a space file, or a module that declares no other kernel. A script may be a space file too.
    """
    if kernel.file is None:
        return False
    if kernel.module.startswith(modules.SPACE):
        return True
    if kernel.module == "__main__":
        return kernel.file.stem == kernel.name and kernel.file.parent in map(
            Path.resolve, space_folders()
        )
    module = sys.modules.get(kernel.module)
    try:
        return module is not None and _only_kernel(kernel.file, [*vars(module).values()]) is kernel
    except SpecError:
        return False


def _only_kernel(file: Path, values: list[object]) -> Kernel:
    kernels = list(dict.fromkeys(value for value in values if isinstance(value, Kernel)))
    own = [kernel for kernel in kernels if kernel.file == file]
    named = [kernel for kernel in own if kernel.name == file.stem] or own
    if len(named) != 1:
        remedy = f"write {file.stem} = autotune.Kernel({file.stem + '.cu'!r}, ...)"
        kinds = ((getattr(value, "name", ""), type(value).__module__) for value in values)
        if functions := [name for name, module in kinds if module == "autotune.triton.decorator"]:
            remedy = f"for a decorated function name {file.name}:{functions[0]}"
        raise SpecError(f"{file.name}: declares {len(named)} kernels, expected one; {remedy}")
    return named[0]


def _listing(file: Path) -> Listing:
    try:
        if fault := fault_of(file):
            return Listing(
                file.stem, file, f"not allowed to run: {fault.place}: {fault.reason}", True
            )
        text = file.read_text(encoding="utf-8-sig")
        tree = parsed(lambda: ast.parse(text))
    except SyntaxError as error:
        return Listing(file.stem, file, f"line {error.lineno}: syntax error: {error.msg}", True)
    except (OSError, ValueError, MemoryError, RecursionError) as error:
        return Listing(file.stem, file, f"cannot be read: {error}", True)
    doc = (ast.get_docstring(tree) or "").split("\n")[0]
    return Listing(file.stem, file, doc)
