"""ATI-lambda: assign targets to classes or to nobody, map the source onto them, and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from sklearn.linear_model import LogisticRegression

from opensetda.base import Scores
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.nn.alignment import Alignment
from opensetda.nn.settings import AlignmentSettings
from opensetda.openness.held_out import cosine_without_nearest
from opensetda.openness.tracker import OpennessTracker
from opensetda.progress import ProgressListener, finish_step
from opensetda.rejection.classifier import RejectingClassifier
from opensetda.rejection.distances import products, squared_distances
from opensetda.rows import FloatArray, IntArray, Rows, unit_rows

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

OUTLIER_RULES = ("share", "range", "none")
OUTLIER = -1
"""In place of a class: the target belongs to nobody."""


class ATI(RejectingClassifier):
    r"""Assign-and-Transform-Iteratively with outliers.

    Panareda Busto and Gall, "Open set domain adaptation", ICCV 2017. Two steps take turns. The
    first assigns every target t to a class c (:math:`x_{ct} = 1`) or to nobody
    (:math:`o_t = 1`) by the binary linear program

    .. math::
        \min_{x, o} \sum_t \Big(\sum_c d_{ct} x_{ct} + \lambda o_t\Big) \quad \text{with} \quad
        \sum_c x_{ct} + o_t = 1, \quad \sum_t x_{ct} \ge 1, \qquad
        d_{ct} = \|\bar s_c - t\|^2

    with :math:`\bar s_c` the mean of the mapped source rows of c: whoever is farther than
    :math:`\lambda` from all classes is an outlier, but no class stays without a target. The
    second finds the linear map from the source to what was assigned,

    .. math::
        \min_W \sum_{c, t} x_{ct} \frac{1}{n_c} \sum_{i \in c} \|W s_i - t\|^2
            + r \|W - I\|^2,

    until the assignment repeats itself. Then a classifier and a rejector learn from the
    mapped source.

    Beside the paper: rows are L2-normalised and each domain is centred on its own mean, as in
    the other methods here; W is found in the space of the principal components, always from
    the source as it was, since a product of maps is a map; and it is held at the identity, as
    a few hundred targets do not tell all of its entries (r is `ridge` times the mean squared
    feature of the source). The paper's :math:`\lambda = (\max d_{ct} + \min d_{ct}) / 2` finds
    next to no outliers among rows of length one, where all foreign classes are about as
    far. By default :math:`\lambda` is such that the share of unknowns, told or estimated, lies
    beyond it. The semi-supervised variants are left out.

    What that is worth on Office-31, in HOS with true openness and the rejector "osvm"
    (EfficientNet-Lite0, ResNet-50): this 87.6, 86.7; lambda by the paper's rule 82.6, 82.2; no
    outliers at all 82.6, 82.3; without centring, at its best ridge, 86.7, 83.4. The
    settings were chosen on these tasks, in favour of the method.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1); "auto" estimates it at every iteration,
        without labels, and leaves the end to the boundary of a rejector that has one.
    rejector : str, default="osvm"
        Who says what is unknown at the end: "quantile", "mixture", "osnn" or "osvm".
    outliers : str, default="share"
        The rule for lambda: "share", the paper's "range", or "none" for plain ATI, where lambda
        is infinite.
    iterations : int, default=10
        At most so many turns.
    components : int, default=64
        Principal components of both domains that are kept.
    ridge : float, default=3.0
        How strongly the map is held at the identity.
    C : float, default=10.0
        Inverse strength of the regularisation of the logistic regression, which the rejectors
        "quantile" and "mixture" need.
    unknown_label : default="unknown"
        What unknowns are called.

    Attributes
    ----------
    map_ : array of shape (components, components)
        W, transposed: a source row s becomes ``s @ map_``.
    step_labels_ : array of int of shape (n_iterations, n_targets)
        The assignment at every iteration, as an index into `classes_`; C is an outlier. The last
        are the final labels.
    """

    def __init__(
        self,
        openness: float | str = "auto",
        rejector: str = "osvm",
        outliers: str = "share",
        iterations: int = 10,
        components: int = 64,
        ridge: float = 3.0,
        C: float = 10.0,
        unknown_label: Any = "unknown",
    ) -> None:
        self.openness = openness
        self.rejector = rejector
        self.outliers = outliers
        self.iterations = iterations
        self.components = components
        self.ridge = ridge
        self.C = C
        self.unknown_label = unknown_label

    def _fit_domains(
        self,
        source: Rows,
        y: IntArray,
        target: Rows,
        openness: OpennessTracker,
        context: FitContext,
    ) -> Scores:
        self._check_settings()
        settings = AlignmentSettings(centring="own", components=self.components, whitening=0.0)
        alignment = Alignment(settings).fit(source, target)
        assert alignment.projection is not None, "known after fit"
        self.projection_ = np.ascontiguousarray(alignment.projection.T)
        self.centre_ = alignment.target_mean
        rows = self._read(source, alignment.source_mean)
        self.map_ = np.eye(rows.shape[1])
        if len(target):
            targets = self._read(target, self.centre_)
            openness.use_features(rows, y, targets)
            assigned = self._iterate(rows, y, targets, openness, context.progress)
            self.step_labels_ = assigned[:, np.argsort(target.index)]
        mapped = unit_rows(rows @ self.map_)
        self._fit_rejector(mapped, y)
        if self.rejector_.needs_logits:
            regression = LogisticRegression(C=self.C, max_iter=1000).fit(mapped, y)
            self.weights_, self.offsets_ = _as_logits(regression)
        scored = target if len(target) else source
        parts = [self._score_rows(chunk) for _, chunk in scored.chunks()]
        return Scores(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _read(self, rows: Rows, centre: Vector) -> Matrix:
        """Read all rows of a domain into the space of the principal components: (n, components)."""
        return np.concatenate([self._project(chunk, centre) for _, chunk in rows.chunks()])

    def _project(self, X: FloatArray, centre: Vector) -> Matrix:
        unit = unit_rows(unit_rows(X.astype(np.float64)) - centre)
        # Not scaled to length one again: a row is short that other rows explain badly.
        return products(unit, self.projection_)

    def _iterate(
        self,
        rows: Matrix,
        y: IntArray,
        targets: Matrix,
        openness: OpennessTracker,
        listener: ProgressListener | None,
    ) -> IntArray:
        """Take turns until nothing changes; return the assignment of every turn, C for outliers."""
        n_classes = len(self.classes_)
        members = np.eye(n_classes)[y] / np.bincount(y)[y][:, None]
        assigned: list[IntArray] = []
        for iteration in range(self.iterations):
            distances = squared_distances(targets, members.T @ rows @ self.map_)
            known, held_out, nearest = _cosines(rows @ self.map_, y, unit_rows(targets))
            share = openness.update(known, held_out, nearest)
            labels = assign(distances, outlier_cost(distances, self.outliers, share))
            finish_step(
                self.history_,
                listener,
                {
                    "step": iteration + 1,
                    "mean_score": float(known.mean()),
                    "openness": share,
                    "openness_estimate": openness.estimates[-1],
                    "outliers": float((labels == OUTLIER).mean()),
                },
                self.iterations,
            )
            same = bool(assigned) and np.array_equal(labels, assigned[-1])
            assigned.append(labels)
            if same:
                break
            self.map_ = fit_map(rows, y, targets, labels, self.ridge)
        steps = np.stack(assigned)
        return np.where(steps == OUTLIER, n_classes, steps)

    def _score_rows(self, X: FloatArray) -> Scores:
        rows = unit_rows(self._project(X, self.centre_))
        logits = np.zeros((len(rows), len(self.classes_)))
        if self.rejector_.needs_logits:
            logits = products(rows, self.weights_) + self.offsets_
        return self._rejected_scores(rows, logits)

    def _check_settings(self) -> None:
        if self.outliers not in OUTLIER_RULES:
            rules = ", ".join(OUTLIER_RULES)
            raise InputError(f"outliers={self.outliers!r} does not exist; choose one of {rules}")
        for name in ("iterations", "components"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)!r}: give a whole number above 0")
        if not 0 < self.ridge < float("inf"):
            raise InputError(f"ridge={self.ridge!r}: give a number above 0")

    def _fitted_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        values, arrays = self._rejector_state()
        arrays["centre"], arrays["projection"] = self.centre_, self.projection_
        arrays["map"] = self.map_
        if self.rejector_.needs_logits:
            arrays["weights"], arrays["offsets"] = self.weights_, self.offsets_
        return values, arrays

    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        self._restore_rejector(values, arrays)
        self.centre_, self.projection_ = arrays["centre"], arrays["projection"]
        self.map_ = arrays["map"]
        if self.rejector_.needs_logits:
            self.weights_, self.offsets_ = arrays["weights"], arrays["offsets"]


def outlier_cost(distances: Matrix, rule: str, share: float) -> float:
    """Return lambda, what it costs to be an outlier: distances (n, C) -> a number."""
    if rule == "none":
        return float("inf")
    if rule == "range":
        return float(distances.max() + distances.min()) / 2
    return float(np.quantile(distances.min(axis=1), 1 - share))


def assign(distances: Matrix, cost: float) -> IntArray:
    r"""Solve the binary linear program exactly: distances (n, C) -> classes (n,), or `OUTLIER`.

    Left alone, a target takes the cheapest it can have, :math:`m_t = \min(\min_c d_{ct}, \lambda)`.
    That every class has a target means that every class has a representative, and
    these are n_classes different targets. All others still take the cheapest, so the
    representatives are those that lose the least,

    .. math:: \min \sum_c \big(d_{c t(c)} - m_{t(c)}\big),

    an assignment problem. With fewer targets than classes, no class is sure of one.
    """
    n, n_classes = distances.shape
    labels = np.where(distances.min(axis=1) <= cost, distances.argmin(axis=1), OUTLIER)
    if n >= n_classes:
        cheapest = np.minimum(distances.min(axis=1), cost)
        representatives, classes = linear_sum_assignment(distances - cheapest[:, None])
        labels[representatives] = classes
    return np.asarray(labels, dtype=np.intp)


def fit_map(rows: Matrix, y: IntArray, targets: Matrix, labels: IntArray, ridge: float) -> Matrix:
    r"""Find the linear map from source rows (n, d) to the targets (m, d) of their class.

    The sum over all pairs of a class is, but for a constant, the sum over source rows of
    :math:`(m_c / n_c) \|W s_i - \bar t_c\|^2`, with :math:`m_c` targets of mean
    :math:`\bar t_c`: no pair is ever made. Returned is W transposed, (d, d).
    """
    n_classes = int(y.max()) + 1
    assigned = labels != OUTLIER
    members = np.eye(n_classes)[labels[assigned]]
    counts = members.sum(axis=0)
    means = (members.T @ targets[assigned]) / np.maximum(counts, 1)[:, None]
    weights = (counts / np.bincount(y) / max(counts.sum(), 1))[y][:, None]
    moment = (weights * rows).T @ rows
    identity = np.eye(rows.shape[1])
    hold = ridge * max(float((rows**2).mean()), 1e-12) * identity
    return np.asarray(np.linalg.solve(moment + hold, (weights * rows).T @ means[y] + hold))


def _cosines(mapped: Matrix, y: IntArray, targets: FloatArray) -> tuple[Vector, Vector, IntArray]:
    """Score the targets (m, d) by the cosine to the means of mapped source rows (n, d).

    For the share of unknowns only. Returned are known scores, held-out scores, nearest classes.
    """
    members = np.eye(int(y.max()) + 1)[y]
    sums = members.T @ unit_rows(mapped)
    similarity = targets @ unit_rows(sums).T
    nearest = similarity.argmax(axis=1)
    held_out = cosine_without_nearest(targets, nearest, sums, members.sum(axis=0))
    return similarity.max(axis=1), held_out, nearest


def _as_logits(regression: LogisticRegression) -> tuple[Matrix, Vector]:
    """Weights (C, d) and offsets (C,) of a regression, also of one with two classes."""
    weights, offsets = regression.coef_, regression.intercept_
    if len(weights) == 1:
        weights, offsets = np.vstack([-weights, weights]) / 2, np.hstack([-offsets, offsets]) / 2
    # Rows one after the other, as they are saved: BLAS rounds columns in another way.
    return np.ascontiguousarray(weights), np.asarray(offsets)
