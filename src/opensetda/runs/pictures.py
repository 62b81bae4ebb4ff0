"""Pictures of the samples of a run: the original files, and thumbnails in the run folder."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError
from opensetda.runs.folder import IMAGES, THUMBNAILS, RunFolder, parquet_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCE, TARGET = "source", "target"
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

    Parameters
    ----------
    root : Path, optional
        Folder of the images: of a feature table, whose ids are paths that start here, or of a
        run by somebody else.

    Attributes
    ----------
    lost : list of str
        Image files that `keep` found missing or broken.
    withheld : int
        Images of a run by somebody else that are not below `root`: a stranger's list could name
        any image of this machine, and a report with it may be passed on.
    """

    def __init__(self, run: RunFolder, root: Path | None = None) -> None:
        self.run, self.root = run, root
        listed = self._files = _image_files(run)
        if root is not None and not root.is_dir():
            raise InputError(f"--images {root}: no such folder; give the folder of the images")
        is_own = run.manifest.is_own(IMAGES)
        if not is_own:
            base = None if root is None else root.resolve()
            self._files = {shown: path for shown, path in listed.items() if _is_below(path, base)}
        self.withheld = len(listed) - len(self._files)
        if root is not None:
            self._files |= _files_below(run, root, is_needed=is_own or not self._files)
        self._thumbnails = self._kept()
        self.lost: list[str] = []

    def _kept(self) -> dict[Shown, bytes]:
        if not self.run.manifest.has(THUMBNAILS):
            return {}
        try:
            return dict(_by_sample(self.run, THUMBNAILS, "webp"))
        except InputError:
            if self._files:
                # They are made anew.
                return {}
            raise

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
        kept = self._thumbnails.get(shown)
        if kept is not None or shown not in self._files:
            return kept
        return _thumbnail_of(self._files[shown])

    def keep(
        self, wanted: Iterable[Shown], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Make the thumbnails that are missing, and write them into the run folder."""
        missing = [
            shown for shown in wanted if shown not in self._thumbnails and shown in self._files
        ]
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
        self.run.manifest.replace({THUMBNAILS: thumbnail_table(self._thumbnails)})


def write_images(path: Path, source: Mapping[int, str], target: Sequence[str]) -> None:
    """Write where the images of a run are: those of some sources by row, and of all targets."""
    import pyarrow as pa
    import pyarrow.parquet

    domains = [SOURCE] * len(source) + [TARGET] * len(target)
    table = pa.table(
        {
            "domain": pa.array(domains, pa.string()).dictionary_encode(),
            "row": pa.array([*source, *range(len(target))], pa.int64()),
            # Bytes: a file's name need not be text.
            "path": pa.array(map(os.fsencode, [*source.values(), *target]), pa.binary()),
        }
    )
    pyarrow.parquet.write_table(table, path)


def thumbnail_table(images: Mapping[Shown, bytes]) -> bytes:
    """Return the content of ``thumbnails.parquet``: images by sample."""
    import pyarrow as pa

    table = pa.table(
        {
            "domain": pa.array([s.domain for s in images], pa.string()).dictionary_encode(),
            "row": pa.array([s.row for s in images], pa.int64()),
            "webp": pa.array(list(images.values()), pa.binary()),
        }
    )
    # Compressed images do not get smaller.
    return parquet_bytes(table, compression="none")


def thumbnail(pixels: npt.NDArray[np.uint8], side: int = SIDE, smooth: bool = True) -> bytes:
    """Return pixels of shape (height, width) or (height, width, 3) as WebP.

    `side` is the longest side; without `smooth` small pictures are enlarged in squares.
    """
    from PIL import Image

    return _encoded(_fitted(Image.fromarray(pixels), side, smooth))


def smaller(webp: bytes, side: int) -> bytes | None:
    """Return a thumbnail at a smaller size; None if it is no picture."""
    from opensetda.data.images.decoding import BrokenImageError, decode_bytes

    try:
        pixels = decode_bytes(webp)
    except BrokenImageError:
        return None
    return webp if max(pixels.shape) <= side else thumbnail(pixels, side)


def _fitted(image: Image, side: int, smooth: bool) -> Image:
    from PIL.Image import Resampling

    factor = side / max(image.size)
    size = tuple(max(1, round(length * factor)) for length in image.size)
    kind = Resampling.NEAREST if factor > 1 and not smooth else Resampling.LANCZOS
    return image.resize((size[0], size[1]), kind)


def _encoded(image: Image) -> bytes:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "WEBP", quality=_QUALITY, method=2)
    return buffer.getvalue()


def _thumbnail_of(path: str) -> bytes | None:
    from opensetda.data.images.decoding import BrokenImageError, decode_image

    try:
        return thumbnail(decode_image(path, at_least=2 * SIDE))
    except BrokenImageError:
        # It could be read when the run was made; the report shows a card without a picture.
        return None


def _image_files(run: RunFolder) -> dict[Shown, str]:
    """Return the files of the samples; none of a run that has no images."""
    if not run.manifest.has(IMAGES):
        return {}
    return {shown: os.fsdecode(path) for shown, path in _by_sample(run, IMAGES, "path")}


def _by_sample(run: RunFolder, name: str, column: str) -> Iterator[tuple[Shown, bytes]]:
    table = run.table(name)
    domains, rows = table.text("domain").tolist(), table.counts("row")
    yield from zip(map(Shown, domains, rows), table.content(column), strict=True)


def _is_below(path: str, base: Path | None) -> bool:
    return base is not None and "\0" not in path and Path(path).resolve().is_relative_to(base)


def _files_below(run: RunFolder, root: Path, is_needed: bool) -> dict[Shown, str]:
    """Find the images that the ids name, inside `root` only; it is an error to find none."""
    from opensetda.data.images.decoding import IMAGE_SUFFIXES, is_member

    found, base = {}, root.resolve()
    names = {Shown(TARGET, row): name for row, name in enumerate(run.predictions().ids.tolist())}
    view = run.view()
    for row, name in zip(view.source.tolist(), view.source_names, strict=False):
        names[Shown(SOURCE, row)] = name
    for shown, name in names.items():
        if "\0" in name:
            continue
        path = (base / name).resolve()
        inside = path.suffix.lower() in IMAGE_SUFFIXES and path.is_relative_to(base)
        if inside and (path.is_file() or is_member(str(path))):
            found[shown] = str(path)
    if not found and is_needed:
        first = next(iter(names.values()), "")
        raise InputError(
            f"--images {root}: none of the ids is an image in it (the first is {first!r}); "
            "give the folder that the ids start from"
        )
    return found
