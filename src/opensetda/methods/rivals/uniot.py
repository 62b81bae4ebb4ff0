"""UniOT: optimal transport says which targets are near a class, and groups the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.methods.network import Batch, NetworkRival, RivalNetwork
from opensetda.methods.parameters import COUNT, NON_NEGATIVE, checked
from opensetda.rows import IntArray

# The paper's: temperature of the softmax, entropy and marginals of the unbalanced transport,
# entropy and iterations of the balanced one.
TEMPERATURE = 0.1
ENTROPY = 0.01
MARGINALS = 0.5
RHO = MARGINALS / (MARGINALS + ENTROPY)
GROUP_ENTROPY = 0.05
GROUP_ITERATIONS = 3
MOST_ITERATIONS = 1000
# Share of the training before targets are transported to classes: features are still untrained.
WARM_UP = 0.15


class UniOTNetwork(RivalNetwork):
    """Unit features z, prototypes of the C classes, and K prototypes of groups of targets.

    Scores are rows of the plan of all targets, by the `potential` of the classes (C,); `offset` ()
    is the logarithm by which they are multiples of an equal share.
    """

    potential: Tensor
    offset: Tensor

    def __init__(self, width: int, n_classes: int, adapts: bool, settings: UniOT) -> None:
        # The seed of torch is set: this one follows from it.
        seed = int(torch.randint(2**31 - 1, (1,)).item())
        # Cosines to class means reject unknowns better than anything learned from a few hundred
        # source samples: the training begins at them, and only the adapter is learned.
        super().__init__(width, n_classes, adapts, bottleneck=False, module=settings.module)
        self.classes = nn.Parameter(F.normalize(torch.randn(n_classes, self.width_out), dim=1))
        self.groups = nn.Parameter(F.normalize(torch.randn(settings.groups, self.width_out), dim=1))
        self.weight = settings.weight
        self.filling = settings.filling
        self.memory_size = settings.memory
        self.rng = np.random.default_rng(seed)
        self.register_buffer("potential", torch.full((n_classes,), -math.log(n_classes)))
        self.register_buffer("offset", torch.tensor(0.0))

    def features(self, x: Tensor) -> Tensor:
        """Return unit features: (N, d) -> (N, h)."""
        return F.normalize(super().features(x), dim=1)

    def similarity(self, z: Tensor) -> Tensor:
        """Cosine of unit features to the class prototypes: (N, h) -> (N, C)."""
        return z @ F.normalize(self.classes, dim=1).T

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score aligned rows by their row of the plan, at the temperature of the training."""
        similarity = self.similarity(self.features(x))
        known = log_plan(similarity, self.potential).amax(dim=1) + self.offset
        return (similarity + ENTROPY * self.potential) / TEMPERATURE, known

    @torch.no_grad()
    def start(self, source: Tensor, labels: Tensor, target: Tensor) -> None:
        """Begin with the class means of the source, and fill the memory with targets."""
        z = self.features(source)
        for label in range(self.n_classes):
            self.classes[label] = F.normalize(z[labels == label].mean(dim=0), dim=0)
        n_targets = len(target)
        if n_targets:
            remembered = self.rng.permutation(n_targets)[: self.memory_size]
            self.memory_index = torch.from_numpy(remembered).to(labels.device)
            self.memory = self.features(target[self.memory_index])
            self.oldest = 0
            seeds = self.rng.permutation(n_targets)[np.arange(len(self.groups)) % n_targets]
            self.groups.copy_(self.features(target[torch.from_numpy(seeds).to(labels.device)]))

    def finish(self, source: Tensor, y: IntArray, target: Tensor) -> None:
        """Transport all targets once more, for the plan that scores later samples."""
        if len(target):
            plan, _ = self.transport(self.features(target), tolerance=1e-6)
            rows = torch.tensor(float(len(plan)), dtype=torch.float64)
            self.offset = (1 - RHO) * rows.log() - plan.sum().log()

    def source_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the source's cosines to the class prototypes."""
        logits = self.similarity(self.features(batch.source)) / TEMPERATURE
        return {"class": F.cross_entropy(logits, batch.labels)}

    def target_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return L_PCD and, after the warm-up, L_CCD; then the memory takes the batch in."""
        z = self.features(batch.target)
        losses = {"groups": self.weight * self.group_loss(z, batch.target_index)}
        if batch.progress >= WARM_UP:
            plan, n_filled = self.transport(torch.cat([self.memory, z.detach()]))
            weights, labels = weights_and_labels(plan)
            of_batch = slice(n_filled + len(self.memory), None)
            near = (weights[of_batch] > 1).to(z.device)
            if near.any():
                logits = self.similarity(z[near]) / TEMPERATURE
                loss = F.cross_entropy(logits, labels[of_batch].to(z.device)[near])
                losses["near"] = self.weight * loss
        places = torch.arange(self.oldest, self.oldest + len(z), device=z.device) % len(self.memory)
        self.memory[places] = z.detach()
        self.memory_index[places] = batch.target_index
        self.oldest = (self.oldest + len(z)) % len(self.memory)
        return losses

    def group_loss(self, z: Tensor, index: Tensor) -> Tensor:
        r"""Private class discovery, :math:`L_{PCD}`: a target and its neighbour, one group.

        Balanced transport gives soft groups. Each target is trained on its own group (globally)
        and that of its nearest neighbour in batch and memory (locally), and the reverse.
        """
        fixed = z.detach()
        itself = torch.eye(len(z), device=z.device, dtype=torch.bool)
        of_batch = (fixed @ fixed.T).masked_fill(itself, -2)
        of_memory = (fixed @ self.memory.T).masked_fill(index[:, None] == self.memory_index, -2)
        nearest = torch.cat([of_batch, of_memory], dim=1).argmax(dim=1)
        neighbours = torch.cat([z, self.memory])[nearest]
        groups = F.normalize(self.groups, dim=1)
        some = torch.from_numpy(self.rng.integers(len(self.memory), size=len(self.groups)))
        rows = torch.cat([fixed, neighbours.detach(), self.memory[some]])
        similarity = (rows @ groups.detach().T).double().cpu()
        plan = balanced_transport(similarity, GROUP_ENTROPY, GROUP_ITERATIONS) * len(rows)
        own, theirs = plan.to(z)[: 2 * len(z)].chunk(2)
        log_own = F.log_softmax(z @ groups.T / TEMPERATURE, dim=1)
        log_theirs = F.log_softmax(neighbours @ groups.T / TEMPERATURE, dim=1)
        globally = -(own * log_own).sum(dim=1).mean()
        locally = -((theirs * log_own).sum(dim=1) + (own * log_theirs).sum(dim=1)).mean() / 2
        return (globally + locally) / 2

    @torch.no_grad()
    def transport(self, z: Tensor, tolerance: float = 1e-3) -> tuple[Tensor, int]:
        """Transport targets to the classes; returns the plan and the number of filling rows."""
        similarity = self.similarity(z).double().cpu()
        filled = self.fill(z.double().cpu(), similarity)
        rows = torch.cat([filled, similarity])
        plan, self.potential = unbalanced_transport(rows, self.potential, tolerance)
        return plan, len(filled)

    def fill(self, z: Tensor, similarity: Tensor) -> Tensor:
        """Adaptive filling: return cosines of rows that make near and far ones equally many.

        If far rows (largest cosine up to gamma) are more, near ones by the plan are repeated; if
        near rows are more, targets are moved half way to the class they are farthest from.
        """
        near = similarity.amax(dim=1) > self.filling
        missing = int((~near).sum() - near.sum())
        if missing < 0:
            some = self.rng.integers(len(z), size=-missing)
            classes = F.normalize(self.classes.detach(), dim=1).double().cpu()
            farthest = similarity[some].argmin(dim=1)
            mixed = (z[some] + classes[farthest]) / 2
            return F.normalize(mixed, dim=1) @ classes.T
        plan, _ = unbalanced_transport(similarity, self.potential)
        sure = torch.nonzero(weights_and_labels(plan)[0] > 1)[:, 0]
        if not missing or not len(sure):
            return similarity[:0]
        return similarity[sure[self.rng.integers(len(sure), size=missing)]]


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
        return UniOTNetwork(width, n_classes, adapts, self)


def weights_and_labels(plan: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest mass, as a multiple of an equal share, and its class: (n,) each."""
    largest, labels = plan.max(dim=1)
    return largest * len(plan) / plan.sum(), labels


