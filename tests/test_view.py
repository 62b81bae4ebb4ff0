"""How a training saw its samples: a view changes nothing, and its rows are the caller's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from opensetda import PGLClassifier
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.pgl.view import MOST_NODES, Viewer, principal_components
from opensetda.runs.fitting import fit_domains
from opensetda.runs.view import RunView, view_of


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


def fitted_pgl(view=True, **settings):
    changes = {"steps": 3, "optimiser.iterations_per_epoch": 3, "losses.edge": 1.0, **settings}
    classifier = PGLClassifier(openness=1 / 3, settings=changes, random_state=0)
    source, names, target, _ = clouds()
    fit_domains(classifier, source, names, target, context=FitContext(view=view))
    return classifier


@pytest.fixture(scope="module")
def seen():
    return fitted_pgl()


def test_looking_changes_no_bit(seen):
    unseen = fitted_pgl(view=False)
    assert unseen.view_ is None
    np.testing.assert_array_equal(seen.transduction_proba_, unseen.transduction_proba_)
    np.testing.assert_array_equal(seen.step_labels_, unseen.step_labels_)
    source, *_ = clouds(seed=1)
    np.testing.assert_array_equal(seen.predict_proba(source), unseen.predict_proba(source))


def test_every_sample_is_there_at_every_step(seen):
    view = seen.view_
    assert sorted(view.source.tolist()) == list(range(40))
    assert sorted(view.target.tolist()) == list(range(60))
    assert len(view.steps) == 3
    assert all(rows.shape == (100, view.steps[0].shape[1]) for rows in view.steps)


def test_rows_are_those_of_the_caller(seen):
    """Neighbours in the embedding have the class of the row that they are said to be."""
    _, names, _, truth = clouds()
    view = seen.view_
    classes = np.concatenate([(names == "dog")[view.source].astype(int), truth[view.target]])
    rows = view.steps[-1].astype(np.float64)
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (classes[distances.argmin(axis=1)] == classes).mean() > 0.95


def test_view_does_not_depend_on_the_order_of_rows(seen):
    source, names, target, _ = clouds()
    order = np.random.default_rng(3).permutation(len(target))
    again = PGLClassifier(
        openness=1 / 3,
        settings={"steps": 3, "optimiser.iterations_per_epoch": 3, "losses.edge": 1.0},
        random_state=0,
    )
    fit_domains(again, source, names, target[order], context=FitContext(view=True))
    np.testing.assert_array_equal(order[again.view_.target], seen.view_.target)
    np.testing.assert_array_equal(again.view_.steps[-1], seen.view_.steps[-1])


def test_no_label_of_a_target_reaches_the_view(seen):
    source, names, target, truth = clouds()
    X = np.concatenate([source, target])
    y = np.concatenate([names, np.array(["cat", "dog", "elk"])[truth]])
    domain = np.repeat([0, -1], [len(source), len(target)])
    told = clone(seen).fit(X, y, sample_domain=domain, context=FitContext(view=True)).view_
    for field in ("source", "target", "nodes", "affinity"):
        np.testing.assert_array_equal(getattr(told, field), getattr(seen.view_, field))
    for one, other in zip(told.steps, seen.view_.steps, strict=True):
        np.testing.assert_array_equal(one, other)


def test_edges_are_stronger_within_a_class(seen):
    view = seen.view_
    _, names, _, _ = clouds()
    n_source = len(view.source)
    labels = np.concatenate([names[view.source], seen.transduction_[view.target]])[view.nodes]
    known = labels != "unknown"
    same = (labels[:, None] == labels[None, :]) & known[:, None] & known[None, :]
    apart = (labels[:, None] != labels[None, :]) & known[:, None] & known[None, :]
    np.fill_diagonal(same, False)
    assert view.affinity[same].mean() > view.affinity[apart].mean() + 50
    assert (view.nodes < n_source).any()
    assert (view.nodes >= n_source).any()


def test_without_a_graph_there_are_no_edges():
    view = fitted_pgl(**{"graph.enabled": False}).view_
    assert view.affinity.shape == (0, 0)
    assert len(view.nodes) == 0


def test_without_targets_there_is_nothing_to_see():
    source, names, *_ = clouds()
    classifier = PGLClassifier(random_state=0, settings={"steps": 2})
    assert classifier.fit(source, names, context=FitContext(view=True)).view_ is None


def test_a_large_target_is_sampled():
    viewer = Viewer(fitted_pgl(view=False).settings_, n_source=10**6, n_target=10**6)
    assert len(viewer.source) == 1000
    assert len(viewer.target) == 5000
    assert len(viewer.source) > MOST_NODES


def test_principal_components_are_few():
    rows = np.random.default_rng(0).normal(size=(50, 100))
    assert principal_components(rows).shape == (50, 32)
    assert principal_components(rows[:4]).shape == (4, 4)


def test_a_run_keeps_the_view(seen, tmp_path):
    source, names, target, _ = clouds()
    ids = [f"s{row}" for row in range(len(source))]
    view = view_of(seen, source, names, target, ids)
    view.write(tmp_path / "view.safetensors")
    path = tmp_path / "view.safetensors"
    back = RunView.parse(path.read_bytes(), path)
    back.check(len(target), 2)
    with pytest.raises(ValueError, match="'target' does not fit"):
        back.check(len(view.target) // 2, 2)
    for name in ("source", "target", "source_labels", "nodes", "affinity"):
        np.testing.assert_array_equal(getattr(back, name), getattr(view, name))
    assert back.source_names == tuple(f"s{row}" for row in view.source)
    assert len(back.steps) == 3
    np.testing.assert_array_equal(back.steps[1], view.steps[1])
    np.testing.assert_array_equal(np.array(["cat", "dog"])[view.source_labels], names[view.source])


def test_every_method_has_a_view(fitted, task):
    view = view_of(fitted, task.source, task.labels, task.target)
    assert len(view.steps) == 1
    assert len(view.steps[-1]) == len(task.source) + len(task.target)
    assert np.isfinite(view.steps[-1]).all()


def test_a_damaged_view_is_named(tmp_path):
    with pytest.raises(InputError, match=r"view\.safetensors: damaged"):
        RunView.parse(b"nothing", tmp_path / "view.safetensors")
