"""Wrong use of the command line, failures, signals: one line, an exit code, nothing left."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from cli_helpers import FEW_STEPS, FIT, OPENNESS, names_in
from cli_processes import WRITING, Osda
from opensetda import __version__
from opensetda.cli.main import main


def test_a_command_that_does_not_exist_is_wrong_use(capsys):
    assert main(["fitt"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: No such command 'fitt'")
    assert len(err.splitlines()) == 1


def test_a_missing_argument_is_wrong_use(capsys):
    assert main(["fit", "a.npz"]) == 2
    assert "see 'osda fit --help'" in capsys.readouterr().err


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert "osda demo" in out + err
    assert "error:" not in err


# failures and interruptions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("boom\nsecond line"), 1, "RuntimeError: boom second line (run again with"),
        (OSError(28, "No space left on device"), 1, "run: cannot be written, no space left"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
    ],
)
def test_failures_leave_one_line_and_nothing_else(
    workplace, capsys, monkeypatch, error, code, words
):
    from opensetda.runs import fitting

    def fail(*_):
        raise error

    monkeypatch.setattr(fitting, "environment", fail)
    before = names_in(workplace)
    assert main([*FIT, *FEW_STEPS, *OPENNESS]) == code
    err = capsys.readouterr().err
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err
    assert names_in(workplace) == before


def test_debug_shows_the_traceback(workplace, capsys):
    assert main([*FIT, "--openness", "2", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_aborts_of_older_typer_releases_count_as_interruptions(capsys, monkeypatch):
    import typer

    def abort(**_):
        raise typer.Abort

    monkeypatch.setattr("opensetda.cli.main.app", abort)
    assert main([]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_nothing_behind(workplace, number, code):
    before = names_in(workplace)
    process = Osda(workplace, *FIT, *FEW_STEPS, *OPENNESS, moment=WRITING)
    assert names_in(workplace) != before
    got, text = process.send(number)
    assert got == code, text
    assert "Traceback" not in text
    assert names_in(workplace) == before


def test_the_entry_point_returns_the_exit_code():
    code = "from opensetda.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"osda {__version__}\n"
