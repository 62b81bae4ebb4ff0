"""The review over HTTP, on this machine only, protected by a token.

Every request is checked first: the Host header (a foreign name that resolves to 127.0.0.1 is
refused), then the token, then, for changes, the origin and the type of the body. No input is ever
used as a path.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from opensetda.errors import InputError
from opensetda.review.decisions import NotSavedError
from opensetda.review.page import assets, render
from opensetda.review.session import LONGEST_PAGE, ReviewSession

ADDRESS = "127.0.0.1"
TOKEN_HEADER = "X-Review-Token"
LONGEST_BODY = 2**20

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_JSON = "application/json"
_SECONDS_OF_SILENCE = 60
# Time to read the body of a refused request.
_SECONDS_TO_DISCARD = 1
_NO_TOKEN = "open the address that 'osda review' printed last"


class _RefusalError(Exception):
    """An HTTP error: a status and one line."""

    def __init__(self, status: HTTPStatus, line: str) -> None:
        super().__init__(line)
        self.status = status


class ReviewServer(ThreadingHTTPServer):
    """Serves one review on 127.0.0.1.

    Parameters
    ----------
    session : ReviewSession
        The review.
    port : int
        The port; 0 for any that is free.
    """

    daemon_threads = True

    def __init__(self, session: ReviewSession, port: int = 0) -> None:
        self.session = session
        self.token = secrets.token_urlsafe(24)
        self._once: set[str] = set()
        self._once_lock = threading.Lock()
        self.page, self.assets = render(session.run.path.resolve().name), assets()
        super().__init__((ADDRESS, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of this machine, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The address to open."""
        return self._address(self.token)

    def address_for_once(self) -> str:
        """Return an address that works once.

        For the command line of a browser, which other users of the machine can read.
        """
        token = secrets.token_urlsafe(24)
        with self._once_lock:
            self._once.add(token)
        return self._address(token)

    def _address(self, token: str) -> str:
        return f"http://{ADDRESS}:{self.server_port}/?token={token}"

    def is_token(self, given: str) -> bool:
        """Return whether this is the token."""
        return secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def is_first_use(self, given: str) -> bool:
        """Return whether this is an unused token of `address_for_once`, and mark it as used."""
        with self._once_lock:
            if given not in self._once:
                return False
            self._once.remove(given)
            return True

    @property
    def cookie_name(self) -> str:
        """A name for each port, because browsers send cookies to all ports of a host."""
        return f"osda_review_{self.server_port}"

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
            self._check_host()
            try:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
            except ValueError:
                raise _RefusalError(HTTPStatus.BAD_REQUEST, "no address") from None
            self._check_token(parts.path, query)
            work(parts.path, query)
        except _RefusalError as refusal:
            self._refuse(refusal.status, str(refusal))
        except NotSavedError as error:
            # The page shows this permanently, not as a passing message.
            self._refuse(HTTPStatus.CONFLICT, str(error))
        except InputError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError):
                self.close_connection = True
                return
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"not saved: {error}")
        except Exception as error:
            # Without an answer the page would say that the server is gone.
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def _check_host(self) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in {f"{ADDRESS}:{port}", f"localhost:{port}"}:
            raise _RefusalError(HTTPStatus.FORBIDDEN, "this name is not served here")

    def _check_token(self, path: str, query: Mapping[str, list[str]]) -> None:
        # In the address at first; from then on the browser has a cookie.
        in_address = [*query.get("token", ())] if path == "/" else []
        given = [*in_address, *self.headers.get_all(TOKEN_HEADER, []), *self._cookies()]
        if any(self.server.is_token(one) for one in given):
            return
        if not any(self.server.is_first_use(one) for one in in_address):
            raise _RefusalError(HTTPStatus.FORBIDDEN, _NO_TOKEN)

    def _cookies(self) -> Iterator[str]:
        # Not http.cookies, which fails on one malformed cookie of another program.
        for header in self.headers.get_all("Cookie", []):
            for cookie in header.split(";"):
                name, _, value = cookie.strip().partition("=")
                if name == self.server.cookie_name:
                    yield value

    def _get(self, path: str, query: Mapping[str, list[str]]) -> None:
        session = self.server.session
        if path == "/":
            name, token = self.server.cookie_name, self.server.token
            cookie = f"{name}={token}; Path=/; HttpOnly; SameSite=Strict"
            self._send("text/html; charset=utf-8", self.server.page, {"Set-Cookie": cookie})
        elif path in self.server.assets:
            self._send(*self.server.assets[path])
        elif path == "/api/start":
            self._send_json(session.start())
        elif path == "/api/summary":
            self._send_json(session.summary())
        elif path == "/api/list":
            count = _number(_one(query, "count", str(LONGEST_PAGE)))
            self._send_json(session.page(_one(query, "key"), _number(_one(query, "start")), count))
        elif path == "/api/open":
            self._send_json({"place": session.first_open(_one(query, "key"))})
        elif path.startswith(("/picture/", "/thumbnail/")):
            _, kind, row = path.split("/", 2)
            picture = session.picture(_number(row), small=kind == "thumbnail")
            self._send(picture.kind, picture.content)
        else:
            raise _RefusalError(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _post(self, path: str, query: Mapping[str, list[str]]) -> None:
        asked, session = self._body(), self.server.session
        if path == "/api/decide":
            key, label = _text(asked, "list"), _label(asked)
            self._send_json(session.decide(_row(asked.get("row")), key, label))
        elif path == "/api/decide-group":
            key, label, toggled = _text(asked, "list"), _label(asked), asked.get("toggled", [])
            if not isinstance(toggled, list):
                raise InputError("'toggled' is no list")
            self._send_json(session.decide_group(key, label, [_row(row) for row in toggled]))
        elif path == "/api/undo":
            self._send_json(session.undo())
        else:
            raise _RefusalError(HTTPStatus.NOT_FOUND, "there is nothing here")

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
        if not isinstance(body, dict):
            raise InputError("the body is no JSON object")
        return body

    def _length(self) -> int | None:
        """Return the length of the body; None if it is missing or ambiguous."""
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) != 1 or "Transfer-Encoding" in self.headers:
            return None
        length = lengths[0]
        # int() refuses numbers of thousands of digits.
        return int(length[:19]) if length.isascii() and length.isdigit() else None

    def _refuse(self, status: HTTPStatus, line: str) -> None:
        # An unread body would be taken for the next request.
        self.close_connection = True
        self._send_json({"error": line}, status)
        self._discard()

    def _discard(self) -> None:
        """Read the rest of a request, so that closing the connection does not lose the answer."""
        length = self._length() if getattr(self, "headers", None) else None
        if self._is_read or not length or length > LONGEST_BODY:
            return
        with suppress(OSError):
            self.wfile.flush()
            self.connection.settimeout(_SECONDS_TO_DISCARD)
            self.rfile.read(length)

    def _send_json(self, value: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        self._send(f"{_JSON}; charset=utf-8", text.encode("utf-8", "replace"), status=status)

    def _send(
        self,
        kind: str,
        content: bytes,
        more: Mapping[str, str] | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            **(more or {}),
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _one(query: Mapping[str, list[str]], name: str, default: str | None = None) -> str:
    values = query.get(name) or ([] if default is None else [default])
    if len(values) != 1:
        raise InputError(f"give one {name!r}")
    return values[0]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _RefusalError(HTTPStatus.NOT_FOUND, "there is nothing here")
    return int(text)


def _row(value: Any) -> int:
    if type(value) is not int:
        raise InputError("a row is no number")
    return value


def _label(asked: Mapping[str, Any]) -> str | None:
    return None if asked.get("label") is None else _text(asked, "label")


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise InputError(f"{name!r} is no text")
    return value
