"""Files that a use case makes: checked before the work, written by one or several processes."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from opensetda.backbones.extraction import Broken
from opensetda.data.images.lists import printable
from opensetda.errors import InputError, OtherProcessError
from opensetda.system.files import check_writable, make_parents, new_file, temporary_folder
from opensetda.system.team import Team


def check_new_file(option: str, path: Path, suffixes: Sequence[str], overwrite: bool) -> None:
    """Raise an `InputError` that names the `option` unless a file can be made at `path`.

    Its name must end in one of `suffixes` (lower case); an existing file needs `overwrite`.
    """
    if path.suffix.lower() not in suffixes:
        *others, last = suffixes
        endings = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"{option} {path}: the name must end in {endings}")
    if path.is_dir():
        raise InputError(f"{option} {path}: a folder is in the way; choose another name")
    if path.exists() and not overwrite:
        raise InputError(f"{option} {path}: exists already; choose another name or add --overwrite")
    if not path.resolve().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    check_writable(path)


def many_images(n: int) -> str:
    """Return "1 image" or "2 images"."""
    return "1 image" if n == 1 else f"{n:,} images"


def write_broken(path: Path, broken: Sequence[Broken]) -> None:
    """Write a CSV file that lists images and why they cannot be used."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "reason"])
        writer.writerows([printable(image.path), image.reason] for image in broken)


def write_broken_list(out: Path, broken: Sequence[Broken]) -> Path | None:
    """List images that cannot be read in a CSV file beside `out`; None if there are none."""
    listed = out.with_name(f"{out.name}.broken.csv")
    listed.unlink(missing_ok=True)
    if not broken:
        return None
    with new_file(listed) as aside:
        write_broken(aside, broken)
    return listed


@contextmanager
def shared_folder(beside: Path, team: Team) -> Iterator[Path]:
    """Yield a new folder beside `beside` that all processes of a team see; removed at the end.

    No other process uses it any more when the first one leaves.
    """
    whole = beside.resolve()
    made = make_parents(whole) if team.is_first else []
    held = ExitStack()
    try:
        # Locked by the first process, as long as any uses it.
        yield Path(team.first_does(lambda: str(held.enter_context(temporary_folder(whole)))))
    except BaseException as error:
        # Before the folder is removed: processes that miss it fail as a consequence of this.
        if not isinstance(error, OtherProcessError):
            team.may_speak()
        raise
    finally:
        held.close()
        if team.is_first:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
