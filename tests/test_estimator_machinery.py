"""The contract in other people's machinery: pipelines, clones, searches, skada."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimator_helpers import numbers, same_answers


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
