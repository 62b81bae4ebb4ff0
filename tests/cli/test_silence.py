"""Nobody waits in silence, and the times that are printed are those that were waited."""

from __future__ import annotations

import re
import time

import pytest

from cli_helpers import FIT
from opensetda.cli import console, heartbeat
from opensetda.cli.main import main
from opensetda.usecases import train_run


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "_TICK", 0.01)


@pytest.fixture
def slow(monkeypatch):
    """A fit that takes half a second without any event."""
    fit_method = train_run.fit_method

    def slowly(*given):
        time.sleep(0.5)
        return fit_method(*given)

    monkeypatch.setattr(train_run, "fit_method", slowly)


def test_a_stage_that_takes_a_while_is_named(workplace, capsys, impatient, slow):
    assert main(FIT) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if re.match(r"learning.* s$", line)]) >= 3


def test_quiet_is_quiet(workplace, capsys, impatient, slow):
    assert main([*FIT, "--quiet"]) == 0
    assert "learning" not in capsys.readouterr().err


def test_the_seconds_are_those_that_were_waited(workplace, capsys, slow):
    began = time.monotonic()
    assert main(FIT) == 0
    waited = time.monotonic() - began
    (seconds,) = re.findall(r"Labelled .* in ([\d.]+) s", capsys.readouterr().out)
    assert 0.5 < float(seconds) <= waited + 0.1


def test_nothing_is_said_after_the_end(capsys, impatient):
    console.begin()
    with heartbeat.heartbeat():
        time.sleep(0.2)
    assert "starting" in capsys.readouterr().err
    time.sleep(0.1)
    assert capsys.readouterr().err == ""
