"""`osda review`: check and correct the labels of a run on a local page."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Annotated

from opensetda.cli import console
from opensetda.cli.heartbeat import heartbeat
from opensetda.cli.options import RunArgument, SampleImages, other
from opensetda.errors import InputError

_PORT_HELP = "Port of the page. Default: 0, any free port."
_AUDIT_HELP = "Number of random targets to mark as known or unknown. Default: 30; 0 for none."
_MARKS_HELP = (
    "Take labels from a CSV file (columns id and label) or an export of Label Studio (.json), and "
    "open no page."
)
_NO_BROWSER_HELP = "Print the address without opening a browser."


def review(
    run: RunArgument,
    port: Annotated[int, other("--port NUMBER", _PORT_HELP, low=0, high=65535)] = 0,
    no_browser: Annotated[bool, other("--no-browser", _NO_BROWSER_HELP)] = False,
    images: SampleImages = None,
    audit: Annotated[int, other("--audit NUMBER", _AUDIT_HELP, low=0, high=100_000)] = 30,
    marks: Annotated[Path | None, other("--marks FILE", _MARKS_HELP)] = None,
) -> None:
    """Check and correct the labels of a run, on a page that only this machine can open.

    Begins with the samples whose labels help most: thirty marks are worth ten points
    and more. "Refit" on the page learns from them. Every decision is saved at once,
    to review.jsonl and corrections.csv in the run folder. Ctrl-C ends it.
    """
    with heartbeat():
        from opensetda.review.server import ReviewServer
        from opensetda.review.session import ReviewSession
        from opensetda.usecases.corrections import refit_command

        session = ReviewSession(run, images, audit)
    if marks is not None:
        try:
            with heartbeat():
                count = session.take_marks(marks)
        finally:
            session.close()
        console.say(f"{console.counted(count, 'mark')} of {marks} saved: {session.corrections}")
        console.say_places(learn=refit_command(session.run, session.corrections))
        return
    try:
        with ReviewServer(session, port) as server:
            console.note("review: open the address; all decisions are saved; Ctrl-C ends it")
            console.say(server.address)
            if not no_browser:
                # In a thread: some browsers come back only when they are closed.
                Thread(None, _open_browser, "browser", (server.address,), daemon=True).start()
            try:
                server.serve_forever()
            finally:
                session = server.session
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}; choose another") from error
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
    if session.moved:
        console.warn(session.moved)
    if session.trouble:
        raise InputError(session.trouble)
    where = f": {session.corrections}" if session.corrections.exists() else ""
    console.say(f"{console.counted(len(session.decisions), 'decision')} saved{where}")
    for warning in session.formula_warning():
        console.warn(warning)
    found = session.audit()
    if found["marked"]:
        console.say(
            f"audited share of unknowns: {found['share']:.0%} ({found['low']:.0%} to "
            f"{found['high']:.0%}), by {found['unknown']} of {found['marked']} and the scores of "
            f"all targets; the run used {found['runShare']:.0%}"
        )
    if len(session.decisions):
        console.say_places(learn=refit_command(session.run, session.corrections))


def _open_browser(address: str) -> None:
    import webbrowser

    # Without a screen there are only terminal browsers, which run no scripts.
    screens = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if sys.platform in ("win32", "darwin") or any(screens):
        with suppress(OSError, webbrowser.Error):
            webbrowser.open(address)
