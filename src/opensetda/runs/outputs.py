"""Files that a use case makes: checked before the work, and lists of broken images."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from opensetda.backbones.extraction import Broken
from opensetda.data.images.lists import printable
from opensetda.errors import InputError
from opensetda.system.files import check_writable, new_file


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


def check_new_place(
    option: str, path: Path, suffix: str, names: Sequence[str], overwrite: bool
) -> bool:
    """Check that a file with this suffix, or a folder of files of these names, can be made.

    Returns whether it is the file. Raises an `InputError` that names the `option`.
    """
    if path.suffix.lower() == suffix:
        check_new_file(option, path, (suffix,), overwrite)
        return True
    if path.suffix:
        raise InputError(f"{option} {path}: a file must end in {suffix}, a folder has no ending")
    if path.exists():
        if not path.is_dir():
            raise InputError(f"{option} {path}: a file is in the way; choose another name")
        if not overwrite:
            raise InputError(f"{option} {path}: exists already; choose another or add --overwrite")
        if strangers := sorted({entry.name for entry in path.iterdir()} - {*names}):
            raise InputError(
                f"{option} {path}: holds {strangers[0]!r}, which is no file of an export, so it is "
                "not overwritten; choose another name"
            )
    check_writable(path)
    return False


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
