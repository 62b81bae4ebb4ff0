"""Intervals of the metrics: right for few samples, and never of width 0."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda.metrics import evaluate
from opensetda.metrics.intervals import area_interval, binomial_interval, metric_intervals

KNOWN = ["a", "b", "c", "d"]


def of_classes(counts, unknown=(0, 0), **more):
    """Metrics of some right and wrong samples per class."""
    truth, labels = [], []
    for name, (right, n) in zip([*KNOWN[: len(counts)], "new"], [*counts, unknown], strict=True):
        truth += [name] * n
        wrong = "a" if name == "new" else "unknown"
        labels += ["unknown" if name == "new" else name] * right + [wrong] * (n - right)
    return evaluate(truth, labels, KNOWN[: len(counts)], **more)


def test_a_share_has_the_exact_interval_of_textbooks():
    assert binomial_interval(0, 10) == pytest.approx((0, 0.3085), abs=1e-4)
    assert binomial_interval(10, 10) == pytest.approx((0.6915, 1), abs=1e-4)
    assert binomial_interval(8, 10) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert binomial_interval(1, 1) == pytest.approx((0.025, 1))


def test_few_samples_that_are_all_right_prove_little():
    metrics = of_classes([(2, 2)] * 4, (3, 3), known_score=np.r_[np.ones(8), np.zeros(3)])
    found = metric_intervals(metrics)
    for name in ("all", "os_star", "unk", "unk_per_class", "os", "hos", "auroc"):
        low, high = found[name]
        assert high == 1, name
        assert 0.2 < low < 0.8, name
    assert found["true_openness"] == binomial_interval(3, 11)


def test_each_interval_encloses_its_figure_and_shrinks_with_the_samples():
    widths = {}
    for times in (1, 16):
        counts = [(3 * times, 4 * times), (times, 4 * times), (4 * times, 4 * times)]
        n = 12 * times + 8 * times
        score = np.random.default_rng(0).normal(size=n) + (np.arange(n) < 12 * times)
        nearest = np.resize(["a", "b", "c"], n)
        options = {"known_score": score, "nearest_class": nearest}
        metrics = of_classes(counts, (5 * times, 8 * times), **options)
        truth = np.repeat(["a", "b", "c"], 4 * times)
        found = metric_intervals(metrics, int((nearest[: 12 * times] == truth).sum()))
        for name, ends in found.items():
            if not name.endswith("ece") and name != "true_openness":
                assert 0 <= ends[0] <= getattr(metrics, name) <= ends[1] <= 1, name
                widths.setdefault(name, []).append(ends[1] - ends[0])
    assert len(widths) == 8
    assert all(few > 2.5 * many for few, many in widths.values()), widths


def test_what_cannot_be_known_has_no_interval():
    found = metric_intervals(of_classes([(1, 2), (0, 0)]))
    assert found["os_star"] is not None
    assert [found[name] for name in ("unk", "hos", "auroc", "oscr", "ece")] == [None] * 5
    found = metric_intervals(of_classes([(0, 0), (0, 0)], (1, 2)))
    assert found["os_star"] is None
    assert found["hos"] is None
    assert found["unk"] is not None


@pytest.mark.parametrize("n_labels", [12, 100])
def test_intervals_hold_the_truth_nineteen_times_in_twenty(n_labels):
    rng, held = np.random.default_rng(n_labels), {"all": [], "os_star": [], "hos": [], "unk": []}
    shares = np.array([0.25, 0.15, 0.15, 0.1, 0.35])
    accuracy = np.array([0.95, 0.8, 1.0, 0.6, 0.75])
    for _ in range(400):
        n = rng.multinomial(n_labels, shares)
        right = rng.binomial(n, accuracy)
        if not n[-1] or not n[:-1].any():
            continue
        counts = list(zip(right[:-1].tolist(), n[:-1].tolist(), strict=True))
        found = metric_intervals(of_classes(counts, (int(right[-1]), int(n[-1]))))
        # A class without a label is in no mean.
        os_star = accuracy[:-1][n[:-1] > 0].mean()
        unk = accuracy[-1]
        true = {"all": shares @ accuracy, "os_star": os_star, "unk": unk}
        true["hos"] = 2 * os_star * unk / (os_star + unk)
        for name, value in true.items():
            low, high = found[name]
            held[name].append(low <= value <= high)
    for name, each in held.items():
        assert np.mean(each) >= 0.95, name


def test_the_interval_of_an_area_holds_its_truth():
    rng, held = np.random.default_rng(0), []
    for _ in range(300):
        known, unknown = rng.normal(2.326, 1, 12), rng.normal(0, 1, 6)  # true area 0.95
        low, high = area_interval(float((known[:, None] > unknown).mean()), 12, 6)
        held.append(low <= 0.95 <= high)
    assert np.mean(held) > 0.925
    assert area_interval(1.0, 5, 5)[0] < 0.8
    assert area_interval(0.0, 5, 5) == (0.0, pytest.approx(1 - area_interval(1.0, 5, 5)[0]))
