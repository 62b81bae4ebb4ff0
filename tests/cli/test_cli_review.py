"""`osda review`: how it begins, the browser it opens, and how it ends."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

from opensetda.cli.main import main
from review_helpers import OsdaReview, ask, corrections, make_run


def test_a_termination_ends_it_at_once_with_everything_saved(tmp_path, capsys):
    """In the middle of a request, too."""
    run = make_run(tmp_path / "run", n=6, images=False).path
    with OsdaReview(run) as osda:
        # A second one on the same run, or at the same port, gets one line.
        assert main(["review", str(run), "--no-browser"]) == 2
        assert "another 'osda review' is running on it" in capsys.readouterr().err
        port, token = int(osda.address.split(":")[2].split("/")[0]), osda.address.split("=")[1]
        make_run(tmp_path / "other", images=False)
        assert main(["review", str(tmp_path / "other"), "--no-browser", "--port", str(port)]) == 2
        assert f"--port {port}: Address already in use" in capsys.readouterr().err
        server = SimpleNamespace(server_port=port, token=token)
        row = ask(server, "/api/list?key=border&start=0")[2]["samples"][0]["row"]
        assert ask(server, "/api/decide", {"row": row, "list": "border", "label": "moth"})[0] == 200
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /api/undo HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
            begun = time.monotonic()
            code, out, errors = osda.end(signal.SIGTERM)
        assert time.monotonic() - begun < 10
    assert (code, out) == (128 + signal.SIGTERM, "")
    assert "Ctrl-C ends it" in errors
    assert "Traceback" not in errors
    assert [row["label"] for row in corrections(run)] == ["moth"]


def test_the_browser_is_opened_with_the_address(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "run", images=False)
    opened = []

    def serve(server):
        # The browser is started from a thread: it may take as long as it likes.
        for thread in threading.enumerate():
            if thread.name.startswith("browser"):
                thread.join(20)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("opensetda.review.server.ReviewServer.serve_forever", serve)
    for name in ("WAYLAND_DISPLAY", "BROWSER", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    # Without a screen there is none to be opened.
    if sys.platform == "linux":
        assert main(["review", str(tmp_path / "run")]) == 0
        assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert main(["review", str(tmp_path / "run"), "--no-browser", "--quiet"]) == 0
    assert opened == []
    capsys.readouterr()
    assert main(["review", str(tmp_path / "run")]) == 0
    address, last = capsys.readouterr().out.splitlines()
    assert last == "0 decisions saved"
    assert opened == [address]
