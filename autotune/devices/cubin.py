"""Reads parameters of functions, variables in constant memory, and the machine code from a cubin.

A cubin is an ELF file of 64 bits. Source of the layout: System V ABI, chapters 4 (sections) and 5 (symbols).
Names are mangled as the Itanium C++ ABI says.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autotune.devices.base import LaunchError
from autotune.errors import unknown

#: Format of a function attribute that has data (EIFMT_SVAL).
_WITH_DATA = 4
#: Kind of a function attribute that describes one parameter (EIATTR_KPARAM_INFO).
_PARAMETER = 0x17
#: Kind of an attribute with the registers of a function (EIATTR_REGCOUNT), after its symbol.
_REGISTERS = 0x2F
#: First bit of the parameter's size in the last word of this attribute.
_SIZE_BIT = 18
#: Type of a section with symbols, bytes of a symbol, and type of a symbol that is a variable.
_SYMBOLS, _SYMBOL_BYTES, _VARIABLE = 2, 24, 1
#: Section with the variables in constant memory.
_CONSTANT = ".nv.constant3"
#: Beginnings of the names of sections with machine code and data. The others name versions and symbols.
_CODE = (".text.", ".nv.constant", ".nv.global", ".nv.shared")
#: Type of a section without bytes in the file.
_NO_BYTES = 8
#: Basic types in mangled names.
_TYPES = {
    **{"b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short"},
    **{"t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "f": "float"},
    **{"m": "unsigned long", "x": "long long", "y": "unsigned long long", "d": "double"},
}
#: Namespaces of names with internal linkage, which C++ does not write.
_INTERNAL = re.compile(r"_(?:INTERNAL|GLOBAL__N)_")
#: A name with its length in front, and a value of a template: its type, then the number.
_LENGTH, _VALUE = re.compile(r"L?(\d+)"), re.compile(r"L([a-z])(n?\d+)E")


@dataclass(frozen=True)
class Variable:
    """A variable in constant memory."""

    #: Name in the cubin.
    symbol: str
    nbytes: int


def parameter_bytes(cubin: bytes, symbol: str) -> tuple[int, ...] | None:
    """Return the bytes of each parameter of a function in a cubin; None if the cubin has no such function."""
    for section in _sections(cubin):
        if section.name != f".nv.info.{symbol}":
            continue
        found = dict[int, int]()
        for kind, at in _attributes(cubin, section):
            if kind == _PARAMETER:
                ordinal, bits = struct.unpack_from("<4xH2xI", cubin, at)
                found[ordinal] = bits >> _SIZE_BIT
        return tuple(size for _, size in sorted(found.items()))
    return None


def _attributes(cubin: bytes, section: _Section) -> Iterator[tuple[int, int]]:
    """Yield the kind and the place of the data of each attribute in a section."""
    at = section.begin
    while at < section.begin + section.nbytes:
        form, kind, following = struct.unpack_from("<BBH", cubin, at)
        yield kind, at + 4
        at += 4 + (following if form == _WITH_DATA else 0)


def code_hash(cubin: bytes) -> str:
    """Return the sha256 of the machine code, its data and its registers; empty without machine code.

    Two versions of a compiler may make the same code, although their cubins differ in the versions they name.
    """
    found, known = hashlib.sha256(), _sections(cubin)
    sections = [section for section in known if section.name.startswith(_CODE)]
    for section in sorted(sections, key=lambda section: section.name):
        found.update(f"{section.name} {section.nbytes} ".encode())
        if section.kind != _NO_BYTES:
            found.update(cubin[section.begin : section.begin + section.nbytes])
    registers = [
        struct.unpack_from("<4xI", cubin, at)
        for section in known
        if section.name == ".nv.info"
        for kind, at in _attributes(cubin, section)
        if kind == _REGISTERS
    ]
    found.update(repr(sorted(registers)).encode())
    return found.hexdigest() if sections else ""


@lru_cache(8)
def constants(cubin: bytes) -> Mapping[str, Variable]:
    """Return the variables in constant memory by their C++ names, such as ``filters::weights<3>``."""
    sections, found = _sections(cubin), dict[str, Variable]()
    for table in sections:
        if table.kind != _SYMBOLS:
            continue
        for at in range(table.begin, table.begin + table.nbytes, _SYMBOL_BYTES):
            name, info, place, nbytes = struct.unpack_from("<IBxH8xQ", cubin, at)
            if info & 0xF == _VARIABLE and sections[place].name == _CONSTANT:
                symbol = _text(cubin, sections[table.link].begin + name)
                found[cpp_name(symbol)] = Variable(symbol, nbytes)
    return found


def constant(cubin: bytes, name: str, nbytes: int) -> str:
    """Return the symbol of a variable in constant memory.

    ``name`` is its C++ name. Outer namespaces and last arguments of a template may be left out, if no other variable
    has the rest of the name. Raises `LaunchError` if the cubin has no such variable, several, or one that is too small.
    """
    known = constants(cubin)
    fitting = [name] if name in known else [full for full in known if _is_named(full, name)]
    if len(fitting) > 1:
        raise LaunchError(
            f"several __constant__ variables are named {name}: {', '.join(fitting)}; write for example "
            f"Constant(array, symbol={fitting[0]!r})"
        )
    if not fitting:
        raise LaunchError(
            unknown("__constant__ variable", name, known)
            + "; a variable that the source does not declare or use is not in the binary"
        )
    variable = known[fitting[0]]
    if nbytes > variable.nbytes:
        raise LaunchError(
            f"the __constant__ variable {fitting[0]} has {variable.nbytes} bytes, its argument {nbytes}; "
            "give the array the shape and type of the variable"
        )
    return variable.symbol


def cpp_name(symbol: str) -> str:
    """Return the C++ name of a variable; the symbol itself if it is not mangled, or in an unknown way."""
    if not symbol.startswith("_Z"):
        return symbol
    rest, parts = symbol.removeprefix("_Z").removeprefix("N").removeprefix("L"), list[str]()
    while match := _LENGTH.match(rest):
        end = match.end() + int(match[1])
        name, rest = rest[match.end() : end], rest[end:]
        if rest.startswith("I"):
            written, rest = _template(rest[1:])
            name += f"<{', '.join(written)}>"
        parts.append(name)
    is_known = parts and rest in ("", "E")
    return "::".join(part for part in parts if not _INTERNAL.match(part)) if is_known else symbol


def _template(rest: str) -> tuple[list[str], str]:
    """Return the arguments at the beginning of a mangled list, and the text after the list."""
    written = list[str]()
    while rest and rest[0] != "E":
        if match := _VALUE.match(rest):
            number = match[2].replace("n", "-")
            written.append(str(bool(int(number))).lower() if match[1] == "b" else number)
            rest = rest[match.end() :]
        elif rest[0] in _TYPES:
            written.append(_TYPES[rest[0]])
            rest = rest[1:]
        else:
            return written, rest  # neither a number nor a basic type
    return written, rest[1:]


def _is_named(full: str, name: str) -> bool:
    """Return whether a name is the full name without outer namespaces or last arguments of a template."""
    (base, _, given), (full_base, _, full_given) = name.partition("<"), full.partition("<")
    wanted = [part.strip() for part in given.rstrip(" >").split(",") if part.strip()]
    found = [part.strip() for part in full_given.rstrip(">").split(",")]
    return f"::{full_base}".endswith(f"::{base}") and found[: len(wanted)] == wanted


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    begin: int
    nbytes: int
    #: Number of the section with the names of symbols.
    link: int


def _sections(cubin: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    headers = [
        struct.unpack_from("<II16xQQI", cubin, table + entry_bytes * n) for n in range(count)
    ]
    return [_Section(_text(cubin, headers[names][2] + name), *facts) for name, *facts in headers]


def _text(cubin: bytes, begin: int) -> str:
    return cubin[begin : cubin.index(b"\0", begin)].decode()
