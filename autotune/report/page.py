"""Write the files of a report: Markdown and one HTML page.

A page loads only the script in its folder. ``figures.js`` and ``configurations.js`` draw the figures from the
data of `autotune.report.evidence`, which is in the page as JSON.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from autotune.devices.device import Device
from autotune.errors import MissingDependencyError
from autotune.files import write_atomically
from autotune.report import evidence, results, wording
from autotune.report.content import ReportContent
from autotune.report.text_table import Table, unbroken
from autotune.report.wording import markdown
from autotune.run.device_limits import known_limits
from autotune.tuned.counted import known_counts

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).parent
_SCRIPTS = ("figures.js", "configurations.js", "page.js")


def write_markdown(content: ReportContent, folder: Path | str) -> Path:
    """Write ``<kernel>.md`` for a repository; return its path. Equal records give equal bytes."""
    stem = re.sub(r"[^A-Za-z0-9_]", "_", content.record.kernel) or "kernel"
    file = Path(folder) / f"{stem}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, ("\n".join(_markdown(content)).rstrip() + "\n").encode())
    return file


def _markdown(content: ReportContent) -> Iterator[str]:
    yield f"# {markdown(content.record.kernel)} on {markdown(content.record.device.name)}\n"
    yield markdown(results.headline(content)) + "\n"
    for warning in results.warnings(content):
        yield f"> **Note:** {markdown(warning)}\n"
    for title, table in (
        ("## Winners", results.winners(content)),
        ("### Winning configurations", results.configurations(content)),
        ("### One configuration for all problems", results.portfolio(content)),
        ("### Problems that were not measured", results.other_sizes(content)),
        ("## Verification of the winners", results.verification(content)),
        ("## Provenance", results.provenance(content)),
    ):
        if table.rows:
            yield f"{title}\n\n{table.markdown()}"
    yield "How to read this: `docs/reports.md` of kernel-autotune."


def write_html(content: ReportContent, path: Path | str, single: bool = False) -> Path:
    """Write the page, and the script that all pages of its folder share; return the page's path.

    With ``single`` the page includes the script, so that it can be sent as one file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    script = path.with_name(_script_name())
    if not single and not script.exists():
        write_atomically(script, _library().encode())
    limits = known_limits(Device(**structs.asdict(content.record.device)))
    figures = {
        "problems": [evidence.problem_data(content, problem) for problem in content.problems],
        "roofline": evidence.roofline(content, limits),
    }
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            content=content,
            name=wording.one_line(content.record.kernel),
            device=wording.one_line(content.record.device.name),
            results=results,
            evidence=evidence,
            figures=figures,
            counted=known_counts([path.with_suffix(".explain.json")]).values(),
            data=packed(json.dumps(figures, separators=(",", ":"), allow_nan=False)),
            library="" if single else script.name,
            embedded=_library() if single else "",
            scripts=[(_HERE / file).read_text(encoding="utf-8") for file in _SCRIPTS],
        )
    )
    write_atomically(path, page.encode())
    return path


def _environment() -> Any:
    """Return the environment of the templates; it escapes values and removes control characters."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        finalize=lambda value: wording.printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["whole"] = _whole
    made.filters["table"] = _scrolling
    made.globals["style"] = (_HERE / "page.css").read_text(encoding="utf-8")
    return made


def _whole(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(unbroken(text))


def _scrolling(table: Table, name: str, anchor: str = "") -> Markup:
    """Return a table in a box that scrolls on a narrow page; an empty text without rows."""
    from markupsafe import Markup

    if not table.rows:
        return Markup("")
    box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}" id="{}">{}</div>')
    return box.format(name, anchor or name.replace(" ", "-").lower(), Markup(table.html()))


# ---------------------------------------------------------------------- the plotting library


def _script_name() -> str:
    """Return the script's name, with plotly's version: pages of other versions keep their script."""
    try:
        from plotly.offline import get_plotlyjs_version
    except ImportError as error:
        raise MissingDependencyError("plotly", "tune", "the HTML report") from error
    return f"plotly-{get_plotlyjs_version()}.js"


@cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    return f'var PLOTLY="{packed(get_plotlyjs())}";'


def packed(text: str) -> str:
    """Return text gzipped in base64, which HTML need not escape."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
