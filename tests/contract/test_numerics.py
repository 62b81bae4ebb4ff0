"""Extreme numbers, sizes and widths: the right answer, or a warning that says what is wrong."""

from __future__ import annotations

import re
import tracemalloc
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from opensetda import Committee, MovingMeans
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.features import alignment as alignments
from opensetda.features.alignment import Alignment
from opensetda.methods.network_parts import Adapter
from opensetda.metrics.open_set import evaluate
from opensetda.rows import Rows
from opensetda.runs.registry import method_class

WIDTH = 32
COLUMN = "column [0-9]+ of [0-9]+ has"


class Data(NamedTuple):
    """Labelled source rows, target rows, and the truth for the evaluation."""

    source: np.ndarray
    y: np.ndarray
    target: np.ndarray
    truth: np.ndarray

    def mapped(self, change: Callable[[np.ndarray], np.ndarray]) -> Data:
        """Return the data with both domains changed."""
        return self._replace(source=change(self.source), target=change(self.target))


class Case(NamedTuple):
    """Data, the words of a warning that is an answer, and whether HOS may be that of `made`."""

    data: Data
    says: str = "nothing"
    is_made: bool = False


@cache
def made(
    width: int = WIDTH, known: int = 8, per_class: tuple[int, int] = (30, 25), unknown: int = 4
) -> Data:
    """Draw clusters; the target is translated."""
    rng = np.random.default_rng(0)
    # Distances between classes do not grow with the width.
    centres = 12 / np.sqrt(max(width, 8)) * rng.normal(size=(known + unknown, width))
    names = np.array([*(f"class {place}" for place in range(known)), *["unknown"] * unknown])
    of_source = np.repeat(np.arange(known), per_class[0])
    of_target = np.repeat(np.arange(known + unknown), per_class[1])
    shift = 3 / np.sqrt(width) * rng.normal(size=width)
    spread = min(1, 6 / np.sqrt(width))
    source, target = (
        centres[classes] + rng.normal(size=(len(classes), width)) * spread
        for classes in (of_source, of_target)
    )
    return Data(source, names[of_source], target + shift, names[of_target])


def varied_rows(X: np.ndarray) -> np.ndarray:
    """Give every row a magnitude of its own."""
    return X * 10.0 ** np.random.default_rng(len(X)).uniform(-20, 20, size=(len(X), 1))


def chosen(data: Data, rows: Any) -> Data:
    """Keep some targets."""
    return data._replace(target=data.target[rows], truth=data.truth[rows])


def only_unknowns(data: Data) -> Data:
    """Keep the unknown targets."""
    return chosen(data, data.truth == "unknown")


CASES: dict[str, Callable[[], Case]] = {
    "scale 1e30": lambda: Case(made().mapped(lambda X: X * 1e30), is_made=True),
    "subnormal": lambda: Case(made().mapped(lambda X: X * 1e-310), is_made=True),
    "rows of 1e-20 to 1e20": lambda: Case(made().mapped(varied_rows), is_made=True),
    "offset 1e4": lambda: Case(made().mapped(lambda X: X + 1e4), "parallel", True),
    "target plus 1e3": lambda: Case(
        made()._replace(target=made().target + 1e3),
        "target are nearly parallel|are equal",
        True,
    ),
    "constant source": lambda: Case(
        made()._replace(source=np.ones_like(made().source)), "source are equal"
    ),
    "constant target": lambda: Case(
        made()._replace(target=np.ones_like(made().target)), "targets are equal"
    ),
    "units 1e-6 to 1e6": lambda: Case(
        made().mapped(lambda X: X * np.logspace(-6, 6, WIDTH)), COLUMN, True
    ),
    "2 targets": lambda: Case(
        chosen(made(), [0, 30]), "fewer than 20 targets|known classes show too little"
    ),
    "3 columns, only unknowns": lambda: Case(only_unknowns(made(3)), "directions? only"),
}


def fit(classifier: Any, data: Data) -> Any:
    X = np.concatenate([data.source, data.target])
    labels = np.concatenate([data.y, np.full(len(data.target), "")])
    domain = np.repeat([1, -1], [len(data.y), len(data.target)])
    return classifier.fit(X, labels, domain, FitContext())


def small(method: str) -> Any:
    """Make a method with a seed, networks with few iterations."""
    cls = method_class(method)
    options: dict[str, Any] = {"random_state": 0} if cls.is_random else {}
    if method == "pgl":
        options["settings"] = {"steps": 3, "edge_width": 16, "node_width": 16, "graph_rate": 1e-3}
    elif cls.is_random:
        options["iterations"] = 60
    return cls(**options)


