"""OSVM: support vector machines, and the probability that a score belongs to their class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.svm import SVC
from torch import Tensor

from opensetda.methods.rejectors import base
from opensetda.rows import IntArray, first_of_every_class
from opensetda.share.decision import Matrix, Scores, Vector

DEFAULT_THRESHOLD = 0.001  # delta with two classes, of which none can be hidden
PENALTY = 1.0  # C of the machines
# Training time grows with the square of the rows.
TRAINING_ROWS = 4000
VALIDATION_ROWS = 1000
FOLDS = 3
# The tail: this share of a class's positive scores, the smallest, and their least number.
TAIL = 0.5
SMALLEST_TAIL = 3
# Standardised scores of neighbouring classes differ by tenths: as logits they need a scale.
CLASS_SCALE = 10.0
# Scores of a hard margin are all equal: without a limit the likelihood grows with the shape.
SHAPES = (0.2, 50.0)
SMALLEST = 1e-6


class InclusionRejector(base.Rejector):
    r"""One-versus-rest machines, calibrated by the extreme values of their own class (P_I-SVM).

    Jain, Scheirer, Boult, "Multi-class open set recognition using probability of inclusion",
    ECCV 2014. :math:`f_c` separates class c from all others, with the kernel
    :math:`\exp(-\gamma \|x - x'\|^2)`. The smallest scores of the rows of c follow a Weibull
    distribution; the probability of inclusion is its distribution function,

    .. math:: P_I(c \mid x) = \rho(c) \Big(1 - \exp\Big(-\Big(
        \frac{f_c(x) - \tau}{\lambda_c}\Big)^{\kappa}\Big)\Big)

    and x is unknown where :math:`\max_c P_I(c \mid x) < \delta`, which is chosen on hidden classes
    (`best_threshold`). The priors :math:`\rho` are equal and left out. The known score is the
    largest :math:`(f_c - \tau) / \lambda_c`; scaled, they are the class scores.

    Our choices: :math:`\gamma` is one over the mean squared distance of the source; the tail is the
    lower half of a class's scores; :math:`\tau` lies one margin below the smallest score of any
    tail. Tau and kappa are the same for all classes (`fit_weibull`): with those of the
    paper, per class, the HOS of the source alone on Office-31 (true openness; EfficientNet-Lite0,
    ResNet-50) is 70.4 and 69.3 instead of 84.6 and 84.0. These choices were made with target
    labels, in favour of the rivals.
    """

    needs_logits = False
    kept = ("rows", "gamma", "weights", "offsets", "location", "scales")

    # The support vectors of all machines, and the kernel's parameter; the rest are `Machines`.
    rows: Tensor
    gamma: Tensor
    weights: Tensor
    offsets: Tensor
    location: Tensor
    scales: Tensor

    def fit(self, features: Tensor, y: IntArray, n_classes: int) -> None:
        """Train the machines on rows (n, d), fit the tails, and choose delta."""
        own = first_of_every_class(y, n_classes, TRAINING_ROWS)
        rows = features[own]
        y = y[own]
        squared = base.squared_distances(rows, rows)
        gamma = 1 / squared.mean().clamp_min(1e-12)
        kernel = (-gamma * squared).exp().numpy()
        machines, self.shape = train_machines(kernel, y, np.arange(n_classes))
        supporting = machines.weights.any(dim=0)
        machines = machines._replace(weights=machines.weights[:, supporting].contiguous())
        self.keep({"rows": rows[supporting], "gamma": gamma} | machines._asdict())
        self.threshold = self._choose_threshold(kernel, y, n_classes)

    def forward(self, features: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score rows (m, d) by the machines; the logits are not used."""
        squared = base.squared_distances(features, self.rows)
        machines = Machines(
            weights=self.weights,
            offsets=self.offsets,
            location=self.location,
            scales=self.scales,
        )
        standardised = machines.standardised((-self.gamma * squared).exp())
        return CLASS_SCALE * standardised, standardised.amax(dim=1)

    def own_cut(self, scores: Scores) -> float | None:
        """Return the known score whose probability of inclusion is delta."""
        return float((-np.log1p(-self.threshold)) ** (1 / self.shape))

    def _choose_threshold(self, kernel: Matrix, y: IntArray, n_classes: int) -> float:
        """Hide classes in turn; train on two thirds of the others, test on the rest."""
        own = first_of_every_class(y, n_classes, VALIDATION_ROWS)
        kernel = kernel[np.ix_(own, own)]
        y = y[own]
        fold = np.empty(len(y), dtype=np.intp)
        for label in range(n_classes):
            fold[y == label] = np.arange(np.count_nonzero(y == label)) % FOLDS
        rounds = []
        for number, hidden in enumerate(base.hidings(n_classes)):
            learn = ~hidden[y] & (fold != number % FOLDS)
            seen = np.unique(y[learn])
            # A class without training rows is neither seen nor hidden.
            judge = ~learn & (hidden[y] | np.isin(y, seen))
            if len(seen) < 2:
                continue
            machines, shape = train_machines(kernel[np.ix_(learn, learn)], y[learn], seen)
            judged = torch.from_numpy(kernel[np.ix_(judge, learn)])
            standardised = machines.standardised(judged).numpy()
            # Comparable across rounds, as P_I = 1 - exp(-exp(.)) is, but without rounding.
            largest = np.maximum(standardised.max(axis=1), SMALLEST)
            inclusion = np.asarray(shape * np.log(largest))
            correct = seen[standardised.argmax(axis=1)] == y[judge]
            rounds.append((inclusion, hidden[y[judge]], correct))
        default = float(np.log(-np.log1p(-DEFAULT_THRESHOLD)))
        # Probabilities that differ from 0 and 1 in double precision.
        hazard = np.exp(np.clip(base.best_threshold(rounds, default), -600.0, 3.0))
        return float(-np.expm1(-hazard))


