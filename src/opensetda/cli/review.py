"""`osda review`: a page on which a person checks the labels of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opensetda.cli import console
from opensetda.cli.options import Debug, Quiet, RunArgument
from opensetda.errors import InputError

if TYPE_CHECKING:
    from opensetda.review.server import ReviewServer
    from opensetda.review.session import ReviewSession


def review(
    run: RunArgument,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="NUMBER", min=0, max=65535, help="Port of the page; 0: a free one."
        ),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, open no browser.")
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images", metavar="ROOT", help="Folder of the images that the ids of a table name."
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check the labels of a run by hand, on a page that only this machine can open.

    [bold]Example[/bold]

      osda review run

    Shows the samples nearest to the threshold, then the groups of unknowns:
    keep a label, correct it, name a new class, undo. Every decision is saved at
    once, to review.jsonl and corrections.csv in the run folder. Ctrl-C ends it.
    """
    from opensetda.review.session import ReviewSession

    session = ReviewSession(run, images)
    try:
        with _serve(session, port) as server:
            console.note("review: Ctrl-C ends it; every decision is saved at once")
            console.say(server.address)
            if not no_browser:
                _open_browser(server.address)
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
    decided = console.counted(len(session.decisions), "decision")
    where = f": {session.corrections}" if session.corrections.exists() else ""
    console.say(f"{decided} saved{where}")


def _serve(session: ReviewSession, port: int) -> ReviewServer:
    from opensetda.review.server import ReviewServer

    try:
        return ReviewServer(session, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"--port {port}: {reason}; choose another, or leave it out") from error


def _open_browser(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        console.note("no browser could be opened: open the address yourself")
