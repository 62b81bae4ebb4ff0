from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from opensetda.data.benchmarks.digits import DIGIT_SHIFTS, load_digits_task


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def measured(task):
    """Known-class accuracy of source class means, AUROC, and the knowns' cosine with their own."""
    source, known = unit(task.source_features), np.array(task.split.known)
    means = unit(np.stack([source[task.source_labels == name].mean(axis=0) for name in known]))
    cosines = unit(task.target_features) @ means.T
    is_known = np.isin(task.target_truth, known)
    accuracy = (known[cosines.argmax(axis=1)] == task.target_truth)[is_known].mean()
    own = cosines[task.target_truth[:, None] == known]
    return 100 * accuracy, 100 * roc_auc_score(is_known, cosines.max(axis=1)), own.mean()


# The table of the docstring of `feature_shifts`.


@pytest.mark.parametrize(
    ("name", "accuracy", "auroc"),
    [
        ("none", 88.5, 70.5),
        ("rotated", 73.5, 56.2),
        ("noise", 75.0, 63.8),
        ("background", 80.8, 66.6),
    ],
)
def test_table_of_digit_shifts(name, accuracy, auroc):
    assert measured(load_digits_task(name))[:2] == pytest.approx([accuracy, auroc], abs=0.2)


@pytest.mark.parametrize("name", DIGIT_SHIFTS)
def test_load_digits_task_alters_nothing_but_the_target_features(name):
    task, plain = load_digits_task(name), load_digits_task()
    np.testing.assert_array_equal(task.source_features, plain.source_features)
    np.testing.assert_array_equal(task.target_truth, plain.target_truth)
    assert (task.target_features.shape, task.target_features.dtype) == ((1797, 128), np.float32)
    with pytest.raises(ValueError, match="read-only"):
        task.target_features[0, 0] = 1
    again = load_digits_task.__wrapped__(name)
    np.testing.assert_array_equal(again.target_features, task.target_features)
