"""Second opinions: whose votes are counted, what they change, and what they cannot."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from feature_shifts import feature_task
from opensetda import MovingMeans, SourceOnly, load, save
from opensetda.context import FitContext
from opensetda.metrics.open_set import expected_calibration_error
from opensetda.runs.options import OPINIONS
from opensetda.usecases import fit
from opensetda.usecases.fit_rows import fit_domains
from opensetda.usecases.opinions import (
    OTHERS,
    compare_opinions,
    dispute,
    second_opinions,
)

SHIFTED = feature_task(6, 6, 64, "all", 0.4, seed=3, per_class=40)


def domains(task=SHIFTED, order=None):
    """The arguments of `fit`, targets in another order if one is given."""
    target = task.target_features if order is None else task.target_features[order]
    X = np.concatenate([task.source_features, target]).astype(np.float32)
    y = np.concatenate([task.source_labels, np.repeat(task.source_labels[:1], len(target))])
    return X, y, np.repeat([0, -1], [len(task.source_labels), len(target)])


def asked(number=OPINIONS, order=None, **parameters):
    given = domains(order=order)
    classifier = MovingMeans(**parameters).fit(*given, FitContext())
    return classifier, second_opinions(classifier, *given, number)


@pytest.fixture(scope="module")
def run():
    return asked()


def test_labels_stay_and_probabilities_are_the_mean_of_the_votes(run):
    classifier, opinions = run
    alone, one = asked(0)
    assert len(one) == 1
    assert len(opinions) == 1 + OPINIONS
    np.testing.assert_array_equal(classifier.transduction_, alone.transduction_)
    votes = np.mean([opinion.votes for opinion in opinions], axis=0)
    np.testing.assert_allclose(classifier.transduction_proba_, votes)
    np.testing.assert_allclose(votes.sum(axis=1), 1)
    names = [opinion[:2] for opinion in opinions]
    assert len(set(names)) == len(names) <= len(OTHERS)


def test_the_confidence_knows_more_than_the_method_alone(run):
    classifier, _ = run
    alone, _ = asked(0)
    truth = np.where(
        np.isin(SHIFTED.target_truth, classifier.classes_), SHIFTED.target_truth, "unknown"
    )
    right = classifier.transduction_ == truth
    assert 0.5 < right.mean() < 1
    scores = [roc_auc_score(right, one.transduction_confidence_) for one in (classifier, alone)]
    assert scores[0] > scores[1] - 0.01
    confidence = classifier.transduction_confidence_
    assert expected_calibration_error(confidence, right) < 0.2
    # A column of its own label: nothing else is read from the probabilities.
    names = [*classifier.classes_.tolist(), "unknown"]
    own = [names.index(label) for label in classifier.transduction_]
    np.testing.assert_array_equal(
        confidence, classifier.transduction_proba_[np.arange(len(own)), own]
    )


def test_later_samples_are_labelled_as_before_and_as_sure_as_the_votes(run, tmp_path):
    classifier, _ = run
    alone, _ = asked(0)
    X = SHIFTED.target_features
    np.testing.assert_array_equal(classifier.predict(X), alone.predict(X))
    later = classifier.predict_proba(X)
    gap = np.abs(later[:, -1].mean() - classifier.transduction_proba_[:, -1].mean())
    assert gap < 0.05
    save(classifier, tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(X), later)


def test_the_order_of_the_targets_has_no_effect(run):
    order = np.random.default_rng(0).permutation(len(SHIFTED.target_features))
    shuffled, _ = asked(order=order)
    expected = run[0].transduction_proba_[order]
    np.testing.assert_allclose(shuffled.transduction_proba_, expected, atol=1e-6)


def test_target_labels_have_no_effect():
    X, y, domain = domains()
    classifier = MovingMeans().fit(X, y, domain, FitContext())
    first = second_opinions(classifier, X, y, domain)[-1].votes
    y = y.copy()
    y[domain < 0] = "anything"
    again = second_opinions(classifier, X, y, domain)[-1].votes
    np.testing.assert_array_equal(first, again)


def test_other_methods_are_asked_too():
    given = domains()
    classifier = SourceOnly(0.4).fit(*given, FitContext())
    names = [opinion[:2] for opinion in second_opinions(classifier, *given, 2)]
    assert names == [("source-only", "none"), ("daod", "standard"), ("smoothed-means", "ranks")]


def test_a_warning_if_the_others_disagree_with_many_labels():
    task = feature_task(4, 4, 16, "all", 0.4, seed=0, per_class=20)
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(80, 16)), rng.normal(size=(90, 16))
    classifier = MovingMeans(0.4)
    fit_domains(classifier, source, task.source_labels, target, opinions=4)
    assert classifier.openness_report_.warnings[-1].startswith("other methods disagree with ")


def test_no_warning_if_they_agree(run):
    assert dispute(run[1]) == []


def test_a_run_has_opinions_unless_it_is_told_not_to(tmp_path):
    source = SHIFTED.source_features, SHIFTED.source_labels
    asked, alone = (
        fit(source, SHIFTED.target_features, tmp_path / str(n), opinions=n).folder.predictions()
        for n in (2, 0)
    )
    np.testing.assert_array_equal(asked.labels, alone.labels)
    assert np.abs(asked.confidence - alone.confidence).mean() > 0.01


def test_methods_on_a_target_without_labels():
    found = compare_opinions(*domains_of_tables())
    assert found[0].method == "moving-means"
    assert {row[:2] for row in found} == {*OTHERS}
    for row in found:
        assert 0 <= row.unknown <= 1
        assert 0.2 < row.agreement <= 1
        assert 0 < row.hidden_hos <= 1
    two = np.isin(SHIFTED.source_labels, np.unique(SHIFTED.source_labels)[:2])
    few = SHIFTED.source_features[two], SHIFTED.source_labels[two], SHIFTED.target_features
    assert np.isnan(compare_opinions(*few)[0].hidden_hos)


def domains_of_tables():
    return SHIFTED.source_features, SHIFTED.source_labels, SHIFTED.target_features
