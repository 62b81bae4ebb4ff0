"""OSLPP: a subspace where classes of both domains meet, and rejected targets are pushed away."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from opensetda.context import FitContext
from opensetda.features.alignment import unit
from opensetda.features.transformer import DomainTransformer
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.inputs import in_memory
from opensetda.methods.parameters import COUNT, checked
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.rows import Domains, IntArray, Rows
from opensetda.share.decision import Matrix, Vector
from opensetda.system.memory import check_free

# Eigenvalues below this share of the largest are noise of the arithmetic.
SMALLEST_EIGENVALUE = 1e-9

PARTS = ("mean", "components", "projection", "centre", "means")


class OSLPPScorer(nn.Module):
    """Steps 2 and 3 of `OSLPP`, after the reduction by PCA: (n, D) -> logits (n, C), known (n,).

    Mean (D,) and components (D, r) of the PCA, projection P (r, d), centre (d,), means (C, d).
    """

    mean: Tensor
    components: Tensor
    projection: Tensor
    centre: Tensor
    means: Tensor

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in PARTS:
            self.register_buffer(name, arrays.get(name))

    def reduce(self, x: Tensor) -> Tensor:
        """Scale rows to unit length before and after the PCA: (n, D) -> (n, r)."""
        return unit((unit(x) - self.mean) @ self.components)

    def project(self, reduced: Tensor) -> Tensor:
        """Project and normalise: (n, r) -> (n, d)."""
        return unit(reduced @ self.projection - self.centre)

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Return rows in the subspace, where both domains are one: (n, D) -> (n, d)."""
        return self.project(self.reduce(x))

    def score(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows of the subspace: (n, d) -> (n, C), (n,)."""
        # Of unit vectors the squared distance is 2 - 2 cos.
        logits = -(2 - 2 * z @ self.means.T).clamp_min(0.0).sqrt()
        known = logits.amax(dim=1) - logits.logsumexp(dim=1) + math.log(self.means.shape[0])
        return logits, known

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows, each on its own."""
        return self.score(self.embed(x))


@dataclass(eq=False, repr=False, kw_only=True)
class OSLPP(DomainTransformer, OpenSetClassifier):
    r"""Open-Set Locality Preserving Projection, with targets selected and rejected step by step.

    Wang, Meng and Breckon, "Progressively Select and Reject Pseudo-labelled Samples for Open-Set
    Domain Adaptation" (IEEE Transactions on Artificial Intelligence, 2024; arXiv 2110.12635). The
    supervised projection is that of Wang and Breckon (AAAI 2020; arXiv 1911.07982).

    Rows are L2-normalised, reduced by PCA of both domains together and normalised again. Then,
    at step t of T:

    1. *Project.* Over the source, the selected and the rejected targets, the columns x_i of X,

       .. math::
           \max_P \operatorname{tr}\big[(P^\top (X L X^\top + I) P)^{-1} P^\top X D X^\top P\big],
           \qquad X D X^\top p = \lambda (X L X^\top + I)\, p

       with :math:`M_{ij} = 1` where i and j have the same known label or are the same sample,
       else 0, :math:`D_{ii} = \sum_j M_{ij}` and :math:`L = D - M` (`locality_projection`).
    2. *Normalise.* :math:`z = \operatorname{unit}(P^\top x - m)`, m the mean of both domains.
    3. *Classify* by the class means of source and selected targets, scaled to length one,

       .. math:: p(c | x) = \frac{\exp(-\|z - \bar z_c\|)}{\sum_k \exp(-\|z - \bar z_k\|)}.

    4. *Select and reject* by the confidence :math:`\max_c p(c | x)`: with :math:`n_r` the openness
       times the number of targets, the :math:`n_r t/T` least confident are rejected; of those
       that are not among the :math:`n_r` least confident, each class selects its t/T most
       confident (`select_and_reject`). All targets are ranked again at every step.

    Our reading: a rejected target is similar to itself only, so it enters :math:`D`, which spreads
    samples, and not :math:`L`, which gathers them. Rejections follow the same schedule t/T as
    selections. The paper's :math:`n_r` is one constant per dataset; here it follows from the
    openness. The known score is :math:`\log(C \max_c p(c | x))`.

    The other parameters are those of `OpenSetClassifier`.

    Parameters
    ----------
    steps : int, default=10
        T, the number of steps.
    principal_components : int, default=512
        Largest number of dimensions that the PCA keeps.
    dimensions : int, default=128
        Largest number of dimensions of the learned subspace.

    Attributes
    ----------
    step_labels_ : array of int of shape (steps, n_targets)
        The label of every target at every step, as an index into `classes_`; C is unknown.
    """

    steps: int = checked(10, COUNT)
    principal_components: int = checked(512, COUNT)
    dimensions: int = checked(128, COUNT)

    @torch.no_grad()
    def _learn(self, domains: Domains, share: float, context: FitContext) -> None:
        mean, components = principal_components(domains, self.principal_components)
        self.scorer_ = OSLPPScorer(
            {"mean": torch.from_numpy(mean), "components": torch.from_numpy(components)}
        )
        source = self._reduced(domains.source)
        target = self._reduced(domains.target)
        labels = np.full(len(target), UNLABELLED, dtype=np.intp)
        step_labels = []
        n_classes = domains.n_classes
        for step in range(self.steps if len(target) else 1):
            self._learn_subspace(source, domains.y, target, labels)
            if not len(target):
                return
            logits, score = self.scorer_.score(self.scorer_.project(target))
            known = score.numpy()
            nearest = logits.argmax(dim=1).numpy()
            step_labels.append(rank_pseudo_labels(known, nearest, share, 1.0, n_classes))
            progress = (step + 1) / self.steps
            labels = select_and_reject(known, nearest, share, progress, n_classes)
            rejected = int((labels == n_classes).sum())
            selected = int((labels != UNLABELLED).sum()) - rejected
            self._finish_step(known, context, self.steps, selected=selected, rejected=rejected)
        self.step_labels_ = np.stack(step_labels)

    def _reduced(self, rows: Rows) -> Tensor:
        """Return the rows of a domain after the PCA: (n, r)."""
        reduced = torch.empty((len(rows), self.scorer_.components.shape[1]), dtype=torch.float64)
        for place, chunk in rows.chunks():
            reduced[place] = self.scorer_.reduce(torch.from_numpy(chunk).double())
        return reduced

    def _learn_subspace(
        self, source: Tensor, y: IntArray, target: Tensor, labels: IntArray
    ) -> None:
        """Find projection, centre and class means from reduced rows and labels of the targets."""
        scorer = self.scorer_
        n_classes = len(self.classes_)
        selected = (labels >= 0) & (labels < n_classes)
        known = torch.cat([source, target[selected]])
        known_labels = np.concatenate([y, labels[selected]])
        rejected = target[labels == n_classes]
        projection = locality_projection(
            known.numpy(), known_labels, rejected.numpy(), self.dimensions
        )
        scorer.projection = torch.from_numpy(projection)
        scorer.centre = torch.cat([source, target]).mean(dim=0) @ scorer.projection
        z = scorer.project(known)
        sums = z.new_zeros(n_classes, z.shape[1])
        scorer.means = unit(sums.index_add(0, torch.from_numpy(known_labels), z))

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> OSLPPScorer:
        return OSLPPScorer({name: arrays[name] for name in PARTS})


def principal_components(domains: Domains, keep: int) -> tuple[Vector, Matrix]:
    """Return the mean (D,) of the unit rows, and at most `keep` principal directions (D, r)."""
    n_rows = len(domains.source) + len(domains.target)
    width = domains.source.width
    what = f"OSLPP on {n_rows} rows of {width} columns"
    check_free(24.0 * n_rows * width, what, "take fewer of both")
    both = np.concatenate([in_memory(domains.source), in_memory(domains.target)])
    rows = unit(torch.from_numpy(both).double()).numpy()
    solver = "covariance_eigh" if n_rows > width else "full"
    found = PCA(min(keep, *rows.shape), svd_solver=solver).fit(rows)
    variances = found.explained_variance_
    real = variances > max(SMALLEST_EIGENVALUE * variances[0], np.finfo(np.float64).eps ** 2)
    real[0] = True  # even if all rows are the same
    return found.mean_, np.ascontiguousarray(found.components_[real].T)


def locality_projection(
    known: Matrix, labels: IntArray, rejected: Matrix, dimensions: int
) -> Matrix:
    r"""Solve :math:`X D X^\top p = \lambda (X L X^\top + I) p` for the largest eigenvalues.

    Samples are rows here. For known ones :math:`D_{ii}` is the number of samples of i's class, and
    :math:`X M X^\top` the sum of outer products of class sums; for rejected ones both are 1.

    The solutions (r, d) are orthonormal with respect to :math:`X L X^\top + I`. Those of eigenvalue
    0, outside the span of the samples, are left out: d may be less than `dimensions`.
    """
    weighted = known * np.sqrt(np.bincount(labels)[labels])[:, None]
    spread = weighted.T @ weighted
    sums = np.stack([known[labels == label].sum(axis=0) for label in range(labels.max() + 1)])
    metric = spread - sums.T @ sums + np.eye(len(spread))
    matrix = spread + rejected.T @ rejected
    width = len(matrix)
    wanted = [width - min(dimensions, width), width - 1]
    values, vectors = scipy.linalg.eigh(matrix, metric, subset_by_index=wanted)
    real = values > SMALLEST_EIGENVALUE * values[-1]
    real[-1] = True
    return np.array(vectors[:, real][:, ::-1], order="C")


def select_and_reject(
    known_score: Vector, nearest: IntArray, share: float, progress: float, n_classes: int
) -> IntArray:
    """Label the most confident of every class, and the least confident of all as unknown.

    Of the `share` times n least confident targets the share `progress` is rejected. Of each class's
    others the share `progress`, rounded up, is selected. The rest is `UNLABELLED`.
    """
    ascending = np.argsort(known_score, kind="stable")
    n_unknown = round(share * len(known_score))
    labels = np.full(len(known_score), UNLABELLED, dtype=np.intp)
    labels[ascending[: round(progress * n_unknown)]] = n_classes
    candidates = ascending[n_unknown:][::-1]
    for label in range(n_classes):
        members = candidates[nearest[candidates] == label]
        # Without the rounding 0.7 * 10 would be above 7, and a class one sample ahead.
        labels[members[: int(np.ceil(round(progress * len(members), 9)))]] = label
    return labels
