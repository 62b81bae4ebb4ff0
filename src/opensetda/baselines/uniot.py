"""UniOT: optimal transport says which targets are near a class, and groups the others."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.base import Scores
from opensetda.baselines.shared.network import Batch, NetworkRival, RivalNetwork, numpy_scores
from opensetda.baselines.shared.rival import COUNT, NON_NEGATIVE, checked
from opensetda.nn.inputs import TrainingInputs
from opensetda.rejection.base import Matrix, Saved, State, Vector
from opensetda.rows import IntArray

# The paper's: temperature of the softmax, entropy and marginals of the unbalanced transport,
# entropy and iterations of the balanced one.
TEMPERATURE = 0.1
ENTROPY, MARGINALS = 0.01, 0.5
GROUP_ENTROPY, GROUP_ITERATIONS = 0.05, 3
MOST_ITERATIONS = 1000
# Share of the training before targets are transported to classes: features are still untrained.
WARM_UP = 0.15


class UniOTNetwork(RivalNetwork):
    """Unit features z, prototypes of the C classes, and K prototypes of groups of targets."""

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
        and of some of the memory to the K prototypes gives soft groups. Each target is trained on
        its own group (globally) and its neighbour's (locally), the neighbour on the target's.
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
        plan, n_filled = self.transport(torch.cat([self.memory, z]))
        weights, labels = plan_statistics(plan, n_filled + len(self.memory))
        return torch.from_numpy(weights > 1).to(z.device), torch.from_numpy(labels).to(z.device)

    @torch.no_grad()
    def transport(self, z: Tensor, tolerance: float = 1e-3) -> tuple[Matrix, int]:
        """Transport targets to the classes; returns the plan and the number of filling rows."""
        similarity = self.similarity(z).double().cpu().numpy()
        filled = self.fill(z.double().cpu().numpy(), similarity)
        rows = np.concatenate([filled, similarity])
        plan, self.potential = unbalanced_transport(
            rows, self.mass, ENTROPY, MARGINALS, self.potential, tolerance
        )
        return plan, len(filled)

    def fill(self, z: Matrix, similarity: Matrix) -> Matrix:
        r"""Adaptive filling: rows that make near and far ones equally many.

        If far rows (largest cosine up to gamma) are more, near ones by the plan are repeated; if
        near rows are more, targets are moved half way to the class they are farthest from. Returns
        the cosines of the rows to be added.
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
        sure = np.flatnonzero(plan_statistics(plan)[0] > 1)
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
    than its share" means the same for any openness. A target is known if it is near a class. Given
    the potential of the classes, a row of Q depends on the sample alone: later samples are scored
    by the plan of the targets of `fit`, each on its own.

    Our choices: there is no bottleneck, and prototypes begin at the class means. For targets that
    lack classes of the source, the paper drops classes of little mass, and adapts :math:`\beta` to
    the mass; with all classes in the target that costs 5 points or more, and is left out. The
    memory (2,000 in the paper), lambda (0.1), gamma (0.7), rate and iterations were chosen with
    target labels (three tasks of Office-31, one seed), in favour of this rival.

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

    weight: float = checked(3.0, NON_NEGATIVE)
    groups: int = checked(50, COUNT)
    memory: int = checked(500, COUNT)
    filling: float = checked(0.5, Real)
    iterations: int = 300
    rate: float = 0.05

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

    def _restore_fitted_state(self, values: Saved, arrays: Saved) -> None:
        super()._restore_fitted_state(values, arrays)
        self._rows, self._mass = int(values["rows"]), float(values["mass"])


def plan_statistics(plan: Matrix, first: int = 0) -> tuple[Vector, IntArray]:
    """Return weights and labels of a plan's rows from `first` on: largest mass, and its class.

    The weight is a multiple of an equal share of the whole.
    """
    rows = plan[first:]
    return rows.max(axis=1) * len(plan) / plan.sum(), rows.argmax(axis=1)


class UnbalancedPlan(NamedTuple):
    """A plan Q (n, C), and log v (C,), the potential by which rows can be added to it."""

    plan: Matrix
    potential: Vector


def balanced_transport(similarity: Matrix, entropy: float, iterations: int) -> Matrix:
    r"""Sinkhorn's algorithm for equal marginals (Cuturi, NeurIPS 2013).

    .. math::
        \max_Q \langle S, Q \rangle + \epsilon H(Q) \quad \text{with} \quad
        Q 1 = 1/n, \quad Q^\top 1 = 1/m

    Computed in logarithms, without overflow: S (n, m) -> Q (n, m), with exact rows.
    """
    n, m = similarity.shape
    logs = similarity / entropy
    for _ in range(iterations):
        logs = logs - _logsumexp(logs, axis=0) - np.log(m)
        logs = logs - _logsumexp(logs, axis=1) - np.log(n)
    return np.asarray(np.exp(logs))


def unbalanced_transport(
    similarity: Matrix,
    columns: Vector,
    entropy: float,
    marginals: float,
    start: Vector | None = None,
    tolerance: float = 1e-3,
) -> UnbalancedPlan:
    r"""Transport with relaxed marginals (Chizat et al., 2018).

    .. math::
        \max_Q \langle S, Q \rangle + \epsilon H(Q)
            - \kappa \operatorname{KL}(Q 1 \| 1/n) - \kappa \operatorname{KL}(Q^\top 1 \| \beta)

    solved by :math:`u = (n^{-1} / K v)^\rho`, :math:`v = (\beta / K^\top u)^\rho` with
    :math:`K = e^{S/\epsilon}` and :math:`\rho = \kappa / (\kappa + \epsilon)`, from the potential
    `start` until no log v changes by more than `tolerance`. Given v, later samples have rows, too
    (`plan_rows`). Similarity S (n, C), columns beta (C,), entropy epsilon, marginals kappa.
    """
    n, n_columns = similarity.shape
    rho = marginals / (marginals + entropy)
    largest = similarity.max(axis=1)
    kernel = np.exp((similarity - largest[:, None]) / entropy)
    transposed = np.ascontiguousarray(kernel.T)
    row_part = (1 - rho) * largest / entropy - rho * np.log(n)
    log_columns = np.log(np.maximum(columns, np.finfo(np.float64).tiny))
    potential = np.full(n_columns, -np.log(n_columns)) if start is None else start
    for _ in range(MOST_ITERATIONS):
        scale = row_part - rho * np.log(kernel @ np.exp(potential))
        new = rho * (log_columns - np.log(transposed @ np.exp(scale)))
        change = float(np.abs(new - potential).max())
        potential = new
        if change < tolerance:
            break
    return UnbalancedPlan(plan_rows(similarity, potential, n, entropy, marginals), potential)


def plan_rows(
    similarity: Matrix, potential: Vector, n: int, entropy: float, marginals: float
) -> Matrix:
    """Rows of an unbalanced plan of n rows, by the potential of its columns: (m, C) -> (m, C)."""
    rho = marginals / (marginals + entropy)
    logs = similarity / entropy + potential
    return np.asarray(np.exp(logs - rho * (np.log(n) + _logsumexp(logs, axis=1))))


def _logsumexp(values: Matrix, axis: int) -> Matrix:
    largest = values.max(axis=axis, keepdims=True)
    return np.asarray(largest + np.log(np.exp(values - largest).sum(axis=axis, keepdims=True)))
