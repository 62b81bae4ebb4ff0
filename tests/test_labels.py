"""Labels of the source: missing ones are refused, -1 may be a class; searches pass the domain."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimator_helpers import refused
from opensetda import ClassMeans

MISSING = {
    "minus one": [0, 1, 2, -1],
    "blank": ["a", "b", "c", " "],
    "None": ["a", "b", "c", None],
    "NaN beside text": ["a", "b", "c", np.nan],
    "NA": [0, 1, 2, pd.NA],
}


@pytest.mark.parametrize("container", [list, np.array, pd.Series], ids=["list", "array", "series"])
@pytest.mark.parametrize("labels", MISSING.values(), ids=MISSING)
def test_missing_labels_without_a_domain_are_refused(labels, container):
    X = np.random.default_rng(0).normal(size=(16, 3))
    given = labels * 4
    if container is np.array and len({*map(type, labels)}) > 1:
        given = np.array(given, dtype=object)
    message = refused(ClassMeans(), X, container(given))
    assert message.startswith("y: row 3 has no label (")
    assert "pass sample_domain" in message


@pytest.mark.parametrize("labels", [[-1, 1], [-1, 0], [-2, -1, 0, 1], [-1.0, 1.0]], ids=str)
def test_minus_one_as_a_class(labels):
    X = np.random.default_rng(0).normal(size=(24, 3))
    y = np.resize(labels, 24)
    assert ClassMeans().fit(X, y).classes_.tolist() == labels


def test_a_source_row_without_a_label_is_refused(task):
    y = task.y.astype(object)
    y[5] = ""
    message = refused(ClassMeans(), task.X, y, task.domain)
    assert message.startswith("y: row 5 has no label ('')")


def test_a_search_with_routing_passes_the_domain_by_itself(task):
    labelled = np.concatenate([task.labels, task.truth])
    target, source = np.flatnonzero(task.domain < 0), np.flatnonzero(task.domain >= 0)
    folds = [(np.concatenate([source, target[n::2]]), target[1 - n :: 2]) for n in (0, 1)]
    grid = {"classmeans__openness": [0.0, 1 / 3, 0.8]}
    pipeline = make_pipeline(StandardScaler(), ClassMeans())
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(pipeline, grid, cv=folds, error_score="raise")
        search.fit(task.X, labelled, sample_domain=task.domain)
    assert [*search.best_params_.values()] == [1 / 3]
    assert len(search.best_estimator_[-1].transduction_) == len(task.target)
