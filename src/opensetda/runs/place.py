"""The place of a run: whether it is still the run that was opened, and changing it safely.

`osda fit --overwrite` may replace a run at any moment while others read, evaluate or review it. Who
changes a run holds its lock, that of its settings.json, which is never written again: the lock is
the run's own, also where the run has been moved. A run that was reviewed is not removed when it is
replaced, but kept beside its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from opensetda.errors import InputError
from opensetda.system.files import exchange, final_place, in_shell
from opensetda.system.locks import BusyError, lock_folder, locked_file

SETTINGS = "settings.json"
# Manual work: not among the files that a new run may replace.
REVIEW = "review.jsonl"
CORRECTIONS = "corrections.csv"
_KEPT = ".reviewed"

Stamp = tuple[int, int]
"""Device and number of a folder, which stay the same when it is renamed."""


class ReplacedRunError(InputError):
    """Another run has taken the place of the run that was opened."""


def check_is_run(path: Path) -> None:
    """Raise an `InputError` if there is no run folder; nothing heavy is imported for it."""
    if not (path / SETTINGS).exists():
        unfinished = Path(f"{path}.unfinished")
        if not path.exists() and unfinished.exists():
            advice = f"continue it with 'osda resume {in_shell(path)}'"
            raise InputError(f"{path}: interrupted before it was complete; {advice}")
        what = "not a run folder" if path.exists() else "no such run folder"
        raise InputError(f"{path}: {what} (no {SETTINGS}); make one with 'osda fit'")


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of the folder at `path`; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def changing_run(path: Path, stamp: Stamp | None) -> Iterator[Path]:
    """Hold the lock of the run that has this stamp; yield its folder, also if it was moved.

    A run that was replaced and not kept is a `ReplacedRunError`.
    """
    with ExitStack() as stack:
        for place in (path, *kept_runs(path)):
            if stamp_of(place) != stamp:
                continue
            try:
                stack.enter_context(locked_file(place / SETTINGS))
            except FileNotFoundError:
                continue
            # It may have been moved before the lock was free.
            if stamp_of(place) == stamp:
                yield place
                return
        raise ReplacedRunError(f"{path}: another run took its place meanwhile; start again")


def kept_runs(path: Path) -> list[Path]:
    """Return the folders of reviewed runs that were replaced at `path`."""
    place = final_place(path)
    names = sorted(place.parent.glob(f"{_escaped(place.name)}{_KEPT}*"))
    return [path.with_name(found.name) for found in names]


def put_run_in_place(new: Path, path: Path) -> None:
    """Move a new run to `path`; an earlier one that was or is being reviewed is kept beside it."""
    if path.is_symlink() or not (path / SETTINGS).is_file():
        exchange(new, path)
        return
    with locked_file(path / SETTINGS):
        if _is_reviewed(path):
            # In this order: a process that dies in between has deleted nothing.
            path.rename(_free_name(path))
        exchange(new, path)


def _is_reviewed(path: Path) -> bool:
    """Return whether a run holds manual work, or a review of it is open."""
    if any(os.path.lexists(path / name) for name in (REVIEW, CORRECTIONS)):
        return True
    try:
        lock_folder(path).release()
    except BusyError:
        return True
    return False


def _free_name(path: Path) -> Path:
    number = 1
    while True:
        place = path.with_name(f"{path.name}{_KEPT}{'' if number == 1 else f'-{number}'}")
        if not os.path.lexists(place):
            return place
        number += 1


def _escaped(name: str) -> str:
    """Return a name for `glob`, in which it stands for itself."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
