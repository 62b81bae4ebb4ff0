"""Rows of a matrix that may not fit into memory, read in chunks and in canonical order."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from opensetda.errors import InputError

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.intp]
Limits = npt.NDArray[np.float64]

T = TypeVar("T")

CHUNK_ROWS = 4096
READ_ROWS = 256
CHUNK_NUMBERS = 2**24  # in a chunk of wide rows; up to 4,096 columns a chunk has all of its rows
# With more columns, moments and quantiles are computed from so many numbers, and products of rows
# replace those of columns.
WIDE = 4096
WIDE_NUMBERS = 2**25
KEPT_BYTES = 2**28  # scaled rows of a domain are kept in memory up to this size
# Squares of numbers beyond these powers of two, or sums of them, overflow or vanish.
SMALLEST_POWER = -20
LARGEST_POWER = 40
# In single precision little is left of values that differ by less than this share of their size.
FAR_OFF = 2.0**-16


class Moderated:
    """A matrix, perhaps a memory map, that is read as ordinary numbers, (x - offset) * scale.

    The scale is one power of two for both domains: nothing is rounded, and methods compare ratios
    only. The offset (D,) is the middle of columns that hardly differ from it, 0 of others.
    """

    def __init__(self, X: FloatArray, offset: Limits, scale: float) -> None:
        self.base = X
        self.offset = offset
        self.scale = scale
        self.shape = X.shape

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Any) -> FloatArray:
        return np.asarray((self.base[rows].astype(np.float64) - self.offset) * self.scale)


def moderated(X: FloatArray, low: Limits, high: Limits) -> Any:
    """Return X, or what moderates it if columns between these limits are extreme: (D,), (D,)."""
    middle = low / 2 + high / 2
    far = (high > low) & (high - low < FAR_OFF * np.abs(middle))
    offset = np.where(far, middle, 0.0)
    largest = float(np.maximum(np.abs(low - offset), np.abs(high - offset)).max())
    power = int(np.frexp(largest)[1])
    ordinary = largest == 0 or SMALLEST_POWER < power <= LARGEST_POWER
    if ordinary and not far.any():
        return X
    return Moderated(X, offset, 1.0 if ordinary else 2.0 ** -max(power, -1000))


class Rows:
    """Some rows of ``X``, which may be a memory map: those of `index`, in its order.

    `keys` are hashes of their contents, once `in_canonical_order` has computed them; `scale` is
    applied to every chunk that is read, unless the scaled rows are `kept`.
    """

    def __init__(
        self,
        X: FloatArray,
        index: IntArray,
        keys: npt.NDArray[np.uint64] | None = None,
        scale: Callable[[FloatArray], FloatArray] | None = None,
        kept: npt.NDArray[np.float32] | None = None,
    ) -> None:
        self.X = X
        self.index = index
        self.keys = keys
        self.scale = scale
        self.kept = kept

    def __len__(self) -> int:
        return len(self.index)

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.X.shape[1])

    def chunks(self) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
        """Yield the place of each chunk within these rows, and the chunk as float32."""
        size = chunk_rows(self.width)
        for start in range(0, len(self), size):
            place = slice(start, min(start + size, len(self)))
            if self.kept is not None:
                yield place, self.kept[place].copy()
            else:
                rows = self._read(self.index[place])
                scaled = rows if self.scale is None else self.scale(rows)
                yield place, scaled.astype(np.float32, copy=False)

    def take(self, places: IntArray | slice) -> Rows:
        """Return some of these rows."""
        kept = None if self.kept is None else self.kept[places]
        return Rows(self.X, self.index[places], None, self.scale, kept)

    def first(self, count: int) -> Rows:
        """Return the first rows; in canonical order these are a random sample."""
        return self.take(slice(count))

    def scaled(self, scale: Callable[[FloatArray], FloatArray]) -> Rows:
        """Return the same rows, scaled: now if there is room for all, or whenever they are read."""
        rows = Rows(self.X, self.index, self.keys, scale)
        if len(self) * self.width * 4 <= KEPT_BYTES:
            none = np.empty((0, self.width), dtype=np.float32)
            rows.kept = np.concatenate([none, *(chunk for _, chunk in rows.chunks())])
        return rows

    def _read(self, index: IntArray) -> npt.NDArray[np.float32]:
        rows = np.empty((len(index), self.width), dtype=np.float32)
        for start in range(0, len(index), READ_ROWS):
            rows[start : start + READ_ROWS] = self.X[index[start : start + READ_ROWS]]
            # Each row of a memory map also loads its neighbours in the file.
            release_pages(self.X)
        return rows

    def in_canonical_order(self) -> Rows:
        """Order rows by their content alone: that of a file may neither reveal nor change."""
        keys = np.empty(len(self), dtype=np.uint64)
        for place, chunk in self.chunks():
            keys[place] = content_keys(chunk)
        order = np.argsort(keys, kind="stable")
        return Rows(self.X, self.index[order], keys[order])


def split_domains(sample_domain: Any, n_rows: int) -> tuple[IntArray, IntArray]:
    """Row numbers of the source (domain >= 0, or no domain given) and of the target (< 0)."""
    if sample_domain is None:
        return np.arange(n_rows), np.arange(0)
    domain = np.asarray(sample_domain)
    is_whole = domain.dtype.kind in "iu"
    if domain.dtype.kind == "f":
        is_whole = bool((np.isfinite(domain) & (domain == np.rint(domain))).all())
    if domain.shape != (n_rows,) or not is_whole:
        raise InputError(
            f"sample_domain: expected {n_rows} whole numbers (negative for target rows), "
            f"got shape {domain.shape} of {domain.dtype}"
        )
    source = np.flatnonzero(domain >= 0)
    if not len(source):
        raise InputError(
            "sample_domain: no source row; mark labelled rows with 0 or more, "
            "and cross-validate with cv=opensetda.DomainKFold()"
        )
    return source, np.flatnonzero(domain < 0)


KNOWN = -1  # the mark of a target of some class of the source, which one was not said


class Marks(NamedTuple):
    """What a person said about some targets."""

    rows: IntArray
    """Rows of the matrix that the targets are in: (m,)."""
    labels: IntArray
    """Indices into `classes`, their number for unknown, and `KNOWN`: (m,)."""
    classes: npt.NDArray[Any]
    """The known classes, sorted: those of the source, and those that were named."""
    is_joined: bool = False
    """Whether the marked targets of a class are rows of the source, too."""

    @property
    def names_class(self) -> npt.NDArray[np.bool_]:
        """Which of them name a class."""
        return np.asarray((self.labels != KNOWN) & (self.labels < len(self.classes)))


class TextRows(NamedTuple):
    """Names as unit rows that may be compared with those of images, see `backbones.clip`."""

    classes: FloatArray
    """Of the classes of the source, in their order: (C, D)."""
    unknowns: FloatArray
    """Of names of what may be unknown: (K, D)."""


@dataclass(frozen=True)
class Domains:
    """What every method is fitted to: labelled rows of the source, and rows of the target.

    Rows are in canonical order: their content decides it, equal rows of the source by label. `y`
    has the class of each source row, as an index into the sorted `classes`; there is no label of
    a target but the `marks` of a person. What is computed `once` stays with the value: methods
    that are fitted to the same domains share it. `texts` are the names of the classes as rows, if
    images and texts have the same features.
    """

    source: Rows
    y: IntArray
    target: Rows
    classes: npt.NDArray[Any]
    marks: Marks | None = None
    texts: TextRows | None = None
    _computed: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        source: Rows,
        y: IntArray,
        target: Rows,
        classes: npt.NDArray[Any],
        marks: Marks | None = None,
    ) -> Domains:
        """Order the rows of both domains by their content alone."""
        label_of_row = np.zeros(len(source.X), dtype=np.intp)
        label_of_row[source.index] = y
        ordered = source.in_canonical_order()
        assert ordered.keys is not None
        # Equal rows with different labels are ordered by label, not by the caller.
        order = np.lexsort((label_of_row[ordered.index], ordered.keys))
        ordered = Rows(ordered.X, ordered.index[order], ordered.keys[order])
        labels = label_of_row[ordered.index]
        return cls(ordered, labels, target.in_canonical_order(), classes, marks)

    @property
    def n_classes(self) -> int:
        """The number of known classes, C."""
        return len(self.classes)

    @property
    def has_target(self) -> bool:
        """Whether there are rows of the target."""
        return len(self.target) > 0

    def reordered(self) -> Domains:
        """Return the same rows in canonical order, if their content has changed."""
        return Domains.of(self.source, self.y, self.target, self.classes, self.marks)

    def joined(self) -> Domains:
        """Return domains whose source has the marked targets of a class, too."""
        marks = self.marks
        if marks is None or marks.is_joined:
            return self
        is_class = marks.names_class
        own = np.searchsorted(marks.classes, self.classes)[self.y]
        return Domains.of(
            source=Rows(self.source.X, np.concatenate([self.source.index, marks.rows[is_class]])),
            y=np.concatenate([own, marks.labels[is_class]]),
            target=self.target,
            classes=marks.classes,
            marks=marks._replace(is_joined=True),
        )

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what was computed for this key, or compute it now."""
        if key not in self._computed:
            self._computed[key] = compute()
        found: T = self._computed[key]
        return found

    def sample(self, most: int) -> Domains:
        """Return at most `most` rows of each domain, a random sample; every class keeps a row."""
        if len(self.source) <= most and len(self.target) <= most:
            return self
        places = first_of_every_class(self.y, self.n_classes, most)
        source = self.source.take(places)
        return Domains(
            source=source,
            y=self.y[places],
            target=self.target.first(most),
            classes=self.classes,
            texts=self.texts,
        )


