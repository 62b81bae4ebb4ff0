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
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy

from opensetda.context import Record
from opensetda.errors import InputError
from opensetda.runs.checked import (
    SETTINGS,
    check_value,
    damaged,
    read_json,
    read_sealed,
    reading,
    write_sealed,
)
from opensetda.runs.options import FitRequest
from opensetda.system.files import (
    check_writable,
    in_shell,
    lock_folder,
    near,
    new_file,
    open_regular,
    plain,
)

SUFFIX = ".unfinished"
_START_ANEW = "start anew with 'osda fit ... --overwrite'"
_VERSION = 4
_REQUEST, _INPUTS = "request.json", "inputs.json"
_CHECKPOINT, _SCRATCH = "checkpoint", "scratch"
_VALUES = "json"


class UnfinishedRun:
    """The folder of a run under way: `begin` makes one, `find` opens one that was left behind.

    `out` is the place of the complete run; `scratch` is for data that does not fit into memory.
    """

    def __init__(self, out: Path, request: FitRequest, was_left_behind: bool) -> None:
        self.out, self.request, self.was_left_behind = out, request, was_left_behind
        self.path = unfinished_path(out)
        self.scratch = self.path / _SCRATCH
        self.checkpoints = CheckpointFile(self.path / _CHECKPOINT)
        busy = "another process is at work on it; wait until it is done"
        self._lock = lock_folder(self.path, busy)

    @classmethod
    def begin(cls, out: Path, request: FitRequest, overwrite: bool) -> Self:
        """Make the folder; one that was left behind is replaced only with `overwrite`."""
        path = unfinished_path(out)
        check_writable(path)
        if path.exists():
            if not overwrite:
                raise InputError(
                    f"{path}: a run that was interrupted, or is in progress; go on with "
                    f"'osda resume {in_shell(out)}', or add --overwrite to start anew"
                )
            # It may be in use, which its lock says.
            cls(out, request, was_left_behind=True).remove()
        path.mkdir(parents=True)
        run = cls(out, request, was_left_behind=False)
        try:
            write_sealed(path / _REQUEST, {"version": _VERSION, "request": asdict(request)})
        except BaseException:
            run.remove()
            raise
        return run

    @classmethod
    def find(cls, out: Path) -> Self | None:
        """Open what a run left behind; None if there is nothing."""
        request = cls.request_of(out)
        return None if request is None else cls(out, request, was_left_behind=True)

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
        place, now = self.path / _INPUTS, plain(dict(inputs))
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
        # First: a process that dies while deleting leaves nothing that could be resumed.
        (self.path / _REQUEST).unlink(missing_ok=True)
        self.release()
        shutil.rmtree(self.path, ignore_errors=True)

    def release(self) -> None:
        """Release the lock, so that `resume` can go on."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def unfinished_path(out: Path) -> Path:
    """Return the folder of an unfinished run that will be complete at `out`."""
    return Path(f"{os.path.realpath(out)}{SUFFIX}")


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
            seal, content = stream.read(hashlib.sha256().digest_size), stream.read()
        if seal != hashlib.sha256(content).digest():
            raise damaged(self.path, "its checksum differs", _START_ANEW)
        arrays = safetensors.numpy.load(content)
        return Record(json.loads(arrays.pop(_VALUES).tobytes()), arrays)
