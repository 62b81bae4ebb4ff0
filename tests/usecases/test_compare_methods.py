"""Quick methods compared on a target without labels."""

from __future__ import annotations

import numpy as np

from feature_shifts import feature_task
from opensetda.methods.committee import SEATS
from opensetda.usecases.compare_methods import clear_winner, compare_methods

SHIFTED = feature_task(6, 6, 64, "all", 0.4, seed=3, per_class=40)


def test_methods_on_a_target_without_labels():
    source, y, target = SHIFTED.source_features, SHIFTED.source_labels, SHIFTED.target_features
    counts = []
    found = compare_methods(source, y, target, lambda *count: counts.append(count))
    assert found[0].method == "committee"
    assert len(found) == 1 + len(SEATS)
    assert counts == [(done, 2 * len(found)) for done in range(1, 2 * len(found) + 1)]
    for row in found:
        assert 0 <= row.unknown <= 1
        assert 0.2 < row.agreement <= 1
        assert 0 < row.hidden_hos <= 1
    best = clear_winner(found)
    assert best is None or best.hidden_hos == max(row.hidden_hos for row in found)


def test_two_classes_are_too_few_to_hide_one():
    two = np.isin(SHIFTED.source_labels, np.unique(SHIFTED.source_labels)[:2])
    found = compare_methods(
        SHIFTED.source_features[two], SHIFTED.source_labels[two], SHIFTED.target_features
    )
    assert np.isnan(found[0].hidden_hos)
    assert clear_winner(found) is None
