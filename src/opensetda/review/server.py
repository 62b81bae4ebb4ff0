"""The review over HTTP, on this machine only, protected by a token.

Every request is checked first: the Host header (a foreign name that resolves to 127.0.0.1 is
refused), then the token, then, for changes, the origin and the type of the body. No input is ever
used as a path.

The page itself holds nothing of the run and needs no token. It takes the token from its address and
sends it in a header. Not as a cookie: browsers send those to every port of a host. For pictures
browsers send no header: it is in their paths.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl

from pydantic import AliasChoices, BaseModel, Field, NonNegativeInt

from opensetda.errors import one_line
from opensetda.review.decisions import Mark, NotSavedError
from opensetda.review.page import Content, assets
from opensetda.review.queues import BORDER
from opensetda.review.session import LONGEST_PAGE, ReviewSession

ADDRESS, TOKEN_HEADER, LONGEST_BODY = "127.0.0.1", "X-Review-Token", 2**20
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_JSON = "application/json"
# What a browser opens without a header: the token is in its path.
_OPENED = re.compile("/(?P<kind>picture|thumbnail|report)/(?P<token>[^/]+)/(?P<row>[0-9]{1,9})")
# A report has scripts of its own: it is shown as of another origin, which reaches nothing here.
_REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)


# The first kind that an error is of.
_STATUSES = {
    PermissionError: HTTPStatus.FORBIDDEN,
    FileNotFoundError: HTTPStatus.NOT_FOUND,
    # The page shows a conflict permanently, not as a passing message.
    NotSavedError: HTTPStatus.CONFLICT,
    ValueError: HTTPStatus.BAD_REQUEST,
    Exception: HTTPStatus.INTERNAL_SERVER_ERROR,
}
# Methods of the session, and what of the request they are given.
_ROUTES = {
    "GET /api/start": ("start",),
    "GET /api/summary": ("summary",),
    "GET /api/list": ("page", "key", "start", "count"),
    "GET /api/find": ("search", "key"),
    "GET /api/finish": ("finish",),
    "POST /api/refit": ("start_refit",),
    "POST /api/undo": ("undo", "revision"),
    "POST /api/mark": ("mark", "row", "mark", "revision"),
    "POST /api/decide": ("decide", "row", "key", "label", "revision"),
    "POST /api/decide-group": ("decide_group", "key", "label", "toggled", "window", "revision"),
}


class _Asked(BaseModel):
    """What is asked: a part of a list, or a label or mark for samples of it."""

    key: str = Field(BORDER, validation_alias=AliasChoices("list", "key"))
    start: NonNegativeInt = 0
    count: NonNegativeInt = LONGEST_PAGE
    row: int = -1
    label: str | None = None
    mark: Mark = "known"
    toggled: tuple[int, ...] = ()
    window: tuple[()] | tuple[NonNegativeInt, NonNegativeInt] = ()
    revision: int | None = None  # what the page has seen of the decisions


class ReviewServer(ThreadingHTTPServer):
    """Serves one review on 127.0.0.1; port 0 is any that is free."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, session: ReviewSession, port: int = 0) -> None:
        self._session, self.token = session, secrets.token_urlsafe(24)
        self._switching = threading.Lock()
        self.public = assets()
        super().__init__((ADDRESS, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of this machine, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.socket.getsockname()[1]

    @property
    def session(self) -> ReviewSession:
        """The review of the latest run."""
        with self._switching:
            while (successor := self._session.successor) is not None:
                self._session.close()
                self._session = successor
            return self._session

    @property
    def address(self) -> str:
        """The address to open."""
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections."""


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    timeout = 60
    server_version, sys_version = "osda", ""

    def do_GET(self) -> None:
        try:
            # Before any check: closing the connection over an unread body would lose the answer.
            length = int(self.headers.get("Content-Length", 0))
            if not 0 <= length <= LONGEST_BODY:
                raise ValueError("the body is too long")
            self._send(HTTPStatus.OK, self._content(self.rfile.read(length)))
        except (ConnectionError, TimeoutError):
            pass
        except Exception as error:
            # Without an answer the page would say that the server is gone.
            status = next(code for kind, code in _STATUSES.items() if isinstance(error, kind))
            self._send(status, _as_json({"error": one_line(error, 300)}))

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _content(self, body: bytes) -> Content:
        """Check a request, and return the answer to it."""
        host, port = self.headers.get("Host"), self.server.server_port
        if host not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            raise PermissionError("this name is not served here")
        path, _, query = self.path.partition("?")
        if path in self.server.public and self.command == "GET":
            return self.server.public[path]
        opened = _OPENED.fullmatch(path)
        given = opened["token"] if opened else self.headers.get(TOKEN_HEADER, "")
        # In a time that says nothing about the right one.
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode()):
            raise PermissionError("open the address that 'osda review' printed last")
        session = self.server.session
        if opened and opened["kind"] == "report":
            if (report := session.report()) is None:
                raise FileNotFoundError("this run has no report; make it with 'osda report'")
            return Content("text/html; charset=utf-8", report)
        if opened:
            return session.picture(int(opened["row"]), opened["kind"] == "thumbnail")
        if self.command == "POST":
            if self.headers.get("Origin") != f"http://{host}":
                raise PermissionError("this comes from another page")
            if self.headers.get_content_type() != _JSON:
                raise ValueError(f"send {_JSON}")
            asked = _Asked.model_validate_json(body)
        else:
            asked = _Asked.model_validate(dict(parse_qsl(query)))
        if (route := _ROUTES.get(f"{self.command} {path}")) is None:
            raise FileNotFoundError("there is nothing here")
        method, *fields = route
        with session.lock:
            if session.successor is None:
                given = (getattr(asked, name) for name in fields)
                return _as_json(getattr(session, method)(*given))
        if method != "summary":
            raise ValueError("the review goes on with the new run; reload the page")
        # A page that asks whether the fit is done has waited for just this.
        session = self.server.session
        with session.lock:
            return _as_json(session.summary())

    def _send(self, status: HTTPStatus, answer: Content) -> None:
        self.send_response(status)
        headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.content))}
        headers |= _HEADERS
        if answer.kind.startswith("text/html") and "/report/" in self.path:
            headers["Content-Security-Policy"] = _REPORT_POLICY
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)


def _as_json(value: dict[str, Any]) -> Content:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Content(f"{_JSON}; charset=utf-8", text)
