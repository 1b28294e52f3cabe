"""Describes the functions of a kernel in no space file as text: their code, and the values that they use.

Of the script or notebook counts only what the functions reach, with the values of this moment. Of other
modules the text has only names: `source` follows their files.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dis import get_instructions
from functools import _lru_cache_wrapper, partial
from types import CodeType, FunctionType, ModuleType

from autotune.kernel.spec import Kernel

#: Attributes that every class has, or that follow from the others.
_GENERATED = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__", "__annotations_cache__"),
}


class Description:
    """Functions of the module ``home``, and other values, as a text that is the same for equal ones."""

    def __init__(self, home: str, values: Iterable[object]) -> None:
        self._home = home
        #: Functions and classes, by identity and kept, so that no other object gets the identity.
        self._met: dict[int, object] = {}
        self._inside: set[int] = set()
        #: Modules that they use.
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
            except Exception:  # of a class of the script, say
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
    """Return what a value consists of; None where only pickle knows."""
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
    """Return the names that code, and code inside it, may look up outside of functions."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *(name for part in inner for name in _names(part))}
