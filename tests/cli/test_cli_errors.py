"""Wrong use of the command line, failures, signals: one line, an exit code, nothing left."""

from __future__ import annotations

import signal

import pytest

from cli_helpers import FEW_STEPS, FIT, OPENNESS, names_in
from cli_processes import WRITING, Osda
from opensetda.cli.main import main

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


def test_a_signal_leaves_nothing_behind(workplace):
    before = names_in(workplace)
    process = Osda(workplace, *FIT, *FEW_STEPS, *OPENNESS, moment=WRITING)
    assert names_in(workplace) != before
    got, text = process.send(signal.SIGTERM)
    assert got == 143, text
    assert "Traceback" not in text
    assert names_in(workplace) == before
