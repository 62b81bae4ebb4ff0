"""The review over HTTP, on this machine only, protected by a token.

Every request is checked first: the Host header (a foreign name that resolves to 127.0.0.1 is
refused), then the token, then, for changes, the origin and the type of the body. No input is ever
used as a path.

The page itself holds nothing of the run and needs no token. It takes the token from its address and
sends it in a header. Not as a cookie: browsers send those to every port of a host. Pictures, for
which browsers send no header, have a secret of their own in their paths.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from socketserver import TCPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from opensetda.errors import InputError
from opensetda.review.log import NotSavedError
from opensetda.review.page import Content, assets, render
from opensetda.review.queues import BORDER
from opensetda.review.session import LONGEST_PAGE, ReviewSession

T = TypeVar("T")

ADDRESS, TOKEN_HEADER, LONGEST_BODY = "127.0.0.1", "X-Review-Token", 2**20
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_JSON = "application/json"
_NOTHING = "there is nothing here"
_TOKEN_PATH = "/api/token"
_PICTURE = re.compile("/(?P<kind>picture|thumbnail)/(?P<secret>[^/]*)/(?P<row>[^/]*)")
# More connections than a browser makes before it sends the token.
_MOST_STRANGERS = 64
# Until a silent connection is closed, and to read the body of a refused request.
_SECONDS_OF_SILENCE, _SECONDS_TO_DISCARD = 60, 1


class _RefusalError(Exception):
    """An HTTP error; its arguments are a status and one line."""


class ReviewServer(ThreadingHTTPServer):
    """Serves one review on 127.0.0.1; port 0 is any that is free."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, session: ReviewSession, port: int = 0) -> None:
        self.session, self.token = session, secrets.token_urlsafe(24)
        self.secret = secrets.token_urlsafe(24)
        self._once: set[str] = set()
        # Connections without the token so far, the oldest first.
        self._strangers: dict[socket, None] = {}
        self.public = {"/": Content("text/html; charset=utf-8", render()), **assets()}
        super().__init__((ADDRESS, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of this machine, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The address to open."""
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}"

    def address_for_once(self) -> str:
        """Return an address that works once: other users can read a browser's command line."""
        token = secrets.token_urlsafe(24)
        self._once.add(token)
        return self.address.replace(self.token, token)

    def is_first_use(self, given: str) -> bool:
        """Return whether this is an unused token of `address_for_once`, and mark it as used."""
        with suppress(KeyError):
            # Atomic: of two threads, one gets the error.
            self._once.remove(given)
            return True
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; of too many strangers, the oldest has to go."""
        self._strangers[request] = None
        with suppress(StopIteration, RuntimeError, OSError):
            if len(self._strangers) > _MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                self.trust(oldest)
                # Its thread, which waits for a request, gets an end of file.
                oldest.shutdown(SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.trust(request)
        super().shutdown_request(request)

    def trust(self, connection: socket) -> None:
        """Note that a connection has sent the token."""
        self._strangers.pop(connection, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections."""


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS_OF_SILENCE
    _is_read = False

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            # An unread body would be taken for the next request.
            self.close_connection = True
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def version_string(self) -> str:
        return "osda"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        # Called by http.server for unknown methods and broken requests.
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def _answer(self, work: Callable[[str, Mapping[str, list[str]]], None]) -> None:
        self._is_read = False
        try:
            port = self.server.server_port
            if self.headers.get("Host") not in {f"{ADDRESS}:{port}", f"localhost:{port}"}:
                raise _RefusalError(HTTPStatus.FORBIDDEN, "this name is not served here")
            try:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
            except ValueError:
                raise InputError("no address") from None
            if parts.path not in self.server.public or self.command != "GET":
                self._check_token(parts.path)
            work(parts.path, query)
        except _RefusalError as refusal:
            self._refuse(*refusal.args)
        except InputError as error:
            # The page shows a conflict permanently, not as a passing message.
            is_lost = isinstance(error, NotSavedError)
            self._refuse(HTTPStatus.CONFLICT if is_lost else HTTPStatus.BAD_REQUEST, str(error))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            # Without an answer the page would say that the server is gone.
            what = "not saved" if isinstance(error, OSError) else type(error).__name__
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{what}: {error}")

    def _check_token(self, path: str) -> None:
        given, right = self.headers.get_all(TOKEN_HEADER, []), self.server.token
        picture = _PICTURE.fullmatch(path)
        if picture:
            given, right = [picture["secret"]], self.server.secret
        is_open = any(_is_same(one, right) for one in given)
        if not is_open and path == _TOKEN_PATH:
            # A token that works once opens nothing but the other one.
            is_open = any(map(self.server.is_first_use, given))
        if not is_open:
            line = "open the address that 'osda review' printed last"
            raise _RefusalError(HTTPStatus.FORBIDDEN, line)
        self.server.trust(self.connection)

    def _get(self, path: str, query: Mapping[str, list[str]]) -> None:
        session, picture = self.server.session, _PICTURE.fullmatch(path)
        if path in self.server.public:
            self._send(*self.server.public[path][:2])
        elif picture:
            is_small = picture["kind"] == "thumbnail"
            self._send(*session.picture(_number(picture["row"]), is_small)[:2])
        elif path == _TOKEN_PATH:
            self._send_json({"token": self.server.token})
        elif path == "/api/start":
            self._send_json({"secret": self.server.secret, **session.start()})
        elif path == "/api/summary":
            self._send_json(session.summary())
        elif path == "/api/list":
            count = _number(_one(query, "count", str(LONGEST_PAGE)))
            self._send_json(session.page(_one(query, "key"), _number(_one(query, "start")), count))
        elif path == "/api/open":
            self._send_json({"place": session.first_open(_one(query, "key"))})
        elif path == "/api/find":
            self._send_json(session.search(_one(query, "key")))
        else:
            raise _RefusalError(HTTPStatus.NOT_FOUND, _NOTHING)

    def _post(self, path: str, query: Mapping[str, list[str]]) -> None:
        asked, session = self._body(), self.server.session
        if path == "/api/undo":
            key = _checked(asked.get("list", BORDER), str, "'list' is no text")
            self._send_json(session.undo(key))
            return
        if path == "/api/mark":
            mark = _checked(asked.get("mark"), str, "'mark' is no text")
            self._send_json(session.mark(_row(asked.get("row")), mark))
            return
        if path not in ("/api/decide", "/api/decide-group"):
            raise _RefusalError(HTTPStatus.NOT_FOUND, _NOTHING)
        key, label = _checked(asked.get("list"), str, "'list' is no text"), asked.get("label")
        if label is not None:
            _checked(label, str, "'label' is no text")
        if path == "/api/decide":
            self._send_json(session.decide(_row(asked.get("row")), key, label))
        else:
            toggled = _checked(asked.get("toggled", []), list, "'toggled' is no list")
            asked_for = _checked(asked.get("window", []), list, "'window' is no list")
            window = slice(*map(_row, asked_for[:2])) if asked_for else slice(None)
            self._send_json(session.decide_group(key, label, list(map(_row, toggled)), window))

    def _body(self) -> dict[str, Any]:
        """Check origin, type and length before reading the body."""
        if self.headers.get("Origin") != f"http://{self.headers.get('Host')}":
            raise _RefusalError(HTTPStatus.FORBIDDEN, "this comes from another page")
        if self.headers.get_content_type() != _JSON:
            raise _RefusalError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {_JSON}")
        length = self._length()
        if length is None:
            raise _RefusalError(HTTPStatus.LENGTH_REQUIRED, "say how long the body is")
        if length > LONGEST_BODY:
            raise _RefusalError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too long")
        self._is_read = True
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError):
            raise InputError("the body is no JSON") from None
        return _checked(body, dict, "the body is no JSON object")

    def _length(self) -> int | None:
        """Return the length of the body; None if it is missing or ambiguous."""
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or "Transfer-Encoding" in self.headers:
            return None
        # int() refuses numbers of thousands of digits.
        return int(lengths[0][:19]) if re.fullmatch("[0-9]+", lengths[0]) else None

    def _refuse(self, status: HTTPStatus, line: str) -> None:
        # An unread body would be taken for the next request.
        self.close_connection = True
        self._send_json({"error": line}, status)
        length = self._length() if getattr(self, "headers", None) else None
        if self._is_read or not length or length > LONGEST_BODY:
            return
        # Closing the connection over an unread body would lose the answer.
        with suppress(OSError):
            self.wfile.flush()
            self.connection.settimeout(_SECONDS_TO_DISCARD)
            self.rfile.read(length)

    def _send_json(self, value: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        self._send(f"{_JSON}; charset=utf-8", text, status)

    def _send(self, kind: str, content: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), **_HEADERS}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _is_same(given: str, right: str) -> bool:
    # In a time that says nothing about the right one.
    return secrets.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _one(query: Mapping[str, list[str]], name: str, default: str | None = None) -> str:
    values = query.get(name) or ([] if default is None else [default])
    if len(values) != 1:
        raise InputError(f"give one {name!r}")
    return values[0]


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise _RefusalError(HTTPStatus.NOT_FOUND, _NOTHING)
    return int(text)


def _row(value: Any) -> int:
    return _checked(value, int, "a row is no number")


def _checked(value: Any, kind: type[T], complaint: str) -> T:
    # Not isinstance: True is no number here.
    if type(value) is not kind:
        raise InputError(complaint)
    return value
