"""What the tests of benchmarks share: three small domains of ten digits, as feature files."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
from typing import ClassVar

import numpy as np

from opensetda.benchmark.grid import NUMBERS, _row
from opensetda.methods.means.estimator import ClassMeans

DIGITS = np.array([str(digit) for digit in range(10)])
DOMAINS = ("mnist", "usps", "svhn")
TEXT = ("benchmark", "task", "method", "openness", "scaling", "status", "error", "warnings")


def domain(seed, per_class=6, width=12):
    """Rows of ten classes, the same centres in every domain, each moved its own way."""
    centres = 3 * np.random.default_rng(99).normal(size=(10, width))
    rng = np.random.default_rng(seed)
    which = np.arange(10 * per_class) % 10
    X = centres[which] + rng.normal(size=(len(which), width)) + rng.normal(size=width)
    return X.astype(np.float32), which


def write_domains(folder, domains=DOMAINS, per_class=6):
    """Write ``mnist.npz``, ``usps.npz`` and ``svhn.npz`` of the benchmark "digits"."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(domains):
        X, y = domain(seed, per_class)
        np.savez(folder / f"{name}.npz", X=X, y=y, classes=DIGITS)
    return folder


def read_rows(path):
    """Return the rows of a ``results.csv``, with numbers and None."""
    with path.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    return [
        {k: None if v == "" else v if k in TEXT else float(v) for k, v in row.items()}
        for row in found
    ]


def quick_row(tasks, cell, out=None):
    """Stand in for `run_cell`, for tests that are not about results."""
    measured = dict.fromkeys(NUMBERS, 0.5) | {"scaling": "none"}
    return _row(tasks.name, cell, **measured)


def deadly(read, task):
    """Kill whichever worker reads the task "usps-mnist"."""
    if task == "usps-mnist" and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(task)


class Broken(ClassMeans):
    """A method that raises what it is told to, at the fits that it is told."""

    error: ClassVar[BaseException] = RuntimeError("out of order\nsecond line")
    fits: ClassVar[list[int]] = []
    fails_at: ClassVar[range] = range(1000)

    def _learn(self, domains, share, context):
        number = len(self.fits)
        self.fits.append(number)
        if number in self.fails_at:
            raise self.error
        return super()._learn(domains, share, context)
