"""What a run says of itself while it goes on: lines in a log, and a page on the loopback interface."""

from __future__ import annotations

import http.client
import io
import json
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from chromium import browser

from autotune.cli.live import LivePage
from autotune.cli.progress import RunProgress, _Lines
from autotune.cli.standing import Standing
from autotune.measure.measurement import Measurement, Status
from autotune.measure.objective import Objective
from autotune.search.session import Budget, Measured, Phase, SearchStarted
from autotune.values import Configuration, Problem

SMALL, LARGE = Problem(n=100), Problem(n=10_000)


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def measured(problem: Problem, block: int, ms: float | None, best_ms: float | None) -> Measured:
    """The event of one configuration; of a wrong one where it has no time."""
    row = Measurement(
        Configuration(BLOCK=block, UNROLL=True),
        Status.WRONG_RESULT if ms is None else Status.OK,
        "out[0] is <b>2</b>, expected 3" if ms is None else "",
        samples_ms=() if ms is None else (ms,) * 3,
    )
    return Measured(problem, row, best_ms, remembered=block == 32, seconds_left=20.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def standing(clock: Clock) -> Standing:
    """Two problems of which the first is done and the second has begun."""
    standing = Standing("scale", 2, clock_s=clock)
    standing(Phase(SMALL, "inputs"))
    standing(SearchStarted(SMALL, 8, 1, Budget(evaluations=4)))
    for block, ms, best in ((32, 3.0, 3.0), (64, None, 3.0), (128, 2.0, 2.0), (256, 2.5, 2.0)):
        clock.now_s += 1
        standing(measured(SMALL, block, ms, best))
    standing(SearchStarted(LARGE, 8, 0, Budget(seconds=24)))
    clock.now_s += 4
    standing(measured(LARGE, 32, 70.0, 70.0))
    clock.now_s += 5
    return standing


# ---------------------------------------------------------------------- what is kept


def test_a_line_says_what_is_done_the_best_and_the_time_left(
    standing: Standing, clock: Clock
) -> None:
    assert standing.line() == "[2/2] scale n=10000: 1 tried, best 70 ms, 15 s left"
    clock.now_s += 60
    assert standing.line().endswith("0 s left")
    standing(Phase(LARGE, "finals"))
    assert standing.line() == "scale n=10000: finals: the best, interleaved"
    assert Standing("scale", 1).line() == "scale: starting"
    counted = Standing("scale", 1)
    counted(SearchStarted(SMALL, 8, 0, Budget(evaluations=4)))
    assert counted.line() == "scale n=100: 0 of 4 tried"


def test_all_of_it_as_plain_values(standing: Standing) -> None:
    state = json.loads(json.dumps(standing.as_json(), allow_nan=False))
    first, second = state["searches"]
    assert (first["tried"], first["failed"], first["share"]) == (4, 1, 1.0)
    assert first["bests"] == [[1.0, 3.0], [3.0, 2.0]]
    assert first["best_configuration"] == {"BLOCK": 128, "UNROLL": True}
    assert second["seconds_left"] == 15.0 and second["share"] == pytest.approx(9 / 24)
    assert [row["configuration"]["BLOCK"] for row in state["recent"]] == [32, 256, 128, 64, 32]


def test_the_best_is_that_of_the_objective() -> None:
    """Of a metric of which more is better, where a search minimises its reciprocal."""
    standing = Standing("scale", 1, Objective("gflops", higher_is_better=True))
    standing(SearchStarted(SMALL, 8, 0, Budget(evaluations=4)))
    for block, ms, gflops in ((32, 3.0, 50.0), (64, 4.0, 80.0), (128, 2.0, 60.0)):
        event = measured(SMALL, block, ms, 2.0)
        standing(replace(event, measurement=replace(event.measurement, score=1 / gflops)))
    assert ": 3 of 4 tried, best gflops 80, " in standing.line()
    (search,) = standing.as_json()["searches"]
    assert search["best_configuration"]["BLOCK"] == 64
    assert [value for _, value in search["bests"]] == pytest.approx([50, 80])


def test_no_more_rows_are_kept_than_are_shown(standing: Standing) -> None:
    for block in range(1, 200):
        standing(measured(LARGE, block, 80.0, 70.0))
    assert len(standing.as_json()["recent"]) == 30
    assert standing.as_json()["searches"][1]["tried"] == 200


# ---------------------------------------------------------------------- lines


class Told(io.StringIO):
    """A log that says when it has lines."""

    def __init__(self) -> None:
        super().__init__()
        self.has_two = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= 2:
            self.has_two.set()
        return written


def test_off_a_terminal_it_says_a_line_again_and_again(standing: Standing) -> None:
    with redirect_stderr(Told()) as log:
        lines = _Lines(standing, every_s=0.01)
        lines.start()
        assert log.has_two.wait(30)
        lines.end()
        said = log.getvalue()
    assert set(said.splitlines()) == {standing.line()} and not lines.is_alive()


def test_a_short_run_off_a_terminal_says_nothing() -> None:
    with redirect_stderr(io.StringIO()) as log, RunProgress("scale", 1) as progress:
        progress(SearchStarted(SMALL, 8, 1, Budget(evaluations=4)))
        progress(measured(SMALL, 32, 3.0, 3.0))
    assert log.getvalue() == ""
    assert progress.standing.line() == "scale n=100: 1 of 4 tried, best 3 ms, 20 s left"


# ---------------------------------------------------------------------- the page


@pytest.fixture
def page(standing: Standing) -> Iterator[LivePage]:
    with LivePage(standing, "Test GPU", every_s=0.02) as page:
        yield page


def asked(
    page: LivePage, path: str, host: str | None = None, method: str = "GET"
) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
    """The answer to a request, of which the body is not read yet."""
    connection = http.client.HTTPConnection(urlsplit(page.url).netloc, timeout=30)
    connection.request(method, path, headers={"Host": host} if host is not None else {})
    return connection.getresponse(), connection


def test_it_answers_this_machine_alone_and_only_who_has_the_address(page: LivePage) -> None:
    address, path = urlsplit(page.url), f"/{page.token}/"
    assert address.hostname == "127.0.0.1" and address.path == path and len(page.token) > 20
    for host in (None, "localhost:1", "127.0.0.1", "[::1]:8080"):
        assert asked(page, path, host)[0].status == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "evil.example:80@127.0.0.1.x"):
        for each in (path, f"{path}events"):
            assert asked(page, each, host)[0].status == 403
    for wrong in ("/", "//", "/events", f"/{page.token}", f"/{page.token}x/", f"{path}../x"):
        assert asked(page, wrong)[0].status == 404
    assert asked(page, path, method="POST")[0].status == 501
    answer, _ = asked(page, path)
    assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
    assert answer.getheader("Cache-Control") == "no-store"
    assert "://" not in answer.read().decode().replace("http://www.w3.org/2000/svg", "")


