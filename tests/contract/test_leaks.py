"""No label of a target and no order of rows leaves a trace: the same bits, sample by sample.

One helper looks at everything that a fit gives out. It fits again with other labels of the
targets and with the rows in other orders, and it catches classifiers that cheat.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from conftest import UNKNOWN, make_task
from estimator_helpers import METHODS, make_classifier
from opensetda import ClassMeans, SourceOnly
from opensetda.methods.saving import rejection_numbers
from opensetda.runs import registry

# Fits of every method, which other tests cover: the tracer would add 40 % to their time.
pytestmark = pytest.mark.no_cover

N_LATER = 30


@pytest.fixture(scope="module")
def rows():
    """Source, source labels, targets, true target labels, and samples that come later."""
    task = make_task(per_class=20, seed=1)
    target, later = task.target[:-N_LATER], task.target[-N_LATER:]
    # Two names for the unknowns, as there are two classes of them.
    names = np.resize(UNKNOWN, len(task.truth))
    truth = np.where(task.truth == "unknown", names, task.truth)
    return task.source, task.labels, target, truth[:-N_LATER], later


@pytest.fixture
def make(method, quick):
    """A function that makes the method anew."""
    # STA takes no target for unknown before it has learned to rank them.
    own = {"pgl": {"settings": quick}, "sta": {"iterations": 100}}.get(method, {})
    # One function per method: `plain_fit` keeps a result for each.
    return MAKERS.setdefault(method, partial(make_classifier, method, **own))


MAKERS: dict[str, partial] = {}


# Labels that targets may come with ------------------------------------------------------------


def noise(truth, rng):
    """Strings of all lengths, some of them names of classes."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz -é"))
    words = ["".join(rng.choice(letters, rng.integers(0, 40))) for _ in truth]
    return np.where(rng.random(len(truth)) < 0.2, min(truth), np.array(words))


# The known classes come first by name.
LABELS = {
    "truth": lambda truth, rng: truth,
    "permuted": lambda truth, rng: rng.permutation(truth),
    "noise": noise,
    "constant": lambda truth, rng: np.full(len(truth), "x"),
    "a class": lambda truth, rng: np.full(len(truth), min(truth)),
}

# Orders of the rows, of which the first n_source are of the source -----------------------------


def shuffled_targets(n_source, n, rng):
    return np.concatenate([np.arange(n_source), n_source + rng.permutation(n - n_source)])


def shuffled_source(n_source, n, rng):
    return np.concatenate([rng.permutation(n_source), np.arange(n_source, n)])


def interleaved(n_source, n, rng):
    """In turn one of the source and one of the target, as long as there are both."""
    turn = np.concatenate([2 * np.arange(n_source), 2 * np.arange(n - n_source) + 1])
    return np.argsort(turn)


ORDERS = {
    "target rows shuffled": shuffled_targets,
    "source rows shuffled": shuffled_source,
    "interleaved": interleaved,
    "all shuffled": lambda n_source, n, rng: rng.permutation(n),
}


# The check ------------------------------------------------------------------------------------


def answers(classifier, later):
    """Everything that may carry a trace: of each target, and of the fit as a whole."""
    of_targets = {
        name: getattr(classifier, name)
        for name in (
            "transduction_",
            "transduction_nearest_",
            "transduction_proba_",
            "transduction_scores_",
        )
    }
    if classifier.step_labels_ is not None:
        of_targets["step_labels_"] = classifier.step_labels_.T
    history = [
        {key: value for key, value in entry.items() if key != "seconds"}
        for entry in classifier.history_
    ]
    of_all = {
        "classes_": classifier.classes_,
        "dtypes": (classifier.classes_.dtype.str, classifier.transduction_.dtype.str),
        "openness_": classifier.openness_,
        "openness_report_": classifier.openness_report_.to_dict(),
        "decision": rejection_numbers(classifier.decision_),
        "kept_step_": getattr(classifier, "kept_step_", None),
        "history_": history,
        "predict": classifier.predict(later),
        "predict_proba": classifier.predict_proba(later),
        "decision_function": classifier.decision_function(later),
    }
    return of_targets, of_all


