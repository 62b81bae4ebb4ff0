"""Marks of a person: spread over groups, part of the fitted method, and of nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from estimator_helpers import make_classifier
from opensetda import Committee, MovingMeans
from opensetda.methods import committee
from opensetda.methods.groups import grouped
from opensetda.methods.marks import (
    FEWEST_MARKS,
    MarkedScorer,
    Spread,
    marked_share,
    most_useful,
)
from opensetda.rows import KNOWN, Domains, Marks, Rows
from opensetda.share.confidence import ClassAlarm
from opensetda.share.report import ShareSource


@pytest.fixture(scope="module")
def blobs():
    """Rows of 30 groups of 20, and the group of each."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 20)
    return (10 * rng.normal(size=(30, 8)))[group] + rng.normal(size=(600, 8)), group


def domains_of(task, rows=(), names=(), classes=None):
    """The task as a value, with marks of some targets."""
    n_source = len(task.source)
    known = np.unique(task.labels)
    classes = known if classes is None else classes
    labels = [np.searchsorted(classes, name) if name in classes else len(classes) for name in names]
    marks = Marks(n_source + np.array(rows, dtype=np.intp), np.array(labels), classes)
    return Domains.of(
        source=Rows(task.X, np.arange(n_source)),
        y=np.searchsorted(known, task.labels),
        target=Rows(task.X, np.arange(n_source, len(task.X))),
        classes=known,
        marks=marks if len(rows) else None,
    )


def accuracy(classifier, task, rows):
    others = np.setdiff1d(np.arange(len(task.truth)), rows)
    return (classifier.transduction_ == task.truth)[others].mean()


def test_one_mark_mends_a_group_and_leaves_the_others(blobs):
    rows, group = blobs
    truth = group % 3
    votes = np.full((600, 3), 0.1)
    votes[np.arange(600), np.where(group == 4, 2, truth)] = 0.8  # group 4 is wrong, and sure
    cells, _ = grouped([rows])
    marked = np.array([np.flatnonzero(group == g)[3] for g in (0, 1, 4, 7, 9)])
    spread = Spread.fit(votes, cells, marked, truth[marked])
    labels = spread.probabilities(votes, cells).argmax(axis=1)
    assert (votes.argmax(axis=1)[group == 4] != truth[group == 4]).all()
    assert (labels == truth).mean() > 0.99
    assert spread.trust >= 0.5


def test_marks_that_contradict_the_votes_take_their_weight(blobs):
    rows, group = blobs
    truth = group % 3
    votes = np.full((600, 3), 0.05)
    votes[np.arange(600), (truth + 1) % 3] = 0.9
    cells, central = grouped([rows])
    taken = np.zeros(0, dtype=np.intp)
    spread = Spread.fit(votes, cells, taken, taken)
    assert (spread.probabilities(votes, cells).argmax(axis=1) == votes.argmax(axis=1)).all()
    for _ in range(30):
        asked = most_useful(spread, votes, cells, central, taken, 1)
        taken = np.append(taken, asked.rows)
        spread = Spread.fit(votes, cells, taken, truth[taken])
    assert spread.trust == 0
    assert (spread.probabilities(votes, cells).argmax(axis=1) == truth).mean() > 0.95
    # By 30 marks, every group has been asked for once.
    assert len(np.unique(group[taken])) >= 28


def test_what_is_asked_next_is_settled_by_nothing_else(blobs):
    rows, group = blobs
    votes = np.full((600, 3), 1 / 3)
    votes[group < 15] = (0.98, 0.01, 0.01)
    cells, central = grouped([rows])
    none = np.zeros(0, dtype=np.intp)
    spread = Spread.fit(votes, cells, none, none)
    first = most_useful(spread, votes, cells, central, none, 10)
    again = most_useful(spread, votes, cells, central, none, 10)
    np.testing.assert_array_equal(first.rows, again.rows)
    # Sure labels can wait, and no group is asked for twice.
    assert (group[first.rows] >= 15).mean() >= 0.9
    assert len(np.unique(group[first.rows])) == 10
    assert 0 < first.gain < 1
    # Taken ones are not asked for again; in the end any row is.
    few = most_useful(spread, votes, cells, central, np.arange(597), 10)
    assert set(few.rows.tolist()) == {597, 598, 599}


def test_the_share_of_unknowns_by_marks(blobs):
    rows, group = blobs
    unknown = group % 3 == 2
    votes = np.full((600, 3), 1 / 3)
    cells, central = grouped([rows])
    none = np.zeros(0, dtype=np.intp)
    spread = Spread.fit(votes, cells, none, none)
    asked = most_useful(spread, votes, cells, central, none, 30).rows
    labels = (group % 3)[asked]
    spread = Spread.fit(votes, cells, asked, labels)
    found = marked_share(spread, votes, cells, asked, labels)
    assert found.low <= unknown.mean() <= found.high
    assert abs(found.share - unknown.mean()) < 0.05
    assert found.high - found.low < 0.2


