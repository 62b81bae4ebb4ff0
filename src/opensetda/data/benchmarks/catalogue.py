"""Published benchmarks: where to find them, their folders, and their open-set protocols.

Sources of the counts: Office-31 was counted; on Office-Home's totals list files and papers agree;
VisDA-17's validation counts are those of the organisers' ground truth; of MNIST, USPS and SVHN
the training sets are meant. Where only a total is public, only the total is given.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from opensetda.data.images.loading import ImageList, read_images, scan_folder
from opensetda.data.tables.formats import listing
from opensetda.data.tables.loading import TruthTable
from opensetda.errors import InputError


@dataclass(frozen=True)
class BenchmarkDomain:
    """One domain of a benchmark: its folder (see `plain_name`), and image counts, if published."""

    name: str
    images: int | None = None
    per_class: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Benchmark:
    """A published dataset with its open-set protocol.

    `title` is its name in papers, and `layout` an example of an image's path below its folder.
    `known`, `unused` and `unknown` are class folders: labelled by the source, left out, only in
    the target. With `others_unknown`, every further class folder of the target is unknown, too.
    """

    name: str
    title: str
    urls: tuple[str, ...]
    layout: str
    domains: tuple[BenchmarkDomain, ...]
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    unused: tuple[str, ...] = ()
    others_unknown: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """All class folders that have a name in the protocol."""
        return (*self.known, *self.unused, *self.unknown)

    def kind(self, class_name: str) -> str:
        """Return "known", "unknown" or "not used"."""
        if class_name in self.known:
            return "known"
        others = self.others_unknown and class_name not in self.classes
        return "unknown" if others or class_name in self.unknown else "not used"

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
        found = {domain.name: by_plain.get(plain_name(domain.name)) for domain in spec.domains}
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
        advice = f"check the download with 'osda data check {spec.name} {folder}'"
        raise InputError(f"{source.origin}: no image of {listing(missing)}; {advice}")
    target = target.select(np.isin(target.labels, spec.known + unknown))
    assert target.labels is not None
    truth = TruthTable(target.labels, target.ids, target.origin)
    return source, replace(target, labels=None), truth


def _read_domain(spec: Benchmark, folder: str | Path, domain: str) -> ImageList:
    by_plain = {plain_name(own.name): own.name for own in spec.domains}
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
    names = [domain.name for domain in spec.domains]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _domain(name: str, classes: tuple[str, ...], *counts: int) -> BenchmarkDomain:
    return BenchmarkDomain(name, sum(counts), dict(zip(classes, counts, strict=True)))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_OFFICE31 = _words(
    """back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp
    desktop_computer file_cabinet headphones keyboard laptop_computer letter_tray mobile_phone
    monitor mouse mug paper_notebook pen phone printer projector punchers ring_binder ruler
    scissors speaker stapler tape_dispenser trash_can"""
)
_AMAZON = _domain(
    *("amazon", _OFFICE31),
    *(92, 82, 72, 82, 36, 94, 91, 97, 97, 81, 99, 100, 100, 98, 100, 99),
    *(100, 94, 96, 95, 93, 100, 98, 98, 90, 75, 100, 99, 99, 96, 64),
)
_DSLR = _domain(
    *("dslr", _OFFICE31),
    *(12, 21, 24, 12, 16, 12, 13, 14, 15, 15, 13, 10, 24, 16, 31, 22),
    *(12, 8, 10, 10, 13, 15, 23, 18, 10, 7, 18, 26, 21, 22, 15),
)
_WEBCAM = _domain(
    *("webcam", _OFFICE31),
    *(29, 21, 28, 12, 16, 31, 40, 18, 21, 19, 27, 27, 30, 19, 30, 43),
    *(30, 27, 28, 32, 16, 20, 30, 27, 40, 11, 25, 30, 24, 23, 21),
)

# In the alphabetical order of the authors' page. Sorted by bytes, "ruler" and
# "TV" would be elsewhere, but not across the cut after the 25th, "Fork".
_OFFICE_HOME = _words(
    """Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair
    Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops
    Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker
    Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin
    Radio Refrigerator ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon Table
    Telephone Toothbrush Toys Trash_Can TV Webcam"""
)

_VISDA = _words(
    "aeroplane bicycle bus car horse knife motorcycle person plant skateboard train truck"
)
_VISDA_VALIDATION = _domain(
    *("validation", _VISDA),
    *(3646, 3475, 4690, 10401, 4691, 2075, 5796, 4000, 4549, 2281, 4236, 5548),
)
_VISDA_KNOWN = _words("bicycle bus car motorcycle train truck")

_DIGITS = _words("0 1 2 3 4 5 6 7 8 9")
_MNIST = _domain("mnist", _DIGITS, 5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
_USPS = _domain("usps", _DIGITS, 1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)
_SVHN = _domain("svhn", _DIGITS, 4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)

BENCHMARKS: dict[str, Benchmark] = {
    spec.name: spec
    for spec in (
        Benchmark(
            name="office31",
            title="Office-31",
            urls=("https://faculty.cc.gatech.edu/~judy/domainadapt/",),
            layout="amazon/images/back_pack/frame_0001.jpg, or without images/",
            domains=(_AMAZON, _DSLR, _WEBCAM),
            known=_OFFICE31[:10],
            unused=_OFFICE31[10:20],
            unknown=_OFFICE31[20:],
        ),
        Benchmark(
            name="office-home",
            title="Office-Home",
            urls=("https://www.hemanthdv.org/officeHomeDataset.html",),
            layout="Art/Alarm_Clock/00001.jpg",
            domains=(
                BenchmarkDomain("Art", 2427),
                BenchmarkDomain("Clipart", 4365),
                BenchmarkDomain("Product", 4439),
                BenchmarkDomain("Real World", 4357),
            ),
            known=_OFFICE_HOME[:25],
            unknown=_OFFICE_HOME[25:],
        ),
        Benchmark(
            name="visda-17",
            title="VisDA-17",
            urls=(
                "https://ai.bu.edu/visda-2017/",
                "https://github.com/VisionLearningGroup/taskcv-2017-public",
            ),
            layout="train/aeroplane/x.png, validation/aeroplane/y.jpg",
            domains=(BenchmarkDomain("train", 152397), _VISDA_VALIDATION),
            known=_VISDA_KNOWN,
            unknown=tuple(name for name in _VISDA if name not in _VISDA_KNOWN),
        ),
        Benchmark(
            name="syn2real-o",
            title="Syn2Real-O",
            urls=(
                "https://ai.bu.edu/syn2real/",
                "https://github.com/VisionLearningGroup/visda-2018-public",
            ),
            layout="train/aeroplane/x.jpg, validation/aeroplane/y.jpg; background images in "
            "folders of any other name",
            # The organisers publish no counts for these folders.
            domains=(BenchmarkDomain("train"), BenchmarkDomain("validation")),
            known=_VISDA,
            unknown=(),
            others_unknown=True,
        ),
        Benchmark(
            name="digits",
            title="Digits (MNIST, USPS, SVHN)",
            urls=(
                "http://yann.lecun.com/exdb/mnist/",
                "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html",
                "http://ufldl.stanford.edu/housenumbers/",
            ),
            # Published as arrays; write them to image files in these folders.
            layout="the training sets as mnist/0/x.png to mnist/9/x.png",
            domains=(_MNIST, _USPS, _SVHN),
            known=_DIGITS[:5],
            unknown=_DIGITS[5:],
        ),
    )
}
