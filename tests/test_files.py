"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opensetda import InputError
from opensetda.system import files
from runs_helpers import names_in


def test_a_new_file_replaces_the_old_one_only_when_complete(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("old")

    def interrupted():
        with files.new_file(path) as aside:
            assert aside.suffix == ".csv"
            aside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    with files.new_file(path) as aside:
        aside.write_text("new")
    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["labels.csv"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_a_new_folder_leaves_nothing_behind(tmp_path, error):
    def interrupted():
        with files.new_folder(tmp_path / "deep" / "er" / "run") as aside:
            (aside / "half").write_text("")
            raise error

    with pytest.raises(error):
        interrupted()
    assert names_in(tmp_path) == []


def test_an_old_folder_stays_until_the_new_one_is_complete(tmp_path):
    run = tmp_path / "run"
    for content in ("old", "new"):
        with files.new_folder(run) as aside:
            (aside / "content").write_text(content)
            if content == "new":
                assert (run / "content").read_text() == "old"
    assert (run / "content").read_text() == "new"
    assert names_in(tmp_path) == ["run"]


def test_an_old_folder_comes_back_if_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "content").write_text("old")
    rename = type(run).rename

    def fail_once(self, target):
        if target == run and "partial" in self.name and (self / "new").exists():
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(type(run), "rename", fail_once)

    def blocked():
        with files.new_folder(run) as aside:
            (aside / "new").write_text("")

    with pytest.raises(OSError, match="no space left"):
        blocked()
    assert names_in(tmp_path) == ["run"]
    assert (run / "content").read_text() == "old"


def test_a_place_that_cannot_be_written_is_found_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        files.check_writable(tmp_path / "file" / "run")
    if Path("/proc/self").exists():
        with pytest.raises(InputError, match=r"/proc/x/run: cannot write in /proc \(.+\); choose"):
            files.check_writable(Path("/proc/x/run"))
    files.check_writable(tmp_path / "new" / "run")
    assert names_in(tmp_path) == ["file"]


def test_what_json_cannot_hold_is_made_plain():
    value = {"loss": {"node": np.float32(0.5), "edge": float("nan")}, 3: (np.int64(1), None, "x")}
    assert files.plain(value) == {"loss": {"node": 0.5, "edge": None}, "3": [1, None, "x"]}


def test_a_folder_in_the_way_of_a_file_is_named(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(InputError, match=r"report\.html: a folder is in the way"):
        files.new_file(tmp_path / "report.html").__enter__()
    assert names_in(tmp_path) == ["report.html"]


def test_names_that_are_no_text_come_back_from_json(tmp_path):
    values = {"path": os.fsdecode(b"/caf\xe9/\xf0\x9f\x98\x80"), "word": "grün é"}
    files.write_json(tmp_path / "settings.json", values)
    assert files.read_json(tmp_path / "settings.json") == values
    # What is text can be read by people.
    assert "é" in (tmp_path / "settings.json").read_text(encoding="utf-8")


def test_a_place_whose_name_is_no_text_is_found_before_training(tmp_path):
    with pytest.raises(InputError, match="no UTF-8; choose another"):
        files.check_writable(tmp_path / os.fsdecode(b"caf\xe9") / "run")


@pytest.mark.parametrize(
    ("path", "typed"),
    [("run", "run"), ("my run", "'my run'"), ("-run", "./-run"), ("a;b", "'a;b'")],
)
def test_paths_in_commands_can_be_typed(path, typed):
    assert files.in_shell(path) == typed


DIES = """
import os, pathlib, sys
from opensetda.system import files
with files.{function}(pathlib.Path({path!r})) as aside:
    print(aside, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("function", ["new_file", "new_folder"])
def test_the_next_writer_removes_what_a_dead_one_left(tmp_path, function):
    path = tmp_path / "labels.csv"
    died = subprocess.run(
        [sys.executable, "-c", DIES.format(function=function, path=str(path))],
        capture_output=True,
        text=True,
        check=False,
    )
    left = Path(died.stdout.strip())
    assert died.returncode == -9
    assert left.exists()
    (tmp_path / ".other.0123abcd.partial.csv").touch()
    with files.new_file(path) as first, files.new_file(path) as second:
        assert not left.exists()
        assert first.exists()
        second.write_text("whole")
    assert names_in(tmp_path) == [".other.0123abcd.partial.csv", "labels.csv"]


def test_a_folder_that_was_moved_away_comes_back(tmp_path):
    replaced = tmp_path / ".run.0123abcd.replaced"
    replaced.mkdir()
    (replaced / "content").write_text("old")
    files.remove_abandoned(tmp_path / "run")
    assert (tmp_path / "run" / "content").read_text() == "old"
    replaced.mkdir()
    files.remove_abandoned(tmp_path / "run")
    assert names_in(tmp_path) == ["run"]


def test_a_temporary_folder_goes_at_the_end_and_those_of_the_dead_go_too(tmp_path, monkeypatch):
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / ".opensetda.0123abcd.partial").mkdir()
    with files.temporary_folder() as folder:
        assert names_in(tmp_path) == [folder.name]
    assert names_in(tmp_path) == []


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a pipe"), ("zeros", "a device"), (".", "a folder")):
        with pytest.raises(InputError, match=f"{kind}, not a file"):
            files.open_regular(tmp_path / name)
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with files.open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"text"
    with pytest.raises(OSError, match="symbolic links"):
        files.open_regular(tmp_path / "link", follow_links=False)


@pytest.mark.parametrize("error", [OSError(28, "No space"), OSError("9 requested and 4 written")])
def test_a_full_disk_is_named(tmp_path, error):
    def full():
        with files.new_file(tmp_path / "labels.csv"):
            raise error

    with pytest.raises(OSError, match=r"cannot be written, no space left .* MB left\); make room"):
        full()


def test_the_root_is_no_place_to_write():
    with pytest.raises(InputError, match="the root of the disk"):
        files.check_writable(files.Path("/"))
