"""What fine-tuning will cost, found before it begins, without any effect on its result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opensetda import InputError, PGLClassifier
from opensetda.context import FitContext
from opensetda.nn.inputs import TunedImages
from test_inputs import N_SOURCE, N_TARGET, SIDE, TinyImages, run, tuned


def test_a_rehearsal_changes_nothing(monkeypatch):
    rehearsed = TinyImages(norm=True)
    _, expected = run(rehearsed, **{"finetune.batch_norm": "train"})
    monkeypatch.setattr(TunedImages, "_rehearse", lambda self, n_images: None)
    unrehearsed = TinyImages(norm=True)
    _, result = run(unrehearsed, **{"finetune.batch_norm": "train"})
    assert (result.scores.known == expected.scores.known).all()
    for name, value in rehearsed.backbone.state_dict().items():
        assert value.equal(unrehearsed.backbone.state_dict()[name]), name


def test_a_rehearsal_times_the_features_of_all_images():
    inputs = tuned(TinyImages())
    assert inputs.refresh_seconds is None
    index, is_target = torch.arange(6), torch.arange(6) > 2
    inputs.of_graph(index, is_target, np.random.default_rng(0))
    assert 0 < inputs.refresh_seconds < 60


def test_the_ends_of_steps_are_expected(monkeypatch):
    events = []
    images = TinyImages()
    X, y = images.features(), images.labels.copy()
    domain = np.repeat([0, -1], [N_SOURCE, N_TARGET])
    changes = {"steps": 2, "optimiser.iterations_per_epoch": 1, "alignment.components": 6}
    classifier = PGLClassifier(preset="finetune", settings=changes, random_state=0)
    classifier.fit(X, y, domain, context=FitContext(progress=events.append, images=images))
    assert all(event.ending > 0 for event in events if event.updates is not None)


@pytest.mark.parametrize(("chunk", "n_images"), [(None, 6), (4, 4)])
def test_more_memory_than_is_free_is_refused(monkeypatch, chunk, n_images):
    images = TinyImages()
    # The pixels, the output of the ReLU, which the flat rows share; then 3 times the weights.
    per_image = 4 * (3 * SIDE * SIDE + 24)
    weights = sum(parameter.nbytes for parameter in images.backbone.parameters())
    needed = 1.25 * per_image * n_images + 3 * weights
    inputs = tuned(images, chunk=chunk)
    graph = torch.arange(6), torch.arange(6) > 2, np.random.default_rng(0)
    monkeypatch.setattr("opensetda.system.memory.free_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match=r"fine-tuning needs about 0\.0 GB .* free; take"):
        inputs.of_graph(*graph)
    monkeypatch.setattr("opensetda.system.memory.free_bytes", lambda: needed)
    inputs.of_graph(*graph)
