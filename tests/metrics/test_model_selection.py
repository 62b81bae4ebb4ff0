"""Searches of scikit-learn and skada: domains are routed, folds keep the source, HOS is scored."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimator_helpers import numbers, refused
from opensetda import ClassMeans, InputError, TargetKFold, evaluate, hos_scorer

SHARES = [0.0, 1 / 3, 0.8]


@pytest.fixture(scope="module")
def labelled(task):
    """Labels of both domains, the true ones of the target, too."""
    return np.concatenate([task.labels, task.truth])


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_every_fold_has_the_whole_source_and_each_target_is_tested_once(task):
    folds = [*TargetKFold(5).split(task.X, sample_domain=task.domain)]
    assert len(folds) == TargetKFold(5).get_n_splits(task.X, sample_domain=task.domain) == 5
    source, target = np.flatnonzero(task.domain >= 0), np.flatnonzero(task.domain < 0)
    for train, test in folds:
        assert set(source) <= set(train)
        assert not set(train) & set(test)
        assert sorted([*train, *test]) == [*range(len(task.X))]
    assert sorted(np.concatenate([test for _, test in folds])) == target.tolist()


@pytest.mark.parametrize(
    ("domain", "text"), [(None, "enable metadata routing"), ([1, 1, 0], "no target row")]
)
def test_folds_without_targets_are_refused(domain, text):
    with pytest.raises(InputError, match=text):
        next(TargetKFold(2).split(np.zeros((3, 2)), sample_domain=domain))


@pytest.mark.parametrize("scoring", [hos_scorer, None], ids=["hos", "accuracy"])
def test_a_search_with_routing_passes_the_domain_by_itself(routing, task, labelled, scoring):
    pipeline = make_pipeline(StandardScaler(), ClassMeans())
    grid = {"classmeans__openness": SHARES}
    search = GridSearchCV(pipeline, grid, cv=TargetKFold(2), scoring=scoring, error_score="raise")
    search.fit(task.X, labelled, sample_domain=task.domain)
    assert [*search.best_params_.values()] == [1 / 3]
    assert len(search.best_estimator_[-1].transduction_) == len(task.target)
    found = evaluate(task.truth, search.predict(task.target), search.classes_)
    assert hos_scorer(search, task.target, task.truth) == found.hos > 0.8


def test_no_true_label_of_a_target_reaches_fit(routing, task, labelled, monkeypatch):
    """The labels of the training part are permuted: the scores stay the same to the bit."""
    seen = []
    fit = ClassMeans.fit

    def spoilt(self, X, y, sample_domain):
        seen.append(len(X))
        y = np.where(sample_domain < 0, "nonsense", y)
        return fit(self, X, y, sample_domain)

    def scores():
        found = cross_validate(
            ClassMeans(),
            *(task.X, labelled),
            cv=TargetKFold(3),
            scoring=hos_scorer,
            params={"sample_domain": task.domain},
            error_score="raise",
        )
        return found["test_score"].tolist()

    honest = scores()
    monkeypatch.setattr(ClassMeans, "fit", spoilt)
    assert scores() == honest
    assert seen == [len(task.X) - len(task.target) // 3] * 3


def test_skada_searches_with_folds_and_score(routing, task):
    skada = pytest.importorskip("skada", reason="the extra 'skada' is not installed")
    y = numbers(task)
    y[task.domain < 0] = [
        {"ant": 0, "bee": 1, "cat": 2, "dog": 3}.get(name, 7) for name in task.truth
    ]
    before = y.copy()
    pipeline = skada.make_da_pipeline(StandardScaler(), ClassMeans(unknown_label=99))
    grid = {"classmeans__openness": SHARES}
    search = GridSearchCV(
        pipeline, grid, cv=TargetKFold(2), scoring=hos_scorer, error_score="raise", refit=False
    )
    search.fit(task.X, y, sample_domain=task.domain)
    assert [*search.best_params_.values()] == [1 / 3]
    assert search.best_score_ > 0.8
    np.testing.assert_array_equal(y, before)


def test_a_classifier_without_unknowns_is_not_scored(task, labelled):
    closed = LogisticRegression().fit(task.source, task.labels)
    with pytest.raises(InputError, match="LogisticRegression has no unknown_label"):
        hos_scorer(make_pipeline(closed), task.target, task.truth)


# labels that are missing --------------------------------------------------------------------

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
