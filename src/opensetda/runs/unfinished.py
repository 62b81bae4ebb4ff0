"""A run that is not complete yet: a folder beside its place, of the same name + .unfinished.

It holds the request, a record of the data, and the checkpoint. A process that dies at any
moment leaves it behind, and `osda resume` goes on with it. A complete run removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import safetensors.numpy

from opensetda.context import Record
from opensetda.errors import InputError
from opensetda.runs.checked import check_value, damaged, reading, sealed, unsealed
from opensetda.runs.folder import SETTINGS
from opensetda.runs.options import FitRequest
from opensetda.system.files import (
    aside_of,
    check_writable,
    in_shell,
    is_partial,
    make_parents,
    near,
    new_file,
    open_regular,
    plain,
    read_json,
    remove_abandoned,
    remove_empty,
    sweep,
    write_json,
)

SUFFIX = ".unfinished"
START_ANEW = "start anew with 'osda fit ... --overwrite'"

_FORMAT, _VERSION = "opensetda-unfinished-run", 3
_REQUEST = "request.json"
_INPUTS = "inputs.json"
_LOCK = "lock"
_CHECKPOINT = "checkpoint"
_SCRATCH = "scratch"
_VALUES = "json"
_OURS = (_REQUEST, _INPUTS, _LOCK, _CHECKPOINT, _SCRATCH)


class UnfinishedRun:
    """The folder of a run under way: `begin` makes one, `find` opens one that was left behind.

    `out` is the place of the complete run.
    """

    def __init__(self, out: Path, request: FitRequest) -> None:
        self.out, self.request = out, request
        self.path = unfinished_path(out)
        self.was_left_behind = False
        self._lock: IO[bytes] | None = None
        self._made: list[Path] = []
        self._replaced: Path | None = None

    @classmethod
    def begin(cls, out: Path, request: FitRequest, overwrite: bool) -> Self:
        """Make the folder; one that was left behind is replaced only with `overwrite`."""
        check_unfinished(out, overwrite)
        run = cls(out, request)
        if run.path.exists():
            # Locked first: it may be in use. Put back if this run fails before a checkpoint.
            with contextlib.closing(_lock(run.path)):
                remove_abandoned(run.path)
                run._replaced = run.path.rename(aside_of(run.path, "replaced"))
        run._made = make_parents(run.path)
        try:
            run.path.mkdir()
        except FileExistsError:
            raise _at_work(run.path) from None
        try:
            run._lock = _lock(run.path)
            content = {"format": _FORMAT, "version": _VERSION, "request": asdict(request)}
            with new_file(run.path / _REQUEST) as aside:
                write_json(aside, sealed(content))
        except BaseException:
            run.undo()
            raise
        return run

    @classmethod
    def find(cls, out: Path) -> Self | None:
        """Open what a run left behind; None if there is nothing."""
        path = _restored(out)
        place = path / _REQUEST
        if not place.exists():
            if (path / _CHECKPOINT).exists():
                raise InputError(f"{place}: missing; {START_ANEW}")
            return None
        written = unsealed(read_json(place), place, START_ANEW)
        if written.get("format") != _FORMAT:
            raise InputError(f"{place}: not the request of a run; remove {path}")
        if written.get("version") != _VERSION:
            version = f"version {written.get('version')!r} is not {_VERSION}"
            raise InputError(f"{place}: {version}; {START_ANEW}")
        run = cls(out, check_value(written.get("request"), FitRequest, place, START_ANEW))
        run._lock = _lock(path)
        remove_abandoned(path)
        sweep(path)
        run.was_left_behind = True
        return run

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Record the data, or raise an `InputError` if it differs from the record."""
        place, now = self.path / _INPUTS, plain(dict(inputs))
        if not place.exists():
            with new_file(place) as aside:
                write_json(aside, sealed(now))
            return
        before = unsealed(read_json(place), place, START_ANEW)
        for name, entry in now.items():
            if before.get(name) != entry:
                what = f"{self.path}: the {name} of 'osda fit'"
                if "path" in entry:
                    what = f"{near(entry['path'])}: the {name}"
                changed = f"{'have' if name.endswith('s') else 'has'} changed since the run began"
                raise InputError(f"{what} {changed}, so it cannot go on; {START_ANEW}")

    def checkpoints(self) -> CheckpointFile:
        """Return the checkpoint of the training, to write and to read."""
        return CheckpointFile(self.path / _CHECKPOINT)

    def scratch(self) -> Path:
        """Return the folder for data that does not fit into memory."""
        return self.path / _SCRATCH

    def clear_scratch(self) -> None:
        """Make the scratch folder, empty."""
        shutil.rmtree(self.scratch(), ignore_errors=True)
        self.scratch().mkdir()

    @property
    def is_worth_keeping(self) -> bool:
        """Whether it was there before, or holds a checkpoint."""
        return self.was_left_behind or (self.path / _CHECKPOINT).exists()

    @property
    def is_complete(self) -> bool:
        """Whether the complete run is in its place already."""
        try:
            settings = read_json(self.out / SETTINGS)
        except InputError:
            return False
        return isinstance(settings, dict) and settings.get("identity") == self.request.identity

    def remove(self) -> None:
        """Remove the folder, and one that it replaced."""
        doomed = aside_of(self.path)
        # Renamed first: a process that dies while deleting leaves the name free.
        with contextlib.suppress(OSError):
            self.path.rename(doomed)
        self.release()
        for folder in (doomed, self.path):
            shutil.rmtree(folder, ignore_errors=True)

    def undo(self) -> None:
        """Leave things as they were before `begin`."""
        replaced, self._replaced = self._replaced, None
        self.remove()
        if replaced is not None:
            replaced.rename(self.path)
        remove_empty(self._made)

    def release(self) -> None:
        """Release the lock, so that `resume` can go on; delete what it replaced."""
        if self._replaced is not None:
            shutil.rmtree(self._replaced, ignore_errors=True)
            self._replaced = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def unfinished_path(out: Path) -> Path:
    """Return the folder of an unfinished run that will be complete at `out`."""
    return Path(f"{os.path.realpath(out)}{SUFFIX}")


