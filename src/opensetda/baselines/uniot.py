"""UniOT: optimal transport says which targets are near a class, and groups the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.base import Scores
from opensetda.baselines.shared.network import Batch, NetworkRival, RivalNetwork, numpy_scores
from opensetda.baselines.shared.rival import COUNT, NON_NEGATIVE, Constraints, State
from opensetda.baselines.shared.transport import (
    Matrix,
    Vector,
    balanced_transport,
    plan_rows,
    unbalanced_transport,
)
from opensetda.nn.inputs import TrainingInputs
from opensetda.rows import IntArray

# The paper's: temperature of the softmax, entropy and marginals of the unbalanced transport,
# entropy and iterations of the balanced one.
TEMPERATURE = 0.1
ENTROPY, MARGINALS = 0.01, 0.5
GROUP_ENTROPY, GROUP_ITERATIONS = 0.05, 3
# Share of the training before targets are transported to classes: features are still untrained.
WARM_UP = 0.15


class UniOTNetwork(RivalNetwork):
    r"""Unit features z, prototypes of the C classes, and K prototypes of groups of targets.

    Parameters are those of `RivalNetwork` and of `UniOT`; `seed` is that of random draws.
    """

    def __init__(
        self,
        width: int,
        n_classes: int,
        adapts: bool,
        weight: float,
        groups: int,
        memory: int,
        filling: float,
        seed: int = 0,
    ) -> None:
        super().__init__(width, n_classes, adapts, bottleneck=width)
        # Cosines to class means reject unknowns better than anything learned from a few hundred
        # source samples: the training begins at them, and only the adapter is learned.
        self.bottleneck = nn.Sequential()
        self.classes = nn.Parameter(F.normalize(torch.randn(n_classes, self.width_out), dim=1))
        self.groups = nn.Parameter(F.normalize(torch.randn(groups, self.width_out), dim=1))
        self.weight, self.memory_size, self.filling = weight, memory, filling
        self.rng = np.random.default_rng(seed)
        self.mass = np.full(n_classes, 1 / n_classes)
        self.potential: Vector | None = None

    def embed(self, x: Tensor) -> Tensor:
        """Return unit features: (N, d) -> (N, h)."""
        return F.normalize(self.features(x), dim=1)

    def similarity(self, z: Tensor) -> Tensor:
        """Cosine of unit features to the class prototypes: (N, h) -> (N, C)."""
        return z @ F.normalize(self.classes, dim=1).T

    @torch.no_grad()
    def start(self, inputs: TrainingInputs, labels: Tensor) -> None:
        """Begin with the class means of the source, and fill the memory with targets."""
        source = self.embed(inputs.source)
        for label in range(self.n_classes):
            self.classes[label] = F.normalize(source[labels == label].mean(dim=0), dim=0)
        n_targets = len(inputs.target)
        if n_targets:
            chosen = self.rng.permutation(n_targets)[: self.memory_size]
            self.memory_index = torch.from_numpy(chosen).to(labels.device)
            self.memory = self.embed(inputs.target[self.memory_index])
            seeds = self.rng.permutation(n_targets)[np.arange(len(self.groups)) % n_targets]
            self.groups.copy_(self.embed(inputs.target[torch.from_numpy(seeds).to(labels.device)]))
            self.oldest = 0

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the source's cosines to the class prototypes."""
        logits = self.similarity(self.embed(batch.source)) / TEMPERATURE
        return {"class": F.cross_entropy(logits, batch.labels)}

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return L_PCD and, after the warm-up, L_CCD; then the memory takes the batch in."""
        z = self.embed(batch.target)
        losses = {"groups": self.weight * self.group_loss(z, batch.target_index)}
        if batch.progress >= WARM_UP:
            near, labels = self.near_classes(z.detach())
            if near.any():
                logits = self.similarity(z[near]) / TEMPERATURE
                losses["near"] = self.weight * F.cross_entropy(logits, labels[near])
        self._remember(z.detach(), batch.target_index)
        return losses

    def group_loss(self, z: Tensor, index: Tensor) -> Tensor:
        r"""Private class discovery, :math:`L_{PCD}`: a target and its neighbour, one group.

        Balanced transport of the batch, of each target's nearest neighbour in batch and memory,
        and of some of the memory to the K prototypes gives soft groups q. Each target is trained
        on its own group (globally) and on its neighbour's (locally), and the neighbour on the
        target's.
        """
        fixed = z.detach()
        itself = torch.eye(len(z), device=z.device, dtype=torch.bool)
        of_batch = (fixed @ fixed.T).masked_fill(itself, -2)
        of_memory = (fixed @ self.memory.T).masked_fill(index[:, None] == self.memory_index, -2)
        nearest = torch.cat([of_batch, of_memory], dim=1).argmax(dim=1)
        neighbours = torch.cat([z, self.memory])[nearest]
        groups = F.normalize(self.groups, dim=1)
        some = self.rng.integers(len(self.memory), size=len(self.groups))
        rows = torch.cat([fixed, neighbours.detach(), self.memory[torch.from_numpy(some)]])
        similarity = (rows @ groups.detach().T).double().cpu().numpy()
        plan = balanced_transport(similarity, GROUP_ENTROPY, GROUP_ITERATIONS) * len(rows)
        soft = torch.from_numpy(plan).to(z)
        own, theirs = soft[: len(z)], soft[len(z) : 2 * len(z)]
        log_own = F.log_softmax(z @ groups.T / TEMPERATURE, dim=1)
        log_theirs = F.log_softmax(neighbours @ groups.T / TEMPERATURE, dim=1)
        globally = -(own * log_own).sum(dim=1).mean()
        locally = -((theirs * log_own).sum(dim=1) + (own * log_theirs).sum(dim=1)).mean() / 2
        return (globally + locally) / 2

    @torch.no_grad()
    def near_classes(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows of a batch the transport finds near a class, and their classes."""
        rows = torch.cat([self.memory, z])
        plan, n_filled = self.transport(rows)
        weights, labels = plan_statistics(plan, n_filled + len(self.memory))
        return torch.from_numpy(weights > 1).to(z.device), torch.from_numpy(labels).to(z.device)

    @torch.no_grad()
    def transport(self, z: Tensor, tolerance: float = 1e-3) -> tuple[Matrix, int]:
        """Transport targets to the classes; returns the plan and the number of filling rows.

        The next transport begins with the potential of this one.
        """
        similarity = self.similarity(z).double().cpu().numpy()
        filled = self.fill(z.double().cpu().numpy(), similarity)
        solution = unbalanced_transport(
            np.concatenate([filled, similarity]),
            self.mass,
            ENTROPY,
            MARGINALS,
            self.potential,
            tolerance,
        )
        self.potential = solution.potential
        return solution.plan, len(filled)

    def fill(self, z: Matrix, similarity: Matrix) -> Matrix:
        r"""Adaptive filling: rows that make near and far ones equally many.

        If far rows (largest cosine up to gamma) are more, near ones by the plan are repeated; if
        near rows are more, targets are moved half way to the class they are farthest from.

        Shapes: (n, h), (n, C) -> (number, C), cosines of the rows to be added.
        """
        near = similarity.max(axis=1) > self.filling
        missing = int((~near).sum() - near.sum())
        if missing == 0:
            return similarity[:0]
        if missing < 0:
            some = self.rng.integers(len(z), size=-missing)
            classes = F.normalize(self.classes.detach(), dim=1).double().cpu().numpy()
            mixed = (z[some] + classes[similarity[some].argmin(axis=1)]) / 2
            lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
            return np.asarray(mixed / np.maximum(lengths, 1e-12) @ classes.T)
        plan = unbalanced_transport(similarity, self.mass, ENTROPY, MARGINALS, self.potential).plan
        weights, _ = plan_statistics(plan)
        sure = np.flatnonzero(weights > 1)
        if not len(sure):
            return similarity[:0]
        return np.asarray(similarity[sure[self.rng.integers(len(sure), size=missing)]])

    def _remember(self, z: Tensor, index: Tensor) -> None:
        place = torch.arange(self.oldest, self.oldest + len(z), device=z.device) % len(self.memory)
        self.memory[place], self.memory_index[place] = z, index
        self.oldest = (self.oldest + len(z)) % len(self.memory)


