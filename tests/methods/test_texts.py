"""The names of classes as rows: a member of the committee, whatever made the rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opensetda import Committee
from opensetda.errors import InputError
from opensetda.methods.committee import TEXTS, seats_for
from opensetda.methods.texts import TextMember
from opensetda.rows import Domains, Rows, TextRows

CENTRES = 4 * np.eye(3, 8, dtype=np.float32)


@pytest.fixture
def domains():
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1, 0, 1, 2], 20)
    X = (CENTRES[kinds] + rng.normal(size=(100, 8))).astype(np.float32)
    return Domains.of(
        source=Rows(X, np.arange(40)),
        y=kinds[:40],
        target=Rows(X, np.arange(40, 100)),
        classes=np.array(["cat", "dog"]),
    )


def texts(*unknowns):
    return TextRows(CENTRES[:2], np.array([CENTRES[place] for place in unknowns]).reshape(-1, 8))


@pytest.mark.parametrize("unknowns", [(), (2,)])
def test_scores_are_cosines(unknowns):
    X = np.random.default_rng(1).normal(size=(5, 8))
    rows = texts(*unknowns)
    member = TextMember.of(rows, 8)
    import torch

    cosines, known = (found.numpy() for found in member(torch.from_numpy(X)))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines, unit[:, :2], atol=1e-12)
    other = unit[:, 2] if unknowns else 0
    np.testing.assert_allclose(known, unit[:, :2].max(axis=1) - other, atol=1e-12)


def test_the_member_votes_and_is_saved(domains):
    plain = Committee(openness=1 / 3).fit_domains(domains)
    fitted = Committee(openness=1 / 3).fit_domains(replace(domains, texts=texts(2)))
    assert fitted.members_ == [*plain.members_, TEXTS]
    assert [entry["member"] for entry in fitted.history_] == fitted.members_
    state, arrays = fitted.get_state()
    again = Committee.from_state(state, arrays)
    assert again.members_ == fitted.members_
    later = np.random.default_rng(2).normal(size=(30, 8)).astype(np.float32)
    found = fitted.predict_proba(later)
    assert again.predict_proba(later).tolist() == found.tolist()
    assert not np.array_equal(plain.predict_proba(later), found)
    assert fitted.predict(CENTRES).tolist() == ["cat", "dog", "unknown"]


def test_the_order_of_rows_has_no_effect_on_the_votes(domains):
    labels = np.full(100, 0)
    labels[domains.source.index] = domains.y
    order = np.random.default_rng(3).permutation(100)
    place = np.argsort(order)
    source = place[:40]
    shuffled = Domains.of(
        source=Rows(domains.source.X[order], source),
        y=labels[:40],
        target=Rows(domains.source.X[order], place[40:]),
        classes=domains.classes,
    )
    both = [
        Committee(openness=1 / 3).fit_domains(replace(given, texts=texts(2)))
        for given in (domains, shuffled)
    ]
    later = domains.source.X[:10]
    assert both[0].predict_proba(later).tolist() == both[1].predict_proba(later).tolist()


def test_without_a_target_the_member_votes_for_classes(domains):
    alone = replace(domains, target=domains.target.first(0), texts=texts(2))
    fitted = Committee().fit_domains(alone)
    assert fitted.predict(CENTRES[:2]).tolist() == ["cat", "dog"]
    assert len(fitted.members_) == len(seats_for(2)) + 1


def test_texts_of_another_width_are_refused(domains):
    wrong = TextRows(CENTRES[:2, :5], np.empty((0, 5)))
    with pytest.raises(InputError, match="8 columns"):
        Committee().fit_domains(replace(domains, texts=wrong))
