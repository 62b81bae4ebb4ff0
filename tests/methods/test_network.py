"""The loop of the rivals with a network: batches, rates, images, progress."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from network_helpers import shifted_task
from sklearn.base import clone
from torch import nn

from estimator_helpers import make_classifier
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.methods.network import _batches
from opensetda.methods.network_parts import make_optimiser
from opensetda.methods.rivals.osbp import OSBP, OSBPNetwork
from opensetda.training.settings import FineTuneSettings

SMALL = {"iterations": 12, "batch_size": 16, "random_state": 0}


class TinyImages:
    """Noise around a picture of each class, and a backbone of two layers."""

    averaged = 1

    def __init__(self):
        rng = np.random.default_rng(0)
        self.labels = np.concatenate([np.arange(30) % 3, np.arange(40) % 4])
        pictures = rng.normal(size=(4, 3, 4, 4))[self.labels]
        self.images = torch.from_numpy(pictures + 0.3 * rng.normal(size=pictures.shape)).float()
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 12)
        self.backbone = nn.Sequential(*layers).eval()
        self.settings = FineTuneSettings()

    @torch.no_grad()
    def features(self):
        return self.backbone(self.images).numpy()

    def trainable_parameters(self):
        return list(self.backbone.parameters())

    def view(self, rows, number):
        return self.images[rows]

    def augmented(self, rows, rng):
        return self.images[rows] + 0.01 * float(rng.normal())


def test_a_backbone_is_trained_and_its_targets_are_scored():
    images = TinyImages()
    before = images.features()
    domain = np.repeat([1, -1], [30, 40])
    y = np.where(domain > 0, images.labels, 0)
    fitted = OSBP(rate=0.01, **SMALL).fit(before, y, domain, context=FitContext(images=images))
    after = images.features()
    assert np.abs(after - before).max() > 1e-3
    # The image backbone learns in the place of the adapter.
    assert fitted.scorer_.backbone.change is None
    later = fitted.open_set_scores(after[30:])
    np.testing.assert_allclose(later.known, fitted.transduction_scores_, atol=1e-5)
    restored = OSBP.from_state(*fitted.get_state())
    np.testing.assert_array_equal(restored.predict_proba(after), fitted.predict_proba(after))


def test_every_iteration_is_reported_and_the_losses_of_the_last_ones_are_kept():
    task, events = shifted_task(per_class=5), []
    context = FitContext(progress=events.append)
    fitted = OSBP(**SMALL).fit(task.X, task.y, task.domain, context=context)
    assert [event.iteration for event in events[:-1]] == list(range(1, 13))
    assert events[-1].entry is fitted.history_[0]
    assert {*fitted.history_[0]["loss"]} == {"class", "boundary"}


def test_the_adapter_learns_at_a_tenth_of_the_rate():
    network = OSBPNetwork(6, 3, True, OSBP())
    extra = [nn.Parameter(torch.zeros(2))]
    slow, fast = make_optimiser(network, 0.5, extra).param_groups
    assert (slow["lr"], fast["lr"]) == (0.05, 0.5)
    adapter = [network.backbone.change.weight, network.backbone.change.bias, extra[0]]
    assert [id(p) for p in slow["params"]] == [id(p) for p in adapter]
    assert len(slow["params"]) + len(fast["params"]) == len([*network.parameters()]) + 1


class Narrow(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 5)

    def forward(self, x):
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("method", ["osbp", "sta", "dann", "mmd", "ovanet", "uniot"])
def test_a_module_and_an_optimizer_of_the_users(method):
    task = shifted_task(per_class=8)
    made = []

    def descend(groups):
        made.append(torch.optim.SGD(groups, momentum=0.9))
        return made[-1]

    given = {"module": Narrow, "optimizer": descend}
    fitted = clone(make_classifier(method, **given)).fit(task.X, task.y, task.domain)
    assert fitted.scorer_.width_out == 5
    assert isinstance(fitted.scorer_.bottleneck, Narrow)
    assert len(made) == 1
    target = task.X[task.domain < 0]
    np.testing.assert_array_equal(fitted.predict(target), fitted.transduction_)
    with pytest.raises(InputError, match="cannot be saved"):
        fitted.get_state()


def test_a_module_that_is_given_stays_as_it_is():
    task, module = shifted_task(per_class=8), nn.Sequential(nn.LazyLinear(7), nn.Tanh())
    OSBP(**SMALL, module=module).fit(task.X, task.y, task.domain)
    assert module[0].has_uninitialized_params()


@pytest.mark.parametrize(
    ("module", "told"),
    [(lambda width: 3, "return an nn.Module"), (nn.Flatten(0), r"return \(2, h\)"), (3, "module")],
)
def test_modules_that_are_refused(module, told):
    task = shifted_task(per_class=8)
    with pytest.raises(InputError, match=told):
        OSBP(**SMALL, module=module).fit(task.X, task.y, task.domain)


def test_every_row_comes_once_before_any_is_repeated():
    batches = _batches(10, 4, np.random.default_rng(0))
    drawn = np.concatenate([next(batches) for _ in range(5)])
    for start in (0, 10):
        assert sorted(drawn[start : start + 10]) == list(range(10))
    few = next(_batches(3, 8, np.random.default_rng(0)))
    assert np.bincount(few).tolist() in ([3, 3, 2], [3, 2, 3], [2, 3, 3])
    assert len(next(_batches(0, 8, np.random.default_rng(0)))) == 0
