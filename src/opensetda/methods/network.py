"""The rivals with a network: what their networks have in common, and one loop that trains them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.features.alignment import Alignment
from opensetda.features.transformer import DomainTransformer
from opensetda.methods import network_parts
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.inputs import FixedRows, training_inputs
from opensetda.methods.parameters import COUNT, POSITIVE, checked
from opensetda.methods.saving import Arrays
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.rows import Domains, IntArray
from opensetda.share.decision import Scores
from opensetda.system.processes import average_gradients, own_seed, this_process

# Rows of unit length are short for a layer that starts with weights of 1 / sqrt(d).
ROW_SCALE = 8.0


class Batch(NamedTuple):
    """Aligned samples of one iteration, row numbers of the targets, and the share that is done."""

    source: Tensor
    labels: Tensor
    target: Tensor
    target_index: Tensor
    progress: float


class RivalNetwork(nn.Module, ABC):
    r"""Adapter and bottleneck; a subclass adds the heads, losses and scores of its method.

    .. math:: g(x) = \operatorname{LeakyReLU}(\operatorname{LN}(W_b\, s\, G_B(x)))

    The adapter :math:`G_B` is trained if `adapts`, on aligned rows; it is not if an image backbone
    is. With an `alignment` the network scores rows as they are. Without a `bottleneck` the heads
    see the adapted rows themselves; a `module` of the user takes its place, or that of nothing.
    """

    alignment: Alignment

    def __init__(
        self, width: int, n_classes: int, adapts: bool, bottleneck: bool = True, module: Any = None
    ) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.width_out = 256 if bottleneck else width
        self.backbone = network_parts.Adapter(width, unit=True, learns=adapts)
        self.bottleneck: nn.Module = nn.Sequential()
        if module is not None:
            self.bottleneck, self.width_out = network_parts.given_module(module, width)
        elif bottleneck:
            # Not batch normalisation: with it OSBP's own boundary gets an HOS of 51, not 87
            # (three tasks of Office-31).
            linear = nn.Linear(width, self.width_out)
            norm = nn.LayerNorm(self.width_out)
            self.bottleneck = nn.Sequential(linear, norm, network_parts.Leak())

    def features(self, x: Tensor) -> Tensor:
        """Return what the heads see: (N, d) -> (N, h)."""
        return torch.as_tensor(self.bottleneck(ROW_SCALE * self.backbone(x)))

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Return the features of rows: (n, D) -> (n, h)."""
        return self.features(self.alignment(x, of_source))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows of the target: (n, D) -> (n, C), (n,)."""
        return self.score(self.alignment(x))

    @abstractmethod
    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score aligned rows: (n, d) -> class logits (n, C), known scores (n,)."""

    @abstractmethod
    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of the labelled source alone, by name."""

    @abstractmethod
    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses that need targets, by name; not called without targets."""

    def start(self, source: Tensor, labels: Tensor, target: Tensor) -> None:
        """Prepare for the training, from all aligned rows; nothing by default."""

    def finish(self, source: Tensor, y: IntArray, target: Tensor) -> None:
        """Learn what scores need besides, from all rows in double precision; nothing by default."""


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkRival(DomainTransformer, OpenSetClassifier):
    """Base of the rivals with a network; a subclass has `_make_network`.

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
    module : class, callable or nn.Module, default=None
        Takes the place of the bottleneck, rows (N, d) to features (N, h): called with d, which is
        at most 256, or a module, which is copied. Such a classifier cannot be saved.
    optimizer : callable, default=None
        Makes the optimiser from two groups of parameters with their rates, such as
        ``functools.partial(torch.optim.SGD, momentum=0.9)``.
    """

    is_random = True
    trains_backbone = True
    momentum: ClassVar[bool] = False  # trained by SGD with momentum in place of Adam

    iterations: int = checked(600, COUNT)
    batch_size: int = checked(64, COUNT)
    rate: float = checked(1e-3, POSITIVE)
    random_state: Any = field(default=None, metadata={"allowed": ["random_state"]})
    module: Any = field(default=None, metadata={"allowed": [callable, None]})
    optimizer: Any = field(default=None, metadata={"allowed": [callable, None]})

    @abstractmethod
    def _make_network(self, width: int, n_classes: int, adapts: bool) -> RivalNetwork:
        """Return the untrained network for aligned rows of this width."""

    def _learn(self, domains: Domains, share: float, context: FitContext) -> Scores | None:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        alignment = Alignment.fit(
            domains.source, domains.target, network_parts.COMPONENTS, network_parts.WHITENING
        )
        inputs = training_inputs(domains, alignment, context.images)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = int(inputs.source.shape[1])
            network = self._make_network(width, domains.n_classes, inputs.learned is None)
            labels = torch.from_numpy(domains.y)
            losses = self._train(network, inputs, labels, seed, context.progress)
        assert inputs.alignment is not None
        network.alignment = inputs.alignment
        self.scorer_ = network.cpu().double().eval()
        with torch.no_grad():
            of_target = inputs.target.cpu().double()
            network.finish(inputs.source.cpu().double(), domains.y, of_target)
        if not domains.has_target:
            return None
        if inputs.learned is None:
            scores = self._score_targets(domains.target)
        else:
            scores = self._score_scaled(torch.from_numpy(inputs.raw_targets(len(domains.target))))
        self._finish_step(scores.known, context, 1, loss=losses)
        return scores

    def _train(
        self,
        network: RivalNetwork,
        inputs: FixedRows,
        labels: Tensor,
        seed: int,
        listener: ProgressListener | None,
    ) -> dict[str, float]:
        """Train the network; returns the mean of each loss over the last tenth."""
        device = this_process().device
        inputs.to(device)
        network.to(device)
        labels = labels.to(device)
        network.start(inputs.source, labels, inputs.target)
        optimiser = network_parts.make_optimiser(
            network, self.rate, inputs.parameters(), self.momentum, self.optimizer
        )
        rates = [group["lr"] for group in optimiser.param_groups]
        rng = np.random.default_rng(own_seed(seed))
        n = self.batch_size
        batches = [_batches(len(rows), n, rng) for rows in (inputs.source, inputs.target)]
        network.train()
        late: list[dict[str, Tensor]] = []
        for iteration in range(self.iterations):
            progress = iteration / self.iterations
            # The schedule of DANN.
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * (1 + 10 * progress) ** -0.75
            drawn = np.concatenate([next(own) for own in batches])
            index = torch.from_numpy(drawn).to(labels.device)
            # A batch of the source is always full.
            is_target = torch.arange(len(index), device=labels.device) >= n
            rows = inputs.of_graph(index, is_target, rng)
            batch = Batch(rows[:n], labels[index[:n]], rows[n:], index[n:], progress)
            losses = network.source_losses(batch)
            if len(batch.target):
                losses |= network.target_losses(batch)
            total = torch.stack([*losses.values()]).sum()
            total.backward()  # type: ignore[no-untyped-call]
            average_gradients(p for group in optimiser.param_groups for p in group["params"])
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            if progress >= 0.9 or iteration + 1 == self.iterations:
                late.append({name: value.detach() for name, value in losses.items()})
            if listener is not None:
                listener(ProgressEvent(1, 1, iteration + 1, self.iterations, float(total.detach())))
        inputs.refresh()
        names = dict.fromkeys(name for losses in late for name in losses)
        return {n: sum(float(losses.get(n, 0.0)) for losses in late) / len(late) for n in names}

    def get_state(self) -> tuple[dict[str, Any], Arrays]:
        """Return everything `predict` needs, see `OpenSetClassifier.get_state`."""
        if self.module is not None:
            problem = "a classifier with a module of your own cannot be saved"
            raise InputError(f"module: {problem}; keep it in memory, or export it (to_onnx)")
        return super().get_state()

    def _own_cut(self, scores: Scores) -> float | None:
        return 0.0  # Known scores are logarithms of odds, but those of a rejector.

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> RivalNetwork:
        alignment = Alignment.of_state(arrays)
        adapts = "backbone.change.weight" in arrays
        network = self._make_network(alignment.width_out, len(self.classes_), adapts)
        network.alignment = alignment
        return network


def _batches(n_rows: int, size: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Yield full batches of row numbers; every row comes once before any is repeated."""
    waiting = np.arange(0)
    while True:
        while n_rows and len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(n_rows)])
        yield waiting[:size]
        waiting = waiting[size:]
