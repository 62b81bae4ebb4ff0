"""The record of labels: it tells one changed label, and a method that is no more."""

from __future__ import annotations

import numpy as np

from recorded_labels import differences, kept

LABELS = np.array(["cat", "dog", "unknown", "cat"])


def test_equal_labels_are_the_same_record_in_text_and_arrays():
    record = kept(LABELS, LABELS.tolist(), "ranks")
    assert record["fit"] == record["predict"]
    assert record["unknowns"] == record["predict_unknowns"] == 1
    assert differences({"a": record}, {"a": record, "new": record}) == []


def test_a_changed_label_another_order_and_a_lost_method_are_named():
    old = kept(LABELS, LABELS, "ranks")
    changed = kept(np.array(["cat", "dog", "unknown", "unknown"]), LABELS, "none")
    turned = kept(LABELS, LABELS[::-1], "ranks")
    one, two, three = differences(
        {"a": old, "b": old, "c": old, "d": old}, {"a": changed, "b": turned, "d": old}
    )
    assert one == "a: labels of fit differ, unknowns of fit 1 -> 2, scaling ranks -> none"
    assert two.startswith("b: labels of predict differ")
    assert three == "c: not recorded now"
