"""Compare a downloaded benchmark with what its authors published: counts, names, images."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opensetda.data.benchmarks import catalogue
from opensetda.data.benchmarks.catalogue import Benchmark, BenchmarkDomain, plain_name
from opensetda.data.images.decoding import BrokenImageError, decode_image
from opensetda.data.images.lists import printable
from opensetda.data.images.loading import FolderWalk, scan_folder

Progress = Callable[[str, int, int], None]
"""Called with the domain, the number of images read so far and of all images."""

_AT_ONCE = 256


@dataclass(frozen=True)
class ClassCheck:
    """Images of a class ("known", "unknown", "not used" or "extra"), expected if published."""

    name: str
    kind: str
    images: int
    expected: int | None
    remark: str = ""


@dataclass(frozen=True)
class DomainCheck:
    """One domain as found on disk.

    `folder` is None if it is missing; `classes` has one entry per published class and per further
    folder; `without_class` counts images outside class folders; `unreadable` are path and reason.
    """

    domain: BenchmarkDomain
    folder: Path | None
    classes: tuple[ClassCheck, ...] = ()
    images: int = 0
    without_class: int = 0
    unreadable: tuple[tuple[str, str], ...] = ()

    @property
    def problems(self) -> list[str]:
        """The problems, one short line each."""
        name = self.domain.name
        if self.folder is None:
            return [f"{name}: the folder is missing"]
        problems = []
        if self.domain.images is not None and self.images != self.domain.images:
            published = f"{self.domain.images:,} were published"
            problems.append(f"{name}: {_images(self.images)}, but {published}")
        wrong = [check for check in self.classes if check.remark]
        problems += [f"{name}: class {check.name!r}: {check.remark}" for check in wrong]
        if self.without_class:
            problems.append(f"{name}: {_images(self.without_class)} outside class folders")
        if self.unreadable:
            problems.append(f"{name}: {_images(len(self.unreadable))} cannot be read")
        return problems


@dataclass(frozen=True)
class BenchmarkCheck:
    """A benchmark as found on disk; `extra` are further folders, which do no harm."""

    benchmark: Benchmark
    domains: tuple[DomainCheck, ...]
    extra: tuple[str, ...]

    @property
    def images(self) -> int:
        """All images found."""
        return sum(check.images for check in self.domains)

    @property
    def problems(self) -> list[str]:
        """The problems of all domains, one short line each."""
        return [problem for check in self.domains for problem in check.problems]


def check_benchmark(
    name: str, folder: str | Path, decode: bool = True, progress: Progress | None = None
) -> BenchmarkCheck:
    """Compare a benchmark's download with what was published; `decode` every image of it."""
    spec = catalogue.benchmark(name)
    found = catalogue.find_domains(name, folder)
    domains = [
        DomainCheck(own, None) if path is None else _check_domain(spec, own, path, decode, progress)
        for own, path in ((own, found[own.name]) for own in spec.domains)
    ]
    folders = [path for path in found.values() if path is not None]
    root, own = folders[0].parent, {path.name for path in folders}
    others = [entry for entry, is_dir, _ in scan_folder(root) if is_dir and entry not in own]
    return BenchmarkCheck(spec, tuple(domains), tuple(map(printable, others)))


def _check_domain(
    spec: Benchmark, domain: BenchmarkDomain, folder: Path, decode: bool, progress: Progress | None
) -> DomainCheck:
    walk = FolderWalk()
    entries = list(walk.folder(folder))
    counts = Counter(entry.label for entry in entries)
    paths = [entry.path for entry in entries]
    unreadable = tuple(_unreadable(paths, domain.name, progress)) if decode else ()
    classes = tuple(_check_classes(spec, domain, counts, walk.classes))
    return DomainCheck(domain, folder, classes, len(paths), counts[None], unreadable)


def _check_classes(
    spec: Benchmark, domain: BenchmarkDomain, counts: Counter[str | None], folders: Sequence[str]
) -> Iterator[ClassCheck]:
    folder_of = {spec.class_of(folder): folder for folder in folders if spec.class_of(folder)}
    extra = [folder for folder in folders if spec.class_of(folder) is None]
    for name in spec.classes:
        images = counts[folder_of[name]] if name in folder_of else 0
        expected = None if domain.per_class is None else domain.per_class[name]
        remark = ""
        if name not in folder_of:
            remark = f"no such folder{_misspelt(name, extra)}"
        elif not images:
            remark = "the folder is empty"
        elif expected is not None and images != expected:
            remark = f"{_images(images)}, but {expected:,} were published"
        yield ClassCheck(name, spec.kind(name), images, expected, remark)
    for folder in extra:
        kind, remark = "extra", "not a class of this benchmark"
        if spec.others_unknown:
            kind, remark = "unknown", ""
        yield ClassCheck(folder, kind, counts[folder], None, remark)


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


def _misspelt(name: str, folders: Sequence[str]) -> str:
    by_plain = {plain_name(folder): folder for folder in folders}
    close = difflib.get_close_matches(plain_name(name), by_plain, n=1)
    return f"; is it {by_plain[close[0]]!r}?" if close else ""


def _unreadable(
    paths: Sequence[str], domain: str, progress: Progress | None
) -> Iterator[tuple[str, str]]:
    """Decode every image; yield path and reason of those that fail."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(paths), _AT_ONCE):
            batch = paths[start : start + _AT_ONCE]
            for path, reason in zip(batch, pool.map(_reason, batch), strict=True):
                if reason is not None:
                    yield path, reason
            if progress is not None:
                progress(domain, start + len(batch), len(paths))


def _reason(path: str) -> str | None:
    try:
        decode_image(path)
    except BrokenImageError as error:
        return str(error)
    return None
