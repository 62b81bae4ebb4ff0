"""The server of the review: who may ask, what is answered, and what never is."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from PIL import Image

from opensetda.errors import InputError
from opensetda.review.server import LONGEST_BODY
from opensetda.review.session import ReviewSession
from opensetda.runs.folder import IMAGES
from opensetda.runs.pictures import write_images
from review_helpers import ask, corrections, make_run, serving, sign


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("review") / "it's <i>run", n=24).path


@pytest.fixture(scope="module")
def server(folder):
    session = ReviewSession(folder)
    session._grouping.join()
    with serving(session) as server:
        yield server
    session.close()


DECIDE = "/api/decide"
PUBLIC = ("/", "/?token=wrong", "/review.js", "/review.css", "/colours.css")
PICTURES = ("/picture/{secret}/0", "/thumbnail/{secret}/0")
GETS = ("/api/start", "/api/list?key=1&start=0", "/api/summary", "/api/open?key=border")
GETS += ("/api/token", "/api/find?key=find%3Ftext%3D1")


@pytest.mark.parametrize("path", [*PUBLIC, *PICTURES, *GETS])
def test_the_right_token_opens(server, path):
    path = path.format(secret=server.secret)
    token = server.token if path in GETS else None
    status, headers, content = ask(server, path, X_Review_Token=token)
    assert status == 200
    assert "Set-Cookie" not in headers
    assert headers["Referrer-Policy"] == "no-referrer"
    assert content
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize("path", [*GETS, *PICTURES, "/nothing", "/api/start?token={token}"])
@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_without_the_token_there_is_nothing(server, path, token):
    header = None if token is None else token.encode("latin-1")
    path = path.format(secret="wrong", token=server.token)
    status, _, content = ask(server, path, X_Review_Token=header)
    assert status == 403
    assert content == {"error": "open the address that 'osda review' printed last"}


def test_cookies_open_nothing(server):
    for cookie in (f"osda_review_{server.server_port}={server.token}", f"token={server.token}"):
        assert ask(server, "/api/start", X_Review_Token=None, Cookie=cookie)[0] == 403


def test_pictures_and_the_rest_have_different_secrets(server):
    assert ask(server, "/api/start", X_Review_Token=server.secret)[0] == 403
    assert ask(server, f"/picture/{server.token}/0")[0] == 403
    assert ask(server, "/api/start")[2]["secret"] == server.secret


def test_what_needs_no_token_holds_nothing_of_the_run(server, folder):
    for path, (_, content, _) in server.public.items():
        for name in (folder.name, "it&#39;s", server.token, server.secret):
            assert name.encode() not in content, path


def test_the_address_for_a_browsers_command_line_works_once(server):
    assert server.address == f"http://127.0.0.1:{server.server_port}/?token={server.token}"
    token = server.address_for_once().split("=")[1]
    assert token != server.token
    # It gives the token and nothing else.
    assert ask(server, "/api/start", X_Review_Token=token)[0] == 403
    status, _, content = ask(server, "/api/token", X_Review_Token=token)
    assert (status, content) == (200, {"token": server.token})
    assert ask(server, "/api/token", X_Review_Token=token)[0] == 403
    # The address that was printed works any number of times.
    for _ in range(2):
        assert ask(server, "/api/token")[2] == {"token": server.token}


@pytest.mark.parametrize("host", [None, "", "evil.example", "127.0.0.1", "evil.example:{port}"])
def test_foreign_host_names_are_refused(server, host):
    host = host and host.format(port=server.server_port)
    status, _, content = ask(server, "/", Host=host)
    assert (status, content) == (403, {"error": "this name is not served here"})


def test_localhost_is_the_same_host(server):
    host = f"localhost:{server.server_port}"
    assert ask(server, "/api/start", Host=host)[0] == 200
    body = {"row": 0, "list": "9", "label": None}
    assert ask(server, DECIDE, body, Host=host, Origin=f"http://{host}")[0] == 400


def test_only_this_machine_is_served(server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"X_Review_Token": "wrong"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": None}, 415),
        ({"Content_Length": None}, 411),
        ({"Content_Length": "-1"}, 411),
        ({"Content_Length": "1e3"}, 411),
        ({"Content_Length": "9" * 5000}, 413),
        ({"Transfer_Encoding": "chunked"}, 411),
        ({"Content_Length": str(LONGEST_BODY + 1)}, 413),
    ],
)
def test_changes_need_origin_type_and_a_modest_length(server, folder, headers, status):
    row = ask(server, "/api/list?key=border&start=0")[2]["samples"][0]["row"]
    answer = ask(server, DECIDE, {"row": row, "list": "border", "label": None}, **headers)
    assert answer[0] == status
    assert not (folder / "review.jsonl").exists()


def test_what_is_refused_is_answered_all_the_same(server):
    """Not a reset: closed over an unread body, the connection would lose the answer."""
    for _ in range(5):
        status, _, content = ask(server, DECIDE, b"x" * LONGEST_BODY, X_Review_Token="old")
        assert (status, content["error"][:8]) == (403, "open the")


@pytest.mark.parametrize("head", ["Content-Length: {length}", "Transfer-Encoding: chunked"])
def test_a_body_is_never_taken_for_a_request(server, head):
    inner = f"GET /api/start HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
    lines = [
        "GET /api/summary HTTP/1.1",
        f"Host: 127.0.0.1:{server.server_port}",
        f"X-Review-Token: {server.token}",
        head.format(length=len(inner)),
    ]
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as stream:
        stream.sendall(("\r\n".join(lines) + "\r\n\r\n" + inner).encode())
        stream.shutdown(socket.SHUT_WR)
        answers = b""
        with suppress(ConnectionResetError):
            while part := stream.recv(2**16):
                answers += part
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answers


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        {},
        {"row": "0", "list": "border"},
        {"row": True, "list": "border"},
        {"row": 0.0, "list": "border"},
        {"row": 0, "list": 1},
        {"row": 0, "list": "../border"},
        {"row": 0, "list": "border", "label": 1},
        {"row": 0, "list": "border", "label": "a\nb"},
        {"row": 99, "list": "border", "label": None},
    ],
)
def test_wrong_bodies_are_said_in_one_line(server, folder, body):
    status, _, content = ask(server, DECIDE, body)
    assert status == 400
    assert content["error"].count("\n") == 0
    assert not (folder / "review.jsonl").exists()


def test_wrong_groups_are_said_in_one_line(server):
    for body in (
        {"list": "1", "label": 3},
        {"list": "1", "label": "x", "toggled": 3},
        {"list": "1", "label": "x", "toggled": ["a"]},
        {"list": None, "label": "x"},
        {"list": "1", "label": "x", "window": 3},
        {"list": "1", "label": "x", "window": ["a"]},
        {"list": "audit", "label": "x"},
    ):
        assert ask(server, "/api/decide-group", body)[0] == 400


@pytest.mark.parametrize(
    "path",
    [
        *("/favicon.ico", "/api", "/api/", "/picture", "/picture/", "/picture/x", "/picture/1"),
        *("/picture/{}/-1", "/picture/{}/..%2f..%2fetc%2fpasswd", "/picture/{}/1e3"),
        *("/review.html", "/../settings.json", "/templates/", "/picture/{}/%C2%B2"),
        *("/api/decide", "/api/list?key=border&start=-1", "/thumbnail/{}/9999999999999"),
        *("/thumbnail/{}/0x1", "/picture/{}/1/2", "/settings.json", "/picture/{}/"),
    ],
)
def test_there_is_nothing_else(server, path):
    assert ask(server, path.format(server.secret))[0] == 404
    if "picture" not in path:
        assert ask(server, "/api/nothing", {})[0] == 404


@pytest.mark.parametrize(
    "body",
    [{}, {"row": 0}, {"row": "0", "mark": "known"}, {"row": 999, "mark": "known"}, {"mark": 1}],
)
def test_wrong_marks_are_said_in_one_line(server, folder, body):
    status, _, content = ask(server, "/api/mark", body)
    assert status == 400
    assert content["error"].count("\n") == 0
    assert not (folder / "review.jsonl").exists()


def test_a_mark_is_saved_and_undone(server, folder):
    row = ask(server, "/api/list?key=audit&start=0")[2]["samples"][0]["row"]
    status, _, answer = ask(server, "/api/mark", {"row": row, "mark": "unknown"})
    assert (status, answer["audit"]["unknown"]) == (200, 1)
    assert ask(server, "/api/mark", {"row": row, "mark": "known"}, X_Review_Token="x")[0] == 403
    assert ask(server, "/api/undo", {"list": "audit"})[2]["undone"]["list"] == "audit"


@pytest.mark.parametrize(
    "path",
    [
        *("/api/list", "/api/list?key=9&start=0", "/picture/{}/24", "/api/find?key=audit"),
        "/api/find?key=find%3F" + "text%3Da%26" * 20,
    ],
)
def test_what_the_run_has_not_is_refused(server, path):
    assert ask(server, path.format(server.secret))[0] == 400


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(server, method):
    status, headers, _ = ask(server, "/", method=method)
    assert status == 501
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "line", [b"nonsense\r\n\r\n", b"GET //[ HTTP/1.1\r\n\r\n", b"\x00\r\n\r\n"]
)
def test_nonsense_does_no_harm(server, line):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as stream:
        stream.sendall(line)
        stream.shutdown(socket.SHUT_WR)
        stream.recv(100)
    assert ask(server, "http://[")[0] == 400
    assert ask(server, "/api/start")[0] == 200


def test_the_page_lists_every_key(server):
    page = ask(server, "/")[2].decode()
    keys = dict(re.findall("<dt>(.+)</dt><dd>(.+)</dd>", page))
    assert len(keys) == 16
    assert keys["U, Ctrl+Z"] == "undo, any number of times"
    assert keys["?"] == "show these keys"


def test_pictures_of_every_kind(tmp_path):
    """What browsers cannot show is turned into what they can; broken files into words."""
    run = make_run(tmp_path / "run", n=8)
    files = [str(tmp_path / f"{number}.tif") for number in range(8)]
    big = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(big).resize((1800, 1200)).save(files[0])
    Image.fromarray(big).save(files[1])
    (tmp_path / "2.tif").write_text("<svg><script>alert(1)</script></svg>")
    (tmp_path / "3.tif").write_bytes(b"")
    Image.fromarray(big).resize((3000, 2000)).save(tmp_path / "4.png")
    files[4] = str(tmp_path / "4.png")
    (tmp_path / "5.tif").mkdir()
    write_images(run.path / IMAGES, {}, files)
    sign(run.path)
    session = ReviewSession(run.path)
    with serving(session) as server:
        for row, kind, size in [
            (0, "image/jpeg", (1200, 800)),
            (1, "image/png", (60, 40)),
            (4, "image/jpeg", (1200, 800)),
        ]:
            status, headers, content = ask(server, f"/picture/{server.secret}/{row}")
            assert (status, headers["Content-Type"]) == (200, kind)
            assert Image.open(io.BytesIO(content)).size == size
            small = ask(server, f"/thumbnail/{server.secret}/{row}")[2]
            assert max(Image.open(io.BytesIO(small)).size) <= 160
        for row, word in [
            (2, b"not an image"),
            (3, b"empty file"),
            (5, b"a folder"),
            (6, b"no such"),
        ]:
            for kind in ("picture", "thumbnail"):
                status, headers, content = ask(server, f"/{kind}/{server.secret}/{row}")
                assert (status, headers["Content-Type"]) == (200, "image/svg+xml")
                assert word in content or kind == "thumbnail"
                assert b"<script" not in content
    session.close()


def test_a_run_of_tables_has_no_pictures(tmp_path):
    make_run(tmp_path / "run", images=False)
    session = ReviewSession(tmp_path / "run")
    with serving(session) as server:
        assert ask(server, "/api/start")[2]["pictures"] is False
        assert b"no image file" in ask(server, f"/picture/{server.secret}/0")[2]
    session.close()


def test_decisions_from_many_tabs_are_all_kept(tmp_path):
    make_run(tmp_path / "run", images=False)
    session = ReviewSession(tmp_path / "run")
    session._grouping.join()
    with serving(session) as server:
        rows = [s["row"] for s in ask(server, "/api/list?key=border&start=0")[2]["samples"]]

        def decide(row):
            return ask(server, DECIDE, {"row": row, "list": "border", "label": "moth"})[0]

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(decide, rows)) == {200}
        assert len(corrections(tmp_path / "run")) == len(rows) == 60
        body = {"list": "1", "label": "wasp", "toggled": []}
        assert ask(server, "/api/decide-group", body)[2]["count"] == 10
        assert ask(server, "/api/undo", {})[2]["undone"]["count"] == 10
        assert ask(server, "/api/summary")[2]["decided"] == 60
    session.close()


def test_silent_strangers_do_not_keep_decisions_out(tmp_path):
    """Half of a request from each of many: the oldest have to go."""
    make_run(tmp_path / "run", n=6, images=False)
    session = ReviewSession(tmp_path / "run")
    half = b"POST /api/decide HTTP/1.1\r\nContent-Length: 1000\r\nX-Slow: "
    with serving(session) as server, ExitStack() as stack:
        place = ("127.0.0.1", server.server_port)
        host = f"Host: 127.0.0.1:{server.server_port}\r\nX-Review-Token: {server.token}\r\n\r\n"
        known = stack.enter_context(socket.create_connection(place, timeout=20))
        known.sendall(f"GET /api/summary HTTP/1.1\r\n{host}".encode())
        assert known.recv(12) == b"HTTP/1.1 200"
        for _ in range(200):
            stack.enter_context(socket.create_connection(place, timeout=20)).sendall(half)
        row = ask(server, "/api/list?key=border&start=0")[2]["samples"][0]["row"]
        assert ask(server, DECIDE, {"row": row, "list": "border", "label": None})[0] == 200
        assert len(server._strangers) <= 65
        assert sum(thread.name.startswith("Thread-") for thread in threading.enumerate()) < 100
        # Who has the token stays.
        known.sendall(f"GET /api/summary HTTP/1.1\r\n{host}".encode())
        answers = known.recv(2**16)
        while answers.count(b"HTTP/1.1 200") < 1:
            answers += known.recv(2**16)
    session.close()


def test_a_slow_body_does_not_keep_decisions_out(server):
    host = f"127.0.0.1:{server.server_port}"
    lines = ["POST /api/undo HTTP/1.1", f"Host: {host}", f"Origin: http://{host}"]
    lines += [f"X-Review-Token: {server.token}", "Content-Type: application/json"]
    lines += ["Content-Length: 1000", "", "{"]
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as slow:
        slow.sendall("\r\n".join(lines).encode())
        assert ask(server, "/api/undo", {})[0] == 200
        assert ask(server, DECIDE, {"row": 99, "list": "border", "label": None})[0] == 400


@pytest.mark.parametrize(
    "line", [b"GET /" + b"x" * 70_000, b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000]
)
def test_huge_heads_are_refused(server, line):
    place = ("127.0.0.1", server.server_port)
    with suppress(ConnectionError), socket.create_connection(place, timeout=20) as stream:
        stream.sendall(line + b"\r\n\r\n")
        assert stream.recv(12) in (b"HTTP/1.1 414", b"HTTP/1.1 431")
    many = b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 200 + b"\r\n"
    with socket.create_connection(place, timeout=20) as stream:
        stream.sendall(many)
        assert stream.recv(12) == b"HTTP/1.1 431"
    assert ask(server, "/api/start")[0] == 200


def test_a_disk_that_is_full_is_said(tmp_path, monkeypatch):
    make_run(tmp_path / "run", images=False)
    session = ReviewSession(tmp_path / "run")

    def full(*_):
        raise OSError(28, "No space left on device")

    with serving(session) as server:
        row = ask(server, "/api/list?key=border&start=0")[2]["samples"][0]["row"]
        monkeypatch.setattr("opensetda.review.log.os.fsync", full)
        status, _, content = ask(server, DECIDE, {"row": row, "list": "border", "label": None})
        assert status == 409
        assert content["error"].startswith("not saved: ")
        monkeypatch.undo()
        monkeypatch.setattr("opensetda.review.decisions.new_file", full)
        status, _, content = ask(server, DECIDE, {"row": row, "list": "border", "label": "moth"})
        # What is in the log is saved; the table is behind.
        assert (status, content["decided"]) == (200, 1)
        said = f"saved to review.jsonl, but not to {session.corrections} (No space left on device)"
        assert content["trouble"].startswith(said)
        assert ask(server, "/api/undo", {})[2]["trouble"].startswith(said)
        monkeypatch.undo()
        answer = ask(server, DECIDE, {"row": row, "list": "border", "label": "wasp"})
        assert (answer[0], answer[2]["trouble"]) == (200, "")
        monkeypatch.setattr("opensetda.review.decisions.new_file", full)
        assert ask(server, "/api/undo", {})[2]["trouble"].startswith(said)
        session.close()
        with pytest.raises(InputError, match="saved to review"):
            ReviewSession(session.run.path)
        monkeypatch.undo()
        assert len(corrections(session.run.path)) == 1
    ReviewSession(session.run.path).close()
    assert corrections(session.run.path) == []


def test_answers_are_strict_json(server):
    for path in ("/api/start", "/api/list?key=border&start=0"):
        status, _, content = ask(server, path)
        assert status == 200
        assert json.dumps(content, allow_nan=False)
