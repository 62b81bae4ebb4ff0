"""Numbers at the edge of what computers can hold: the right answer, or a warning that says why not.

    python benchmarks/numerics.py
    python benchmarks/numerics.py --method pgl --case scale

Fits several methods to features of extreme scales, constant and dominating columns, copies,
classes and targets of extreme sizes, and 1 to 100,000 columns. Each outcome is one of

- right: HOS as on the same data well scaled (or, where there is no such data, nearly all labels are
  right), and the share of unknowns that is said is the share that is rejected;
- warned: a warning or an `InputError` says what is wrong with the data, in the words of the case;
- SILENT: neither; a defect;
- FOREIGN: another exception; a defect.

"leaks" counts the warnings of numpy, scikit-learn and torch that reach the user, MB is the largest
memory of the process. Ends with counts, and exit code 1 if there is a defect, a leak or more than
2 GB. Five minutes on one core.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.metrics.open_set import evaluate
from opensetda.runs.methods import METHODS as ALL_METHODS
from opensetda.runs.methods import method_class
from opensetda.system.memory import peak_megabytes, reset_peak

METHODS = ("pgl", "class-means", "smoothed-means", "source-only", "dann")
WIDTH, KNOWN, UNKNOWN_CLASSES = 32, 8, 4
MOST_MEGABYTES = 2000
# How far HOS may be below that of the same data well scaled; the least accuracy without such data.
HOS_TOLERANCE, LEAST_ACCURACY = 0.05, 0.85
# Words of the warnings that a case may be answered with.
FEW = "fewer than 20 targets|known classes show too little"
NOT_APART = "do not tell its classes apart"
COLUMN = "column [0-9]+ of [0-9]+ has"
ALL_UNKNOWN = "hardly any target looks like a known class"
NO_UNKNOWNS = "no unknowns were found"

Matrix = npt.NDArray[Any]


class Data(NamedTuple):
    """Labelled source rows, target rows, and the truth for the evaluation."""

    source: Matrix
    y: npt.NDArray[np.str_]
    target: Matrix
    truth: npt.NDArray[np.str_]

    def mapped(self, change: Callable[[Matrix], Matrix]) -> Data:
        """Return the data with both domains changed."""
        return self._replace(source=change(self.source), target=change(self.target))


@dataclass(frozen=True)
class Case:
    """Data, the words of a warning that is an answer, and the same data well scaled."""

    name: str
    make: Callable[[], Data]
    says: str = "nothing"
    plain: Callable[[], Data] | None = None
    methods: tuple[str, ...] = METHODS


class Outcome(NamedTuple):
    """What a method said to a case."""

    kind: str
    leaks: int
    megabytes: float
    said: str


@cache
def made(
    width: int = WIDTH,
    known: int = KNOWN,
    per_class: tuple[int, int] = (30, 25),
    unknown: int = UNKNOWN_CLASSES,
    seed: int = 0,
    far: float = 0.0,
) -> Data:
    """Draw clusters; the target is translated, and its unknown classes lie `far` away."""
    rng = np.random.default_rng(seed)
    # Distances between classes do not grow with the width.
    centres = 12 / np.sqrt(max(width, 8)) * rng.normal(size=(known + unknown, width))
    centres[known:] += far
    names = np.array([*(f"class {place}" for place in range(known)), *["unknown"] * unknown])
    of_source = np.repeat(np.arange(known), per_class[0])
    of_target = np.repeat(np.arange(known + unknown), per_class[1])
    shift = 3 / np.sqrt(width) * rng.normal(size=width)

    def rows(classes: Matrix) -> Matrix:
        return centres[classes] + rng.normal(size=(len(classes), width)) * min(
            1, 6 / np.sqrt(width)
        )

    return Data(rows(of_source), names[of_source], rows(of_target) + shift, names[of_target])


def sized(n_many: int, n_few: int) -> Data:
    """One source class of many rows, the others with few."""
    data = made(per_class=(n_many, 25))
    places = np.arange(len(data.y))
    kept = (data.y == "class 0") | (places % n_many < n_few)
    return data._replace(source=data.source[kept], y=data.y[kept])


def few_targets(count: int) -> Data:
    """Draw some targets, every third of them unknown."""
    data, rng = made(), np.random.default_rng(1)
    drawn = rng.permutation(len(data.truth))
    unknown = data.truth[drawn] == "unknown"
    chosen = np.concatenate([drawn[unknown][: count // 3], drawn[~unknown][: count - count // 3]])
    return data._replace(target=data.target[chosen], truth=data.truth[chosen])


def only(unknowns: bool, **arguments: Any) -> Data:
    """Keep only the unknown targets, or only the known ones."""
    data = made(**arguments)
    kept = (data.truth == "unknown") == unknowns
    return data._replace(target=data.target[kept], truth=data.truth[kept])


def both(change: Callable[[Matrix], Matrix]) -> Callable[[], Data]:
    """Change the rows of both domains."""
    return lambda: made().mapped(change)


def source(change: Callable[[Matrix], Matrix]) -> Callable[[], Data]:
    """Change the rows of the source."""
    return lambda: made()._replace(source=change(made().source))


def target(change: Callable[[Matrix], Matrix]) -> Callable[[], Data]:
    """Change the rows of the target."""
    return lambda: made()._replace(target=change(made().target))


def beside(columns: Callable[[Matrix], Matrix]) -> Callable[[], Data]:
    """Add columns to both domains: (n, d) -> (n, k)."""
    return both(lambda X: np.column_stack([X, columns(X)]))


def noise(size: float, count: int = 1) -> Callable[[Matrix], Matrix]:
    """Return columns that say nothing about the classes: (n, d) -> (n, count)."""
    return lambda X: size * np.random.default_rng(len(X)).normal(size=(len(X), count))


def one_large(X: Matrix) -> Matrix:
    """Make one row far larger than all others."""
    X = X.copy()
    X[0] *= 1e30
    return X


def varied_rows(X: Matrix) -> Matrix:
    """Give every row a magnitude of its own."""
    return X * 10.0 ** np.random.default_rng(len(X)).uniform(-20, 20, size=(len(X), 1))


def repeated(of_source: int = 1, of_target: int = 1) -> Data:
    """Repeat all rows of a domain."""
    data = made()
    rows, y = np.repeat(data.source, of_source, axis=0), np.repeat(data.y, of_source)
    others, truth = np.repeat(data.target, of_target, axis=0), np.repeat(data.truth, of_target)
    return Data(rows, y, others, truth)


def one_target(times: int) -> Data:
    """Repeat one known target."""
    data = made()
    return data._replace(target=data.target[[0] * times], truth=data.truth[[0] * times])


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for power in (-300, -45, -38, -30, -20, -15, -10, -6, 6, 10, 15, 20, 30, 37):
        yield Case(f"scale 1e{power}", both(lambda X, p=power: X * 10.0**p), plain=made)
    for size in (1e-30, 1e30):
        single = both(lambda X, size=size: (X * size).astype(np.float32))
        yield Case(f"scale {size:g}, float32", single, plain=made)
    yield Case("subnormal", both(lambda X: X * 1e-310), plain=made)
    yield Case("beyond float32", both(lambda X: X * 1e40), "beyond 3e38")
    yield Case("integers", both(lambda X: np.round(X * 100).astype(int)), plain=made)
    yield Case("one row of 1e30", both(one_large), plain=made)
    yield Case("rows of 1e-20 to 1e20", both(varied_rows), plain=made)
    for power in (4, 6, 8, 12):
        yield Case(f"offset 1e{power}", both(lambda X, p=power: X + 10.0**p), "parallel", made)
    yield Case("offset 1e8, float32", both(lambda X: (X + 1e8).astype("f")), "precision", made)
    for power in (3, 6, 20):
        moved = target(lambda X, p=power: X + 10.0**p)
        yield Case(f"target plus 1e{power}", moved, "target are nearly parallel|are equal", made)
        yield Case(f"target times 1e{power}", target(lambda X, p=power: X * 10.0**p), plain=made)
    for value in (0.0, 1.0, 1e20):
        constant = both(lambda X, value=value: np.full_like(X, value))
        yield Case(f"constant {value:g}", constant, "source are equal")
    yield Case("constant source", source(np.ones_like), "source are equal")
    yield Case("constant target", target(np.ones_like), "targets are equal")
    yield Case("1 and noise of 1e-9", both(lambda X: 1 + noise(1e-9, WIDTH)(X)), NOT_APART)
    yield Case("noise instead of source", source(noise(1, WIDTH)), NOT_APART)
    yield Case("columns of 0 beside", beside(lambda X: 0 * X), plain=made)
    yield Case("columns of 7 beside", beside(lambda X: 0 * X[:, :8] + 7), plain=made)
    yield Case("column of 1e6 beside", beside(lambda X: 0 * X[:, 0] + 1e6), "parallel", made)
    yield Case("every column twice", beside(lambda X: X), plain=made)
    yield Case("noise of 1e3 beside", beside(noise(1e3)), COLUMN, made)
    yield Case("noise of 1e6 beside", beside(noise(1e6)), f"{COLUMN}|{NOT_APART}", made)
    in_units = both(lambda X: X * np.r_[1e6, np.full(WIDTH - 1, 1e-3)])
    yield Case("1e6 beside 1e-3", in_units, f"{COLUMN}|{NOT_APART}", made)
    halves = both(lambda X: np.column_stack([X * 1e-3, noise(1e6, WIDTH)(X)]))
    yield Case("half noise of 1e6, half 1e-3", halves, NOT_APART, made)
    yield Case("units 1e-6 to 1e6", both(lambda X: X * np.logspace(-6, 6, WIDTH)), COLUMN, made)
    yield Case("every target ten times", lambda: repeated(of_target=10), plain=made)
    yield Case("every source row ten times", lambda: repeated(of_source=10), plain=made)
    yield Case("one target 300 times", lambda: one_target(300), "targets are equal")
    same = lambda: made()._replace(target=made().source, truth=made().y)  # noqa: E731
    yield Case("target is the source", same, NO_UNKNOWNS)
    yield Case("classes of 10,000 and 3", lambda: sized(10_000, 3), "take fewer rows", made)
    yield Case("classes of 1,000 and 1", lambda: sized(1000, 1), "take fewer rows", made)
    for count in (1, 2, 3, 5, 10, 20):
        yield Case(f"{count} targets", lambda count=count: few_targets(count), FEW)
    for far in (0.0, 3.0, 100.0):
        for n in (1, 4, 40):
            alone = lambda far=far, n=n: only(True, far=far, unknown=n)  # noqa: E731
            yield Case(f"only unknowns: {n} classes, {far:g} away", alone, ALL_UNKNOWN)
    for known in (2, 3, 5, 30):
        alone = lambda known=known: only(True, known=known)  # noqa: E731
        yield Case(f"only unknowns, {known} known classes", alone, ALL_UNKNOWN)
    yield Case("no unknowns", lambda: only(False), NO_UNKNOWNS)
    for width in (1, 2, 3, 5):
        name = f"{width} column{'s' * (width > 1)}"
        yield Case(name, lambda width=width: made(width), "directions? only")
        alone = lambda width=width: only(True, width=width)  # noqa: E731
        yield Case(f"{name}, only unknowns", alone, "directions? only")
    yield Case("10,000 columns", lambda: made(10_000, per_class=(10, 10)))
    # 51 rows. The boundaries of some rivals, trained briefly, reject nothing, and they say so.
    wide = lambda: made(100_000, 3, (9, 6), 1)  # noqa: E731
    yield Case("100,000 columns", wide, f"{FEW}|own boundary", methods=tuple(ALL_METHODS))


def fitted(method: str, data: Data) -> Any:
    """Fit a method with a seed, networks with few iterations."""
    cls = method_class(method)
    options: dict[str, Any] = {"random_state": 0} if cls.is_random else {}
    if method == "pgl":
        options["settings"] = {"steps": 4, "ranking.draws": 2}
    elif cls.is_random:
        options["iterations"] = 60
    X = np.concatenate([data.source, data.target])
    labels = np.concatenate([data.y, np.full(len(data.target), "")])
    domain = np.repeat([1, -1], [len(data.y), len(data.target)])
    return cls(**options).fit(X, labels, domain, FitContext(view=method == "pgl"))


@cache
def plain_hos(method: str, plain: Callable[[], Data]) -> float:
    """HOS of the data well scaled."""
    data = plain()
    return hos(fitted(method, data), data)


def hos(classifier: Any, data: Data) -> float:
    """HOS of the labels of the targets."""
    known = sorted(set(data.y.tolist()))
    return float(evaluate(data.truth, classifier.transduction_, known).hos)


def outcome(case: Case, method: str) -> Outcome:
    """Run one case with one method."""
    data = case.make()
    if case.plain is not None:
        plain_hos(method, case.plain)
    reset_peak()
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        try:
            classifier = fitted(method, data)
            later = classifier.predict_proba(data.target[:5])
        except InputError as error:
            kind = "warned" if re.search(case.says, str(error)) else "SILENT"
            return Outcome(kind, len(leaked), peak_megabytes(), str(error))
        except Exception as error:
            return Outcome("FOREIGN", len(leaked), peak_megabytes(), repr(error))
    leaks, megabytes = len(leaked), peak_megabytes()
    said, labels = " | ".join(classifier.openness_report_.warnings), classifier.transduction_
    finite = np.isfinite(later).all() and np.isfinite(classifier.transduction_proba_).all()
    rejected = float((labels == "unknown").mean())
    agrees = abs(rejected - classifier.openness_) <= max(0.05, 1 / len(labels))
    if case.plain is not None:
        got, wanted = hos(classifier, data), plain_hos(method, case.plain) - HOS_TOLERANCE
    else:
        got, wanted = float((labels == data.truth).mean()), LEAST_ACCURACY
    figures = (
        f"{got:.2f} of {wanted:.2f}, share {classifier.openness_:.2f}, rejected {rejected:.2f}"
    )
    if leaked:
        said = f"{said} | {leaked[0].category.__name__}: {leaked[0].message}"
    if finite and got >= wanted and agrees:
        return Outcome("right", leaks, megabytes, figures)
    if finite and re.search(case.says, said):
        return Outcome("warned", leaks, megabytes, said)
    return Outcome("SILENT", leaks, megabytes, f"{figures}; {said or 'no warning'}")


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--method", nargs="+", choices=ALL_METHODS, help="methods (default: a few, or the case's)"
    )
    parser.add_argument("--case", default="", help="part of the name of the cases (default: all)")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    leaks, largest, begun = 0, 0.0, time.perf_counter()
    print(f"{'case':40} {'method':15} {'outcome':8} leaks {'MB':>6}  figures or warning")
    for case in cases():
        if options.case not in case.name:
            continue
        for method in options.method or case.methods:
            kind, leaked, megabytes, said = outcome(case, method)
            counts[kind] += 1
            leaks, largest = leaks + leaked, max(largest, megabytes)
            print(
                f"{case.name:40} {method:15} {kind:8} {leaked:5} {megabytes:6.0f}  {said[:150]}",
                flush=True,
            )
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{total}; {leaks} leaks; at most {largest:.0f} MB; {time.perf_counter() - begun:.0f} s")
    sys.exit(1 if counts["SILENT"] + counts["FOREIGN"] + leaks or largest > MOST_MEGABYTES else 0)


if __name__ == "__main__":
    main()
