"""What the functions of a kernel in no space file are known by: their code, and what it uses.

Of a script or notebook nothing counts but what the functions reach, with the values that names have when
this is asked. Of other modules only the names are noted: `source` follows their files.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper
from types import CodeType, FunctionType, ModuleType
from typing import Any

from autotune.kernel.spec import Kernel

_PLAIN = (bool, int, float, complex, str, type(None))
_NAME_OPERATIONS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
#: Attributes of a class that decide nothing, or stand for what does.
_BESIDE = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__", "__annotations_cache__"),
}


class Described:
    """Functions of the module ``home``, and other values, as a text that is the same for equal ones."""

    def __init__(self, home: str, values: Iterable[object]) -> None:
        self._home = home
        self._parts: list[str] = []
        #: Functions and classes met so far, by identity; kept, so that no other gets it.
        self._met: dict[int, object] = {}
        self._inside: set[int] = set()
        #: Modules that they use.
        self.modules: set[str] = set()
        for value in values:
            self._add(value)
        self.text = " ".join(self._parts)

    def _add(self, value: object) -> None:
        if type(value) in _PLAIN:
            self._parts.append(repr(value))
        elif isinstance(value, bytes):
            self._parts.append(hashlib.sha256(value).hexdigest())
        elif isinstance(value, ModuleType):
            self._name(value.__name__, "")
        elif isinstance(value, Kernel):
            self._parts.append(f"kernel {value.name}")
        elif isinstance(value, _lru_cache_wrapper):
            self._add(value.__wrapped__)
        elif isinstance(value, FunctionType | type):
            self._definition(value)
        elif id(value) in self._inside:
            self._parts.append("itself")
        else:
            self._inside.add(id(value))
            self._composed(value)
            self._inside.remove(id(value))

    def _name(self, module: str, name: str) -> None:
        self.modules.add(module)
        self._parts.append(f"{module}:{name}")

    def _definition(self, value: FunctionType | type) -> None:
        """A function or class: of another module its name, else all that it consists of."""
        module = str(value.__module__)
        if module not in ("__main__", self._home) and module in sys.modules:
            self._name(module, value.__qualname__)
        elif id(value) in self._met:
            self._parts.append(f"#{list(self._met).index(id(value))}")
        else:
            self._met[id(value)] = value
            self._parts.append("(")
            for part in _of_class(value) if isinstance(value, type) else self._of_function(value):
                self._add(part)
            self._parts.append(")")

    def _of_function(self, function: FunctionType) -> Iterator[object]:
        self._code(function.__code__, function.__doc__)
        yield from (function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # empty
                yield cell.cell_contents
        used = sorted(_used(function.__code__))
        for name in used:
            if name in function.__globals__:
                yield from (name, function.__globals__[name])

    def _code(self, code: CodeType, doc: str | None = None) -> None:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        done = hashlib.sha256(code.co_code + code.co_exceptiontable).hexdigest()
        self._parts.append(f"{done} {names}")
        self.modules.update(_imported(code))
        for number, constant in enumerate(code.co_consts):
            if isinstance(constant, CodeType):
                self._code(constant)
            elif number or constant != doc:  # docstrings come first
                self._add(constant)

    def _composed(self, value: object) -> None:
        """Whatever else: what pickle would make it from."""
        if isinstance(value, set | frozenset):
            items = [Described(self._home, [item]) for item in value]
            self.modules.update(*(item.modules for item in items))
            self._parts += sorted(item.text for item in items)
            return
        parts = _listed(value)
        self._parts.append(f"{type(value).__name__}[{len(parts)}")
        for part in parts:
            self._add(part)
        self._parts.append("]")


def _listed(value: object) -> list[Any]:
    if isinstance(value, tuple | list):
        return [*value]
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    reduce: Callable[[object], Any] | None = copyreg.dispatch_table.get(type(value))
    try:
        made_from = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:  # it cannot be sent either, or by its type alone
        return [type(value)]
    if isinstance(made_from, str):
        return [getattr(value, "__module__", None) or type(value).__module__, made_from]
    return [[*part] if isinstance(part, Iterator) else part for part in made_from]


def _of_class(value: type) -> Iterator[object]:
    yield from (value.__qualname__, value.__bases__)
    for name in sorted(vars(value).keys() - _BESIDE):
        yield from (name, vars(value)[name])


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _used(code: CodeType) -> set[str]:
    """Names that code, and what is defined in it, looks up outside of functions."""
    return {
        str(step.argval)
        for part in _codes(code)
        for step in dis.get_instructions(part)
        if step.opname in _NAME_OPERATIONS
    }


def _imported(code: CodeType) -> set[str]:
    steps = dis.get_instructions(code)
    return {str(step.argval) for step in steps if step.opname == "IMPORT_NAME"}
