"""Resolves the includes of kernel sources, and finds the files that a compiler reads.

A source becomes one text, for every backend and compiler process. Included files are inlined if they are
in its folder or bundled with the package. The compiler reads other files, which compiler options name;
their contents are part of the source's fingerprint.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from autotune.errors import SpecError
from autotune.files import bundled_path
from autotune.kernel.modules import refuse_foreign

#: Blanks, continued lines and comments between the words of a directive.
_GAP = r"(?:[ \t]|\\\n|(?>/\*.*?\*/))*"
#: Comments, literals and directives. Group ``next`` is the word after the directive's name.
_TOKEN = re.compile(
    rf"^{_GAP}(?:\#|%:){_GAP}(?P<directive>\w+){_GAP}"
    r'(?:"(?P<quoted>[^"\n]+)"|(?P<next>\w+))?(?:[ \t]*//[^\\\n]*$)?'
    r"|//(?:\\.|[^\\\n])*|/\*.*?\*/"
    r'|R"(?P<end>[^ ()\\\t\n]*)\(.*?\)(?P=end)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"//(?:\\.|[^\\\n])*|/\*.*?\*/", re.DOTALL)
_NOT_DEFINED = re.compile(r"\s*!\s*defined\W*(\w+)")
#: Comments and raw strings; group ``kept`` is a literal or an include, which may contain their signs.
_BLANK = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<end>[^ ()\\\t\n]*)\(.*?\)(?P=end)"'
    r"|(?P<kept>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|^[ \t]*(?:\#|%:)[ \t]*(?:include|include_next|import|embed)[ \t]*<[^>\n]*>)",
    re.MULTILINE | re.DOTALL,
)
#: Directives that name files or define macros, in a text without comments.
_LINE = re.compile(
    r"^[ \t]*(?:\#|%:)[ \t]*(?:(?:include|include_next|import|embed)\b(?P<operand>.*)"
    r"|define[ \t]+(?P<macro>\w+)(?:\([^)]*\))?(?P<body>.*)|(?:el)?if\b(?P<condition>.*))",
    re.MULTILINE,
)
#: The operand of ``__has_include`` and its relatives.
_HAS = re.compile(r'__has_(?:include|include_next|embed)\s*\(\s*("[^"\n]*"|<[^>\n]*>|[^)]*)')
_HAS_QUOTED = re.compile(r'__has_include\s*\(\s*"([^"\n]+)"\s*\)')
#: The rest of a directive's line with its continuations.
_REST = re.compile(r"(?:\\\n|[^\n])*")
#: A file name as an include writes it.
_NAME = re.compile(r'"[^"\n]+"|<[^>\n]+>')
#: File names in macros; also unquoted words, which the operator ``#`` may turn into a file name.
_MACRO_NAME = re.compile(r'"[^"\n]{1,200}"|<[^<>\n]{1,200}>|[\w./+-]{0,200}\.\w{1,20}')
#: Texts to cache directives and file names of; a command needs the same ones hundreds of times.
_TEXTS = 64
#: Options that name a folder of headers, a header or a macro, in the same word or the next.
_FOLDER = re.compile(r"(?:-I|-isystem|-iquote|-idirafter|--include-path)[= ]*(.*)")
_FILE = re.compile(r"(?:-include|--pre-include)[= ]*(.*)")
_MACRO = re.compile(r"(?:-D|--define-macro)[= ]*(.*)")
#: The value of a macro option that may name a file.
_FILE_VALUE = re.compile(r"[\"<]|[A-Za-z_/][\w/+-]*\.\w")


@dataclass(frozen=True)
class Header:
    """A file that a compiler finds by its options, or an OpenCL compiler in the working folder."""

    path: str
    sha256: str

    @property
    def is_changed(self) -> bool:
        """True if the content of the file changed, or the file is gone."""
        file = Path(self.path)
        return not file.is_file() or text_fingerprint(read_text(file, "latin-1")) != self.sha256


@dataclass(frozen=True)
class SourceText:
    """A source in the form that a compiler gets."""

    text: str
    #: All files that the includes in ``text`` may refer to, in the order of the includes.
    headers: tuple[Header, ...] = ()
    #: The source and the inlined files.
    files: tuple[Path, ...] = ()

    @property
    def identity(self) -> str:
        """The text, and the names and hashes of the headers; independent of their folders."""
        read = [f"\n// {Path(header.path).name} {header.sha256}" for header in self.headers]
        return self.text + "".join(read)


@dataclass(frozen=True)
class SearchPath:
    """The places where a compiler searches headers, and what its options define."""

    folders: tuple[str, ...] = ()
    #: Files that options such as ``-include`` name.
    files: tuple[str, ...] = ()
    #: Macros of options whose values may name a file, as ``NAME=VALUE``.
    macros: tuple[str, ...] = ()
    #: OpenCL compilers search the working folder as well; NVRTC does not, see `autotune.devices.nvrtc`.
    is_opencl: bool = False


def search_path(options: Sequence[str], is_opencl: bool = False) -> SearchPath:
    """Return the search path that compiler options set; folders are relative to the working folder."""
    folders = tuple(folder.strip("\"'") for folder in _values(_FOLDER, options))
    files = (file.strip("\"'") for file in _values(_FILE, options))
    places = [os.path.join(folder, file) for file in files for folder in ("", *folders)]
    macros = filter(_FILE_VALUE.search, _values(_MACRO, options))
    return SearchPath(folders, tuple(places), tuple(macros), is_opencl)


def _values(option: re.Pattern[str], words: Sequence[str]) -> dict[str, None]:
    """Return the values of an option without repetitions; a value may be the next word."""
    matches = [(option.match(word), after) for word, after in pairwise([*words, ""])]
    return dict.fromkeys(match[1] or after for match, after in matches if match)


def flattened(file: Path, path: SearchPath = SearchPath(), text: str | None = None) -> SourceText:
    """Return a source with includes replaced by the text of the included files.

    An ``#include "file"`` refers to the folder of the including file, then the folders of the search path,
    then the bundled kernels (``dialect.h``). Files of the including file's folder and bundled files are
    inlined: guarded files once, other files at each include; ``__has_include`` of such a file becomes 1. The
    compiler resolves all other includes. ``#line`` keeps the original line numbers in compiler messages.
    ``text`` replaces the content of ``file``.
    """
    inlining = _Inlining(path)
    body = inlining.inlined(file, read_text(file) if text is None else text, is_certain=True)
    inlining.find_computed()
    return SourceText(body, tuple(inlining.headers.values()), tuple(inlining.files))


class _Inlining:
    """The state while one source is inlined."""

    def __init__(self, path: SearchPath) -> None:
        self._folders = tuple(map(Path, path.folders))
        #: The folders that the compiler searches.
        self._searched = (*self._folders, Path()) if path.is_opencl else self._folders
        #: Files that the compiler may read.
        self.headers: dict[Path, Header] = {}
        #: The source and the inlined files, as keys.
        self.files: dict[Path, None] = {}
        #: Files whose text is being inlined, outermost first.
        self._open: list[Path] = []
        #: Guarded files that were inlined outside of conditions; their later includes are dropped.
        self._done: set[Path] = set()
        #: Numbers of guard macros for files with ``#pragma once``, which has no effect on inlined text.
        self._numbers: dict[Path, int] = {}
        #: Bodies of the macros of all texts, by name.
        self._bodies = defaultdict[str, list[str]](list)
        #: Includes of macros, each with the folders where its file may be.
        self._computed: list[tuple[str, tuple[Path, ...]]] = []
        for macro in path.macros:
            name, _, body = macro.partition("=")
            self._bodies[name].append(body)
        for file in path.files:
            self._note(Path(file))

    def inlined(self, file: Path, text: str, is_certain: bool) -> str:
        """Return the text of a file with its includes; ``is_certain``: no condition encloses the include."""
        real, is_guarded, is_once = file.resolve(), _is_guarded(text), _is_once(text)
        self._open.append(real)
        self.files[file] = None
        depth = -1 if is_guarded else 0  # of conditions, without the include guard
        inlined, parts, end = set[str](), [f'#line 1 "{file.name}"\n'], 0
        for match in _directives(text):
            directive = match["directive"]
            depth += directive.startswith("if") - (directive == "endif")
            for has in (
                _has_quoted(text, match.end("directive")) if directive.endswith("if") else ()
            ):
                if self._place(has[1], file.parent):
                    inlined.add(f'"{has[1]}"')
                    parts += text[end : has.start()], "1"
                    end = has.end()
            name = match["quoted"] if directive == "include" else None
            included = self._place(name, file.parent) if name else None
            if included is None:
                continue
            inlined.add(f'"{name}"')
            body = self._included(included, is_certain and depth == 0)
            line = text.count("\n", 0, match.end()) + 2
            parts += text[end : match.start()], f'#line 1 "{included.name}"\n{body}\n'
            parts.append(f'#line {line} "{file.name}"')
            end = match.end()
        body = "".join([*parts, text[end:]])
        self._follow(text, self._searched, inlined)
        self._open.pop()
        if is_certain and (is_once or is_guarded):
            self._done.add(real)
        if is_once and (not is_certain or real in self._numbers):
            macro = f"AUTOTUNE_ONCE_{self._numbers.setdefault(real, len(self._numbers))}"
            return f"#ifndef {macro}\n#define {macro}\n{body}\n#endif"
        return body

    def _included(self, file: Path, is_certain: bool) -> str:
        real = file.resolve()
        if real in self._done:
            return ""
        text = read_text(file)
        if real not in self._open:
            return self.inlined(file, text, is_certain)
        if not (_is_guarded(text) or _is_once(text)):
            raise SpecError(f"source {file.name} includes itself; give it an include guard")
        return ""

    def _place(self, name: str, folder: Path) -> Path | None:
        """Return the file to inline for a quoted name; None if the compiler resolves the include."""
        if (folder / name).is_file():
            return folder / name
        bundled = Path(bundled_path("kernels"), name)
        is_named = any((place / name).is_file() for place in self._folders)
        return bundled if bundled.is_file() and not is_named else None

    def _follow(
        self, text: str, folders: tuple[Path, ...], inlined: Set[str] = frozenset()
    ) -> None:
        """Record the files that a text includes, without the inlined ones."""
        found = _named(text)
        for macro, body in found.macros:
            self._bodies[macro].append(body)
        self._computed += [(operand, folders) for operand in found.computed]
        self._record(found.names - inlined, folders)

    def find_computed(self) -> None:
        """Record the files that macros name in includes; their texts may define further macros."""
        count = -1
        while count < len(self.headers):
            count = len(self.headers)
            for operand, folders in tuple(self._computed):
                self._record(_names_by_macros(operand, self._bodies), folders)

    def _record(self, names: Set[str], folders: Iterable[Path]) -> None:
        """Record all files with these names, because compilers search the folders in different orders."""
        for name in sorted(names):
            for folder in folders:
                self._note(folder / name.strip('"<>'))

    def _note(self, file: Path) -> None:
        if file in self.headers or not os.path.isfile(file):
            return
        text = read_text(file, "latin-1")
        self.headers[file] = Header(str(file), text_fingerprint(text))
        self._follow(text, (file.parent, *self._searched))


@dataclass(frozen=True)
class _Named:
    """The files that directives of a text name: operands of includes and of ``__has_include``."""

    #: File names with their quotation marks or brackets.
    names: frozenset[str]
    #: Operands without a file name: macros.
    computed: tuple[str, ...]
    #: Names and bodies of all macros.
    macros: tuple[tuple[str, str], ...]


@lru_cache(_TEXTS)
def _named(text: str) -> _Named:
    plain = _BLANK.sub(lambda match: match["kept"] or " ", text.replace("\\\n", ""))
    lines = list(_LINE.finditer(plain))
    operands = [line["operand"].strip() for line in lines if line["operand"]]
    for line in lines:
        operands += _HAS.findall(line["condition"] or line["body"] or "")
    names = [_NAME.match(operand) for operand in operands]
    return _Named(
        frozenset(name[0] for name in names if name),
        tuple(operand for operand, name in zip(operands, names, strict=True) if not name),
        tuple((line["macro"], line["body"]) for line in lines if line["macro"]),
    )


def _names_by_macros(operand: str, bodies: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the file names in an operand of macros, and in the bodies of these macros."""
    names, used, left = set[str](), set[str](), [operand]
    while left:
        words = left.pop()
        names.update(_MACRO_NAME.findall(words))
        macros = set(re.findall(r"[A-Za-z_]\w*", words)) - used
        used |= macros
        left += [body for macro in macros for body in bodies.get(macro, ())]
    return names


