"""The classifier: its parameters, what each part changes, later samples, images."""

from __future__ import annotations

import io
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pgl_helpers import SMALL, Store
from torch import nn

from opensetda import PGLClassifier
from opensetda.context import FitContext
from opensetda.methods import rankers
from opensetda.pgl.presets import ABLATIONS
from opensetda.training.settings import FineTuneSettings


def fit(task, openness=1 / 3, preset="office-home", context=None, seed=0, **changes):
    settings = {**SMALL, **changes}
    classifier = PGLClassifier(openness, preset=preset, settings=settings, random_state=seed)
    return classifier.fit(task.X, task.y, task.domain, context)


@pytest.fixture(scope="module")
def fitted(task):
    return fit(task)


def test_it_finds_classes_and_unknowns(task):
    wide = {"edge_width": 32, "node_width": 32}
    classifier = fit(task, reject="all", stop_step=4, epochs=6, decay_every=4, **wide)
    assert (classifier.transduction_ == task.truth).mean() > 0.85
    assert (classifier.transduction_ == "unknown").sum() == round(len(task.target) / 3)


@pytest.fixture(scope="module")
def taught(task):
    return fit(task, preset="default", components=8)


@pytest.mark.parametrize("which", ["fitted", "taught"])
def test_predict_gives_targets_of_fit_their_labels(which, task, request):
    classifier = request.getfixturevalue(which)
    np.testing.assert_array_equal(classifier.predict(task.target), classifier.transduction_)
    of_fit = classifier.transduction_proba_
    np.testing.assert_array_equal(classifier.predict_proba(task.target), of_fit)


def test_the_default_finds_classes_and_unknowns(taught, task):
    assert (taught.transduction_ == task.truth).mean() > 0.9
    assert (taught.transduction_ == "unknown").sum() == round(len(task.target) / 3)
    assert [entry["step"] for entry in taught.history_] == [1, 2, 3]


@pytest.mark.parametrize("rule", ["stop-step", "all"])
def test_labels_follow_the_rule_of_rejection_and_never_contradict_probabilities(task, rule):
    classifier = fit(task, reject=rule, steps=10, stop_step=3)
    share = 0.3 / 3 if rule == "stop-step" else 1 / 3
    labels = classifier.transduction_
    assert (labels == "unknown").sum() == round(share * len(task.target))
    columns = np.append(classifier.classes_, "unknown")
    np.testing.assert_array_equal(columns[classifier.transduction_proba_.argmax(1)], labels)
    np.testing.assert_array_equal(classifier.predict(task.target), labels)
    assert classifier.openness_ == pytest.approx(1 / 3)
    assert not classifier.openness_report_.warnings
    by_paper = classifier.labels_by_paper()
    assert (by_paper == "unknown").sum() == round(0.3 / 3 * len(task.target))
    if rule == "stop-step":
        np.testing.assert_array_equal(by_paper, labels)
    assert (classifier.step_labels_ == 4).sum(1).tolist() == [
        round((share if rule == "all" else step / 30) * len(task.target)) for step in (1, 2, 3)
    ]


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_changes_the_result(fitted, task, name):
    # The share is given, so that the ablation's other beta does not count.
    ablated = fit(task, **ABLATIONS[name])
    difference = np.abs(ablated.transduction_proba_ - fitted.transduction_proba_)
    assert difference.max() > 1e-3
    losses = set(ablated.history_[-1]["loss"])
    gone = {"no-graph": {"edge"}, "no-edge-loss": {"edge"}, "no-adversary": {"adversary"}}
    assert losses == {"node", "edge", "adversary"} - gone.get(name, set())
    assert (len(ablated.history_) == 1) == (name == "no-progressive-steps")


@pytest.mark.parametrize(
    "changes", [{"layers": 2}, {"fresh_start": False}, {"episodes": 1}, {"draws": 1}]
)
def test_other_settings_change_the_result(fitted, task, changes):
    other = fit(task, **changes)
    assert (other.transduction_scores_ != fitted.transduction_scores_).any()


