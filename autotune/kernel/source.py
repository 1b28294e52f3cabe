"""Returns the texts of a kernel's sources, and fingerprints of sources and space files."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dis import get_instructions
from functools import _lru_cache_wrapper, partial
from itertools import product
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from autotune.devices.base import with_defines
from autotune.devices.device import CUDA_ARCHS, OPENCL_ARCHS, Device, for_arch
from autotune.errors import SpecError
from autotune.files import content_fingerprint
from autotune.kernel.catalog import is_of_file
from autotune.kernel.definition import Definition, changes
from autotune.kernel.includes import (
    SearchPath,
    SourceText,
    flattened,
    read_bytes,
    read_text,
    search_path,
    text_fingerprint,
)
from autotune.kernel.modules import files_of, home_of
from autotune.kernel.space_text import modules_fingerprint, space_text
from autotune.kernel.spec import Kernel
from autotune.project import file_name
from autotune.values import SOURCE, Configuration, Problem

#: A device of every architecture, for compiler options that depend on it.
_DEVICES = (
    *map(for_arch, CUDA_ARCHS),
    *(Device("opencl", arch, arch) for arch in OPENCL_ARCHS),
)

#: Attributes that Python adds to every class.
_GENERATED = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__", "__annotations_cache__"),
}


def source_of(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> str:
    """Return the text that a compiler gets for a configuration, including its defines."""
    text = source_text(kernel, configuration, device).text
    return (
        text
        if kernel.language
        else with_defines(text, kernel.macros(configuration, problem, device))
    )


def source_text(kernel: Kernel, configuration: Configuration, device: Device) -> SourceText:
    """Return the source of a configuration: the frozen text if there is one, else the file's."""
    path = _search_path(kernel, configuration, device)
    return _text_of(kernel, kernel.source_file(configuration), path)


def _text_of(kernel: Kernel, file: Path, path: SearchPath) -> SourceText:
    if frozen := kernel.texts.get((file, path)):
        return frozen
    if kernel.language:
        place, _, functions = str(file).rpartition(":")
        text = kernel.language.source(Path(place), functions.split(","), _OwnFiles())
        return SourceText(text)
    return flattened(file, path, kernel.written.get(file.name))


class _OwnFiles:
    """See `autotune.languages.base.Files`."""

    read = staticmethod(read_text)
    read_bytes = staticmethod(read_bytes)

    def module_files(self, name: str, folder: Path) -> list[Path]:
        home = home_of(name.partition(".")[0], folder)
        found = files_of(home, name) if home else ()
        return [file for file in found if file.suffix == ".py"]


def search_paths(kernel: Kernel) -> tuple[SearchPath, ...]:
    """Return the search paths of a kernel for every value of every parameter, on all devices."""
    devices = [device for device in _DEVICES if device.backend in kernel.backends]
    found = dict[SearchPath, None]()
    for default in map(kernel.default, kernel.sources):
        if not kernel.has_hook("options", default):
            found[search_path((), "opencl" in kernel.backends)] = None
            continue
        count = len(devices) if kernel.takes_device("options", default) else 1
        for configuration, device in product(_one_by_one(kernel, default), devices[:count]):
            with suppress(SpecError):  # mostly because the configuration is not valid
                found[_search_path(kernel, configuration, device)] = None
    return tuple(found) or (SearchPath(),)


def _search_path(kernel: Kernel, configuration: Configuration, device: Device) -> SearchPath:
    options = kernel.compiler_options(configuration, device)
    return search_path(options, "opencl" in kernel.backends)


def _one_by_one(kernel: Kernel, default: Configuration) -> Iterator[Configuration]:
    """Yield a configuration for each value of each parameter of the source that ``default`` belongs to."""
    named = {name: value for name, value in default.items() if name == SOURCE}
    for name, values in kernel.source_of(default).parameters.items():
        for value in values:
            yield kernel.completed({**named, name: value})


def frozen_sources(kernel: Kernel) -> dict[tuple[Path, SearchPath], SourceText]:
    """Return the current sources of a kernel; a run keeps them in ``Kernel.texts``."""
    files = dict.fromkeys(map(kernel.find_source, kernel.files.values()))
    return {
        (file, path): _text_of(kernel, file, path)
        for path in search_paths(kernel)
        for file in files
    }


def source_fingerprint(kernel: Kernel) -> str:
    """Return the sha256 of all sources of a kernel and all files that they include."""
    texts = dict.fromkeys(source.identity for source in frozen_sources(kernel).values())
    return text_fingerprint("\n".join(texts))


def arguments_fingerprint(kernel: Kernel, problem: Problem) -> str:
    """Return the fingerprint of a kernel's functions; a record keeps it with each problem."""
    return text_fingerprint(own_fingerprint(kernel.of_problem(problem)))


def definition_of(kernel: Kernel) -> Definition:
    """Return the definition of a kernel by its current files, or by the files that a run has frozen."""
    arguments = text_fingerprint(own_fingerprint(kernel))
    if arguments != arguments_fingerprint(kernel, kernel.all_problems()[0]):
        arguments = ""
    return Definition(source_fingerprint(kernel), arguments, _file_fingerprints(kernel))


def _file_fingerprints(kernel: Kernel) -> dict[str, str]:
    """Return the fingerprints of a kernel's files in its project and among the bundled kernels."""
    if kernel.file is None or not kernel.space_files:
        return {}
    texts = frozen_sources(kernel).values()
    files = {Path(header.path) for text in texts for header in text.headers}
    files |= {file for text in texts for file in text.files if file.is_file()}
    known = kernel.space_files | {file: content_fingerprint(read_bytes(file)) for file in files}
    named = {file_name(str(kernel.file), os.path.abspath(file)): sha for file, sha in known.items()}
    return {name: sha for name, sha in sorted(named.items()) if name}


