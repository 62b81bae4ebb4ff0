"""The server of the review: who may ask, what is answered, and what never is."""

from __future__ import annotations

import io
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from opensetda.review.server import LONGEST_BODY
from opensetda.review.session import ReviewSession
from opensetda.runs.folder import IMAGES
from opensetda.runs.pictures import write_images
from review_helpers import ask, corrections, make_run, reviewing, serving, sign

DECIDE = "/api/decide"
PUBLIC = ("/", "/?token=wrong", "/review.js", "/review.css", "/colours.css")
PICTURES = ("/picture/{token}/0", "/thumbnail/{token}/0")
GETS = ("/api/start", "/api/list?key=1&start=0", "/api/summary", "/api/find?key=find%3Ftext%3D1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("review") / "it's <i>run", n=24).path


@pytest.fixture(scope="module")
def server(folder):
    with reviewing(folder) as session, serving(session) as server:
        yield server


@pytest.mark.parametrize("path", [*PUBLIC, *PICTURES, *GETS])
def test_the_right_token_opens(server, folder, path):
    token = server.token if path in GETS else None
    status, headers, content = ask(server, path.format(token=server.token), X_Review_Token=token)
    assert (status, bool(content)) == (200, True)
    assert "Set-Cookie" not in headers
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "Python" not in headers["Server"]
    if path in PUBLIC:
        # What needs no token holds nothing of the run.
        for name in (folder.name, "it&#39;s", server.token):
            assert name.encode() not in content


@pytest.mark.parametrize("path", [*GETS, *PICTURES, "/nothing", "/api/start?token={right}"])
@pytest.mark.parametrize("token", [None, "é"])
def test_without_the_token_there_is_nothing(server, path, token):
    header = None if token is None else token.encode("latin-1")
    path = path.format(token="wrong", right=server.token)
    cookie = f"token={server.token}"
    status, _, content = ask(server, path, X_Review_Token=header, Cookie=cookie)
    assert status == 403
    assert content == {"error": "open the address that 'osda review' printed last"}


@pytest.mark.parametrize("host", [None, "127.0.0.1", "evil.example:{port}"])
def test_foreign_host_names_are_refused(server, host):
    host = host and host.format(port=server.server_port)
    status, _, content = ask(server, "/", Host=host)
    assert (status, content) == (403, {"error": "this name is not served here"})


def test_only_this_machine_is_served_under_its_names(server):
    assert server.server_address[0] == "127.0.0.1"
    host = f"localhost:{server.server_port}"
    assert ask(server, "/api/start", Host=host)[0] == 200
    body = {"row": 0, "list": "9", "label": None}
    assert ask(server, DECIDE, body, Host=host, Origin=f"http://{host}")[0] == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": None}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"X_Review_Token": "wrong"}, 403),
        ({"Content_Type": "text/plain"}, 400),
        ({"Content_Length": None}, 400),
        ({"Content_Length": "-1"}, 400),
        ({"Content_Length": str(LONGEST_BODY + 1)}, 400),
    ],
)
def test_changes_need_token_origin_type_and_a_modest_length(server, folder, headers, status):
    row = ask(server, "/api/list?key=border&start=0")[2]["samples"][0]["row"]
    answer = ask(server, DECIDE, {"row": row, "list": "border", "label": None}, **headers)
    assert answer[0] == status
    assert not (folder / "review.jsonl").exists()


def test_what_is_refused_is_answered_all_the_same(server):
    """Not a reset: closed over an unread body, the connection would lose the answer."""
    for _ in range(5):
        status, _, content = ask(server, DECIDE, b"x" * LONGEST_BODY, X_Review_Token="old")
        assert (status, content["error"][:8]) == (403, "open the")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (DECIDE, b"[" * 100_000),
        (DECIDE, {"row": 0, "list": "../border"}),
        (DECIDE, {"row": 0, "list": "border", "label": "a\nb"}),
        (DECIDE, {"row": 99, "list": "border", "label": None}),
        ("/api/decide-group", {"list": "1", "label": "x", "window": [-1, 2]}),
        ("/api/decide-group", {"list": "audit", "label": "x"}),
        ("/api/mark", {"row": 0, "mark": "perhaps"}),
    ],
)
def test_wrong_bodies_are_said_in_one_line(server, folder, path, body):
    status, _, content = ask(server, path, body)
    assert status == 400
    assert 0 < len(content["error"]) <= 300
    assert "\n" not in content["error"]
    assert not (folder / "review.jsonl").exists()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/favicon.ico", 404), ("/api/decide", 404), ("http://[", 404)),
        *(("/picture/{}/..%2f..%2fetc%2fpasswd", 404), ("/../settings.json", 404)),
        *(("/api/list?key=border&start=-1", 400), ("/api/list?key=9", 400)),
    ],
)
def test_there_is_nothing_else(server, path, status):
    assert ask(server, path.format(server.token))[0] == status