@pytest.mark.parametrize("preset", ["office-home", "visda-17", "syn2real-o"])
def test_openness_of_the_preset_given_or_estimated(task, preset):
    beta = {"office-home": 0.6, "visda-17": 0.85, "syn2real-o": 0.9}[preset]
    small = {"episodes": 2, "stop_step": 1, "reject": "all"}
    of_preset = fit(task, "preset", preset, **small)
    assert of_preset.openness_ == pytest.approx(beta, abs=0.5 / len(task.target))
    assert fit(task, 0.25, preset, **small).openness_ == pytest.approx(0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert 0.1 < fit(task, "auto", preset, **small).openness_ < 0.6


def test_the_order_of_rows_does_not_matter(fitted, task):
    order = np.random.default_rng(0).permutation(len(task.X))
    shuffled = SimpleNamespace(X=task.X[order], y=task.y[order], domain=task.domain[order])
    other = fit(shuffled)
    targets = np.argsort(order[task.domain[order] < 0])
    np.testing.assert_array_equal(fitted.transduction_proba_, other.transduction_proba_[targets])
    np.testing.assert_array_equal(fitted.step_labels_, other.step_labels_[:, targets])
    np.testing.assert_array_equal(fitted.predict_proba(task.X), other.predict_proba(task.X))


def test_labels_of_targets_are_not_used(fitted, task):
    is_target = task.domain < 0
    y = np.where(is_target, "ant", task.y)
    y[np.flatnonzero(is_target)] = task.truth
    other = fit(SimpleNamespace(X=task.X, y=y, domain=task.domain))
    np.testing.assert_array_equal(fitted.transduction_proba_, other.transduction_proba_)


def test_a_later_sample_gets_the_same_answer_in_every_batch(fitted, task):
    together = fitted.predict_proba(task.X)
    alone = np.concatenate([fitted.predict_proba(row[None]) for row in task.X])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("preset", ["office-home", "default"])
@pytest.mark.parametrize("changes", [{}, {"layers": 0}, {"layers": 2}])
def test_a_saved_classifier_predicts_the_same(task, changes, preset):
    classifier = fit(task, preset=preset, **changes)
    other = PGLClassifier.from_state(*classifier.get_state())
    np.testing.assert_array_equal(classifier.predict_proba(task.X), other.predict_proba(task.X))
    assert other.settings_ == classifier.settings_


@pytest.mark.parametrize("preset", ["office-home", "default"])
def test_without_targets_it_is_a_closed_set_classifier(task, preset):
    settings = {**SMALL, "epochs": 20, "decay": 1}
    classifier = PGLClassifier(preset=preset, settings=settings, random_state=0)
    classifier.fit(task.source, task.labels)
    assert (classifier.predict(task.source) == task.labels).mean() > 0.9
    assert classifier.predict_proba(task.source).shape == (len(task.source), 4)
    assert len(classifier.history_) == 1


def test_transform_gives_node_embeddings_of_both_domains(fitted, task):
    embedded = fitted.transform(task.X, task.domain)
    # Beside the features.
    assert embedded.shape == (len(task.X), task.X.shape[1] + SMALL["node_width"])
    np.testing.assert_allclose(embedded[0], fitted.transform(task.X[:1])[0])


@pytest.mark.parametrize("which", ["fitted", "taught"])
def test_the_scorer_exports(which, task, request):
    fitted = request.getfixturevalue(which)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    x, file = torch.from_numpy(task.X.astype(np.float64)), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"dynamo": False, "opset_version": 17, "input_names": ["x"]}
        axes = {"x": {0: "n"}}
        torch.onnx.export(fitted.scorer_, (x[:2],), file, dynamic_axes=axes, **options)
    scores = onnxruntime.InferenceSession(file.getvalue()).run(None, {"x": x.numpy()})
    with torch.no_grad():
        expected = fitted.scorer_(x)
    for ours, theirs in zip(expected, scores, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-6)


class Pictures:
    """Images of four numbers, and a backbone that maps them to the rows of the task."""

    averaged = 1

    def __init__(self, width=16):
        torch.manual_seed(0)
        self.settings = FineTuneSettings()
        self.backbone = nn.Linear(width, width)
        self.rows = None

    def of(self, X):
        # The first features are those of the untrained backbone.
        weights = self.backbone.weight.detach().double(), self.backbone.bias.detach().double()
        rows = torch.linalg.solve(weights[0], (torch.tensor(X).double() - weights[1]).T).T
        self.rows = rows.float()
        return self

    def trainable_parameters(self):
        return list(self.backbone.parameters())

    def view(self, rows, number):
        return self.rows[rows]

    def augmented(self, rows, rng):
        noise = torch.from_numpy(rng.normal(scale=0.01, size=(len(rows), self.rows.shape[1])))
        return self.rows[rows] + noise.float()


def test_an_image_backbone_is_trained_in_its_steps(task):
    images = Pictures().of(task.X)
    before = images.backbone.weight.detach().clone()
    classifier = fit(task, context=FitContext(images=images))
    assert (images.backbone.weight.detach() != before).any()
    assert not list(classifier.scorer_.network.backbone.parameters())
    # Later samples are features of the trained backbone.
    with torch.no_grad():
        features = images.backbone(images.rows[torch.from_numpy(task.domain < 0)]).numpy()
    np.testing.assert_array_equal(classifier.predict(features), classifier.transduction_)


@pytest.mark.parametrize("preset", ["default", "end-to-end"])
def test_a_training_of_a_backbone_resumes_to_the_same_bits(task, preset):
    store = Store()
    context = FitContext(images=Pictures().of(task.X), checkpoints=store)
    whole = fit(task, context=context, preset=preset)
    assert store.kept
    for record in store.kept:
        context = FitContext(images=Pictures().of(task.X), checkpoints=Store(record))
        resumed = fit(task, context=context, preset=preset)
        np.testing.assert_array_equal(whole.transduction_proba_, resumed.transduction_proba_)


@pytest.mark.parametrize("is_safer", [False, True])
def test_moving_means_teaches_by_the_safer_view(task, monkeypatch, is_safer):
    found = iter([0.6, 0.5] if is_safer else [0.5, 0.6])
    monkeypatch.setattr(rankers, "agreement", lambda *given: next(found))
    images = Pictures().of(task.X)
    images.averaged = 2
    classifier = fit(task, preset="end-to-end", context=FitContext(images=images), steps=3)
    assert images.averaged == (1 if is_safer else 2)
    assert [entry["step"] for entry in classifier.history_] == [1, 2, 3]


def test_a_taught_training_reads_neither_labels_nor_the_order_of_targets(task):
    def taught(order, labels):
        classifier = PGLClassifier(preset="end-to-end", settings=SMALL, random_state=0)
        return classifier.fit(task.X[order], labels[order], task.domain[order], FitContext())

    rng, is_target = np.random.default_rng(0), task.domain < 0
    same, mixed, wrong = np.arange(len(task.X)), np.arange(len(task.X)), task.y.copy()
    mixed[is_target] = rng.permutation(mixed[is_target])
    wrong[is_target] = rng.choice(task.labels, is_target.sum())
    expected = taught(same, task.y).transduction_proba_
    np.testing.assert_array_equal(taught(same, wrong).transduction_proba_, expected)
    place = np.searchsorted(same[is_target], mixed[is_target])
    np.testing.assert_array_equal(taught(mixed, task.y).transduction_proba_, expected[place])