def hos(classifier: Any, data: Data) -> float:
    """HOS of the labels of the targets."""
    return float(evaluate(data.truth, classifier.transduction_, sorted(set(data.y))).hos)


def answer(name: str, method: str) -> str:
    """Return "right", "warned" by words of the case, or what else a method did."""
    case = CASES[name]()
    least = hos(fit(small(method), made()), made()) - 0.05 if case.is_made else 0.85
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            classifier = fit(small(method), case.data)
            later = classifier.predict_proba(case.data.target[:5])
        except InputError as error:
            return "warned" if re.search(case.says, str(error)) else str(error)
    labels, said = classifier.transduction_, " | ".join(classifier.openness_report_.warnings)
    got = hos(classifier, case.data) if case.is_made else (labels == case.data.truth).mean()
    rejected = (labels == "unknown").mean()
    agrees = abs(rejected - classifier.openness_) <= max(0.05, 1 / len(labels))
    if not (np.isfinite(later).all() and np.isfinite(classifier.transduction_proba_).all()):
        return "not finite"
    if got >= least and agrees:
        return "right"
    return "warned" if re.search(case.says, said) else f"{got:.2f} of {least:.2f}; {said}"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("scale 1e30", "pgl"),
        ("scale 1e30", "committee"),
        ("subnormal", "committee"),
        ("subnormal", "smoothed-means"),
        ("rows of 1e-20 to 1e20", "source-only"),
        ("offset 1e4", "source-only"),
        ("target plus 1e3", "source-only"),
        ("constant source", "pgl"),
        ("constant target", "class-means"),
        ("units 1e-6 to 1e6", "class-means"),
        ("2 targets", "dann"),
        ("3 columns, only unknowns", "class-means"),
    ],
)
def test_right_or_warned(name, method):
    assert answer(name, method) in ("right", "warned")


@pytest.mark.parametrize(
    ("make", "atol"), [(partial(MovingMeans, steps=2), 0.01), (Committee, 0.1)]
)
def test_a_power_of_two_changes_no_answer_and_is_saved(make, atol):
    """2^80 is far beyond what squares in single precision can hold."""
    data = made().mapped(lambda X: X.astype(np.float32))
    large = data.mapped(lambda X: X * np.float32(2.0**80))
    one, other = fit(make(), data), fit(make(), large)
    # Not to the bit: the order of the rows, by their content, is another.
    np.testing.assert_array_equal(one.transduction_, other.transduction_)
    np.testing.assert_allclose(one.transduction_proba_, other.transduction_proba_, atol=atol)
    later = other.predict_proba(large.target)
    np.testing.assert_allclose(one.predict_proba(data.target), later, atol=atol)
    restored = type(other).from_state(*other.get_state())
    np.testing.assert_array_equal(later, restored.predict_proba(large.target))


def test_the_order_of_tiny_rows_carries_nothing():
    """As single precision they would all be zero, and keep the caller's order."""
    data = made().mapped(lambda X: X * 1e-300)
    order = np.random.default_rng(0).permutation(len(data.target))
    shuffled = data._replace(target=data.target[order])
    one, other = (fit(MovingMeans(steps=2), each) for each in (data, shuffled))
    np.testing.assert_array_equal(one.transduction_proba_[order], other.transduction_proba_)


def test_products_of_rows_give_the_components_of_products_of_columns(monkeypatch):
    data = made(200, per_class=(6, 5))
    X = np.concatenate([data.source, data.target]).astype(np.float32)
    n = len(data.source)
    source, target = Rows(X, np.arange(n)), Rows(X, np.arange(n, len(X)))
    expected = Alignment.fit(source, target, 10)
    monkeypatch.setattr(alignments, "WIDE", 100)
    found = Alignment.fit(source, target, 10)
    np.testing.assert_allclose(found.projection, expected.projection, atol=1e-4)
    np.testing.assert_allclose(found.target(target), expected.target(target), atol=1e-4)


@pytest.mark.parametrize("method", ["class-means", "ati", "daod"])
def test_many_columns_need_no_square_of_them(method):
    """12,000 columns: one square of them would be 576 MB."""
    data = made(12_000, 3, (6, 5), 1)
    tracemalloc.start()
    try:
        fit(method_class(method)(), data.mapped(lambda X: X.astype(np.float32)))
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_a_network_that_needs_a_square_of_the_columns_is_refused():
    with pytest.raises(InputError, match="a network for 1000000 columns needs about 24000"):
        Adapter(1_000_000, unit=True)
