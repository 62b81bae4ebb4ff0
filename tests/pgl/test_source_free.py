"""SF-PGL: a run goes on to a new target, from its weights alone."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from opensetda import PGLClassifier
from opensetda.context import FitContext
from opensetda.errors import InputError, RunPausedError
from opensetda.methods.pseudo_labels import UNLABELLED
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.source_free import Selection, class_weights, entropy_loss, select_more
from opensetda.usecases import RunListener, adapt, fit, predict, resume

SMALL = {"steps": 3, "edge_width": 8, "node_width": 8, "epochs": 1, "draws": 2, "components": 4}
QUICK = {"steps": 3, "epochs": 1, "draws": 2}
SF = {"preset": "sf-pgl", "openness": 0.25, "settings": QUICK}
NAMES = np.array(["cup", "pen", "mug", "sun"])


def domain(seed, shift=0.0, n=120):
    """Four classes, of which the source lacks the last one."""
    rng = np.random.default_rng(seed)
    which = np.arange(n) % 4
    X = 5 * np.eye(4, 12)[which] + shift + rng.normal(0, 0.5, (n, 12))
    return X.astype(np.float32), NAMES[which]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    X, y = domain(0)
    known = y != "sun"
    out = tmp_path_factory.mktemp("base") / "run"
    options = {"method": "pgl", "openness": 0.25, "settings": SMALL | {"graph_rate": 3e-3}}
    return fit((X[known], y[known]), domain(1, 1)[0], out, keep_source="none", **options)


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    return adapt(base, domain(2, 2)[0], tmp_path_factory.mktemp("sf") / "run", **SF)


def test_a_run_that_kept_nothing_goes_on_from_its_weights(base, adapted):
    _, truth = domain(2, 2)
    expected = np.where(truth == "sun", "unknown", truth)
    assert (adapted.folder.labels() == expected).mean() > 0.8
    model = adapted.folder.model()
    assert model.settings_.source_free
    assert model.settings_.node_width == base.folder.model().settings_.node_width
    assert len(adapted.folder.kept().rows) == 0
    with pytest.raises(InputError, match="kept nothing"):
        adapt(base, domain(2, 2)[0], adapted.path.parent / "other")


def test_the_weights_move_and_start_from_those_of_the_run(base, tmp_path):
    still = {"graph_rate": 0, "backbone_rate": 0}
    run = adapt(base, domain(2, 2)[0], tmp_path / "run", **SF | {"settings": QUICK | still})
    before = base.folder.model().scorer_.network
    after = run.folder.model().scorer_.network
    for name in ("classifier.weight", "layers.0.edge.layers.0.weight"):
        torch.testing.assert_close(before.state_dict()[name], after.state_dict()[name])
    moved = adapt(base, domain(2, 2)[0], tmp_path / "moved", **SF).folder.model().scorer_.network
    assert not torch.equal(before.classifier.weight, moved.classifier.weight)


def test_same_seed_same_bits_in_any_order_of_the_rows(base, adapted, tmp_path):
    X, _ = domain(2, 2)
    order = np.random.default_rng(0).permutation(len(X))
    other = adapt(base, X[order], tmp_path / "run", **SF)
    np.testing.assert_array_equal(other.folder.labels(), adapted.folder.labels()[order])
    first, second = (one.folder.predictions().proba for one in (adapted, other))
    np.testing.assert_array_equal(second, first[order])


def test_labels_are_the_most_probable_and_predict_repeats_them(adapted, tmp_path):
    X, _ = domain(2, 2)
    model = adapted.folder.model()
    p = model.predict_proba(X)
    names = np.append(model.classes_, "unknown")
    np.testing.assert_array_equal(names[p.argmax(axis=1)], model.predict(X))
    np.testing.assert_array_equal(model.predict(X), adapted.folder.labels())
    assert predict(adapted, X, tmp_path / "later.csv").path.is_file()


def test_it_is_adapted_again(adapted, tmp_path):
    again = adapt(adapted, domain(3, 3)[0], tmp_path / "run", openness=0.25)
    assert again.folder.model().settings_.source_free
    assert len(again.folder.chain) == 2


class Interrupt(RunListener):
    """Stops the training in its last step."""

    def training(self, method):
        def listen(event):
            if event.step > 2:
                raise KeyboardInterrupt

        return nullcontext(listen)


def test_resume_gives_the_same_bits(base, adapted, tmp_path):
    X, _ = domain(2, 2)
    np.savez(tmp_path / "target.npz", X=X)
    whole = adapt(base, tmp_path / "target.npz", tmp_path / "whole", **SF)
    with pytest.raises(RunPausedError):
        adapt(base, tmp_path / "target.npz", tmp_path / "run", listener=Interrupt(), **SF)
    resumed = resume(tmp_path / "run")
    for name in ("model.safetensors", "predictions.csv"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()
    np.testing.assert_array_equal(resumed.folder.labels(), adapted.folder.labels())


def test_it_starts_from_a_run_of_pgl_alone(base, tmp_path):
    X, y = domain(0)
    known = y != "sun"
    with pytest.raises(InputError, match="osda adapt"):
        fit((X[known], y[known]), X, tmp_path / "run", method="pgl", preset="sf-pgl")
    with pytest.raises(InputError, match="osda adapt"):
        PGLClassifier(preset="sf-pgl").fit(X[known], y[known], context=FitContext())
    means = fit((X[known], y[known]), X, tmp_path / "means", method="class-means")
    with pytest.raises(InputError, match="another method"):
        adapt(means, domain(2)[0], tmp_path / "run", method="pgl", preset="sf-pgl")
    changes = {"settings": {"node_width": 16}}
    with pytest.raises(InputError, match="node_width=16: the run has 8"):
        adapt(base, domain(2)[0], tmp_path / "run", **SF | changes)
    assert not (tmp_path / "run").exists()


def test_a_selection_grows_and_has_as_many_of_each_class():
    rng = np.random.default_rng(0)
    nearest = np.repeat([0, 1, 2], [60, 30, 10])
    before = Selection(np.full(100, UNLABELLED), np.ones(3))
    for step in (1, 2, 3):
        known = rng.random(100)
        found = select_more(before, known, nearest, openness=0.3, progress=step / 5)
        was_selected = before.labels != UNLABELLED
        np.testing.assert_array_equal(found.labels[was_selected], before.labels[was_selected])
        assert (found.labels == 3).sum() == 6 * step
        counts = np.bincount(found.labels[found.labels >= 0], minlength=4)[:3]
        quota = round(14 * step / 3)
        assert counts[0] == counts[1] == quota
        assert counts[2] <= quota
        new = (found.labels == 0) & ~was_selected
        assert found.thresholds[0] == known[new].min()
        before = found


def test_the_least_sure_are_unknown_and_one_target_is_selected_at_least():
    known = np.linspace(0, 1, 10)
    start = Selection(np.full(10, UNLABELLED), np.ones(2))
    found = select_more(start, known, np.zeros(10, dtype=int), openness=0.95, progress=0.2)
    assert found.labels.tolist() == [2, 2, *[UNLABELLED] * 7, 0]


def test_doubtful_classes_weigh_more_and_entropy_is_least_for_sure_nodes():
    weights = class_weights(torch.tensor([0.9, 0.4]))
    assert weights[1] > weights[0]
    assert float(weights.sum()) == pytest.approx(1)
    assert float(entropy_loss(torch.zeros(2, 4))) == pytest.approx(np.log(4))
    assert float(entropy_loss(torch.tensor([[50.0, 0, 0, 0]]))) == pytest.approx(0, abs=1e-6)


def test_episodes_without_a_source_have_slots_for_the_classes_that_have_targets():
    labels = np.array([0, 0, 2, UNLABELLED, 3])
    sampler = EpisodeSampler(np.empty(0, dtype=int), labels, 3, episodes=2, replacement=0.0)
    drawn = sampler.draw(np.random.default_rng(0))
    assert drawn.labels[:4].tolist() == [0, 0, 2, 2]
    assert len(drawn.rows) == 8
    assert drawn.is_target.all()
    np.testing.assert_array_equal(labels[drawn.rows[:4]], [0, 0, 2, 2])


def test_the_entropy_of_unlabelled_targets_is_a_loss_if_it_has_a_weight(base, tmp_path):
    eta = {"entropy_weight": 0.02}
    run = adapt(base, domain(2, 2)[0], tmp_path / "run", **SF | {"settings": QUICK | eta})
    losses = run.folder.history()[-1]["loss"]
    assert set(losses) == {"node", "edge", "entropy"}