@pytest.mark.parametrize("method", ["committee", "moving-means", "daod"])
def test_a_fit_follows_marks_and_predicts_as_it_labels(method, task):
    given = np.arange(0, len(task.truth), 4)
    plain = make_classifier(method).fit_domains(domains_of(task))
    marked = make_classifier(method).fit_domains(domains_of(task, given, task.truth[given]))
    assert accuracy(marked, task, given) >= accuracy(plain, task, given)
    assert accuracy(marked, task, given) > 0.95
    np.testing.assert_array_equal(marked.predict(task.target), marked.transduction_)
    np.testing.assert_array_equal(marked.predict_proba(task.target), marked.transduction_proba_)
    columns = np.append(marked.classes_, "unknown")
    best = columns[marked.transduction_proba_.argmax(axis=1)]
    np.testing.assert_array_equal(best, marked.transduction_)
    # A sample gets the same bits in every batch, and from a saved model.
    state, arrays = marked.get_state()
    loaded = type(marked).from_state(json.loads(json.dumps(state)), arrays)
    alone = np.concatenate([loaded.predict_proba(row[None]) for row in task.target[:5]])
    np.testing.assert_array_equal(alone, marked.predict_proba(task.target)[:5])


def test_a_named_class_is_a_class_of_the_run(task):
    elks = np.flatnonzero(task.truth == "unknown")
    names = np.array([*np.unique(task.labels), "zebra"])
    given = np.concatenate([elks[::2], [0, 1, 2]])
    said = np.array(["zebra"] * len(elks[::2]) + task.truth[:3].tolist())
    fitted = Committee().fit_domains(domains_of(task, given, said, names))
    assert fitted.classes_.tolist() == names.tolist()
    assert fitted.transduction_proba_.shape == (len(task.truth), len(names) + 1)
    assert (fitted.predict(task.target[elks]) == "zebra").mean() > 0.8
    joined = make_classifier("source-only").fit_domains(domains_of(task, given, said, names))
    assert joined.classes_.tolist() == names.tolist()


@pytest.mark.parametrize("method", ["committee", "moving-means", "dann"])
def test_only_marks_reach_a_fit_and_order_carries_nothing(method, task):
    """Permuting the targets, with their marks, permutes the answer; there are no other labels."""
    given = np.array([3, 4, 11, 12, 40, 52, 60, 64, 65, 66, 67])
    said = np.array(["ant", "bee", "unknown", "cat", *task.truth[given[4:]]])
    # Equal rows with different marks, and with none.
    X = task.X.copy()
    X[len(task.source) + np.array([4, 11, 12, 13])] = task.target[3]
    task = replace(task, X=X)
    first = make_classifier(method).fit_domains(domains_of(task, given, said))
    order = np.random.default_rng(0).permutation(len(task.truth))
    n_source = len(task.source)
    X = np.concatenate([task.X[:n_source], task.X[n_source:][order]])
    place = np.argsort(order)
    before = domains_of(task, given, said)
    moved = Domains.of(
        source=Rows(X, np.arange(n_source)),
        y=np.searchsorted(before.classes, task.labels),
        target=Rows(X, np.arange(n_source, len(X))),
        classes=before.classes,
        marks=before.marks._replace(rows=n_source + place[given]),
    )
    second = make_classifier(method).fit_domains(moved)
    np.testing.assert_array_equal(second.transduction_proba_, first.transduction_proba_[order])
    later = first.predict_proba(task.target)
    np.testing.assert_array_equal(second.predict_proba(task.target), later)
    np.testing.assert_array_equal(later, first.transduction_proba_)
    assert second.openness_ == first.openness_
    assert second.marked_ == first.marked_
    # What is not among the marks has no way in: no marks, no change.
    assert not isinstance(MovingMeans().fit_domains(domains_of(task)).scorer_, MarkedScorer)


def test_the_share_comes_from_enough_marks_unless_it_is_given(task):
    given = np.arange(2 * FEWEST_MARKS)
    fitted = MovingMeans().fit_domains(domains_of(task, given, task.truth[given]))
    assert fitted.openness_report_.source is ShareSource.AUDITED
    assert abs(fitted.openness_ - task.openness) < 0.1
    assert "marked targets are unknown" in fitted.openness_report_.audit
    few = given[: FEWEST_MARKS - 1]
    fitted = MovingMeans().fit_domains(domains_of(task, few, task.truth[few]))
    assert fitted.openness_report_.source is ShareSource.ESTIMATED
    fitted = MovingMeans(0.25).fit_domains(domains_of(task, given, task.truth[given]))
    assert fitted.openness_ == 0.25


def test_classes_to_check_are_still_named_first(task, monkeypatch):
    monkeypatch.setattr(committee, "class_alarms", lambda *_: (ClassAlarm("ant", 1, 9, 0.4),))
    given = np.arange(2 * FEWEST_MARKS)
    fitted = Committee().fit_domains(domains_of(task, given, task.truth[given]))
    report = fitted.openness_report_
    assert report.source is ShareSource.AUDITED
    assert "'ant'" in report.warnings[0]
    assert "mark 30 targets" not in " ".join(report.warnings)


def test_a_target_that_is_only_known_is_not_unknown(task):
    domains = domains_of(task, [0, 1, 2], ["ant", "unknown", "bee"])
    asked = domains.marks._replace(labels=np.array([KNOWN, KNOWN, 1]))
    domains = Domains.of(domains.source, domains.y, domains.target, domains.classes, asked)
    fitted = MovingMeans(0.9).fit_domains(domains)
    assert fitted.transduction_[0] in fitted.classes_.tolist()


def test_an_exported_model_follows_marks(task):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    from opensetda.usecases.export_model import to_onnx

    given = np.arange(0, len(task.truth), 4)
    fitted = Committee().fit_domains(domains_of(task, given, task.truth[given]))
    session = onnxruntime.InferenceSession(to_onnx(fitted))
    labels, proba = session.run(["label", "probabilities"], {"rows": task.target})
    np.testing.assert_array_equal(labels, fitted.predict(task.target))
    np.testing.assert_allclose(proba, fitted.predict_proba(task.target), atol=1e-4)
