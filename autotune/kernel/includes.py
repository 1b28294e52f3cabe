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
import shlex
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
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
#: Quoted or bracketed file names: in includes, and in macros that an include may use.
_NAME = re.compile(r'"([^"\n]{1,200})"|<([^<>\n]{1,200})>')
#: The rest of an include or define directive.
_LINE = re.compile(rf"^{_GAP}(?:\#|%:){_GAP}(?:include|define)\b(.*)", re.MULTILINE)
#: Unquoted words that the operator ``#`` of a macro may turn into a file name.
_WORD = re.compile(r"[\w./+-]{0,200}\.\w{1,20}")
#: Texts to cache directives and file names of; a command needs the same ones hundreds of times.
_TEXTS = 64
#: Options that name a folder of headers, in the same word or the next.
_FOLDER = re.compile(r"(?:-I|-isystem|-iquote|-idirafter|--include-path)[= ]*(.*)")


@dataclass(frozen=True)
class Header:
    """A file that a compiler finds by its options, or in the working folder."""

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

    @property
    def identity(self) -> str:
        """The text, and the names and hashes of the headers; independent of their folders."""
        read = [f"\n// {Path(header.path).name} {header.sha256}" for header in self.headers]
        return self.text + "".join(read)


@dataclass(frozen=True)
class SearchPath:
    """The folders and files that compiler options name."""

    folders: tuple[str, ...] = ()
    #: Files that other options name, such as ``-include``.
    files: tuple[str, ...] = ()


def search_path(options: Sequence[str]) -> SearchPath:
    """Return the folders and files that compiler options name, relative to the working folder."""
    words = list(options)
    for option in options:
        with suppress(ValueError):  # an open quotation mark
            words += shlex.split(option) if " " in option else ()
    matches = [(_FOLDER.match(word), after) for word, after in pairwise([*words, ""])]
    folders = dict.fromkeys((match[1] or after).strip("\"'") for match, after in matches if match)
    names = [word.rpartition("=")[2].strip("\"'<>") for word in words]
    places = dict.fromkeys(
        os.path.join(folder, name) for name in names for folder in ("", *folders) if name
    )
    return SearchPath(tuple(folders), tuple(filter(os.path.isfile, places)))


def flattened(file: Path, path: SearchPath = SearchPath(), text: str | None = None) -> SourceText:
    """Return a source with includes replaced by the text of the included files.

    An ``#include "file"`` refers to the folder of the including file, then the folders of the search path,
    then the bundled kernels (``dialect.h``). Files of the including file's folder and bundled files are
    inlined: guarded files once, other files at each include. The compiler resolves all other includes.
    ``#line`` keeps the original line numbers in compiler messages. ``text`` replaces the file's content.
    """
    inlining = _Inlining(path)
    body = inlining.inlined(file, read_text(file) if text is None else text, is_certain=True)
    return SourceText(body, tuple(inlining.headers.values()))


class _Inlining:
    """The state while one source is inlined."""

    def __init__(self, path: SearchPath) -> None:
        self._folders = tuple(map(Path, path.folders))
        #: Files that the compiler may read.
        self.headers: dict[Path, Header] = {}
        #: Files whose text is being inlined, outermost first.
        self._open: list[Path] = []
        #: Guarded files that were inlined outside of conditions; their later includes are dropped.
        self._done: set[Path] = set()
        #: Numbers of guard macros for files with ``#pragma once``, which has no effect on inlined text.
        self._numbers: dict[Path, int] = {}
        for name in path.files:
            self._note(Path(name))

    def inlined(self, file: Path, text: str, is_certain: bool) -> str:
        """Return the text of a file with its includes; ``is_certain``: no condition encloses the include."""
        real, is_guarded, is_once = file.resolve(), _is_guarded(text), _is_once(text)
        self._open.append(real)
        depth = -1 if is_guarded else 0  # of conditions, without the include guard
        inlined, parts, end = set[str](), [f'#line 1 "{file.name}"\n'], 0
        for match in _directives(text):
            directive = match["directive"]
            depth += directive.startswith("if") - (directive == "endif")
            name = match["quoted"] if directive == "include" else None
            included = self._place(name, file.parent) if name else None
            if included is None:
                continue
            inlined.add(match["quoted"])
            body = self._included(included, is_certain and depth == 0)
            line = text.count("\n", 0, match.end()) + 2
            parts += text[end : match.start()], f'#line 1 "{included.name}"\n{body}\n'
            parts.append(f'#line {line} "{file.name}"')
            end = match.end()
        body = "".join([*parts, text[end:]])
        self._follow(_names(text) - inlined, (Path(), *self._folders))
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

    def _follow(self, names: Set[str], folders: Iterable[Path]) -> None:
        """Record all files with these names, because compilers search the folders in different orders."""
        for name in sorted(names):
            for folder in folders:
                self._note(folder / name)

    def _note(self, file: Path) -> None:
        if file in self.headers or not os.path.isfile(file):
            return
        text = read_text(file, "latin-1")
        self.headers[file] = Header(str(file), text_fingerprint(text))
        self._follow(_names(text), (file.parent, Path(), *self._folders))


@lru_cache(_TEXTS)
def _names(text: str) -> frozenset[str]:
    lines = _LINE.findall(_COMMENT.sub("", text))
    words = {word for line in lines for word in _WORD.findall(line)}
    return frozenset(words.union(quoted or angled for quoted, angled in _NAME.findall(text)))


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
