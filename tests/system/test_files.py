"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opensetda import InputError
from opensetda.system import files
from runs_helpers import names_in

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

    for error in (KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)):
            write("half", error)
        assert names_in(tmp_path) == []
    write("old")
    with pytest.raises(RuntimeError):
        write("half", RuntimeError())
    assert (path / "part" if path.is_dir() else path).read_text() == "old"
    write("new")
    assert (path / "part" if path.is_dir() else path).read_text() == "new"
    assert names_in(tmp_path) == ["labels.csv"]


def test_an_old_folder_comes_back_if_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "content").write_text("old")
    rename = type(run).rename

    def fail(self, target):
        if target == run and "partial" in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(type(run), "rename", fail)
    with pytest.raises(OSError, match="no space left"), files.new_folder(run) as aside:
        (aside / "new").write_text("")
    assert names_in(tmp_path) == ["run"]
    assert (run / "content").read_text() == "old"


@pytest.mark.parametrize("function", ["new_file", "new_folder", "temporary_folder"])
def test_the_next_writer_removes_what_a_dead_one_left(tmp_path, function):
    path = tmp_path / "labels.csv"
    script = DIES.format(function=function, path=str(path))
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    left = Path(died.stdout.strip())
    assert left.exists()
    assert files.is_partial(left.name)
    with getattr(files, function)(path) as aside:
        assert aside == left
    assert names_in(tmp_path) == ([] if function == "temporary_folder" else ["labels.csv"])


def test_places_that_cannot_be_written_are_found_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "report.html").mkdir()
    for path, words in [
        (tmp_path / "file" / "run", r"cannot be written \(Not a directory\); choose"),
        (Path("/proc/x/run"), r"/proc/x/run: cannot be written \(.+\); choose"),
        (tmp_path / "loop" / "run", "choose another place"),
        (tmp_path / os.fsdecode(b"caf\xe9") / "run", "codec can't encode.*; choose"),
    ]:
        with pytest.raises(InputError, match=words):
            files.check_writable(path)
    files.check_writable(tmp_path / "new" / "run")
    with pytest.raises(InputError, match=r"report\.html: a folder is in the way"):
        files.new_file(tmp_path / "report.html").__enter__()
    assert names_in(tmp_path) == ["file", "loop", "report.html"]


@pytest.mark.parametrize("error", [OSError(28, "No space"), OSError("9 requested and 4 written")])
def test_a_full_disk_is_named(tmp_path, error):
    words = r"cannot be written, no space left on device; make room .*labels\.csv"
    with pytest.raises(OSError, match=words), files.new_file(tmp_path / "labels.csv"):
        raise error


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "zeros", "."):
        with pytest.raises(InputError, match=", not a file; copy"):
            files.open_regular(tmp_path / name)
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with files.open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"text"


def test_json_holds_names_that_are_no_text_and_numbers_that_are_none(tmp_path):
    values = {"path": os.fsdecode(b"/caf\xe9/\xf0\x9f\x98\x80"), "word": "grün é"}
    files.write_json(tmp_path / "settings.json", values)
    assert json.loads((tmp_path / "settings.json").read_bytes()) == values
    # What is text can be read by people.
    assert "é" in (tmp_path / "settings.json").read_text(encoding="utf-8")
    value = {"loss": {"node": np.float32(0.5), "edge": float("nan")}, 3: (np.int64(1), None, "x")}
    assert files.plain(value) == {"loss": {"node": 0.5, "edge": None}, "3": [1, None, "x"]}
