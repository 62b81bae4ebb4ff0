"""Pictures of samples: their files, thumbnails in the run folder, and lists of broken ones."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from opensetda.backbones.extraction import Broken
from opensetda.data.images.decoding import (
    IMAGE_SUFFIXES,
    BrokenImageError,
    decode_bytes,
    decode_image,
    is_member,
)
from opensetda.data.names import formula_warning, printable
from opensetda.errors import InputError
from opensetda.runs.folder import IMAGES, THUMBNAILS, RunFolder, parquet_bytes
from opensetda.system.files import new_file

SOURCE = "source"
TARGET = "target"
SIDE = 112
"""Longest side of a thumbnail in pixels."""
_QUALITY = 60
_WORKERS = 4


class Shown(NamedTuple):
    """A sample that has, or may have, a picture."""

    domain: str
    row: int


class Pictures:
    """Pictures of a run's samples.

    `root` is a folder of images: the ids of the samples are then paths that start there. `lost`
    lists image files that `keep` found missing or broken.
    """

    def __init__(self, run: RunFolder, root: Path | None = None) -> None:
        self.run = run
        self.lost = list[str]()
        self._files = {s: os.fsdecode(path) for s, path in _by_sample(run, IMAGES, "path").items()}
        if root is not None:
            self._files |= _files_below(run, root)
        try:
            self._thumbnails = _by_sample(run, THUMBNAILS, "webp")
        except InputError:
            if not self._files:
                raise
            # They are made anew.
            self._thumbnails = {}

    @property
    def any(self) -> bool:
        """Whether there is any picture at all."""
        return bool(self._files) or bool(self._thumbnails)

    def file(self, row: int, domain: str = TARGET) -> Path | None:
        """Return the original image file of a sample, if it has one."""
        path = self._files.get(Shown(domain, row))
        return None if path is None else Path(path)

    def thumbnail(self, row: int, domain: str = TARGET) -> bytes | None:
        """Return a small WebP image of a sample, if it has one that can be read."""
        shown = Shown(domain, row)
        if shown in self._thumbnails or shown not in self._files:
            return self._thumbnails.get(shown)
        return _thumbnail_of(self._files[shown])

    def keep(
        self, wanted: Iterable[Shown], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Make the thumbnails that are missing, and write them into the run folder."""
        missing = [s for s in wanted if s not in self._thumbnails and s in self._files]
        if not missing:
            return
        # Pillow decodes without the global interpreter lock.
        with ThreadPoolExecutor(_WORKERS) as pool:
            made = pool.map(_thumbnail_of, [self._files[shown] for shown in missing])
            for done, (shown, image) in enumerate(zip(missing, made, strict=True), start=1):
                if image is None:
                    self.lost.append(self._files[shown])
                else:
                    self._thumbnails[shown] = image
                if progress is not None:
                    progress(done, len(missing))
        # A run may be read-only.
        with suppress(OSError):
            self.run.replace_files({THUMBNAILS: thumbnail_table(self._thumbnails)})


def write_images(path: Path, source: Mapping[int, str], target: Sequence[str]) -> None:
    """Write where the images of a run are: those of some sources by row, and of all targets."""
    files = {Shown(SOURCE, row): file for row, file in source.items()}
    files |= {Shown(TARGET, row): file for row, file in enumerate(target)}
    # Bytes: a file's name need not be text.
    named = {shown: os.fsencode(file) for shown, file in files.items()}
    path.write_bytes(_sample_table("path", named))


def thumbnail_table(images: Mapping[Shown, bytes]) -> bytes:
    """Return the content of ``thumbnails.parquet``: images by sample."""
    # Compressed images do not get smaller.
    return _sample_table("webp", images, compression="none")


def _sample_table(column: str, values: Mapping[Shown, bytes], **options: Any) -> bytes:
    """Return the content of a Parquet file with one value per sample."""
    columns = {
        "domain": pa.array([s.domain for s in values], pa.string()).dictionary_encode(),
        "row": pa.array([s.row for s in values], pa.int64()),
        column: pa.array(list(values.values()), pa.binary()),
    }
    return parquet_bytes(pa.table(columns), **options)


