"""Published benchmarks of ``catalogue.toml``: their folders, and their open-set protocols."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.loading import ImageList, read_images
from opensetda.data.tables.loading import TruthTable
from opensetda.errors import InputError, choice


@dataclass(frozen=True)
class Benchmark:
    """A published dataset with its open-set protocol, as ``catalogue.toml`` describes it.

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
        """All class folders of the protocol."""
        return (*self.known, *self.unused, *self.unknown)

    def spelt(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
        """Spell labels as the protocol does; others stay as they are."""
        names, which = np.unique(labels, return_inverse=True)
        own = {plain_name(name): name for name in self.classes}
        return np.array([own.get(plain_name(name), name) for name in names.tolist()])[which]


def plain_name(name: str) -> str:
    """Return a name without case, blanks and punctuation: "Real World" equals "Real_World"."""
    return re.sub(r"[\W_]+", "", name).lower()


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by its name, or raise an `InputError` that lists the names."""
    for known, found in BENCHMARKS.items():
        if plain_name(known) == plain_name(name):
            return found
    raise InputError(f"{name}: no such benchmark; {choice(name, BENCHMARKS)}")


def find_domains(name: str, folder: str | Path) -> dict[str, Path | None]:
    """Find the folders of the domains, directly or inside a single subfolder."""
    spec, folder = benchmark(name), Path(folder)
    inside = _folders(folder) if folder.is_dir() else []
    for folders in (inside, _folders(inside[0]) if len(inside) == 1 else []):
        by_plain = {plain_name(path.name): path for path in folders}
        found = {domain: by_plain.get(plain_name(domain)) for domain in spec.domains}
        if any(found.values()):
            return found
    should = f"give a folder that holds {', '.join(spec.domains)} ({spec.layout})"
    raise InputError(f"{folder}: no domain of {spec.title} there; {should}")


def benchmark_task_with_truth(
    name: str, folder: str | Path, source_domain: str, target_domain: str
) -> tuple[ImageList, ImageList, TruthTable]:
    """Apply the protocol of a benchmark, for example "office-home", to its image folders.

    Returns labelled images of the source, images of the target without labels, and the classes
    of the target, for evaluation only.
    """
    spec = benchmark(name)
    source, labels = _read_domain(spec, folder, source_domain)
    target, truth = _read_domain(spec, folder, target_domain)
    unknown = spec.unknown
    if spec.others_unknown:
        unknown += tuple({*truth.tolist()} - {*spec.classes})
    source = replace(source, labels=labels).select(np.isin(labels, spec.known))
    rows = np.isin(truth, spec.known + unknown)
    target = replace(target, labels=None).select(rows)
    return source, target, TruthTable(truth[rows], target.ids, target.origin)


def _read_domain(
    spec: Benchmark, folder: str | Path, domain: str
) -> tuple[ImageList, npt.NDArray[np.str_]]:
    """Return the images of a domain, and their classes as the protocol spells them."""
    found = find_domains(spec.name, folder).items()
    path = {plain_name(name): path for name, path in found}.get(plain_name(domain))
    if path is None:
        domains = ", ".join(spec.domains)
        raise InputError(f"{folder}: no folder {domain!r}; domains of {spec.title} are {domains}")
    images = read_images(path, labelled=True)
    return images, spec.spelt(np.asarray(images.labels))


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]


def _read_catalogue() -> dict[str, Benchmark]:
    entries = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))
    for entry in entries.values():
        entry.update({name: tuple(v) for name, v in entry.items() if isinstance(v, list)})
    return {name: Benchmark(name, **entry) for name, entry in entries.items()}


BENCHMARKS = _read_catalogue()