def test_it_sends_states_and_last_how_the_run_ended(page: LivePage, standing: Standing) -> None:
    answer, _ = asked(page, f"/{page.token}/events")
    assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    first = json.loads(answer.readline().removeprefix(b"data: "))
    assert (first["device"], first["ended"]) == ("Test GPU", "")
    standing(measured(LARGE, 64, 60.0, 60.0))
    page.end("finished; report: x.html")
    page.end("later words")
    last = json.loads(answer.read().split(b"data: ")[-1])
    assert last["ended"] == "finished; report: x.html"
    assert last["searches"][1]["tried"] == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyboardInterrupt(), "interrupted; what was measured is kept"),
        (OSError("no room"), "no room"),
    ],
)
def test_a_run_that_is_ended_tells_open_pages_why(
    standing: Standing, error: BaseException, words: str
) -> None:
    with pytest.raises(type(error)), LivePage(standing, "Test GPU") as page:
        answer, _ = asked(page, f"/{page.token}/events")
        answer.readline()
        raise error
    assert json.loads(answer.read().split(b"data: ")[-1])["ended"] == words
    with pytest.raises(OSError):
        asked(page, f"/{page.token}/")


def test_it_grows_and_stays_readable_in_a_browser(
    page: LivePage, standing: Standing, tmp_path: Path
) -> None:
    """No request goes elsewhere, nothing is complained of, and words of a kernel are no markup."""
    with browser(tmp_path) as new_page:
        tab = new_page()
        tab.open(page.url, width=390)
        tab.wait_for("document.querySelectorAll('#recent tr').length === 5")
        assert tab.evaluate("document.querySelector('#doing').textContent") == (
            "problem 2 of 2: n=10000"
        )
        assert "<b>2</b>" in tab.evaluate("document.querySelector('#recent').textContent")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        standing(measured(LARGE, 64, 60.0, 60.0))
        tab.wait_for("document.querySelectorAll('#chart .new').length === 2")
        tab.evaluate("document.querySelector('#problems button').click()")
        tab.wait_for("document.querySelector('#which').textContent === 'n=100'")
        page.end("finished; report: x.html")
        tab.wait_for("document.querySelector('#doing').textContent.startsWith('Ended: finished')")
        assert tab.evaluate("document.querySelectorAll('#recent tr').length") == 6
        assert tab.complaints == []
        assert {urlsplit(url).hostname for url in tab.requests} <= {"127.0.0.1", None}
