"""A run that is not complete yet: a folder beside its place, of the same name + .unfinished.

It holds the request, a record of the data, and the checkpoint. A process that dies at any
moment leaves it behind, and `osda resume` goes on with it. A complete run removes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy

from opensetda.context import Record
from opensetda.errors import InputError
from opensetda.runs.integrity import (
    check_value,
    damaged,
    read_json,
    read_sealed,
    reading,
    write_sealed,
)
from opensetda.runs.options import FitRequest
from opensetda.runs.place import SETTINGS
from opensetda.system.files import (
    check_writable,
    final_place,
    in_shell,
    near,
    new_file,
    new_folder,
    open_regular,
    plain,
    private_folder,
)
from opensetda.system.locks import BusyError, FolderLock, lock_folder

SUFFIX = ".unfinished"
_START_ANEW = "start anew with 'osda fit ... --overwrite'"
_VERSION = 5
_REQUEST = "request.json"
_INPUTS = "inputs.json"
_CHECKPOINT = "checkpoint"
_SCRATCH = "scratch"
_VALUES = "json"


class UnfinishedRun:
    """The folder of a run under way: `begin` makes one, `find` opens one that was left behind.

    `out` is the place of the complete run; `scratch` is for data that does not fit into memory.
    """

    def __init__(
        self, out: Path, request: FitRequest, lock: FolderLock, was_left_behind: bool
    ) -> None:
        self.out = out
        self.request = request
        self.was_left_behind = was_left_behind
        self.path = unfinished_path(out)
        self.scratch = self.path / _SCRATCH
        self.checkpoints = CheckpointFile(self.path / _CHECKPOINT)
        self._lock = lock

    @classmethod
    def begin(cls, out: Path, request: FitRequest, overwrite: bool) -> Self:
        """Make the folder; one that was left behind is replaced only with `overwrite`."""
        path = unfinished_path(out)
        check_writable(path)
        if os.path.lexists(path):
            if not overwrite:
                raise InputError(
                    f"{path}: a run that was interrupted, or is in progress; go on with "
                    f"'osda resume {in_shell(out)}', or add --overwrite to start anew"
                )
            _remove_locked(path, _locked(path))
        with new_folder(path, put_in_place=_put_without_replacing) as aside:
            content = {"version": _VERSION, "request": asdict(request)}
            write_sealed(aside / _REQUEST, content)
            lock = lock_folder(aside)
        return cls(out, request, lock, was_left_behind=False)

    @classmethod
    def find(cls, out: Path) -> Self | None:
        """Open what a run left behind; None if there is nothing."""
        path = unfinished_path(out)
        if not path.exists():
            return None
        lock = _locked(path)
        try:
            request = cls.request_of(out)
        except BaseException:
            lock.release()
            raise
        if request is None:
            lock.release()
            return None
        return cls(out, request, lock, was_left_behind=True)

    @staticmethod
    def request_of(out: Path) -> FitRequest | None:
        """Return the request of a run that was left behind; None if there is none."""
        place = unfinished_path(out) / _REQUEST
        if not place.exists():
            return None
        written = read_sealed(place)
        if written.get("version") != _VERSION:
            raise InputError(f"{place}: of another release; {_START_ANEW}")
        return check_value(written["request"], FitRequest, place)

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Record the data, or raise an `InputError` if it differs from the record."""
        place = self.path / _INPUTS
        now = plain(dict(inputs))
        if not place.exists():
            write_sealed(place, now)
            return
        before = read_sealed(place)
        for name, entry in now.items():
            if before.get(name) != entry:
                where = near(entry["path"]) if "path" in entry else self.path
                changed = f"the {name} changed since the run began, so it cannot go on"
                raise InputError(f"{where}: {changed}; {_START_ANEW}")

    def clear_scratch(self) -> None:
        """Make the scratch folder, empty."""
        if self.scratch.is_symlink():
            self.scratch.unlink()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    @property
    def is_worth_keeping(self) -> bool:
        """Whether it was there before, or holds a checkpoint."""
        return self.was_left_behind or self.checkpoints.path.exists()

    @property
    def is_complete(self) -> bool:
        """Whether the complete run is in its place already."""
        try:
            settings = read_json(self.out / SETTINGS)
        except InputError:
            return False
        return isinstance(settings, dict) and settings.get("identity") == self.request.identity

    def remove(self) -> None:
        """Remove the folder."""
        _remove_locked(self.path, self._lock)

    def release(self) -> None:
        """Release the lock, so that `resume` can go on."""
        self._lock.release()


def unfinished_path(out: Path) -> Path:
    """Return the folder of an unfinished run that will be complete at `out`."""
    place = final_place(out)
    return place.with_name(f"{place.name}{SUFFIX}")


def _locked(path: Path) -> FolderLock:
    """Lock the folder of an unfinished run, or raise an `InputError`."""
    if path.is_symlink():
        raise InputError(f"{path}: a link, not the folder of an unfinished run; remove the link")
    try:
        return lock_folder(path)
    except BusyError:
        busy = "another process is at work on it; wait until it is done"
        raise InputError(f"{path}: {busy}") from None
    except FileNotFoundError:
        done = "another process has just completed or removed it; try again"
        raise InputError(f"{path}: {done}") from None


def _remove_locked(path: Path, lock: FolderLock) -> None:
    """Remove a folder whose lock is held, and release the lock."""
    try:
        # Moved away first: a process that dies while deleting leaves nothing to be resumed.
        with suppress(FileNotFoundError), private_folder(path) as private:
            path.rename(private / path.name)
    finally:
        lock.release()


def _put_without_replacing(new: Path, path: Path) -> None:
    """Move a new folder to its place, unless another process was faster."""
    try:
        new.rename(path)
    except OSError:
        if not os.path.lexists(path):
            raise
        raise InputError(f"{path}: another process has just begun this run; wait for it") from None


class CheckpointFile:
    """The checkpoint of a training in a file: its arrays, and its values as text among them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, record: Record) -> None:
        """Replace the record; a crash at any moment leaves the earlier one or the new one."""
        arrays = {name: np.asarray(values, order="C") for name, values in record.arrays.items()}
        text = np.frombuffer(json.dumps(record.values).encode(), dtype=np.uint8)
        content = safetensors.numpy.save({**arrays, _VALUES: text})
        with new_file(self.path) as aside:
            aside.write_bytes(hashlib.sha256(content).digest() + content)

    def read(self) -> Record | None:
        """Read the record, or raise an `InputError` that names the file; None without one."""
        if not self.path.exists():
            return None
        with reading(self.path, _START_ANEW), open_regular(self.path) as stream:
            seal = stream.read(hashlib.sha256().digest_size)
            content = stream.read()
        if seal != hashlib.sha256(content).digest():
            raise damaged(self.path, "its checksum differs", _START_ANEW)
        arrays = safetensors.numpy.load(content)
        return Record(json.loads(arrays.pop(_VALUES).tobytes()), arrays)