def _has_quoted(text: str, start: int) -> Iterator[re.Match[str]]:
    """Yield the quoted operands of ``__has_include`` in the rest of a directive's line."""
    rest = _REST.match(text, start)
    assert rest is not None
    return _HAS_QUOTED.finditer(text, start, rest.end())


def read_text(file: Path, encoding: str = "utf-8-sig") -> str:
    """Return the text of a source; `SpecError` if it cannot be read or another user may change it."""
    try:
        return io.TextIOWrapper(io.BytesIO(read_bytes(file)), encoding).read()
    except UnicodeDecodeError as error:
        raise SpecError(f"source {file.name} cannot be read: {error}") from error


def read_bytes(file: Path) -> bytes:
    """Return the content of a source; raise the errors of `read_text`."""
    try:
        refuse_foreign(file)
        return file.read_bytes()
    except OSError as error:
        raise SpecError(f"source {file.name} cannot be read: {error}") from error


@lru_cache(_TEXTS)
def _directives(text: str) -> tuple[re.Match[str], ...]:
    return tuple(match for match in _TOKEN.finditer(text) if match["directive"])


def _is_once(text: str) -> bool:
    return any(m["directive"] == "pragma" and m["next"] == "once" for m in _directives(text))


def _is_guarded(text: str) -> bool:
    """Return whether an include guard encloses a file: ``#ifndef`` and ``#define``, without ``#else``."""
    found = _directives(text)
    if len(found) < 3 or found[1]["directive"] != "define":
        return False
    first, last, depth = found[0], found[-1], 0
    for match in found:
        word = match["directive"]
        depth += word.startswith("if") - (word == "endif")
        if (depth == 0 and match is not last) or (depth == 1 and word.startswith("el")):
            return False
    negated = _NOT_DEFINED.match(text, first.end())
    macro = first["next"] if first["directive"] == "ifndef" else negated and negated[1]
    around = text[: first.start()] + text[last.end() :]
    return macro == found[1]["next"] and not _COMMENT.sub("", around).strip()


def text_fingerprint(text: str) -> str:
    """Return the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
