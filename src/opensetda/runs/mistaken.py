"""Source, target and run folder that are mixed up: found before anything is read."""

from __future__ import annotations

from pathlib import Path

from opensetda.data.images.tar_shards import is_shard
from opensetda.data.reading import no_such
from opensetda.data.tables.formats import SUFFIXES
from opensetda.errors import InputError
from opensetda.runs import folder as files


def check_places(source: Path, target: Path, out: Path) -> None:
    """Raise an `InputError` if a run is given as data, or twice the same, or `out` lies in it."""
    for path in (source, target):
        if (path / files.SETTINGS).is_file() and (path / files.PREDICTIONS).is_file():
            advice = "give images or a feature table ('osda predict' uses a run)"
            raise InputError(f"{path}: a run folder of 'osda fit'; {advice}")
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            advice = "later fits would read its pictures; choose another --out"
            raise InputError(f"{out}: lies in {path}; {advice}")
    if source.exists() and target.exists() and source.samefile(target):
        raise InputError(f"{target}: source and target are the same; give what is to be labelled")


def two_kinds(images: Path, other: Path) -> InputError:
    """Return the error for two domains of which one is images and the other not."""
    for path in (images, other):
        if not path.exists() and not is_shard(path.name):
            return no_such(path, lambda name: True)
    is_table = other.is_dir() or other.suffix.lower() in SUFFIXES
    kind = "a feature table" if is_table else f"neither that nor a table ({', '.join(SUFFIXES)})"
    return InputError(
        f"{images} holds images, but {other} is {kind}; both must be of one kind "
        "('osda features' makes tables of images)"
    )
