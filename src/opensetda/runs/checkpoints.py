"""Checkpoints as files: safetensors, written aside, flushed to the disk, moved into place."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from opensetda.context import Record
from opensetda.errors import InputError
from opensetda.system.files import new_file

_VALUES = "values"


class FolderCheckpoints:
    """Records of a training in a folder, one file each.

    Parameters
    ----------
    folder : Path
        Is made when the first record is written.
    every : float
        Seconds after which the latest record is due to be replaced, within a step.
    """

    def __init__(self, folder: Path, every: float = 60.0) -> None:
        self.folder, self.every = folder, every
        self._written = time.monotonic()

    def due(self) -> bool:
        """Whether the last record is old enough to be replaced."""
        return time.monotonic() - self._written >= self.every

    def write(self, name: str, record: Record) -> None:
        """Write a record; a crash at any moment leaves the earlier one or the new one."""
        from safetensors.numpy import save

        self.folder.mkdir(parents=True, exist_ok=True)
        # Not ascontiguousarray: it gives Adam's counters, which are single numbers, a dimension.
        arrays = {key: np.asarray(values, order="C") for key, values in record.arrays.items()}
        data = save(arrays, metadata={_VALUES: json.dumps(record.values)})
        with new_file(self._path(name)) as aside:
            aside.write_bytes(data)
        self._written = time.monotonic()

    def read(self, name: str) -> Record | None:
        """Read a record, or raise an `InputError` that names the file."""
        from safetensors import SafetensorError, safe_open

        path = self._path(name)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="np") as file:
                values = json.loads(file.metadata()[_VALUES])
                return Record(values, {key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
            raise InputError(
                f"{path}: damaged ({error}); start anew with 'osda fit ... --overwrite'"
            ) from error

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"
