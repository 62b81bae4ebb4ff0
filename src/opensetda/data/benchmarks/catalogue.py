"""Published benchmarks of ``catalogue.toml``: their folders, and their open-set protocols."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opensetda.data.images.loading import ImageList, read_images
from opensetda.data.tables.formats import listing
from opensetda.data.tables.loading import TruthTable
from opensetda.errors import InputError, choice


@dataclass(frozen=True)
class Benchmark:
    """A published dataset with its open-set protocol.

    `title` is its name in papers, and `layout` an example of an image's path below its folder;
    `domains` are folders, with the number of their images, 0 if it is not published. `known`,
    `unused` and `unknown` are class folders: labelled by the source, left out, only in the target.
    With `others_unknown`, every further class folder of the target is unknown, too. `tasks` are
    published pairs of domains; by default all.
    """

    name: str
    title: str
    urls: tuple[str, ...]
    layout: str
    domains: Mapping[str, int]
    known: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    others_unknown: bool = False
    tasks: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """All class folders that have a name in the protocol."""
        return (*self.known, *self.unused, *self.unknown)

    def class_of(self, folder: str) -> str | None:
        """Return the class of a folder, whatever its spelling; None if it is none."""
        return {plain_name(name): name for name in self.classes}.get(plain_name(folder))


def plain_name(name: str) -> str:
    """Return a name without case, blanks and punctuation: "Real World" equals "Real_World"."""
    return re.sub(r"[\W_]+", "", name).lower()


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by its name, or raise an `InputError` that lists the names."""
    found = {plain_name(known): known for known in BENCHMARKS}.get(plain_name(name))
    if found is None:
        raise InputError(f"{name}: no such benchmark; {choice(name, BENCHMARKS)}")
    return BENCHMARKS[found]


def find_domains(name: str, folder: str | Path) -> dict[str, Path | None]:
    """Find the folders of the domains, directly or inside a single subfolder."""
    spec, folder = benchmark(name), Path(folder)
    should = f"it should hold {', '.join(spec.domains)} ({spec.layout})"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; {should}")
    inside = _folders(folder)
    for root in (folder, *(inside if len(inside) == 1 else [])):
        by_plain = {plain_name(path.name): path for path in _folders(root)}
        found = {domain: by_plain.get(plain_name(domain)) for domain in spec.domains}
        if any(found.values()):
            return found
    raise InputError(f"{folder}: no domain of {spec.title} in this folder; {should}")


def benchmark_task_with_truth(
    name: str, folder: str | Path, source_domain: str, target_domain: str
) -> tuple[ImageList, ImageList, TruthTable]:
    """Apply the protocol of a benchmark, for example "office-home", to its image folders.

    Returns labelled images of the known classes of the source, images of known and unknown classes
    of the target without labels, and the classes of the target, for evaluation only.
    """
    spec = benchmark(name)
    source, labels = _read_domain(spec, folder, source_domain)
    target, truth = _read_domain(spec, folder, target_domain)
    unknown = spec.unknown
    if spec.others_unknown:
        unknown += tuple({*truth.tolist()} - {*spec.classes})
    source = replace(source, labels=labels).select(np.isin(labels, spec.known))
    missing = sorted({*spec.known} - {*source.class_counts()})
    if missing:
        advice = f"complete the download from {spec.urls[0]}"
        raise InputError(f"{source.origin}: no image of {listing(missing)}; {advice}")
    rows = np.isin(truth, spec.known + unknown)
    target = replace(target, labels=None).select(rows)
    return source, target, TruthTable(truth[rows], target.ids, target.origin)


def _read_domain(
    spec: Benchmark, folder: str | Path, domain: str
) -> tuple[ImageList, npt.NDArray[np.str_]]:
    """Return the images of a domain, and their classes as the protocol spells them."""
    own = {plain_name(name): name for name in spec.domains}.get(plain_name(domain))
    path = None if own is None else find_domains(spec.name, folder)[own]
    if path is None:
        domains = ", ".join(spec.domains)
        raise InputError(f"{folder}: no folder {domain!r}; domains of {spec.title} are {domains}")
    images = read_images(path, labelled=True)
    assert images.labels is not None, "they are labelled"
    names, which = np.unique(images.labels, return_inverse=True)
    return images, np.array([spec.class_of(label) or label for label in names.tolist()])[which]


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]


def _read_catalogue() -> dict[str, Benchmark]:
    entries = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))
    for entry in entries.values():
        entry.update({name: tuple(v) for name, v in entry.items() if isinstance(v, list)})
    return {name: Benchmark(name, **entry) for name, entry in entries.items()}


BENCHMARKS = _read_catalogue()
