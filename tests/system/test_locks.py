"""Locks between processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opensetda.system import locks

HOLDS = """
import pathlib, sys
from opensetda.system.locks import lock_folder
lock_folder(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def held_by_another(path):
    command = [sys.executable, "-c", HOLDS, str(path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    return other


@pytest.fixture(params=["of the system", "of files"])
def _kind(request, monkeypatch, tmp_path):
    if request.param == "of files":
        monkeypatch.setattr(locks, "fcntl", None)
        monkeypatch.setenv("OSDA_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_kind")
def test_a_lock_is_held_by_one_and_can_be_taken_again_once_released(tmp_path):
    (tmp_path / "run").mkdir()
    lock = locks.lock_folder(tmp_path / "run")
    assert lock.is_certain
    with pytest.raises(locks.BusyError):
        locks.lock_folder(tmp_path / "run")
    lock.release()
    lock.release()
    assert not lock.is_certain
    locks.lock_folder(tmp_path / "run").release()


@pytest.mark.usefixtures("_kind")
def test_what_is_not_there_cannot_be_locked(tmp_path):
    with pytest.raises(FileNotFoundError):
        locks.lock_folder(tmp_path / "nothing")


def test_a_lock_ends_with_its_process(tmp_path):
    other = held_by_another(tmp_path)
    with pytest.raises(locks.BusyError):
        locks.lock_folder(tmp_path)
    other.kill()
    other.communicate()
    locks.lock_folder(tmp_path).release()


def test_links_are_not_locked(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FileNotFoundError):
        locks.lock_folder(tmp_path / "link")


def test_who_waited_for_a_file_that_was_moved_is_told(tmp_path, monkeypatch):
    path = tmp_path / "settings.json"
    path.touch()
    flock = locks.fcntl.flock

    def moves(number, how):
        path.rename(tmp_path / "elsewhere")
        flock(number, how)

    monkeypatch.setattr(locks.fcntl, "flock", moves)
    with pytest.raises(FileNotFoundError, match="moved"), locks.locked_file(path):
        pass


def test_a_file_system_without_locks_is_borne(tmp_path, monkeypatch):
    def cannot(number, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", cannot)
    assert not locks.lock_folder(tmp_path).is_certain