def changed_since(kernel: Kernel, source: str, arguments: str) -> tuple[str, ...]:
    """Return the changes of a kernel since these fingerprints.

    ``source`` is a result of `source_fingerprint`, ``arguments`` of `arguments_fingerprint` for any problem.
    """
    return comparison_of(kernel)(source, arguments)


def comparison_of(kernel: Kernel) -> Callable[[str, str], tuple[str, ...]]:
    """Return `changed_since` of a kernel for many fingerprints: its files are read once."""
    current = {kernel, *map(kernel.of_problem, kernel.all_problems())}
    known = {text_fingerprint(own_fingerprint(variant)) for variant in current}
    return partial(changes, now_source=source_fingerprint(kernel), now_arguments=known)


def own_fingerprint(kernel: Kernel) -> str:
    """Return the fingerprint of a kernel's functions.

    For a space file it is the `spec_fingerprint` at the first call, because users may edit the file during
    a run. For a notebook it is computed at each call, because values change. A kernel restored from
    `kernel.snapshot` keeps the fingerprint it was saved with.
    """
    if not kernel.fingerprint and is_of_file(kernel):
        assert kernel.file is not None
        kernel.fingerprint, kernel.space_files, _ = space_text(kernel.file)
    if kernel.fingerprint:
        return kernel.fingerprint
    found = functions_of(kernel)
    return text_fingerprint(found.text + modules_fingerprint(found.modules))


def functions_of(kernel: Kernel) -> Description:
    """Return a description of the values and functions that decide the results of a script's kernel."""
    options = (kernel.files, kernel.static, kernel.layout)
    facts = [source.device_macros for source in kernel.sources.values() if source.device_macros]
    hooks = [
        (name, owner.hooks[name])
        for owner in (kernel, *kernel.sources.values())
        for name in sorted(owner.hooks.keys() - {"call"})
    ]
    return Description(kernel.module, [options, *facts, *hooks])


class Description:
    """A text of functions of the module ``home`` and of other values; equal values have equal texts."""

    def __init__(self, home: str, values: Iterable[object]) -> None:
        self._home = home
        #: Functions and classes by identity; references keep other objects from reusing the identity.
        self._met: dict[int, object] = {}
        #: Identities of the objects that contain the current one.
        self._inside: set[int] = set()
        #: Modules that the functions use.
        self.modules: set[str] = set()
        self.text = " ".join(map(self._text, values))

    def _text(self, value: object) -> str:
        if isinstance(value, ModuleType):
            return self._name(value.__name__, "")
        if isinstance(value, Kernel):
            return f"kernel {value.name}"
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            return repr(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, FunctionType | type):
            return self._definition(value)
        if id(value) in self._inside:
            return "itself"
        self._inside.add(id(value))
        text = self._composed(value)
        self._inside.remove(id(value))
        return text

    def _definition(self, value: FunctionType | type) -> str:
        module = str(value.__module__)
        if module not in ("__main__", self._home) and module in sys.modules:
            return self._name(module, value.__qualname__)
        if id(value) in self._met:
            return f"#{list(self._met).index(id(value))}"
        self._met[id(value)] = value
        return self._composed(value)

    def _composed(self, value: object) -> str:
        return f"{type(value).__name__}[{' '.join(self._parts(value))}]"

    def _parts(self, value: object) -> Iterator[str]:
        if isinstance(value, set | frozenset):
            yield from sorted(Description(self._home, [item]).text for item in value)
        elif (parts := _parts_of(value)) is not None:
            yield from map(self._text, parts)
        else:
            yield self._text(type(value))
            try:
                yield hashlib.sha256(pickle.dumps(value, 4)).hexdigest()
            except Exception:  # for example an instance of a class of the script
                yield self._text(dict(getattr(value, "__dict__", {})))

    def _name(self, module: str, name: str) -> str:
        self.modules.add(module)
        return f"{module}:{name}"

    def _code(self, code: CodeType) -> str:
        steps = get_instructions(code)
        self.modules.update(str(step.argval) for step in steps if step.opname == "IMPORT_NAME")
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        done = hashlib.sha256(code.co_code + code.co_exceptiontable).hexdigest()
        return f"{done} {names} {' '.join(map(self._text, code.co_consts))}"


def _parts_of(value: object) -> Iterable[object] | None:
    """Return the parts of a value; None if only pickle can describe the value."""
    if type(value) is tuple or type(value) is list:
        return value
    if type(value) is dict:
        return [part for item in value.items() for part in item]
    if isinstance(value, _lru_cache_wrapper):
        return [value.__wrapped__]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, type):
        own = {name: part for name, part in vars(value).items() if name not in _GENERATED}
        return [
            value.__qualname__,
            value.__bases__,
            *(part for item in sorted(own.items()) for part in item),
        ]
    return None


def _of_function(function: FunctionType) -> Iterator[object]:
    code = function.__code__
    if code.co_consts[:1] == (function.__doc__,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    yield code
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty
            yield cell.cell_contents
    for name in sorted(_names(code) & function.__globals__.keys()):
        yield from (name, function.__globals__[name])


def _names(code: CodeType) -> set[str]:
    """Return the names that code, and code nested in it, may look up as globals."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *(name for part in inner for name in _names(part))}