def first_of_every_class(y: IntArray, n_classes: int, most: int) -> IntArray:
    """Places of at most `most` rows, the first ones, equally many per class but at least one."""
    if len(y) <= most:
        return np.arange(len(y))
    per_class = max(most // n_classes, 1)
    return np.sort(np.concatenate([np.flatnonzero(y == c)[:per_class] for c in range(n_classes)]))


def row_chunks(X: npt.NDArray[Any], size: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield consecutive rows, `size` at a time, with the number of the first."""
    for start in range(0, len(X), size):
        yield start, np.asarray(X[start : start + size], dtype=np.float32)
        release_pages(X)


def content_keys(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    """Return a hash of each row's content: (n, d) -> (n,)."""
    weights = np.random.default_rng(0).integers(1, 2**63, rows.shape[1], dtype=np.uint64)
    # + 0.0 turns -0.0 into 0.0: equal numbers must give equal keys.
    bits = np.ascontiguousarray(rows + np.float32(0)).view(np.uint32).astype(np.uint64)
    bits += np.uint64(1)
    bits *= weights
    return np.asarray(bits.sum(axis=1, dtype=np.uint64))


class Copies(NamedTuple):
    """Rows of which many are equal; `rows[first][place]` are all rows."""

    first: IntArray | slice  # (k,): the place of one row of each content
    place: IntArray | slice  # (n,): the content of each row, from 0


def copies_of(rows: npt.NDArray[Any]) -> Copies:
    """Find equal rows, if at least half of the rows are copies of others: (n, d)."""
    every = Copies(slice(None), slice(None))
    if len(rows) < 2:
        return every
    keys = content_keys(rows.astype(np.float32, copy=False))
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    is_worth_it = 2 * len(first) <= len(rows)
    # Different rows may have the same key.
    if not is_worth_it or not np.array_equal(rows[first][place], rows):
        return every
    return Copies(first, place)


def chunk_rows(width: int) -> int:
    """Return how many rows of this width make a chunk."""
    return min(CHUNK_ROWS, max(1, CHUNK_NUMBERS // width))


def unit_rows(X: FloatArray) -> FloatArray:
    """Scale rows to unit length; a row of zeros stays zero."""
    largest = np.maximum(X.max(axis=1, keepdims=True), -X.min(axis=1, keepdims=True))
    # To about one, by a power of two, which rounds nothing: squares would overflow or vanish.
    powers = np.clip(np.frexp(largest)[1], -120, 120)
    X = X * np.ldexp(X.dtype.type(1), -powers)
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return np.asarray(X / np.maximum(lengths, np.finfo(np.float32).tiny))


def check_finite(X: FloatArray, name: str = "X") -> tuple[Limits, Limits]:
    """Refuse NaN and infinity, also as float32; return the limits of each column: (D,), (D,)."""
    limit = float(np.finfo(np.float32).max)
    low = np.full(X.shape[1], np.inf)
    high = np.full(X.shape[1], -np.inf)
    size = chunk_rows(X.shape[1])
    for start in range(0, len(X), size):
        chunk = X[start : start + size]
        smallest = chunk.min(axis=0)
        largest = chunk.max(axis=0)
        # Not true of NaN, either.
        if not ((smallest >= -limit) & (largest <= limit)).all():
            row = start + int(np.argmin((np.abs(chunk) <= limit).all(axis=1)))
            kind = "NaN" if np.isnan(X[row]).any() else "infinity (inf), or a number beyond 3e38"
            raise InputError(
                f"{name}: row {row} contains {kind}; remove the row or fill in the missing values"
            )
        low = np.minimum(low, smallest)
        high = np.maximum(high, largest)
        release_pages(X)
    return low, high


def release_pages(X: npt.NDArray[Any]) -> None:
    """Release the memory of a read-only memory map, so that it does not grow to the whole file."""
    owner: Any = X
    read_only = False
    while owner is not None and not isinstance(owner, mmap.mmap):
        # Pages of a copy-on-write map may differ from the file: they must stay.
        read_only = read_only or getattr(owner, "mode", None) == "r"
        owner = getattr(owner, "base", None)
    if read_only and owner is not None and hasattr(owner, "madvise"):
        owner.madvise(mmap.MADV_DONTNEED)
