"""Published benchmarks of ``catalogue.toml``: their folders, and their open-set protocols."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from opensetda.data.images.loading import ImageList, read_images, scan_folder
from opensetda.data.tables.formats import listing
from opensetda.data.tables.loading import TruthTable
from opensetda.errors import InputError


@dataclass(frozen=True)
class Benchmark:
    """A published dataset with its open-set protocol.

    `title` is its name in papers, and `layout` an example of an image's path below its folder;
    `domains` are folders, with the number of their images, 0 if it is not published. `known`,
    `unused` and `unknown` are class folders: labelled by the source, left out, only in the target.
    With `others_unknown`, every further class folder of the target is unknown, too.
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
    by_plain = {plain_name(known): known for known in BENCHMARKS}
    found = by_plain.get(plain_name(name))
    if found is None:
        close = difflib.get_close_matches(name.lower(), BENCHMARKS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{name}: no such benchmark{hint}; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[found]


def find_domains(name: str, folder: str | Path) -> dict[str, Path | None]:
    """Find the folders of the domains, directly or inside a single subfolder."""
    spec, folder = benchmark(name), Path(folder)
    if not folder.is_dir():
        advice = f"give the folder that holds {_domain_list(spec)}"
        raise InputError(f"{folder}: no such folder; {advice}")
    inside = _folders(folder)
    for root in (folder, *(inside if len(inside) == 1 else [])):
        by_plain = {plain_name(path.name): path for path in _folders(root)}
        found = {domain: by_plain.get(plain_name(domain)) for domain in spec.domains}
        if any(path is not None for path in found.values()):
            return found
    problem = f"no domain of {spec.title} in this folder"
    raise InputError(f"{folder}: {problem}; it should hold {_domain_list(spec)} ({spec.layout})")


def benchmark_task_with_truth(
    name: str, folder: str | Path, source_domain: str, target_domain: str
) -> tuple[ImageList, ImageList, TruthTable]:
    """Apply the protocol of a benchmark, for example "office-home", to its image folders.

    Returns labelled images of the known classes of the source, images of known and unknown classes
    of the target without labels, and the classes of the target, for evaluation only.
    """
    spec = benchmark(name)
    source = _read_domain(spec, folder, source_domain)
    target = _read_domain(spec, folder, target_domain)
    unknown = spec.unknown
    if spec.others_unknown:
        unknown += tuple(name for name in target.class_counts() if name not in spec.classes)
    assert source.labels is not None and target.labels is not None  # noqa: PT018
    source = source.select(np.isin(source.labels, spec.known))
    missing = sorted({*spec.known} - {*source.class_counts()})
    if missing:
        advice = f"complete the download from {spec.urls[0]}"
        raise InputError(f"{source.origin}: no image of {listing(missing)}; {advice}")
    target = target.select(np.isin(target.labels, spec.known + unknown))
    assert target.labels is not None
    truth = TruthTable(target.labels, target.ids, target.origin)
    return source, replace(target, labels=None), truth


def _read_domain(spec: Benchmark, folder: str | Path, domain: str) -> ImageList:
    by_plain = {plain_name(own): own for own in spec.domains}
    found = by_plain.get(plain_name(domain))
    if found is None:
        raise InputError(f"{domain}: {spec.title} has no such domain, but {_domain_list(spec)}")
    path = find_domains(spec.name, folder)[found]
    if path is None:
        raise InputError(f"{folder}: no folder {found!r}; it should hold {_domain_list(spec)}")
    images = read_images(path, labelled=True)
    assert images.labels is not None
    names, which = np.unique(images.labels, return_inverse=True)
    spelt = np.array([spec.class_of(label) or label for label in names.tolist()], dtype=np.str_)
    return replace(images, labels=spelt[which])


def _folders(folder: Path) -> list[Path]:
    return [folder / name for name, is_folder, _ in scan_folder(folder) if is_folder]


def _domain_list(spec: Benchmark) -> str:
    names = [*spec.domains]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _read_catalogue() -> dict[str, Benchmark]:
    text = files("opensetda.data.benchmarks").joinpath("catalogue.toml").read_text("utf-8")
    entries = tomllib.loads(text)
    for entry in entries.values():
        entry.update({name: tuple(v) for name, v in entry.items() if isinstance(v, list)})
    return {name: Benchmark(name, **entry) for name, entry in entries.items()}


BENCHMARKS = _read_catalogue()
