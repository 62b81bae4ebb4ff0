"""Shared by the contract tests: the list of methods, and small classifiers of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opensetda.errors import InputError
from opensetda.runs import registry

METHODS = [*registry.METHODS]
"""All of them: a new file in `opensetda.methods.rivals` is in every test of the contract."""


def make_classifier(method: str, **parameters: Any) -> Any:
    """Make a classifier by its name, perhaps with a rejector: `dann+osvm`.

    Those that draw at random get seed 0, networks few batches.
    """
    from opensetda.methods.network import NetworkRival

    cls, rejector = registry.method_class(method), registry.split_rejector(method)[1]
    small: dict[str, Any] = {"rejector": rejector} if rejector else {}
    if cls.is_random:
        small["random_state"] = 0
    if issubclass(cls, NetworkRival):
        small |= {"iterations": 30, "batch_size": 32}
    return cls(**{**small, **parameters})


def for_scikit_learns_checks(method: str) -> Any:
    """Make a classifier that is small enough for fifty checks, which need some accuracy."""
    if method == "pgl":
        small = {"steps": 2, "epochs": 8, "edge_width": 8, "node_width": 8, "graph_rate": 1e-2}
        return make_classifier(method, settings=small)
    classifier = make_classifier(method)
    # OSBP pulls towards unknown as well, so it learns slowly.
    few = {"iterations": 8} if classifier.is_random and method != "osbp" else {}
    return classifier.set_params(**few)


class FittedClassifiers(dict):
    """Classifiers by the name of their method, fitted to a task when they are first asked for."""

    def __init__(self, task: Any, quick: dict[str, Any]) -> None:
        self.task, self.quick = task, quick

    def __missing__(self, method: str) -> Any:
        own = {"settings": self.quick} if method == "pgl" else {}
        classifier = make_classifier(method, openness=self.task.openness, **own)
        self[method] = classifier.fit(self.task.X, self.task.y, sample_domain=self.task.domain)
        return self[method]


def numbers(task):
    """The task with classes 0 to 3, and -1 for targets, as skada has it."""
    _, y = np.unique(task.labels, return_inverse=True)
    return np.concatenate([y, np.full(len(task.target), -1)])


def same_answers(one, other, X):
    np.testing.assert_array_equal(one.transduction_, other.transduction_)
    np.testing.assert_array_equal(one.transduction_proba_, other.transduction_proba_)
    np.testing.assert_array_equal(one.transduction_scores_, other.transduction_scores_)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def refused(classifier, *arguments):
    with pytest.raises(InputError) as caught:
        classifier.fit(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)