PLAIN = {}
"""Fits to targets that are all called "?", source first, by the function that makes the method."""


def plain_fit(make, rows):
    if make not in PLAIN:
        source, source_labels, target, *_ = rows
        PLAIN[make] = make().fit(
            np.concatenate([source, target]),
            np.concatenate([source_labels, np.full(len(target), "?")]),
            np.repeat([1, -1], [len(source), len(target)]),
        )
    return PLAIN[make]


def traces(make, rows, labels="constant", order=None):
    """Fit with these labels of the targets and this order of the rows; name what has changed.

    What it is compared with: targets that are all called "?", source first.
    """
    source, source_labels, target, truth, later = rows
    X = np.concatenate([source, target])
    domain = np.repeat([1, -1], [len(source), len(target)])
    rng = np.random.default_rng(5)
    plain_targets, plain_all = answers(plain_fit(make, rows), later)
    index = np.arange(len(X)) if order is None else ORDERS[order](len(source), len(X), rng)
    y = np.concatenate([source_labels, LABELS[labels](truth, rng)])
    of_targets, of_all = answers(make().fit(X[index], y[index], domain[index]), later)
    mine = index[index >= len(source)] - len(source)
    changed = [
        name
        for name, values in of_targets.items()
        if not np.array_equal(values, plain_targets[name][mine])
    ]
    return changed + [name for name, value in of_all.items() if not same(value, plain_all[name])]


def same(one, other):
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


# Every method, with the strongest labels and orders; the base class drops labels and order
# before a method sees them, so each of the others is tried on two methods only.
@pytest.mark.parametrize(
    ("labels", "order"), [("truth", "all shuffled"), ("noise", "interleaved")], ids=str
)
def test_neither_labels_nor_order_leave_a_trace(make, rows, labels, order):
    assert traces(make, rows, labels=labels, order=order) == []


@pytest.mark.parametrize("method", ["pgl", "class-means"])
@pytest.mark.parametrize(
    ("labels", "order"),
    [
        *(("truth", None), ("noise", None), ("permuted", None), ("a class", None)),
        *(("constant", "target rows shuffled"), ("constant", "source rows shuffled")),
    ],
)
def test_no_other_labels_or_orders_leave_a_trace(make, rows, labels, order):
    assert traces(make, rows, labels=labels, order=order) == []


def test_labels_of_targets_may_be_anything(rows):
    """The base class drops them, so one method will do."""
    source, source_labels, target, *_, later = rows
    odd = np.array([None, 3.5, "?", (), np.nan] * len(target), dtype=object)[: len(target)]
    X, y = np.concatenate([source, target]), np.concatenate([source_labels.astype(object), odd])
    fitted = ClassMeans().fit(X, y, np.repeat([1, -1], [len(source), len(target)]))
    plain = plain_fit(ClassMeans, rows)
    np.testing.assert_array_equal(fitted.transduction_proba_, plain.transduction_proba_)
    np.testing.assert_array_equal(fitted.predict_proba(later), plain.predict_proba(later))


def test_openness_is_estimated_by_default(make, method, rows):
    classifier = plain_fit(make, rows)
    assert registry.method_class(method)().openness == "auto"
    assert not classifier.openness_report_.is_vouched
    assert classifier.openness_ == classifier.openness_report_.share
    rejected = (classifier.transduction_ == "unknown").sum()
    expected = round(classifier.openness_ * len(classifier.transduction_))
    # The votes of a committee that was given no share are not cut at the estimate.
    assert abs(rejected - expected) <= (10 if method == "committee" else 0)


def test_a_trace_in_the_scores_would_show(make, rows):
    scores = plain_fit(make, rows).transduction_scores_
    assert len(np.unique(scores)) == len(scores)


# OVANet's boundaries do not find the unknowns of so small a task.
@pytest.mark.parametrize("method", sorted({*METHODS} - {"ovanet"}))
def test_a_trace_in_the_labels_would_show(make, rows):
    """Targets and later samples get several labels, unknown among them."""
    classifier = plain_fit(make, rows)
    for labels in (classifier.transduction_, classifier.predict(rows[-1])):
        assert 0 < (labels == "unknown").sum() < len(labels)
        assert len(set(labels)) > 3