def _by_sample(run: RunFolder, name: str, column: str) -> dict[Shown, bytes]:
    """Read what `_sample_table` wrote; nothing of a run without that file."""
    if name not in run.manifest.files:
        return {}
    table = run.table(name)
    rows = table.column("row", pa.int64()).to_pylist()
    samples = map(Shown, table.text("domain").tolist(), rows)
    return dict(zip(samples, table.column(column, pa.binary()).to_pylist(), strict=True))


def thumbnail(pixels: npt.NDArray[np.uint8], side: int = SIDE, smooth: bool = True) -> bytes:
    """Return pixels of shape (height, width) or (height, width, 3) as WebP.

    `side` is the longest side; without `smooth` small pictures are enlarged in squares.
    """
    image = Image.fromarray(pixels)
    factor = side / max(image.size)
    width, height = (max(1, round(length * factor)) for length in image.size)
    in_squares = factor > 1 and not smooth
    kind = Image.Resampling.NEAREST if in_squares else Image.Resampling.LANCZOS
    buffer = io.BytesIO()
    resized = image.resize((width, height), kind).convert("RGB")
    resized.save(buffer, "WEBP", quality=_QUALITY, method=2)
    return buffer.getvalue()


def smaller(webp: bytes, side: int) -> bytes | None:
    """Return a thumbnail at a smaller size; None if it is no picture."""
    try:
        pixels = decode_bytes(webp)
    except BrokenImageError:
        return None
    return webp if max(pixels.shape) <= side else thumbnail(pixels, side)


def _thumbnail_of(path: str) -> bytes | None:
    try:
        return thumbnail(decode_image(path, at_least=2 * SIDE))
    except BrokenImageError:
        # It could be read when the run was made; the report shows a card without a picture.
        return None


def _files_below(run: RunFolder, root: Path) -> dict[Shown, str]:
    """Find the images that the ids name, inside `root` only; it is an error to find none."""
    if not root.is_dir():
        raise InputError(f"--images {root}: no such folder; give the folder of the images")
    names = {Shown(TARGET, row): name for row, name in enumerate(run.predictions().ids.tolist())}
    view = run.view()
    sources = zip(view.source.tolist(), view.source_names, strict=False)
    names |= {Shown(SOURCE, row): name for row, name in sources}
    found = {}
    inside = root.resolve()
    for shown, name in names.items():
        if "\0" not in name and Path(name).suffix.lower() in IMAGE_SUFFIXES:
            path = (root / name).resolve()
            if path.is_relative_to(inside) and (path.is_file() or is_member(str(path))):
                found[shown] = str(path)
    if not found:
        problem = f"none of the ids is an image in it (the first is {next(iter(names.values()))!r})"
        raise InputError(f"--images {root}: {problem}; give the folder that the ids start from")
    return found


def many_images(n: int) -> str:
    """Return "1 image" or "2 images"."""
    return "1 image" if n == 1 else f"{n:,} images"


def write_broken(path: Path, broken: Sequence[Broken]) -> None:
    """Write a CSV file that lists images and why they cannot be used."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "reason"])
        writer.writerows([printable(image.path), image.reason] for image in broken)


def broken_warning(path: Path, broken: Sequence[Broken]) -> list[str]:
    """Return a warning if a list of broken images has cells that start a formula."""
    return formula_warning(path, (printable(image.path) for image in broken))


def broken_list(out: Path) -> Path:
    """Return the CSV file beside `out` that lists images that cannot be read."""
    return out.with_name(f"{out.name}.broken.csv")


def write_broken_list(
    out: Path, broken: Sequence[Broken], warn: Callable[[str], None]
) -> Path | None:
    """List images that cannot be read in a CSV file beside `out`; None if there are none."""
    listed = broken_list(out)
    listed.unlink(missing_ok=True)
    if not broken:
        return None
    with new_file(listed) as aside:
        write_broken(aside, broken)
    for warning in broken_warning(listed, broken):
        warn(warning)
    return listed