@dataclass(eq=False, repr=False, kw_only=True)
class UniOT(NetworkRival):
    r"""Unified optimal transport for universal domain adaptation.

    Chang, Shi, Tuan and Wang, "Unified optimal transport framework for universal domain
    adaptation" (NeurIPS 2022). Targets are transported to the class prototypes of the source,

    .. math::
        Q = \arg\max_Q \langle S, Q \rangle + \epsilon H(Q)
            - \kappa \operatorname{KL}(Q 1 \| 1/n) - \kappa \operatorname{KL}(Q^\top 1 \| \beta),
        \qquad S_{ic} = z_i^\top \mu_c

    with both marginals relaxed: what is near no class gets little mass. With Q scaled to sum
    one, target i is near a class if :math:`n \max_c Q_{ic} > 1`, more than its share. Near targets
    are trained with their class (common class detection, :math:`L_{CCD}`). All targets are grouped
    by a balanced transport to K prototypes of their own (private class discovery,
    :math:`L_{PCD}`, `UniOTNetwork.group_loss`). The loss is

    .. math:: L = L_{cls} + \lambda (L_{CCD} + L_{PCD}).

    *Adaptive filling* (`UniOTNetwork.fill`) keeps near and far rows equally many, so that "more
    than its share" means the same for any openness.

    A target is known if :math:`n \max_c Q_{ic} > 1`, and its class is the largest. Given the
    potential of the classes, a row of Q depends on the sample alone: later samples are scored
    by the plan of the targets of `fit`, each on its own.

    Our choices: there is no bottleneck, and prototypes begin at the class means. The paper allows
    for targets that lack classes of the source: it drops classes of little mass, and adapts
    :math:`\beta` to the mass. With all classes in the target, both reinforce themselves and cost
    5 points or more; they are left out. The memory is smaller than the paper's 2,000, as there
    are fewer targets. The memory, lambda (0.1 in the paper), gamma (0.7), rate and iterations were
    chosen with target labels (three tasks of Office-31, one seed), in favour of this rival.

    The other parameters are those of `NetworkRival`; the defaults of `iterations` and `rate` are
    300 and 0.05.

    Parameters
    ----------
    weight : float, default=3.0
        lambda.
    groups : int, default=50
        K, the number of prototypes of groups of targets.
    memory : int, default=500
        Number of targets in the memory.
    filling : float, default=0.5
        gamma of the adaptive filling.
    """

    momentum = True

    weight: float = 3.0
    groups: int = 50
    memory: int = 500
    filling: float = 0.5
    iterations: int = 300
    rate: float = 0.05

    _parameter_constraints: ClassVar[Constraints] = {
        **NetworkRival._parameter_constraints,
        "weight": NON_NEGATIVE,
        "groups": COUNT,
        "memory": COUNT,
        "filling": [Real],
    }

    def _make_network(self, width: int, n_classes: int, adapts: bool) -> UniOTNetwork:
        # The seed of torch is set: this one follows from it.
        seed = int(torch.randint(2**31 - 1, (1,)).item())
        return UniOTNetwork(
            width, n_classes, adapts, self.weight, self.groups, self.memory, self.filling, seed
        )

    def _after_training(self, inputs: TrainingInputs, y: IntArray) -> None:
        network: Any = self._network
        self._potential = np.full(len(self.classes_), -np.log(len(self.classes_)))
        self._rows, self._mass = 1, 1.0
        if len(inputs.target):
            z = network.embed(inputs.target.cpu().double())
            plan, _ = network.transport(z, tolerance=1e-6)
            self._potential = network.potential
            self._rows, self._mass = len(plan), float(plan.sum())

    def _network_scores(self, network: Any, x: Tensor) -> Scores:
        similarity = network.similarity(network.embed(x)).numpy()
        plan = plan_rows(similarity, self._potential, self._rows, ENTROPY, MARGINALS)
        weights = plan.max(axis=1) * self._rows / self._mass
        known = np.log(np.maximum(weights, np.finfo(np.float64).tiny))
        # In the order of the plan's row, at the temperature of the training.
        logits = (similarity + ENTROPY * self._potential) / TEMPERATURE
        return numpy_scores(torch.from_numpy(logits), torch.from_numpy(known))

    def _own_cut(self, scores: Scores) -> float:
        return 0.0

    def _saved(self) -> tuple[str, ...]:
        return ("_potential",)

    def _fitted_state(self) -> State:
        values, arrays = super()._fitted_state()
        return {**values, "rows": self._rows, "mass": self._mass}, arrays

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        super()._restore_fitted_state(values, arrays)
        self._rows, self._mass = int(values["rows"]), float(values["mass"])


def plan_statistics(plan: Matrix, first: int = 0) -> tuple[Vector, IntArray]:
    """Return the weights and labels of a plan's rows from `first` on, both (n - first,).

    The weight is a row's largest mass, as a multiple of an equal share of the whole; the label is
    the class of that mass.
    """
    rows = plan[first:]
    return rows.max(axis=1) * len(plan) / plan.sum(), rows.argmax(axis=1)
