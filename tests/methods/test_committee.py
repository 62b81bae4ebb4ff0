"""Committee: who votes, what the votes are, and that fit, predict and a saved model agree."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from conftest import fit_task
from feature_shifts import feature_task
from opensetda import DAOD, Committee, InputError, MovingMeans, SmoothedMeans
from opensetda.methods import committee as module
from opensetda.methods import votes as voting
from opensetda.methods.committee import CommitteeScorer, seats_for
from opensetda.methods.votes import VoteTable, member_weights, sharpness_of
from opensetda.metrics.open_set import expected_calibration_error
from opensetda.share.confidence import alarm_warnings, class_alarms, doubt
from opensetda.share.decision import unknown_votes

MEMBERS = 5


@pytest.fixture(scope="module")
def hard():
    """Six known classes under all shifts at once; four of ten targets are unknown."""
    return feature_task(6, 6, 64, "all", 0.4, seed=3, per_class=40)


@pytest.fixture(scope="module")
def untold(hard):
    return fit_task(Committee(), hard)


@pytest.fixture(scope="module")
def told(hard):
    return fit_task(Committee(0.4), hard)


def right(classifier, task):
    truth = np.where(np.isin(task.target_truth, classifier.classes_), task.target_truth, "unknown")
    return classifier.transduction_ == truth


# Members ------------------------------------------------------------------------------------


def test_the_members_see_the_rows_in_different_ways(untold):
    assert len(set(untold.members_)) == MEMBERS
    assert [entry["member"] for entry in untold.history_] == untold.members_
    methods = {name.split(" (")[0] for name in untold.members_}
    assert methods == {"MovingMeans", "SmoothedMeans", "DAOD"}


def test_every_member_is_fitted_once_and_the_columns_scaled_once(hard, monkeypatch):
    fitted = []
    learn = {method: method._learn for method in (MovingMeans, DAOD)}

    def counted(method):
        def run(self, domains, *rest):
            fitted.append((type(self).__name__, self.scaling))
            return learn[method](self, domains, *rest)

        return run

    for method in learn:
        monkeypatch.setattr(method, "_learn", counted(method))
    fit_task(Committee(), hard)
    assert sorted(fitted) == sorted((s.method.__name__, s.scaling) for s in module.SEATS)


def test_with_many_classes_daod_does_not_vote(monkeypatch, hard):
    assert len(seats_for(DAOD.most_classes)) == MEMBERS
    monkeypatch.setattr(DAOD, "most_classes", 5)
    few = fit_task(Committee(0.4), hard)
    assert len(few.members_) == 3
    assert not any("DAOD" in name for name in few.members_)
    np.testing.assert_allclose(few.transduction_proba_.sum(axis=1), 1)
    again = Committee.from_state(*few.get_state())
    np.testing.assert_array_equal(again.predict(hard.target_features), few.transduction_)


def test_members_learn_from_a_sample_and_vote_on_all(hard, monkeypatch):
    whole = right(fit_task(Committee(0.4), hard), hard).mean()
    monkeypatch.setattr(module, "MEMBER_ROWS", 150)
    sampled = fit_task(Committee(0.4), hard)
    assert len(sampled.transduction_) == len(hard.target_features) > 150
    assert right(sampled, hard).mean() > whole - 0.15
    np.testing.assert_array_equal(sampled.predict(hard.target_features), sampled.transduction_)


# Votes --------------------------------------------------------------------------------------


def test_the_votes_by_hand():
    """Three members: two for the first class, one of them half for unknown, one for the last."""
    tables = [
        VoteTable(torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 0.0]).double())
        for _ in range(3)
    ]
    scorer = CommitteeScorer({}, ["none"] * 3, [], 3)
    scorer.let_vote(tables, np.full(3, 1 / 3))
    known = torch.tensor([[2.0, 0.5, 1.0], [-1.0, 0.25, 0.25]], dtype=torch.float64)
    nearest = torch.tensor([[0, 0, 2], [0, 1, 1]])
    votes, margin = scorer.vote(known, nearest)
    expected = [[1.5 / 3, 0, 1 / 3], [0, 0.5 / 3, 0]]
    np.testing.assert_allclose(votes, expected)
    # The rest is for unknown.
    np.testing.assert_allclose(margin, [1.5 / 3 - 0.5 / 3, 0.5 / 3 - 2.5 / 3])
    scorer.sharpen(2.0)
    sharper, margin = scorer.vote(known, nearest)
    powers = np.array([[9, 0, 4], [0, 1, 0]]) / np.array([[14], [26]])
    np.testing.assert_allclose(sharper, powers)
    np.testing.assert_allclose(margin, [8 / 14, -24 / 26])


def test_a_table_gives_the_votes_of_its_scores_and_what_lies_between():
    known = np.random.default_rng(0).normal(size=50)
    table = VoteTable.fit(known, share=0.4, spread=0.1)
    votes = unknown_votes(known, 0.4, 0.1)
    np.testing.assert_array_equal(table(torch.from_numpy(known)), votes)
    ordered = np.sort(known)
    middle = table(torch.from_numpy((ordered[:-1] + ordered[1:]) / 2)).numpy()
    falling = np.sort(votes)[::-1]
    np.testing.assert_allclose(middle, (falling[:-1] + falling[1:]) / 2)
    ends = table(torch.tensor([-99.0, 99.0], dtype=torch.float64)).numpy()
    np.testing.assert_array_equal(ends, falling[[0, -1]])


def test_large_tables_are_thinned(monkeypatch):
    known = np.random.default_rng(0).normal(size=500)
    whole = VoteTable.fit(known, 0.4, 0.1)
    monkeypatch.setattr(voting, "LEVELS", 64)
    thin = VoteTable.fit(known, 0.4, 0.1)
    assert len(thin.scores) == 64
    x = torch.linspace(-3, 3, 100, dtype=torch.float64)
    np.testing.assert_allclose(thin(x), whole(x), atol=0.02)


def test_the_label_is_the_most_probable_column_in_fit_and_predict(untold, told, hard):
    for fitted in (untold, told):
        names = np.array([*fitted.classes_, "unknown"])
        labels = names[fitted.transduction_proba_.argmax(axis=1)]
        np.testing.assert_array_equal(labels, fitted.transduction_)
        later = hard.target_features + np.float32(0.1)
        np.testing.assert_array_equal(
            names[fitted.predict_proba(later).argmax(axis=1)], fitted.predict(later)
        )


def test_predict_knows_as_much_of_the_targets_as_fit_did(untold, hard):
    X = hard.target_features
    np.testing.assert_array_equal(untold.predict(X), untold.transduction_)
    np.testing.assert_array_equal(untold.predict_proba(X), untold.transduction_proba_)


def test_members_that_agree_with_the_others_count_more():
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 4, 200)
    other = rng.integers(0, 4, 200)
    weights = member_weights(np.stack([shared, shared, other], axis=1))
    assert weights.sum() == pytest.approx(1)
    assert weights[0] == weights[1] > 2 * weights[2]
    # 2 of 3 pairs with the odd one agree by chance on a quarter.
    chance = (shared == other).mean()
    assert weights[0] / weights[2] == pytest.approx(np.exp(4 * ((1 + chance) / 2 - chance)))
    few = member_weights(np.stack([shared, shared, other], axis=1)[:5])
    np.testing.assert_array_equal(few, np.full(3, 1 / 3))


def test_agreement_sharpens_the_votes():
    assert sharpness_of(np.full(50, 0.85)) == pytest.approx(1)
    assert sharpness_of(np.full(50, 1.0)) > 2
    assert sharpness_of(np.full(50, 0.6)) < 0.5
    assert sharpness_of(np.full(5, 0.2)) == 1


def test_labels_that_more_members_give_are_right_more_often(untold, hard):
    agreement = untold.agreement_
    assert set(np.round(agreement * MEMBERS)) <= set(range(MEMBERS + 1))
    correct = right(untold, hard)
    assert correct[agreement == 1].mean() > correct[agreement < 0.7].mean() + 0.1
    assert expected_calibration_error(untold.transduction_confidence_, correct) < 0.2


def test_the_committee_is_at_least_as_good_as_its_median_member(told, hard):
    alone = [
        right(fit_task(seat.method(0.4, scaling=seat.scaling), hard), hard).mean()
        for seat in module.SEATS
    ]
    assert right(told, hard).mean() >= np.median(alone)


# The share ----------------------------------------------------------------------------------


def test_about_a_given_share_is_labelled_unknown(told, hard):
    rejected = (told.transduction_ == "unknown").sum()
    assert rejected / len(hard.target_features) == pytest.approx(0.4, abs=0.05)


def test_a_given_share_of_none_stays_none(hard):
    assert (fit_task(Committee(0.0), hard).transduction_ != "unknown").all()


def test_what_members_agree_on_by_mistake_is_doubted():
    """Members that see few classes say less; labels keep their order."""
    doubts = [doubt(n_classes) for n_classes in (2, 3, 5, 10)]
    assert doubts == sorted(doubts, reverse=True)
    assert doubt(1000) == doubts[-1]
    scorer = CommitteeScorer({}, ["none"] * 3, [], 3)
    tables = [VoteTable(torch.zeros(1).double(), torch.zeros(1).double()) for _ in range(3)]
    known = torch.ones(4, 3, dtype=torch.float64)
    nearest = torch.tensor([[0, 0, 2], [0, 1, 1], [2, 2, 2], [0, 1, 2]])
    scorer.let_vote(tables, np.full(3, 1 / 3))
    plain, margin = scorer.vote(known, nearest)
    scorer.sharpen(1.0, doubt=0.4)
    doubted, smaller = scorer.vote(known, nearest)
    np.testing.assert_allclose(doubted, 0.6 * plain + 0.1)
    np.testing.assert_allclose(smaller, 0.6 * margin)


def alarmed(votes, labels, of_source=(0.5, 0.5)):
    return class_alarms(np.array(votes), np.array(labels), np.array(of_source), ["cat", "dog"])


def test_a_class_that_the_targets_have_lost_is_named_first():
    surely = [[0.95, 0.0, 0.05]] * 20
    lost = [[0.0, 0.4, 0.6]] * 20
    (alarm,) = alarmed(surely + lost, [0] * 20 + [2] * 20)
    assert (alarm.name, alarm.labelled, alarm.expected) == ("dog", 0, 10)
    (line,) = alarm_warnings([alarm])
    assert "'dog' (no target has this label" in line


def test_a_class_whose_votes_are_split_is_named():
    surely = [[0.95, 0.0, 0.05]] * 20
    split = [[0.3, 0.36, 0.34]] * 20
    (alarm,) = alarmed(surely + split, [0] * 20 + [1] * 20)
    assert alarm.name == "dog"
    assert "36% sure" in alarm.sentence


def test_sure_classes_are_not_named():
    votes = [[0.95, 0.0, 0.05]] * 20 + [[0.0, 0.9, 0.1]] * 20
    assert alarmed(votes, [0] * 20 + [1] * 20) == ()
    assert alarm_warnings(()) == ()


def test_alarms_are_raised_first():
    rng = np.random.default_rng(0)
    X = np.concatenate([4 * np.eye(8)[np.arange(90) % 3] + rng.normal(size=(90, 8)) for _ in "ab"])
    # The third class looks like nothing of the source in the target.
    X[92::3] = rng.normal(size=(30, 8)) * 3
    y = np.array(["cat", "dog", "horse"])[np.arange(180) % 3]
    with pytest.warns(UserWarning, match="horse"):
        method = Committee().fit(X, y, np.repeat([0, -1], 90))
    assert method.alarms_[0]["name"] == "horse"
    assert "horse" in method.openness_report_.warnings[0]


def test_a_wrong_scaling_is_refused(hard):
    with pytest.raises(InputError, match="scaling='ranks': choose one of none"):
        fit_task(Committee(scaling="ranks"), hard)


# Order, batch, and a saved model --------------------------------------------------------------


def test_neither_order_nor_labels_of_the_targets_matter(untold, hard):
    order = np.random.default_rng(0).permutation(len(hard.target_features))
    X = np.concatenate([hard.source_features, hard.target_features[order]])
    y = np.concatenate([hard.source_labels, hard.target_truth[order]])
    domain = np.repeat([1, -1], [len(hard.source_labels), len(order)])
    other = Committee().fit(X, y, domain)
    np.testing.assert_array_equal(other.transduction_proba_, untold.transduction_proba_[order])
    np.testing.assert_array_equal(other.agreement_, untold.agreement_[order])
    later = hard.target_features[:70] * np.float32(1.1)
    together = untold.predict_proba(later)
    alone = np.concatenate([untold.predict_proba(row[None]) for row in later])
    np.testing.assert_array_equal(together, alone)


def test_a_saved_committee_votes_as_before(untold, hard):
    state, arrays = untold.get_state()
    again = Committee.from_state(json.loads(json.dumps(state)), arrays)
    later = hard.target_features + np.float32(0.2)
    np.testing.assert_array_equal(again.predict_proba(later), untold.predict_proba(later))
    assert again.members_ == untold.members_
    # Names of scalings or members that do not exist.
    with pytest.raises(InputError, match="saved model"):
        Committee.from_state({**state, "members": ["Nobody (as given)"]}, arrays)


# Corners ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_targets", [1, 2, 7])
def test_few_targets_are_not_certain(hard, n_targets):
    X = np.concatenate([hard.source_features, hard.target_features[:n_targets]])
    y = np.concatenate([hard.source_labels, np.full(n_targets, "")])
    domain = np.repeat([1, -1], [len(hard.source_labels), n_targets])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = Committee().fit(X, y, domain)
    assert fitted.transduction_proba_.shape == (n_targets, 7)
    if n_targets < 3:
        assert fitted.transduction_proba_.max() < 0.95


def test_without_a_target_members_vote_for_classes_only(hard):
    fitted = Committee().fit(hard.source_features, hard.source_labels)
    proba = fitted.predict_proba(hard.source_features)
    assert proba.shape == (len(hard.source_labels), 6)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert fitted.score(hard.source_features, hard.source_labels) > 0.95
    names = fitted.classes_[proba.argmax(axis=1)]
    np.testing.assert_array_equal(fitted.predict(hard.source_features), names)


def test_a_warning_if_the_members_disagree_and_none_if_they_agree(untold):
    assert not any("disagree" in line for line in untold.openness_report_.warnings)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(170, 16))
    y = np.concatenate([np.array([*"abcdefghij"])[np.arange(80) % 10], np.full(90, "")])
    noise = np.repeat([1, -1], [80, 90])
    with pytest.warns(UserWarning, match=r"members of the committee disagree with \d+%"):
        Committee(0.4).fit(X, y, noise)


def test_a_member_fitted_alone_scores_as_in_the_committee(untold, hard):
    """Nothing is hidden in the committee: its first member is `MovingMeans` on ranks."""
    share = untold.openness_
    alone = fit_task(MovingMeans(share), hard)
    known, nearest = untold.scorer_.opinions(torch.from_numpy(hard.target_features))
    np.testing.assert_allclose(known[:, 0], alone.transduction_scores_, atol=1e-6)
    np.testing.assert_array_equal(alone.classes_[nearest[:, 0]], alone.transduction_nearest_)
    last = fit_task(SmoothedMeans(share, scaling="ranks"), hard)
    np.testing.assert_allclose(known[:, -1], last.transduction_scores_, atol=1e-6)
