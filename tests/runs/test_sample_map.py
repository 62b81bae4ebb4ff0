"""The view of a run: its samples, how the method represents them, and groups of unknowns."""

from __future__ import annotations

import numpy as np
import pytest

from opensetda import MovingMeans
from opensetda.errors import InputError
from opensetda.runs import sample_map as views
from opensetda.runs.sample_map import FEWEST, RunView, group_rows, view_of
from opensetda.usecases.fit_rows import read_rows_of


def clouds(n_source=40, n_target=60, seed=0, wide=12):
    """Two known classes far apart; of the target, every third is of a class of its own."""
    rng = np.random.default_rng(seed)
    centres = 5 * np.eye(3, wide)
    y = np.arange(n_source) % 2
    truth = np.arange(n_target) % 3
    source = centres[y] + rng.normal(0, 0.4, (n_source, wide))
    target = centres[truth] + rng.normal(0, 0.4, (n_target, wide)) + 0.3
    names = np.array(["cat", "dog"])[y]
    return source.astype(np.float32), names, target.astype(np.float32), truth


@pytest.fixture(scope="module")
def classifier():
    source, names, target, _ = clouds()
    classifier = MovingMeans(openness=1 / 3, scaling="none")
    return classifier.fit_domains(read_rows_of(source, names, target))


@pytest.fixture(scope="module")
def seen(classifier):
    source, names, target, _ = clouds()
    return view_of(classifier, source, names, target, [f"s{row}" for row in range(len(source))])


def test_rows_are_those_of_the_caller(seen):
    """Neighbours in the embedding have the class of the row that they are said to be."""
    assert seen.source_names[3] == "s3"
    _, names, _, truth = clouds()
    classes = np.concatenate([(names == "dog")[seen.source].astype(int), truth[seen.target]])
    rows = seen.embedding.astype(np.float64)
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (classes[distances.argmin(axis=1)] == classes).mean() > 0.95


def test_large_domains_are_sampled(classifier, monkeypatch):
    monkeypatch.setattr(views, "MOST_SOURCES", 10)
    monkeypatch.setattr(views, "MOST_TARGETS", 20)
    monkeypatch.setattr(views, "_AT_A_TIME", 7)
    source, names, target, _ = clouds()
    some = view_of(classifier, source, names, target)
    assert (len(some.source), len(some.target), len(some.embedding)) == (10, 20, 30)
    assert (np.diff(some.source) > 0).all()
    np.testing.assert_array_equal(np.array(["cat", "dog"])[some.source_labels], names[some.source])


def test_features_of_a_trained_backbone_take_the_place_of_those_before(classifier, seen):
    source, names, target, _ = clouds()
    both = np.concatenate([source, target])
    again = view_of(classifier, 0 * source, names, 0 * target, features=lambda rows: both[rows])
    np.testing.assert_array_equal(again.embedding, seen.embedding)


def test_a_run_keeps_the_view(seen, tmp_path):
    path = tmp_path / "view.safetensors"
    seen.write(path)
    back = RunView.parse(path.read_bytes(), path)
    for name in ("source", "target", "source_labels", "embedding"):
        np.testing.assert_array_equal(getattr(back, name), getattr(seen, name))
    assert back.source_names == seen.source_names
    with pytest.raises(InputError, match=r"view\.safetensors: damaged"):
        RunView.parse(b"nothing", path)


def test_every_method_has_a_view(fitted, task):
    view = view_of(fitted, task.source, task.labels, task.target)
    assert len(view.embedding) == len(task.source) + len(task.target)
    assert np.isfinite(view.embedding).all()


# groups of unknowns ---------------------------------------------------------------------------


def groups_of(sizes, spread=0.15, wide=16):
    rng = np.random.default_rng(0)
    which = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.eye(len(sizes), wide)[which] + rng.normal(0, spread, (len(which), wide))
    return rows, which, group_rows(rows)


@pytest.mark.parametrize("sizes", [[30] * 7, [100, 20, 20, 20, 20]])
def test_as_many_groups_as_there_are(sizes):
    rows, which, groups = groups_of(sizes)
    assert [len(members) for members in groups] == sorted(sizes, reverse=True)
    assert all(len(set(which[members].tolist())) == 1 for members in groups)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(rows)))
    # The most typical comes first.
    first = rows[groups[0]]
    cosine = first @ first.mean(axis=0) / np.linalg.norm(first, axis=1)
    assert cosine[0] == cosine.max()


def test_a_few_and_twins_are_one_group():
    assert [len(members) for members in groups_of([FEWEST - 1])[2]] == [FEWEST - 1]
    assert group_rows(np.empty((0, 4))) == []
    assert [len(members) for members in group_rows(np.ones((30, 4)))] == [30]
