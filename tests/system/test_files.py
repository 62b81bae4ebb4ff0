"""Files and folders that appear whole or not at all, and memory that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_helpers import FIT, names_in
from opensetda import InputError
from opensetda.cli.main import main
from opensetda.system import files, memory

DIES = """
import os, pathlib, sys
from opensetda.system import files
with files.{function}(pathlib.Path({path!r})) as aside:
    print(aside, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("make", [files.new_file, files.new_folder])
def test_the_new_takes_the_place_of_the_old_only_when_complete(tmp_path, make):
    path = tmp_path / "labels.csv"

    def write(content, error=None):
        with make(path) as aside:
            assert aside.suffix == ".csv"
            (aside / "part" if aside.is_dir() else aside).write_text(content)
            if error is not None:
                raise error

    with pytest.raises(KeyboardInterrupt):
        write("half", KeyboardInterrupt())
    assert names_in(tmp_path) == []
    write("old")
    with pytest.raises(RuntimeError):
        write("half", RuntimeError())
    assert (path / "part" if path.is_dir() else path).read_text() == "old"
    write("new")
    assert (path / "part" if path.is_dir() else path).read_text() == "new"
    assert names_in(tmp_path) == ["labels.csv"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_old_folder_stays_if_the_new_one_cannot_be_moved(tmp_path, monkeypatch, exchanges):
    run = tmp_path / "run"
    run.mkdir()
    (run / "content").write_text("old")
    rename = Path.rename

    def fail(self, target):
        if target == run and "replaced" not in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    def cannot(new, path):
        if exchanges:
            raise OSError(28, "No space left on device")
        return False

    monkeypatch.setattr(files, "_exchanged_at_once", cannot)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"), files.new_folder(run) as aside:
        (aside / "new").write_text("")
    assert names_in(tmp_path) == ["run"]
    assert (run / "content").read_text() == "old"


def test_a_folder_is_replaced_where_two_cannot_be_exchanged_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_exchanged_at_once", lambda new, path: False)
    for content in ("old", "new"):
        with files.new_folder(tmp_path / "run") as aside:
            (aside / "content").write_text(content)
    assert (tmp_path / "run" / "content").read_text() == "new"
    assert names_in(tmp_path) == ["run"]


@pytest.mark.parametrize("function", ["new_file", "new_folder", "temporary_folder"])
def test_the_next_writer_removes_what_a_dead_one_left(tmp_path, function):
    path = tmp_path / "labels.csv"
    script = DIES.format(function=function, path=str(path))
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert Path(died.stdout.strip()).exists()
    (left,) = names_in(tmp_path)
    assert files.is_partial(left)
    with getattr(files, function)(path):
        assert left not in names_in(tmp_path)
    assert names_in(tmp_path) == ([] if function == "temporary_folder" else ["labels.csv"])


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "labels.csv"
    with files.new_file(path) as first:
        first.write_text("first")
        with files.new_file(path) as second:
            assert first.read_text() == "first"
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert names_in(tmp_path) == ["labels.csv"]


@pytest.mark.parametrize("make", [files.new_file, files.new_folder])
def test_a_link_in_the_place_of_an_output_is_replaced_and_not_followed(tmp_path, make):
    path, precious = tmp_path / "labels.csv", tmp_path / "precious"
    if make is files.new_folder:
        precious.mkdir()
        (precious / "content").write_text("mine")
    else:
        precious.write_text("mine")
    path.symlink_to(precious)
    with make(path) as aside:
        (aside / "part" if aside.is_dir() else aside).write_text("ours")
    assert not path.is_symlink()
    kept = precious / "content" if precious.is_dir() else precious
    assert kept.read_text() == "mine"
    assert names_in(tmp_path) == ["labels.csv", "precious"]


def test_only_their_writer_can_enter_unfinished_files(tmp_path):
    with files.new_file(tmp_path / "labels.csv") as aside:
        assert aside.parent.stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_place_of_a_folder_of_ours_is_refused(tmp_path):
    (tmp_path / "cells").symlink_to(tmp_path)
    with pytest.raises(InputError, match=r"cells: a link, .*remove the link"):
        files.own_folder(tmp_path / "cells")


def test_an_existing_link_is_an_existing_output(tmp_path):
    path = tmp_path / "labels.csv"
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists already"):
        files.check_new_file("--out", path, (".csv",), overwrite=False)
    files.check_new_file("--out", path, (".csv",), overwrite=True)


def test_places_that_cannot_be_written_are_found_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, words in [
        (tmp_path / "file" / "run", "Not a directory"),
        (Path("/proc/x/run"), "No such"),
        (tmp_path / "loop" / "run", "loop"),
        (tmp_path / os.fsdecode(b"caf\xe9") / "run", "codec can't encode"),
    ]:
        with pytest.raises(InputError, match=rf"cannot be written \(.*{words}"):
            files.check_writable(path)
    files.check_writable(tmp_path / "new" / "run")
    assert names_in(tmp_path) == ["file", "loop"]


def test_a_full_disk_is_named(tmp_path):
    words = r"cannot be written, no space left on device.*labels\.csv"
    with pytest.raises(OSError, match=words), files.new_file(tmp_path / "labels.csv"):
        raise OSError(28, "No space")


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(InputError, match=", not a file; copy"):
            files.open_regular(tmp_path / name)
    (tmp_path / "file").write_text("text")
    with files.open_regular(tmp_path / "file") as stream:
        assert stream.read() == b"text"


def test_json_holds_names_that_are_no_text_and_numbers_that_are_none(tmp_path):
    values = {"path": os.fsdecode(b"/caf\xe9/\xf0\x9f\x98\x80"), "word": "grün é"}
    files.write_json(tmp_path / "settings.json", values)
    assert json.loads((tmp_path / "settings.json").read_bytes()) == values
    value = {"loss": {"node": np.float32(0.5), "edge": float("nan")}, 3: (np.int64(1), None, "x")}
    assert files.plain(value) == {"loss": {"node": 0.5, "edge": None}, "3": [1, None, "x"]}


def test_tables_that_do_not_fit_into_memory_are_refused(workplace, monkeypatch, capsys):
    monkeypatch.setattr(memory, "free_bytes", lambda: 100.0)
    assert main(FIT) == 2
    assert "needs about 0.0 GB of memory, 0.0 GB are free; " in capsys.readouterr().err
