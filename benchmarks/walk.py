"""The files of the package that a use passes through: whose functions are called, in which order.

    python benchmarks/walk.py            # osda fit on images, osda predict, PGLClassifier.fit
    python benchmarks/walk.py --list     # and the files

Modules that are only imported do not count, nor do class bodies.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import opensetda
from opensetda import PGLClassifier
from opensetda.cli.main import main as osda
from opensetda.data.benchmarks.digits import write_image_folders

PACKAGE = str(Path(opensetda.__file__).parent)
# What is called while a module or a class is made.
_BODIES = ("<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


@contextmanager
def recorded() -> Iterator[dict[tuple[str, str], None]]:
    """Yield the (file, function) pairs that are called, in their order."""
    called: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            is_body = code.co_name in _BODIES or not code.co_flags & 0x0002  # CO_NEWLOCALS
            if not is_body:
                place = code.co_filename.removeprefix(PACKAGE).lstrip("/")
                called[place, code.co_qualname] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def uses(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what is walked, by name; the order matters."""
    write_image_folders(folder, 40)
    source, target = folder / "mnist", folder / "scikit-learn"
    fit = ["fit", str(source), str(target), "--out", str(folder / "run"), "--no-cache"]
    quick = ["--image-size", "64", "--quiet"]
    predict = ["predict", str(folder / "run"), str(target), "--out", str(folder / "labels.csv")]
    rng = np.random.default_rng(0)
    which = np.arange(90) % 3
    X = 4 * np.eye(3, 8)[which] + rng.normal(size=(90, 8))
    domain = np.repeat([1, -1], [40, 50])
    known = (domain < 0) | (which < 2)
    small = {"steps": 2, "epochs": 1, "edge_width": 8, "node_width": 8}
    classifier = PGLClassifier(settings=small)
    return {
        "osda fit on images": lambda: osda([*fit, *quick, "--no-report"]),
        "osda predict on images": lambda: osda([*predict, "--quiet"]),
        "PGLClassifier.fit": lambda: classifier.fit(X[known], which[known], domain[known]),
    }


def main() -> None:
    """Walk, and print how many files and functions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the files, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, use in uses(Path(folder)).items():
            with recorded() as called:
                use()
            files = list(dict.fromkeys(place for place, _ in called))
            print(f"{name}: {len(files)} files, {len(called)} functions", file=sys.stderr)
            if arguments.list:
                print(*files, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
