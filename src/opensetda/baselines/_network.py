"""What the rivals with a network share: PGL's inputs, adapter and optimiser, and one loop.

A method's file has its network, a subclass of `RivalNetwork` with the losses of its paper, and
its classifier, a subclass of `NetworkBaseline` that says how outputs become scores.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import TransformerMixin
from sklearn.utils import check_random_state
from torch import Tensor, nn

from opensetda.base import OpenSetClassifier, Scores
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.nn.alignment import Alignment
from opensetda.nn.inputs import FixedRows, TrainingInputs, TunedImages
from opensetda.nn.parts import Adapter, make_accelerator, make_optimiser
from opensetda.nn.settings import AlignmentSettings, FineTuneSettings, OptimiserSettings
from opensetda.openness.tracker import OpennessTracker
from opensetda.progress import ProgressEvent, ProgressListener, finish_step
from opensetda.rows import CHUNK_ROWS, FloatArray, IntArray, Rows, split_domains

ALIGNMENT = AlignmentSettings(normalise=True, centring="own", components=256, whitening=0.0)
"""Rows of unit length, each domain centred on its own mean, turned onto 256 components."""

# Rows of unit length are short for a layer that starts with weights of 1 / sqrt(d).
ROW_SCALE = 8.0


@dataclass(frozen=True)
class Batch:
    """Samples of one iteration, as the network gets them.

    Attributes
    ----------
    source : tensor of shape (b, d)
        Aligned source rows; with images, through the backbone that learns.
    labels : tensor of int of shape (b,)
        Their classes.
    target : tensor of shape (b', d)
        Aligned target rows; empty where there is no target.
    target_index : tensor of int of shape (b',)
        Which targets these are, of all.
    """

    source: Tensor
    labels: Tensor
    target: Tensor
    target_index: Tensor
    progress: float


class RivalNetwork(nn.Module, ABC):
    r"""Adapter, bottleneck, and whatever heads a method has.

    .. math:: g(x) = \operatorname{LeakyReLU}(\operatorname{LN}(W_b\, s\, G_B(x)))

    Parameters
    ----------
    width : int
        d, the features of an aligned row.
    n_classes : int
        C.
    adapts : bool
        Whether the adapter learns; not where an image backbone does.
    bottleneck : int
        h, the width of the features that the heads see.

    Shapes: x (N, d) -> g(x) (N, h).
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
        """Prepare for the training; a method that needs nothing leaves it."""


class NetworkBaseline(TransformerMixin, OpenSetClassifier):  # type: ignore[misc]
    """Base of the rivals with a network.

    A subclass implements `_make_network` and `_network_scores`, and stores the parameters below in
    its ``__init__`` beside its own.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1); "auto" leaves it to the method's own
        boundary, or has it estimated where there is none. Without labels, both.
    iterations : int
        Batches of both domains to train on.
    batch_size : int
        Samples of each domain in a batch.
    rate : float
        Learning rate of bottleneck and heads; a tenth of it is the adapter's or backbone's.
    random_state : int, RandomState or None, default=None
        Seed of weights and batches.
    unknown_label : default="unknown"
        What unknowns are called.
    """

    is_random = trains_backbone = transforms_domains = True

    iterations: int
    batch_size: int
    rate: float
    random_state: Any

    @abstractmethod
    def _make_network(self, width: int, n_classes: int, adapts: bool) -> RivalNetwork:
        """Return the untrained network for aligned rows of this width."""

    @abstractmethod
    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        """Score aligned rows (N, d), each on its own; network and rows are in double precision."""

    def _make_optimiser(
        self, network: RivalNetwork, rates: OptimiserSettings, backbone: list[nn.Parameter]
    ) -> torch.optim.Optimizer:
        """Return the optimiser, with a group called "backbone"; Adam, as PGL has it."""
        return make_optimiser(network, rates, backbone)

    def _after_training(self, inputs: TrainingInputs, y: IntArray) -> None:
        """Learn what else it takes to score; a method that needs nothing more leaves it."""

    def _fit_domains(
        self,
        source: Rows,
        y: IntArray,
        target: Rows,
        openness: OpennessTracker,
        context: FitContext,
    ) -> Scores:
        for name in ("iterations", "batch_size", "rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name}={getattr(self, name)!r}: give a number above 0")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        inputs = self._inputs(source, target, context)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = int(inputs.source.shape[1])
            network = self._make_network(width, len(self.classes_), inputs.learned is None)
            losses = self._train(network, inputs, torch.from_numpy(y), seed, context.progress)
        self._alignment = inputs.alignment
        self._network = _frozen(network)
        self._after_training(inputs, y)
        if not len(target):
            return self.open_set_scores(np.zeros((1, source.width), dtype=np.float32))
        # In the very way of later samples: what is said of a target is said of its copy tomorrow.
        parts = [self.open_set_scores(chunk) for chunk in _raw_targets(inputs, target)]
        scores = Scores(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        openness.use_features(inputs.source.cpu().numpy(), y, inputs.target.cpu().numpy())
        entry = {"step": 1, "mean_score": float(scores.known.mean()), "loss": losses}
        finish_step(self.history_, context.progress, entry, iterations=self.iterations)
        return scores

    def _inputs(self, source: Rows, target: Rows, context: FitContext) -> TrainingInputs:
        if context.images is None:
            return FixedRows(source, target, ALIGNMENT)
        return TunedImages(
            context.images, source, target, ALIGNMENT, FineTuneSettings(), keep_start=False
        )

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
        rates = OptimiserSettings(
            graph_rate=self.rate, backbone_rate=self.rate / 10, weight_decay=5e-4
        )
        optimiser = accelerator.prepare(self._make_optimiser(network, rates, inputs.parameters()))
        rng = np.random.default_rng(seed)
        source_batches = _batches(len(inputs.source), self.batch_size, rng)
        target_batches = _batches(len(inputs.target), self.batch_size, rng)
        network.start(inputs, labels)
        sums: dict[str, float] = {}
        counted = 0
        for iteration in range(self.iterations):
            network.train()
            progress = iteration / self.iterations
            # As in DANN: quick at first, careful at the end.
            for group in optimiser.param_groups:
                rate = rates.backbone_rate if group["name"] == "backbone" else rates.graph_rate
                group["lr"] = rate * (1 + 10 * progress) ** -0.75
            batch = _draw(inputs, labels, next(source_batches), next(target_batches), progress, rng)
            losses = network.source_losses(batch)
            if len(batch.target):
                losses |= network.target_losses(batch)
            total = torch.stack(list(losses.values())).sum()
            accelerator.backward(total)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            if progress >= 0.9 or iteration + 1 == self.iterations:
                counted += 1
                for name, value in losses.items():
                    sums[name] = sums.get(name, 0.0) + float(value.detach())
            if listener is not None:
                done, loss = iteration + 1, float(total.detach())
                listener(ProgressEvent(1, 1, done, self.iterations, loss, updates=done))
        inputs.refresh()
        return {name: value / counted for name, value in sums.items()}

    def _score_rows(self, X: FloatArray) -> Scores:
        with torch.no_grad():
            return self._network_scores(self._network, self._aligned(X))

    def transform(self, X: Any, sample_domain: Any = None) -> npt.NDArray[np.float64]:
        """Return the learned features of later samples: (n, n_features) -> (n, h).

        Parameters
        ----------
        X : array of shape (n, n_features)
            Samples.
        sample_domain : array of int of shape (n,), optional
            0 or more: of the source, whose mean is another; negative: of the target. None: all
            of the target.
        """
        rows = self._check_rows(X)
        aligned = self._aligned(rows)
        if sample_domain is not None:
            source, _ = split_domains(sample_domain, len(rows))
            of_source = self._alignment.source(Rows(rows, source)).astype(np.float64)
            aligned[torch.from_numpy(source)] = torch.from_numpy(of_source)
        with torch.no_grad():
            return np.asarray(self._network.features(aligned).numpy())

    def _aligned(self, X: FloatArray) -> Tensor:
        return torch.from_numpy(self._alignment.later(X))

    def _fitted_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        # Trained in single precision: as such nothing of it is lost.
        arrays = {
            f"network.{name}": tensor.float().numpy()
            if tensor.is_floating_point()
            else tensor.numpy()
            for name, tensor in self._network.state_dict().items()
        }
        arrays["alignment.source_mean"] = self._alignment.source_mean
        arrays["alignment.target_mean"] = self._alignment.target_mean
        assert self._alignment.projection is not None
        arrays["alignment.projection"] = self._alignment.projection
        adapts = self._network.backbone.change is not None
        return {"adapts": adapts}, arrays

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self._alignment = Alignment(ALIGNMENT)
        self._alignment.source_mean = arrays["alignment.source_mean"]
        self._alignment.target_mean = arrays["alignment.target_mean"]
        self._alignment.projection = projection = arrays["alignment.projection"]
        network = self._make_network(projection.shape[1], len(self.classes_), values["adapts"])
        weights = {
            name.removeprefix("network."): torch.from_numpy(np.array(array))
            for name, array in arrays.items()
            if name.startswith("network.")
        }
        if missing := sorted({*network.state_dict()} - {*weights}):
            raise KeyError(f"network.{missing[0]}")
        network.load_state_dict(weights)
        self._network = _frozen(network)


def momentum_optimiser(
    network: RivalNetwork, rates: OptimiserSettings, backbone: list[nn.Parameter]
) -> torch.optim.SGD:
    """Gradient descent with Nesterov's momentum, as most of the rivals' papers have it.

    Adam gives every principal component of the rows the same say: a whitening, which costs heads
    that see the rows themselves about two points of HOS (OVANet, Office-31).
    """
    groups = make_optimiser(network, rates, backbone).param_groups
    return torch.optim.SGD(
        [{key: group[key] for key in ("params", "lr", "name")} for group in groups],
        momentum=0.9,
        nesterov=True,
        weight_decay=rates.weight_decay,
    )


def numpy_scores(classes: Tensor, known: Tensor, held_out: Tensor | None = None) -> Scores:
    """Turn tensors into `Scores`; no held-out score is not a number."""
    if held_out is None:
        held_out = torch.full_like(known, float("nan"))
    return Scores(classes.numpy(), known.numpy(), held_out.numpy())


def _frozen(network: RivalNetwork) -> RivalNetwork:
    return copy.deepcopy(network).cpu().double().eval()


def _batches(n_rows: int, size: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Yield row numbers for ever; every row comes once before any comes again."""
    waiting = np.arange(0)
    while True:
        # A batch is always full: small data are drawn more than once.
        while n_rows and len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(n_rows)])
        yield waiting[:size]
        waiting = waiting[size:]


def _draw(
    inputs: TrainingInputs,
    labels: Tensor,
    source: IntArray,
    target: IntArray,
    progress: float,
    rng: np.random.Generator,
) -> Batch:
    index = torch.from_numpy(np.concatenate([source, target])).to(labels.device)
    is_target = torch.arange(len(index), device=labels.device) >= len(source)
    rows = inputs.of_graph(index, is_target, rng)
    return Batch(
        rows[: len(source)],
        labels[index[: len(source)]],
        rows[len(source) :],
        index[len(source) :],
        progress,
    )


def _raw_targets(inputs: TrainingInputs, target: Rows) -> Iterator[FloatArray]:
    if inputs.learned is None:
        for _, chunk in target.chunks():
            yield chunk
    else:
        features = inputs.raw_targets(len(target))
        for start in range(0, len(features), CHUNK_ROWS):
            yield features[start : start + CHUNK_ROWS]
