"""`autotune run --live`: a page that grows while a run goes on, served to this machine alone.

Knows HTTP, not what the page holds. Whoever has the address may read, and nobody may change anything:
the server listens on the loopback interface, its address holds a secret that is drawn anew for every
run, and it answers no request for another host (a name of a web page's own that resolves to this
machine would be one).
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from autotune.cli.standing import Standing

_PAGE = Path(__file__).with_name("live.html")
_LOOPBACK = "127.0.0.1"
#: What a browser on this machine calls it; any port, since it may come through a tunnel.
_HOSTS = frozenset({_LOOPBACK, "localhost", "::1"})
#: Between two states that are sent.
_EVERY_S = 1.0
#: Longest wait, at the end, for pages to take the last state.
_LAST_S = 2.0
#: A client that neither asks nor takes what it asked for is left after this time.
_TIMEOUT_S = 30.0


class LivePage:
    """Serves the page of one run; a context manager around it.

    Every open page is sent the state once a second and the last one when the run has ended, after
    which nothing is served: what a browser shows then stays.
    """

    def __init__(self, standing: Standing, device: str, every_s: float = _EVERY_S) -> None:
        self.every_s = every_s
        self._standing, self._device = standing, device
        self._ended, self._closed, self._streams = "", threading.Condition(), 0
        self.token = secrets.token_urlsafe(16)
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[0.1], name="live page", daemon=True
        )

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_LOOPBACK}:{self._server.server_port}/{self.token}/"

    def __enter__(self) -> LivePage:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.end("interrupted; what was measured is kept")
        elif error is not None:
            self.end(str(error) or type(error).__name__)
        else:
            self.end("finished")
        until = time.monotonic() + _LAST_S
        with self._closed:
            while self._streams and (left_s := until - time.monotonic()) > 0:
                self._closed.wait(left_s)
        self._server.shutdown()
        self._server.server_close()

    def end(self, how: str) -> None:
        """Tell every page that the run has ended, and how; what was told first stays."""
        with self._closed:
            self._ended = self._ended or how
            self._closed.notify_all()

    def state(self) -> str:
        """What a page shows, as JSON."""
        with self._closed:
            ended = self._ended
        state = {**self._standing.as_json(), "device": self._device, "ended": ended}
        return json.dumps(state, allow_nan=False)

    def stream(self, handler: BaseHTTPRequestHandler) -> None:
        """Send the state as server-sent events until the run has ended, or nobody reads them."""
        with self._closed:
            self._streams += 1
        try:
            while True:
                with self._closed:
                    is_last = bool(self._ended)
                handler.wfile.write(f"data: {self.state()}\n\n".encode())
                handler.wfile.flush()
                if is_last:
                    return
                with self._closed:
                    self._closed.wait_for(lambda: self._ended, self.every_s)
        finally:
            with self._closed:
                self._streams -= 1
                self._closed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, page: LivePage) -> None:
        self.page = page
        super().__init__((_LOOPBACK, 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A page that was closed is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_S
    server_version, sys_version = "autotune", ""

    def do_GET(self) -> None:
        if not self._is_for_us():
            self._answer(403, "text/plain", b"this page is served to this machine alone\n")
            return
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.page.token.encode())
        if known and slash and not name:
            nonce = secrets.token_urlsafe(16)
            page = _PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
            self._answer(200, "text/html; charset=utf-8", page.encode(), nonce)
        elif known and name == "events":
            self._begin(200, "text/event-stream; charset=utf-8")
            self.end_headers()
            with suppress(OSError):  # the page was closed
                self.server.page.stream(self)
        else:  # nobody learns which of the two was wrong
            self._answer(404, "text/plain", b"no such page\n")

    def _is_for_us(self) -> bool:
        """Whether the request names this machine as its host."""
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in _HOSTS
        except ValueError:
            return False

    def _answer(self, code: int, kind: str, body: bytes, nonce: str = "") -> None:
        self._begin(code, kind)
        sources = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
        policy = (
            f"default-src 'none'; {sources if nonce else ''}base-uri 'none'; form-action 'none'"
        )
        self.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, code: int, kind: str) -> None:
        self.close_connection = True
        self.send_response(code)
        self.send_header("Content-Type", kind)
        for name, value in (
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: standard error is the run's."""