def balanced_transport(similarity: Tensor, entropy: float, iterations: int) -> Tensor:
    r"""Sinkhorn's algorithm for equal marginals (Cuturi, NeurIPS 2013).

    .. math::
        \max_Q \langle S, Q \rangle + \epsilon H(Q) \quad \text{with} \quad
        Q 1 = 1/n, \quad Q^\top 1 = 1/m

    Computed in logarithms, without overflow: S (n, m) -> Q (n, m), with exact rows.
    """
    n, m = similarity.shape
    logs = similarity / entropy
    for _ in range(iterations):
        logs = logs - logs.logsumexp(dim=0, keepdim=True) - math.log(m)
        logs = logs - logs.logsumexp(dim=1, keepdim=True) - math.log(n)
    return logs.exp()


def unbalanced_transport(
    similarity: Tensor, start: Tensor, tolerance: float = 1e-3
) -> tuple[Tensor, Tensor]:
    r"""Transport with relaxed marginals (Chizat et al., 2018).

    .. math::
        \max_Q \langle S, Q \rangle + \epsilon H(Q)
            - \kappa \operatorname{KL}(Q 1 \| 1/n) - \kappa \operatorname{KL}(Q^\top 1 \| 1/C)

    solved by :math:`u = (n^{-1} / K v)^\rho`, :math:`v = (C^{-1} / K^\top u)^\rho` with
    :math:`K = e^{S/\epsilon}` and :math:`\rho = \kappa / (\kappa + \epsilon)`, from the potential
    `start` until no log v changes by more than `tolerance`. S (n, C) in double precision -> Q
    (n, C) and the potential log v (C,), which also gives rows of later samples (`log_plan`).
    """
    n, n_columns = similarity.shape
    largest = similarity.amax(dim=1)
    kernel = ((similarity - largest[:, None]) / ENTROPY).exp()
    row_part = (1 - RHO) * largest / ENTROPY - RHO * math.log(n)
    potential = start.cpu().double()
    for _ in range(MOST_ITERATIONS):
        scale = row_part - RHO * (kernel @ potential.exp()).log()
        new = -RHO * (math.log(n_columns) + (scale.exp() @ kernel).log())
        change = float((new - potential).abs().max())
        potential = new
        if change < tolerance:
            break
    plan = (log_plan(similarity, potential) - RHO * math.log(n)).exp()
    return plan, potential


def log_plan(similarity: Tensor, potential: Tensor) -> Tensor:
    r"""Log rows of an unbalanced plan by the potential of its columns: (n, C) -> (n, C).

    Up to a constant, :math:`\rho` times the logarithm of the number of the plan's rows.
    """
    logs = similarity / ENTROPY + potential
    return logs - RHO * logs.logsumexp(dim=1, keepdim=True)