def _restored(out: Path) -> Path:
    """Return the same; a process that died while it replaced one has left it under another name."""
    path = unfinished_path(out)
    if not path.exists():
        remove_abandoned(path)
    return path


def check_unfinished(out: Path, overwrite: bool) -> None:
    """Raise an `InputError` if an unfinished run is in the way."""
    check_writable(unfinished_path(out))
    path = _restored(out)
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path}: a file is in the way; move it away")
    if not (path / _REQUEST).exists():
        names = [entry.name for entry in path.iterdir()]
        if any(name not in _OURS and not is_partial(name) for name in names):
            raise InputError(f"{path}: in the way, and not of a run; move it away")
        # A process that died before it wrote the request left nothing to resume.
        return
    if not overwrite:
        raise InputError(
            f"{path}: a run that was interrupted, or is in progress; go on with "
            f"'osda resume {in_shell(out)}', or add --overwrite to start anew"
        )


def _lock(path: Path) -> IO[bytes]:
    """Lock the folder for this process; the system releases it when the process dies."""
    try:
        stream = (path / _LOCK).open("wb")
    except FileNotFoundError:
        # Another process has just finished it.
        raise _at_work(path) from None
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise _at_work(path) from error
    except (ImportError, OSError):
        # Windows, and file systems without locks: two processes at once are not detected.
        pass
    return stream


def _at_work(path: Path) -> InputError:
    return InputError(f"{path}: another process is at work on it; wait until it is done")


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
        with reading(self.path, START_ANEW):
            with open_regular(self.path) as stream:
                seal, content = stream.read(hashlib.sha256().digest_size), stream.read()
            if seal != hashlib.sha256(content).digest():
                raise damaged(self.path, "its checksum differs", START_ANEW)
            arrays = safetensors.numpy.load(content)
            return Record(json.loads(arrays.pop(_VALUES).tobytes()), arrays)
