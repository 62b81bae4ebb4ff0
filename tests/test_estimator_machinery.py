"""The contract in other people's machinery: pipelines, clones, searches, skada."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimator_helpers import numbers, same_answers
from opensetda import PGLClassifier


# What is tested here is code of the base class: two methods are enough.
@pytest.mark.parametrize("method", ["pgl", "class-means"])
def test_in_a_pipeline(make, method, task):
    pipeline = make_pipeline(StandardScaler(), make(method))
    name = pipeline.steps[-1][0]
    pipeline.fit(task.X, task.y, **{f"{name}__sample_domain": task.domain})
    by_hand = make(method).fit(StandardScaler().fit_transform(task.X), task.y, task.domain)
    np.testing.assert_array_equal(pipeline[-1].transduction_, by_hand.transduction_)
    assert pipeline.predict(task.X).shape == (len(task.X),)


def test_a_clone_is_unfitted_and_learns_the_same(fitted, task):
    copy = clone(fitted)
    assert not hasattr(copy, "classes_")
    assert copy.get_params() == fitted.get_params()
    same_answers(copy.fit(task.X, task.y, task.domain), fitted, task.X)


def test_in_a_grid_search(task, quick):
    y = np.concatenate([task.labels, task.truth])
    few = {**quick, "steps": 1}
    search = GridSearchCV(
        PGLClassifier(random_state=0),
        {"openness": [0.0, 1 / 3], "settings": [few]},
        cv=KFold(2, shuffle=True, random_state=0),
        error_score="raise",
    )
    search.fit(task.X, y, sample_domain=task.domain)
    # Only a search in which targets arrived as targets can tell the openness.
    assert search.best_params_["openness"] == 1 / 3
    assert len(search.best_estimator_.transduction_) == len(task.target)
    assert "unknown" in search.predict(task.X)


@pytest.fixture
def skada():
    """Import skada, which switches metadata routing on for the whole process, and switch back."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield pytest.importorskip(
            "skada", reason="the extra 'skada' is not installed: pip install opensetda[skada]"
        )


@pytest.mark.parametrize(
    ("method", "own_labels"), [("pgl", True), ("class-means", True), ("class-means", False)]
)
def test_in_a_skada_pipeline(skada, make, method, task, own_labels):
    y = numbers(task)
    if not own_labels:  # skada masks the targets' labels by itself
        y[task.domain < 0] = np.random.default_rng(0).integers(0, 4, len(task.target))
    classifier = make(method, unknown_label=99)
    pipeline = skada.make_da_pipeline(StandardScaler(), classifier)
    pipeline.fit(task.X, y, sample_domain=task.domain)
    inner = pipeline[-1].base_estimator_
    assert inner.has_target_
    expected = make(method, unknown_label=99).fit(
        StandardScaler().fit_transform(task.X), numbers(task), task.domain
    )
    np.testing.assert_array_equal(inner.transduction_, expected.transduction_)
    scaled = StandardScaler().fit(task.X).transform(task.target)
    np.testing.assert_array_equal(pipeline.predict(task.target), expected.predict(scaled))
    assert 99 in inner.transduction_


def test_skada_scores_a_pipeline(skada, make, task):
    classifier = make("class-means", unknown_label=99)
    pipeline = skada.make_da_pipeline(classifier)
    pipeline.fit(task.X, numbers(task), sample_domain=task.domain)
    truth = [{"ant": 0, "bee": 1, "cat": 2, "dog": 3, "unknown": 99}[name] for name in task.truth]
    assert pipeline.score(task.target, np.array(truth)) > 0.85
