"""OSLPP: a subspace where classes of both domains meet, and rejected targets are pushed away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from scipy.special import logsumexp

from opensetda.base import Scores
from opensetda.baselines.shared.rival import COUNT, NO_SCORES, Domains, Rival, checked
from opensetda.context import FitContext
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.rejection.base import Matrix, Vector
from opensetda.rows import FloatArray, IntArray, Rows, unit_rows
from opensetda.system.memory import check_free

# Eigenvalues below this share of the largest are noise of the arithmetic.
SMALLEST_EIGENVALUE = 1e-9


@dataclass(eq=False, repr=False, kw_only=True)
class OSLPP(Rival):
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

    Our reading, where the abstract of the paper and the projection of 2020 leave room:

    - A rejected target is similar to itself only, as it may be of any class: it enters :math:`D`,
      which spreads samples, and not :math:`L`, which gathers them.
    - Rejections follow the same schedule t/T as selections. The paper's :math:`n_r` is one
      constant per dataset; here it follows from the openness.
    - The known score is :math:`\log(C \max_c p(c | x))`, which does not grow with fewer classes:
      it can be compared with the score of a sample whose nearest class is hidden. The projection
      is not learned again without that class: if the domains are alike, hidden classes score lower
      than real unknowns, and the estimated share is too small.

    The other parameters are those of `Rival`.

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

    def _adapt(self, domains: Domains, openness: OpennessTracker, context: FitContext) -> Scores:
        source, y, target = domains
        n_classes = len(self.classes_)
        both = (source, target)
        self.mean_, self.components_ = principal_components(both, self.principal_components)
        source_rows, target_rows = self._reduced(source), self._reduced(target)
        labels = np.full(len(target), UNLABELLED, dtype=np.intp)
        if not len(target):
            self._learn(source_rows, y, target_rows, labels)
            return NO_SCORES
        step_labels = []
        for step in range(self.steps):
            self._learn(source_rows, y, target_rows, labels)
            scores = self._scores(self._embed(target_rows))
            share = openness.update(scores.known, scores.held_out)
            ranked = (scores.known, scores.nearest, share)
            step_labels.append(rank_pseudo_labels(*ranked, 1.0, n_classes))
            labels = select_and_reject(*ranked, (step + 1) / self.steps, n_classes)
            entry = {"openness": share, "openness_estimate": openness.estimates[-1]}
            entry["selected"] = int(((labels >= 0) & (labels < n_classes)).sum())
            entry["rejected"] = int((labels == n_classes).sum())
            self._finish_step(scores.known, context, self.steps, **entry)
        self.step_labels_ = np.stack(step_labels)[:, np.argsort(target.index)]
        return scores

    def _learn(self, source: Matrix, y: IntArray, target: Matrix, labels: IntArray) -> None:
        n_classes = len(self.classes_)
        selected = (labels >= 0) & (labels < n_classes)
        known = np.concatenate([source, target[selected]])
        known_labels = np.concatenate([y, labels[selected]])
        samples = (known, known_labels, target[labels == n_classes])
        self.projection_ = locality_projection(*samples, self.dimensions)
        total = source.sum(axis=0) + target.sum(axis=0)
        self.centre_ = total / (len(source) + len(target)) @ self.projection_
        embedded = self._embed(known)
        sums = np.zeros((n_classes, embedded.shape[1]))
        for label in range(n_classes):
            sums[label] = embedded[known_labels == label].sum(axis=0)
        self.means_ = unit_rows(sums)

    def _reduce(self, unit: Matrix) -> Matrix:
        return np.asarray(unit_rows((unit - self.mean_) @ self.components_), dtype=np.float64)

    def _reduced(self, rows: Rows) -> Matrix:
        reduced = np.empty((len(rows), self.components_.shape[1]))
        for place, unit in _unit_chunks(rows):
            reduced[place] = self._reduce(unit)
        return reduced

    def _embed(self, reduced: Matrix) -> Matrix:
        return np.asarray(unit_rows(reduced @ self.projection_ - self.centre_), dtype=np.float64)

    def _scores(self, embedded: Matrix) -> Scores:
        # Of unit vectors the squared distance is 2 - 2 cos.
        distance = np.sqrt(np.maximum(2 - 2 * embedded @ self.means_.T, 0))
        return Scores(-distance, _log_confidence(-distance), _without_nearest(-distance))

    def _score_rows(self, X: FloatArray) -> Scores:
        unit = np.asarray(unit_rows(X.astype(np.float64)), dtype=np.float64)
        return self._scores(self._embed(self._reduce(unit)))

    def _saved(self) -> tuple[str, ...]:
        return "mean_", "components_", "projection_", "centre_", "means_"


def principal_components(domains: Sequence[Rows], keep: int) -> tuple[Vector, Matrix]:
    """Mean (D,) of the unit rows of all domains, and at most `keep` principal directions (D, d)."""
    n_rows, width = sum(len(rows) for rows in domains), domains[0].width
    total = np.zeros(width)
    for rows in domains:
        for _, unit in _unit_chunks(rows):
            total += unit.sum(axis=0)
    mean = total / n_rows
    centred = (unit - mean for rows in domains for _, unit in _unit_chunks(rows))
    # The smaller of the two products has the same spectrum.
    wide = width > n_rows
    numbers = width * n_rows if wide else width**2
    check_free(16.0 * numbers, f"OSLPP on {n_rows} rows of {width} columns", "take fewer of both")
    if wide:
        matrix = np.concatenate(list(centred))
        product = matrix @ matrix.T
    else:
        product = np.zeros((width, width))
        for chunk in centred:
            product += chunk.T @ chunk
    variances, vectors = _largest_eigenvectors(product, None, keep)
    if variances[0] <= np.finfo(np.float64).tiny:  # All rows are the same.
        return mean, np.eye(width, 1)
    directions = matrix.T @ vectors / np.sqrt(variances) if wide else vectors
    return mean, np.ascontiguousarray(directions)


def locality_matrices(known: Matrix, labels: IntArray, rejected: Matrix) -> tuple[Matrix, Matrix]:
    r"""Return :math:`X D X^\top` and :math:`X L X^\top`, each (d, d).

    Samples are rows here. For known ones :math:`D_{ii}` is the number of samples of i's class, and
    :math:`X M X^\top` the sum of outer products of class sums; for rejected ones both are 1.
    """
    n_classes = int(labels.max()) + 1
    counts = np.bincount(labels, minlength=n_classes)
    weighted = known * np.sqrt(counts[labels])[:, None]
    spread = weighted.T @ weighted
    sums = np.stack([known[labels == label].sum(axis=0) for label in range(n_classes)])
    scatter = spread - sums.T @ sums
    return spread + rejected.T @ rejected, scatter


def locality_projection(
    known: Matrix, labels: IntArray, rejected: Matrix, dimensions: int
) -> Matrix:
    r"""Solve :math:`X D X^\top p = \lambda (X L X^\top + I) p` for the largest eigenvalues.

    The solutions (d, k) are orthonormal with respect to :math:`X L X^\top + I`. Those of eigenvalue
    0, outside the span of the samples, are left out: k may be less than `dimensions`.
    """
    spread, scatter = locality_matrices(known, labels, rejected)
    _, vectors = _largest_eigenvectors(spread, scatter + np.eye(len(spread)), dimensions)
    return np.ascontiguousarray(vectors)


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


def _log_confidence(logits: Matrix) -> Vector:
    """Logarithm of the largest softmax times the number of classes: (n, C) -> (n,)."""
    confidence = logits.max(axis=1) - logsumexp(logits, axis=1)
    return np.asarray(confidence + np.log(logits.shape[1]))


def _without_nearest(logits: Matrix) -> Vector:
    """Return the same as if the nearest class were not known; NaN with two classes."""
    if logits.shape[1] <= 2:
        return np.full(len(logits), np.nan)
    return _log_confidence(np.sort(logits, axis=1)[:, :-1])


def _largest_eigenvectors(
    matrix: Matrix, metric: Matrix | None, keep: int
) -> tuple[Vector, Matrix]:
    """At most `keep` eigenpairs, largest first; except for the first, none of eigenvalue zero."""
    width = len(matrix)
    wanted = [width - min(keep, width), width - 1]
    values, vectors = scipy.linalg.eigh(matrix, metric, subset_by_index=wanted)
    values, vectors = values[::-1], vectors[:, ::-1]
    real = values > SMALLEST_EIGENVALUE * values[0]
    real[0] = True
    return values[real], vectors[:, real]


def _unit_chunks(rows: Rows) -> Iterator[tuple[slice, Matrix]]:
    for place, chunk in rows.chunks():
        yield place, np.asarray(unit_rows(chunk.astype(np.float64)), dtype=np.float64)
