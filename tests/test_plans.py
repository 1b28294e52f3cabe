"""No answer is of a plan that another kernel made, unless it says so; tests/trust has all kinds of change."""

from typing import Any

import msgspec
import pytest
from changing_kernel import ASKED, CHANGES, HARMLESS, SIZES, changed, check_answers, edit, tuned
from sample_records import write

from autotune.cli import run
from autotune.tuned.lookup import clear_cache, lookup

__all__ = ["changed"]


@pytest.mark.parametrize("again", [False, True], ids=["not tuned", "one size tuned"])
@pytest.mark.parametrize("what", ["include", "launch", "parameter lists"])
def test_an_answer_is_of_the_current_kernel_or_says_stale(
    changed: Any, what: str, again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    check_answers(changed(CHANGES[what], again), what, again, capsys)


@pytest.mark.parametrize("what", HARMLESS)
def test_an_edit_that_changes_no_answer_makes_nothing_stale(changed: Any, what: str) -> None:
    project = changed(HARMLESS[what], False)
    for n in ASKED:
        found = lookup("k", n=n)
        assert found.stale_reasons == () and project.fits(found, n)
    assert run(["export", "k", "header", "--check", "--out", "before"]) == 0


def test_a_running_process_notices_an_edit(changed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are compared at most once a second; here always."""
    project = changed(HARMLESS["comment"], False)
    monkeypatch.setattr("autotune.tuned.lookup.RECHECK_S", -1.0)
    assert lookup("k", n=1000).stale_reasons == ()
    edit(project.folder, *CHANGES["helper module"])
    assert lookup("k", n=1000).stale_reasons
    edit(project.folder, "spaces/_help.py", "return 1", "return 4")
    assert lookup("k", n=1000).stale_reasons == ()
    (project.folder / "kernels" / "near.h").unlink()
    assert lookup("k", n=1000).stale_reasons == ("its source changed",)


@pytest.mark.parametrize("name", ["/etc/passwd", "a\nb", ""])
def test_a_record_names_files_by_relative_paths(changed: Any, name: str) -> None:
    project = changed(HARMLESS["comment"], False)
    known = tuned(project.kernel, SIZES, "2026-11-21")
    made = msgspec.structs.replace(known.provenance, files={name: "0" * 64})
    with pytest.raises(Exception, match="regex"):
        write(project.tuned, msgspec.structs.replace(known, provenance=made))


def test_a_file_that_is_not_a_source_counts_as_changed(changed: Any) -> None:
    """A record may name any file: a device or a large file is not read."""
    project = changed(HARMLESS["comment"], False)
    known = tuned(project.kernel, SIZES, "2026-11-21")
    made = msgspec.structs.replace(known.provenance, files={"../kernels": "0" * 64})
    write(project.tuned, msgspec.structs.replace(known, provenance=made))
    clear_cache()
    assert lookup("k", n=1000).stale_reasons == ("its source changed",)