# A method that cheats is caught ------------------------------------------------------------


def peeking_at_the_share(base):
    class Peeks(base):
        """Takes the share of unknowns from the labels of the targets."""

        def fit(self, X, y, sample_domain=None):
            target = np.asarray(sample_domain) < 0
            known = np.isin(y[target], np.unique(y[~target]))
            self.openness = float(min((~known).mean(), 0.9))
            return super().fit(X, y, sample_domain)

    return Peeks


def peeking_at_one_label(base):
    class Peeks(base):
        """Changes the probability of one target by a last bit, if its label is a class."""

        def fit(self, X, y, sample_domain=None):
            super().fit(X, y, sample_domain)
            first = y[np.flatnonzero(np.asarray(sample_domain) < 0)[0]]
            if first in self.classes_:
                self.transduction_proba_[0] = np.nextafter(self.transduction_proba_[0], 2)
            return self

    return Peeks


def peeking_for_later(base):
    class Peeks(base):
        """Learns the true labels of the targets for samples that come later."""

        def fit(self, X, y, sample_domain=None):
            super().fit(X, y, sample_domain)
            self.decision_.threshold += 1e-9 * len(np.unique(y))
            return self

    return Peeks


def relying_on_the_order(base):
    class Relies(base):
        """Takes the first target for something special."""

        def fit(self, X, y, sample_domain=None):
            super().fit(X, y, sample_domain)
            self.transduction_scores_[0] += 1e-12
            return self

    return Relies


BASES = {"class-means": ClassMeans, "source-only": SourceOnly}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_peek_at_the_share_is_caught(base, rows):
    leaking = peeking_at_the_share(base)
    for labels in ("truth", "a class"):
        caught = traces(leaking, rows, labels=labels)
        assert {"transduction_", "openness_", "openness_report_", "predict_proba"} <= set(caught)
    # And it is the labels: where the targets' are of no class either, there is nothing to see.
    assert traces(leaking, rows, labels="constant") == []


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_one_bit_of_one_target_is_caught(base, rows):
    assert traces(peeking_at_one_label(base), rows, labels="a class") == ["transduction_proba_"]


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_peek_that_only_later_samples_see_is_caught(base, rows):
    caught = traces(peeking_for_later(base), rows, labels="permuted")
    assert {"decision", "predict_proba", "decision_function"} == set(caught)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_an_order_that_matters_is_caught(base, rows):
    caught = traces(relying_on_the_order(base), rows, order="target rows shuffled")
    assert "transduction_scores_" in caught


# The whole way of `osda benchmark SOURCE TARGET` ----------------------------------------------


def test_no_label_of_a_benchmark_of_ones_own_reaches_a_method(rows, tmp_path, monkeypatch):
    from opensetda.benchmark import grid
    from opensetda.benchmark.tasks import own_task
    from opensetda.benchmark.variants import Variant

    source, source_labels, target, truth, _ = rows
    scored = []
    score = grid.evaluate_targets
    monkeypatch.setattr(
        grid,
        "evaluate_targets",
        lambda classifier, true: scored.append((classifier, true)) or score(classifier, true),
    )

    def write(name, X, y):
        np.savez(tmp_path / f"{name}.npz", X=X, y=y)
        return tmp_path / f"{name}.npz"

    first, rng = write("source", source, source_labels), np.random.default_rng(3)
    # With labels that the target may come with: all of them have a known class, as they must.
    for labels in ("truth", "permuted", "a class"):
        given = LABELS[labels](truth, rng)
        task = own_task(first, write("target", target, given))
        for name in ("class-means", "source-only"):
            cell = grid.Cell(Variant(name, name), task.tasks[0], grid.AUTO, 0)
            row = grid.run_cell(task, cell, tmp_path)
            assert row["status"] == grid.OK, row["error"]
            assert scored[-1][1].tolist() == given.tolist(), "the evaluator has them"
    later = target[:5]
    for place in (2, 4):
        for method in (0, 1):
            plain, other = (answers(scored[at + method][0], later) for at in (0, place))
            for before, after in zip(plain, other, strict=True):
                assert [name for name in before if not same(before[name], after[name])] == []
