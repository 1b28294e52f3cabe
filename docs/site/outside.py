"""Takes what pages link to outside docs/ into the site: README as its home, other pages, sources as pages of code.

A hook of mkdocs. In the repository links are relative paths that work there; in the site they lead to where
the same file is shown. A folder is not shown, and a link to one becomes its text.
"""

import os.path
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
HOME = ROOT / "README.md"
#: Sources that get a page, and their languages as Pygments calls them; what else is no page is copied.
LANGUAGES = {
    ".cpp": "cpp",
    ".cu": "cuda",
    ".cuh": "cuda",
    ".h": "cpp",
    ".hpp": "cpp",
    ".py": "python",
}

#: Code, which holds no links, or the text and the target of a link into the repository.
LINK = re.compile(r"(?ms)^ *```.*?^ *```|`[^`\n]*`|\[([^]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
#: What mkdocstrings and mkdocs-click write, hidden from GitHub, and the list that stands there in its place.
DIRECTIVE = re.compile(r"(?m)^<!-- (::: .*(?:\n .*)*?)\s*-->\n\n(?:- .*\n(?: .*\n)*)+")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add every file that pages link to, and those that they link to."""
    waiting = [HOME, *(DOCS / file.src_uri for file in files.documentation_pages())]
    known: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in known:
            continue
        known.add(file)
        if not file.is_relative_to(DOCS):
            files.append(taken(file, config))
        if file.suffix == ".md":
            waiting += targets_of(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Turn a page's links to where the site shows what they lead to; make a source a page."""
    file, here = Path(str(page.file.abs_src_path)), Path(page.file.src_uri).parent
    if file.suffix in LANGUAGES:
        page.meta["search"] = {"exclude": True}
        return f"# {file.relative_to(ROOT)}\n\n~~~~{LANGUAGES[file.suffix]}\n{markdown}\n~~~~\n"

    markdown = DIRECTIVE.sub(lambda found: f"{found[1]}\n", markdown)

    def address(target: str) -> str:
        return os.path.relpath(uri_of((file.parent / target).resolve()), here)

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        if target is None:
            return found[0]
        if (file.parent / target).is_dir():
            return str(text)
        return f"[{text}]({address(target)}{anchor or ''})"

    return LINK.sub(link, markdown)


def targets_of(page: Path) -> set[Path]:
    """Files of the repository that a page links to."""
    found = LINK.finditer(page.read_text(encoding="utf-8"))
    targets = {(page.parent / each[2]).resolve() for each in found if each[2]}
    return {target for target in targets if target.is_file()}


def taken(file: Path, config: MkDocsConfig) -> File:
    """A file that lies outside docs/, as one of the site."""
    return File.generated(
        config, uri_of(file), abs_src_path=str(file), inclusion=InclusionLevel.NOT_IN_NAV
    )


def uri_of(file: Path) -> str:
    """Where the site has a file of the repository, as a path below docs/."""
    if file == HOME:
        return "index.md"
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    place = file.relative_to(ROOT).as_posix()
    return f"source/{place}.md" if file.suffix in LANGUAGES else place
