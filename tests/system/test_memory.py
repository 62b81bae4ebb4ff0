"""How much memory is free, and what is refused for the lack of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cli_helpers import FIT
from opensetda.cli.main import main
from opensetda.system import memory


@pytest.mark.parametrize("version", memory._GROUP_FILES)
def test_the_limit_of_a_container_counts(tmp_path, version):
    limit, used, files = memory._GROUP_FILES[version]
    folder = tmp_path / version
    folder.mkdir(exist_ok=True)
    for name, text in ((limit, "1000\n"), (used, "700\n"), ("memory.stat", f"a 5\n{files} 50\n")):
        (folder / name).write_text(text)
    assert set(memory._left_in_groups(tmp_path)) == {350}
    (folder / limit).write_text("max\n")
    assert list(memory._left_in_groups(tmp_path)) == []


def test_a_system_that_says_nothing_has_enough(monkeypatch):
    assert 0 < memory.free_bytes() <= math.inf
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert memory.free_bytes() == math.inf


def test_fit_refuses_tables_that_do_not_fit(workplace, monkeypatch, capsys):
    monkeypatch.setattr(memory, "free_bytes", lambda: 100.0)
    assert main(FIT) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "needs about 0.0 GB of memory, 0.0 GB are free; " in line
