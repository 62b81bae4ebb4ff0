"""What the rivals with a network share: PGL's inputs, adapter and optimiser, and one loop."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import TransformerMixin
from sklearn.utils import check_random_state
from torch import Tensor, nn

from opensetda.base import Scores
from opensetda.baselines.shared import rival
from opensetda.baselines.shared.rival import COUNT, NON_NEGATIVE, POSITIVE, Domains, checked
from opensetda.context import FitContext
from opensetda.nn.inputs import FixedRows, TrainingInputs, TunedImages
from opensetda.nn.parts import Adapter, make_accelerator, make_optimiser
from opensetda.nn.settings import FineTuneSettings, OptimiserSettings
from opensetda.openness.tracker import OpennessTracker
from opensetda.progress import ProgressEvent, ProgressListener, finish_step
from opensetda.rejection.base import Matrix, Saved, State
from opensetda.rows import CHUNK_ROWS, FloatArray, IntArray, Rows, split_domains

# Rows of unit length are short for a layer that starts with weights of 1 / sqrt(d).
ROW_SCALE = 8.0


@dataclass(frozen=True)
class Batch:
    """Aligned samples of one iteration: source (b, d), target (b', d) with its row numbers.

    `progress` is the share of the training that is done.
    """

    source: Tensor
    labels: Tensor
    target: Tensor
    target_index: Tensor
    progress: float


class RivalNetwork(nn.Module, ABC):
    r"""Adapter and bottleneck; a subclass adds the heads and losses of its method.

    .. math:: g(x) = \operatorname{LeakyReLU}(\operatorname{LN}(W_b\, s\, G_B(x)))

    The adapter :math:`G_B` is trained if `adapts`; it is not if an image backbone is.
    """

    def __init__(self, width: int, n_classes: int, adapts: bool, bottleneck: int = 256) -> None:
        super().__init__()
        self.backbone = Adapter(width, unit=True, learns=adapts)
        # Not batch normalisation: with it OSBP's own boundary gets an HOS of 51, with this one 87
        # (three tasks of Office-31). Why is open: statistics of both domains together do no better.
        self.bottleneck = nn.Sequential(
            nn.Linear(width, bottleneck), nn.LayerNorm(bottleneck), nn.LeakyReLU(0.1)
        )
        self.n_classes, self.width_out = n_classes, bottleneck

    def features(self, x: Tensor) -> Tensor:
        """Return what the heads see: (N, d) -> (N, h)."""
        embedded: Tensor = self.bottleneck(ROW_SCALE * self.backbone(x))
        return embedded

    @abstractmethod
    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of the labelled source alone, by name."""

    @abstractmethod
    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses that need targets, by name; not called without targets."""

    def start(self, inputs: TrainingInputs, labels: Tensor) -> None:
        """Prepare for the training; by default there is nothing to prepare."""


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkRival(TransformerMixin, rival.AlignedRival):  # type: ignore[misc]
    """Base of the rivals with a network; a subclass has `_make_network` and `_network_scores`.

    Parameters
    ----------
    iterations : int, default=600
        Number of training iterations, one batch of each domain per iteration.
    batch_size : int, default=64
        Samples of each domain per batch.
    rate : float, default=0.001
        Learning rate of bottleneck and heads; the adapter or image backbone has a tenth of it.
    random_state : int, RandomState or None, default=None
        Seed of weights and batches.
    """

    is_random = trains_backbone = transforms_domains = True
    # By SGD (`momentum_optimiser`) instead of Adam.
    momentum: ClassVar[bool] = False

    iterations: int = checked(600, COUNT)
    batch_size: int = checked(64, COUNT)
    rate: float = checked(1e-3, POSITIVE)
    random_state: Any = field(default=None, metadata={"allowed": ["random_state"]})

    @abstractmethod
    def _make_network(self, width: int, n_classes: int, adapts: bool) -> RivalNetwork:
        """Return the untrained network for aligned rows of this width."""

    @abstractmethod
    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        """Score aligned rows (N, d), each on its own; network and rows are in double precision."""

    def _after_training(self, inputs: TrainingInputs, y: IntArray) -> None:
        """Learn what scoring needs besides the network; by default nothing."""

    def _adapt(self, domains: Domains, openness: OpennessTracker, context: FitContext) -> Scores:
        source, y, target = domains
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = (source, target, rival.ALIGNMENT)
        inputs: TrainingInputs
        if context.images is None:
            inputs = FixedRows(*rows)
        else:
            inputs = TunedImages(context.images, *rows, FineTuneSettings(), keep_start=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = int(inputs.source.shape[1])
            network = self._make_network(width, len(self.classes_), inputs.learned is None)
            losses = self._train(network, inputs, torch.from_numpy(y), seed, context.progress)
        self._alignment = inputs.alignment
        self._network = _frozen(network)
        self._after_training(inputs, y)
        if not len(target):
            return rival.NO_SCORES
        # As later samples are scored: a later copy of a target gets the same answer.
        chunks = _raw_targets(inputs, target)
        scores = rival.join_scores(self._score_scaled(chunk) for chunk in chunks)
        entry = {"step": 1, "mean_score": float(scores.known.mean()), "loss": losses}
        finish_step(self.history_, context.progress, entry, iterations=self.iterations)
        return scores

    def _train(
        self,
        network: RivalNetwork,
        inputs: TrainingInputs,
        labels: Tensor,
        seed: int,
        listener: ProgressListener | None,
    ) -> dict[str, float]:
        """Train the network; returns the mean of each loss over the last tenth."""
        accelerator = make_accelerator("no")
        inputs.to(accelerator.device)
        network.to(accelerator.device)
        labels = labels.to(accelerator.device)
        slow = self.rate / 10
        rates = OptimiserSettings(graph_rate=self.rate, backbone_rate=slow, weight_decay=5e-4)
        make = momentum_optimiser if self.momentum else make_optimiser
        optimiser = accelerator.prepare(make(network, rates, inputs.parameters()))
        rng = np.random.default_rng(seed)
        source_batches = _batches(len(inputs.source), self.batch_size, rng)
        target_batches = _batches(len(inputs.target), self.batch_size, rng)
        # A batch of the source is always full.
        n = self.batch_size
        network.start(inputs, labels)
        late: list[dict[str, Tensor]] = []
        for iteration in range(self.iterations):
            network.train()
            progress = iteration / self.iterations
            # The schedule of DANN.
            for group in optimiser.param_groups:
                rate = rates.backbone_rate if group["name"] == "backbone" else rates.graph_rate
                group["lr"] = rate * (1 + 10 * progress) ** -0.75
            drawn = np.concatenate([next(source_batches), next(target_batches)])
            index = torch.from_numpy(drawn).to(labels.device)
            is_target = torch.arange(len(index), device=labels.device) >= n
            rows = inputs.of_graph(index, is_target, rng)
            batch = Batch(rows[:n], labels[index[:n]], rows[n:], index[n:], progress)
            losses = network.source_losses(batch)
            if len(batch.target):
                losses |= network.target_losses(batch)
            total = torch.stack(list(losses.values())).sum()
            accelerator.backward(total)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            if progress >= 0.9 or iteration + 1 == self.iterations:
                late.append({name: value.detach() for name, value in losses.items()})
            if listener is not None:
                done, loss = iteration + 1, float(total.detach())
                place, ends = (1, 1, done, self.iterations), inputs.refresh_seconds
                listener(ProgressEvent(*place, loss, updates=done, ending=ends))
        inputs.refresh()
        names = dict.fromkeys(name for losses in late for name in losses)
        return {n: sum(float(losses.get(n, 0.0)) for losses in late) / len(late) for n in names}

    def _score_rows(self, X: FloatArray) -> Scores:
        with torch.no_grad():
            return self._network_scores(self._network, self._aligned(X))

    def transform(self, X: Any, sample_domain: Any = None) -> Matrix:
        """Return the learned features of later samples: (n, n_features) -> (n, h).

        Parameters
        ----------
        X : array of shape (n, n_features)
            Samples.
        sample_domain : array of int of shape (n,), optional
            0 or more: source, which has a mean of its own; negative: target. None: all target.
        """
        rows = self._check_rows(X)
        aligned = self._aligned(self.scaler_.of_target(rows))
        if sample_domain is not None:
            source, _ = split_domains(sample_domain, len(rows))
            scaled = Rows(rows, source, scale=self.scaler_.of_source)
            of_source = self._alignment.source(scaled).astype(np.float64)
            aligned[torch.from_numpy(source)] = torch.from_numpy(of_source)
        with torch.no_grad():
            return np.asarray(self._network.features(aligned).numpy())

    def _aligned(self, X: FloatArray) -> Tensor:
        return torch.from_numpy(self._alignment.later(X))

    def _fitted_state(self) -> State:
        values, arrays = super()._fitted_state()
        for name, tensor in self._network.state_dict().items():
            # Trained in single precision: nothing is lost.
            exact = tensor.float() if tensor.is_floating_point() else tensor
            arrays[f"network.{name}"] = exact.numpy()
        return {**values, "adapts": self._network.backbone.change is not None}, arrays

    def _restore_fitted_state(self, values: Saved, arrays: Saved) -> None:
        super()._restore_fitted_state(values, arrays)
        width = arrays["alignment.projection"].shape[1]
        network = self._make_network(width, len(self.classes_), values["adapts"])
        saved = {name: np.array(arrays[f"network.{name}"]) for name in network.state_dict()}
        network.load_state_dict({name: torch.from_numpy(array) for name, array in saved.items()})
        self._network = _frozen(network)


class ExtraClassRival(NetworkRival):
    """Base of the rivals whose classifier has C + 1 outputs, the last for unknown.

    The known score is the largest of the others minus the last, the own boundary zero.
    """

    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        logits = network.classifier(network.features(x))
        classes = logits[:, :-1]
        return numpy_scores(classes, classes.max(dim=1).values - logits[:, -1])

    def _own_cut(self, scores: Scores) -> float | None:
        return 0.0


class ClosedSetNetwork(RivalNetwork):
    r"""A linear classifier on the bottleneck, trained by the cross-entropy of the source.

    .. math:: L_y = -\frac{1}{b} \sum_i \log \operatorname{softmax}(W g(x_i^s))_{y_i}

    A subclass adds the loss that aligns the domains, times `weight`.
    """

    def __init__(self, width: int, n_classes: int, adapts: bool, weight: float) -> None:
        super().__init__(width, n_classes, adapts)
        self.classifier = nn.Linear(self.width_out, n_classes)
        self.weight = weight

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy."""
        logits = self.classifier(self.features(batch.source))
        return {"class": F.cross_entropy(logits, batch.labels)}


@dataclass(eq=False, repr=False, kw_only=True)
class ClosedSetRival(rival.RejectingRival, NetworkRival):
    """Base of MMD and DANN, the closed-set adapters, whose rejector learns from the source alone.

    All targets take part in the alignment, unknowns too, as in the tables of the open-set papers.
    The rejector sees the learned features, scaled to unit length.

    Parameters
    ----------
    weight : float, default=1.0
        Weight of the loss that aligns the domains.
    """

    iterations: int = 200
    weight: float = checked(1.0, NON_NEGATIVE)

    def _after_training(self, inputs: TrainingInputs, y: IntArray) -> None:
        with torch.no_grad():
            features = self._network.features(inputs.source.cpu().double())
        self._fit_rejector(F.normalize(features, dim=1).numpy(), y)

    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        features = network.features(x)
        logits = network.classifier(features)
        return self.rejector_.scores(F.normalize(features, dim=1).numpy(), logits.numpy())


def momentum_optimiser(
    network: RivalNetwork, rates: OptimiserSettings, backbone: list[nn.Parameter]
) -> torch.optim.SGD:
    """SGD with Nesterov momentum, as in most papers of the rivals.

    Adam gives every principal component of the rows the same weight. That is a whitening, and
    costs heads that see the rows themselves about two points of HOS (OVANet, Office-31).
    """
    groups = make_optimiser(network, rates, backbone).param_groups
    kept = [{key: group[key] for key in ("params", "lr", "name")} for group in groups]
    return torch.optim.SGD(kept, momentum=0.9, nesterov=True, weight_decay=rates.weight_decay)


def numpy_scores(classes: Tensor, known: Tensor) -> Scores:
    """Turn tensors into `Scores` without held-out scores."""
    return Scores(classes.numpy(), known.numpy(), np.full(len(known), np.nan))


def _frozen(network: RivalNetwork) -> RivalNetwork:
    return copy.deepcopy(network).cpu().double().eval()


def _batches(n_rows: int, size: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Yield row numbers without end; every row comes once before any is repeated."""
    waiting = np.arange(0)
    while True:
        # A batch is always full: small data are drawn more than once.
        while n_rows and len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(n_rows)])
        yield waiting[:size]
        waiting = waiting[size:]


def _raw_targets(inputs: TrainingInputs, target: Rows) -> Iterator[FloatArray]:
    if inputs.learned is None:
        yield from (chunk for _, chunk in target.chunks())
    else:
        features = inputs.raw_targets(len(target))
        for start in range(0, len(features), CHUNK_ROWS):
            yield features[start : start + CHUNK_ROWS]
