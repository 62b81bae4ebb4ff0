"""Fitted classifiers as numbers and arrays, and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from opensetda import ClassMeans, InputError, SourceOnly
from runs_helpers import blobs, fitted


@pytest.fixture(scope="module")
def classifier():
    return fitted()


@pytest.mark.parametrize("method", [ClassMeans, SourceOnly])
def test_a_restored_classifier_predicts_the_same_bits(method):
    original = fitted(method)
    saved, arrays = original.get_state()
    restored = method.from_state(json.loads(json.dumps(saved, allow_nan=False)), arrays)
    X, _ = blobs(2)
    np.testing.assert_array_equal(restored.predict(X), original.predict(X))
    np.testing.assert_array_equal(restored.predict_proba(X), original.predict_proba(X))
    np.testing.assert_array_equal(restored.decision_function(X), original.decision_function(X))
    assert restored.get_params() == original.get_params()


def test_an_infinite_threshold_and_numbers_as_classes_survive(classifier):
    X, which = blobs()
    domain = np.repeat([0, -1], [60, 30])
    original = ClassMeans(openness=np.float64(0), unknown_label=99)
    original.fit(X, which, sample_domain=domain)
    assert original.rejection_threshold_ == -np.inf
    saved, arrays = original.get_state()
    assert saved["rejection_threshold"] == "-inf"
    restored = ClassMeans.from_state(json.loads(json.dumps(saved)), arrays)
    assert restored.classes_.dtype == original.classes_.dtype
    np.testing.assert_array_equal(restored.predict(X), original.predict(X))


def test_parameters_that_json_cannot_hold_are_left_out():
    class Listening(ClassMeans):
        def __init__(self, openness=0.5, *, steps=10, unknown_label="unknown", listener=None):
            super().__init__(openness, steps=steps, unknown_label=unknown_label)
            self.listener = listener

    saved, arrays = fitted(Listening, listener=lambda event: None).get_state()
    assert "listener" not in saved["parameters"]
    assert Listening.from_state(saved, arrays).listener is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state_version": 99}, "version 99"),
        ({"class": "SourceOnly"}, "it is a SourceOnly"),
        ({"classes_dtype": "|O"}, "not supported"),
        ({"values": None, "arrays": {}}, "'alignment.source_mean' is missing"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(classifier, change, words):
    saved, arrays = classifier.get_state()
    arrays = change.pop("arrays", arrays)
    with pytest.raises(InputError, match=words):
        ClassMeans.from_state({**saved, **change}, arrays)