def test_nonsense_does_no_harm(server):
    place = ("127.0.0.1", server.server_port)
    for line in (b"nonsense\r\n\r\n", b"\x00\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(place, timeout=5) as stream:
            stream.sendall(line)
            stream.shutdown(socket.SHUT_WR)
            stream.recv(100)
    # Half of a body does not keep the others out.
    host = f"127.0.0.1:{server.server_port}"
    lines = ["POST /api/undo HTTP/1.1", f"Host: {host}", f"Origin: http://{host}"]
    lines += [f"X-Review-Token: {server.token}", "Content-Length: 1000", "", "{"]
    with socket.create_connection(place, timeout=20) as slow:
        slow.sendall("\r\n".join(lines).encode())
        assert ask(server, "/api/undo", {})[0] == 200
        for path in ("/api/start", "/api/list?key=border&start=0"):
            assert json.dumps(ask(server, path)[2], allow_nan=False)


def test_pictures_of_every_kind(tmp_path):
    """What browsers cannot show is turned into what they can; broken files into words."""
    run = make_run(tmp_path / "run", n=8)
    files = [str(tmp_path / f"{number}.tif") for number in range(8)]
    big = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(big).resize((1800, 1200)).save(files[0])
    Image.fromarray(big).save(files[1])
    (tmp_path / "2.tif").write_text("<svg><script>alert(1)</script></svg>")
    (tmp_path / "3.tif").write_bytes(b"")
    write_images(run.path / IMAGES, {}, files)
    sign(run.path)
    with reviewing(run.path) as session, serving(session) as server:
        for row, kind, size in [(0, "image/jpeg", (1200, 800)), (1, "image/png", (60, 40))]:
            status, headers, content = ask(server, f"/picture/{server.token}/{row}")
            assert (status, headers["Content-Type"]) == (200, kind)
            assert Image.open(io.BytesIO(content)).size == size
            small = ask(server, f"/thumbnail/{server.token}/{row}")[2]
            assert max(Image.open(io.BytesIO(small)).size) <= 160
        for row, word in [(2, b"not an image"), (3, b"empty file"), (6, b"no such")]:
            for kind in ("picture", "thumbnail"):
                status, headers, content = ask(server, f"/{kind}/{server.token}/{row}")
                assert (status, headers["Content-Type"]) == (200, "image/svg+xml")
                assert word in content or kind == "thumbnail"
                assert b"<script" not in content


def test_decisions_from_many_tabs_are_all_kept(tmp_path):
    run = make_run(tmp_path / "run", images=False).path
    with reviewing(run) as session, serving(session) as server:
        assert ask(server, "/api/start")[2]["pictures"] is False
        assert b"no image file" in ask(server, f"/picture/{server.token}/0")[2]
        rows = [s["row"] for s in ask(server, "/api/list?key=border&start=0")[2]["samples"]]

        def decide(row):
            return ask(server, DECIDE, {"row": row, "list": "border", "label": "moth"})[0]

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(decide, rows)) == {200}
        assert len(corrections(run)) == len(rows) == 60
        body = {"list": "1", "label": "wasp", "toggled": []}
        assert ask(server, "/api/decide-group", body)[2]["count"] == 10
        assert ask(server, "/api/undo", {})[2]["undone"]["count"] == 10
        drawn = ask(server, "/api/list?key=audit")[2]["samples"][0]["row"]
        answer = ask(server, "/api/mark", {"row": drawn, "mark": "unknown"})[2]
        assert answer["audit"]["unknown"] == 1
        assert ask(server, "/api/summary")[2]["decided"] == 60


def test_a_disk_that_is_full_is_said(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", images=False).path

    def full(*_):
        raise OSError(28, "No space left on device")

    with reviewing(run) as session, serving(session) as server:
        row = ask(server, "/api/list?key=border&start=0")[2]["samples"][0]["row"]
        body = {"row": row, "list": "border", "label": "moth"}
        with monkeypatch.context() as patch:
            patch.setattr("opensetda.review.decisions.os.fsync", full)
            status, _, content = ask(server, DECIDE, body)
        assert (status, content["error"][:11]) == (409, "not saved: ")
        with monkeypatch.context() as patch:
            patch.setattr("opensetda.review.decisions.new_file", full)
            status, _, content = ask(server, DECIDE, body)
        # What is in the log is saved; the table is behind.
        assert (status, content["decided"]) == (200, 1)
        said = f"saved to review.jsonl, but not to {session.corrections} (No space left on device)"
        assert content["trouble"].startswith(said)
    ReviewSession(run).close()
    assert [row["label"] for row in corrections(run)] == ["moth"]


def test_a_fault_of_ours_is_answered(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", n=6, images=False).path
    with reviewing(run) as session, serving(session) as server:
        monkeypatch.setattr(session, "summary", lambda: {}["x"])
        assert ask(server, "/api/summary")[::2] == (500, {"error": "'x'"})
