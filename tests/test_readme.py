"""What the README shows is what the repository holds, and links of all pages lead somewhere."""

import re
from pathlib import Path

import pytest

from autotune.cli import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("reports/*/*.md")),
]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_the_example_is_the_one_in_the_repository() -> None:
    (excerpt,) = (text.strip() for language, text in BLOCKS if "saxpy" in text)
    assert excerpt in (ROOT / "examples" / "saxpy" / "spaces" / "saxpy.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r'src(?:set)?="(.*?)"', text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_linked_once_in_an_index() -> None:
    """The README names the pages; docs/results.md those of kernels, docs/architecture.md the decisions."""
    index = re.findall(r"\]\((docs/[^)]+\.md)\)", README.partition("## More")[2])
    for page, folder in (("results", "kernels"), ("architecture", "decisions")):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        index += [f"docs/{name}" for name in re.findall(rf"\]\(({folder}/[^)]+\.md)\)", text)]
    assert sorted(index) == sorted(
        str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")
    )


def test_it_is_two_screens() -> None:
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(README.splitlines()) <= 130 and max(map(len, prose)) <= 122


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_new_kernel_takes_three_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands under "Your own kernel", in an empty folder; the search is cut short."""
    (block,) = (text for language, text in BLOCKS if "autotune new" in text)
    commands = [line.split("#")[0].split()[1:] for line in block.strip().splitlines()]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        short = ["--budget", "3evals", "--device", "opencl:cpu"] if command[0] == "run" else []
        short += ["--arch", "sm_90"] if command[0] == "check" else []
        assert run([*command, *short]) == 0, capsys.readouterr().err
    assert list(tmp_path.glob("reports/*/softmax.hpp"))
