"""How much memory is free, and what is refused for the lack of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cli_helpers import FIT
from opensetda.cli.main import main
from opensetda.errors import InputError
from opensetda.system import memory


def write_group(folder: Path, limit, used, files, names) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {files}\nslab 6\n")


def test_some_memory_is_free_here():
    assert 0 < memory.free_bytes() <= math.inf


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_available", lambda: 800.0)
    for version, names in memory._GROUP_FILES.items():
        write_group(tmp_path / version, 1000, 700, 50, names)
    left = list(memory._left_in_groups(tmp_path))
    assert set(left) == {350}
    monkeypatch.setattr(memory, "_left_in_groups", lambda: iter(left))
    assert memory.free_bytes() == 350


def test_no_limit_and_no_such_files_are_no_limit(tmp_path):
    names = memory._GROUP_FILES[""]
    write_group(tmp_path, "max", 700, 50, names)
    assert list(memory._left_in_groups(tmp_path)) == []
    (tmp_path / "memory.stat").write_text("anon 5\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert list(memory._left_in_groups(tmp_path)) == []


def test_a_system_that_says_nothing_has_enough(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert memory.free_bytes() == math.inf


def test_what_is_refused_says_how_much_and_what_to_change(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 3.1e9)
    memory.check_free(3.0e9, "it", "take less")
    with pytest.raises(InputError) as caught:
        memory.check_free(7.2e9, "it", "take less")
    assert str(caught.value) == "it needs about 7.2 GB of memory, 3.1 GB are free; take less"


def test_fit_refuses_tables_that_do_not_fit(workplace, monkeypatch, capsys):
    monkeypatch.setattr(memory, "free_bytes", lambda: 100.0)
    assert main(FIT) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "needs about 0.0 GB of memory" in line
