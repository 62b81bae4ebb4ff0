"""How much memory is free, and what is refused for the lack of it."""

from __future__ import annotations

import math
from pathlib import Path

from cli_helpers import FIT
from opensetda.cli.main import main
from opensetda.system import memory


def test_a_system_that_says_nothing_has_enough(monkeypatch):
    assert 0 < memory.free_bytes() <= math.inf
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert memory.free_bytes() == math.inf


def test_fit_refuses_tables_that_do_not_fit(workplace, monkeypatch, capsys):
    monkeypatch.setattr(memory, "free_bytes", lambda: 100.0)
    assert main(FIT) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "needs about 0.0 GB of memory, 0.0 GB are free; " in line