class Machines(NamedTuple):
    """Weights (C, n) and offsets (C,) of one-versus-rest machines, tau () and lambda (C,)."""

    weights: Tensor
    offsets: Tensor
    location: Tensor
    scales: Tensor

    def standardised(self, kernel: Tensor) -> Tensor:
        """Return (f - tau) / lambda of rows, by their kernel with the trained ones: (m, C)."""
        return (kernel @ self.weights.T + self.offsets - self.location) / self.scales


def train_machines(kernel: Matrix, y: IntArray, seen: IntArray) -> tuple[Machines, float]:
    """Train one machine for each class in `seen`, on a kernel (n, n); also returns kappa."""
    weights = np.zeros((len(seen), len(y)))
    offsets = np.zeros(len(seen))
    tails = []
    for place, label in enumerate(seen):
        machine = SVC(C=PENALTY, kernel="precomputed").fit(kernel, y == label)
        weights[place, machine.support_] = machine.dual_coef_[0]
        offsets[place] = machine.intercept_[0]
        own = np.sort(machine.decision_function(kernel[y == label]))
        tails.append(own[: max(SMALLEST_TAIL, int(TAIL * len(own)))])
    # One margin below: P_I is zero for a row as deep among the others as the worst row of a class.
    location = min(float(tail[0]) for tail in tails) - 1.0
    scales, shape = fit_weibull(tails, location)
    machines = Machines(
        weights=torch.from_numpy(weights),
        offsets=torch.from_numpy(offsets),
        location=torch.tensor(location, dtype=torch.float64),
        scales=torch.from_numpy(scales),
    )
    return machines, shape


def fit_weibull(tails: list[Matrix], location: float) -> tuple[Vector, float]:
    r"""Return the most likely scales (C,), and the shape that all classes share.

    .. math:: F_c(f) = 1 - \exp\big(-((f - \tau) / \lambda_c)^\kappa\big), \qquad f > \tau

    A class of a dozen samples has a tail of six scores: too few for a shape of its own.
    """
    logs = [np.log(np.maximum(tail - location, SMALLEST)) for tail in tails]

    def negative_log_likelihood(log_shape: float) -> float:
        shape = float(np.exp(log_shape))
        return -sum(
            len(x) * (log_shape - shape * _log_scale(x, shape)) + (shape - 1) * float(x.sum())
            for x in logs
        )

    bounds = tuple(np.log(SHAPES))
    shape = float(np.exp(minimize_scalar(negative_log_likelihood, bounds=bounds).x))
    return np.exp([_log_scale(x, shape) for x in logs]), shape


def _log_scale(x: Matrix, shape: float) -> float:
    """Logarithm of the most likely scale, from logarithms of scores."""
    return float(x.max() + np.log(np.mean(np.exp(shape * (x - x.max())))) / shape)
