"""`osda review`: a page to check and correct the labels of a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Annotated

from opensetda.cli import console
from opensetda.cli.options import RunArgument, SampleImages, other
from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.review.server import ReviewServer
    from opensetda.review.session import ReviewSession

# Set if there is a screen, or a preferred browser.
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
_PORT_HELP = "Port of the page. Default: 0, any free port."
_AUDIT_HELP = "Targets drawn at random to say known or unknown to. Default: 30; 0 for none."


def review(
    run: RunArgument,
    port: Annotated[int, other("--port NUMBER", _PORT_HELP, min=0, max=65535)] = 0,
    no_browser: Annotated[
        bool, other("--no-browser", "Print the address without opening a browser.")
    ] = False,
    images: SampleImages = None,
    audit: Annotated[int, other("--audit NUMBER", _AUDIT_HELP, min=0, max=100_000)] = 30,
) -> None:
    """Check and correct the labels of a run, on a page that only this machine can open.

    [bold]Example[/bold]

      osda review run

    Begins with an audit: say known or unknown to 30 targets drawn at random, and
    see the share of unknowns. Then check labels: near the threshold, by predicted
    class, by confidence, by disagreement, by group of unknowns, or search. Every
    decision is saved at once, to review.jsonl and corrections.csv in the run
    folder. Ctrl-C ends it.
    """
    from opensetda.review.session import ReviewSession
    from opensetda.runs.corrections import refit_command

    session = ReviewSession(run, images, audit)
    try:
        with _serve(session, port) as server:
            console.note("review: Ctrl-C ends it; every decision is saved at once")
            console.say(server.address)
            if not no_browser:
                # In a thread: some browsers come back only when they are closed.
                Thread(None, _open_browser, "browser", (server,), daemon=True).start()
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
    if session.trouble:
        raise InputError(session.trouble)
    decided = console.counted(len(session.decisions), "decision")
    where = f": {session.corrections}" if session.corrections.exists() else ""
    console.say(f"{decided} saved{where}")
    found = session.audit()
    if found["marked"]:
        origins = {"given": "was given", "audited": "had, from an audit,"}
        said = origins.get(found["origin"], "estimated")
        console.say(
            f"audited share of unknowns: {found['share']:.2f} ({found['low']:.2f} to "
            f"{found['high']:.2f}), by {found['unknown']} of {found['marked']} and the scores of "
            f"all targets; the run {said} {found['runShare']:.2f}"
        )
    if len(session.decisions):
        console.say_places(learn=refit_command(session.run, session.corrections))


def _serve(session: ReviewSession, port: int) -> ReviewServer:
    from opensetda.review.server import ReviewServer

    try:
        return ReviewServer(session, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"--port {port}: {reason}; choose another, or leave it out") from error


def _open_browser(server: ReviewServer) -> None:
    import webbrowser

    is_open = False
    # Without a screen there are only terminal browsers, which run no scripts.
    if sys.platform in ("win32", "darwin") or any(map(os.environ.get, _SCREENS)):
        with suppress(OSError, webbrowser.Error):
            is_open = webbrowser.open(server.address)
    if not is_open:
        console.note("no browser could be opened: open the address yourself")
