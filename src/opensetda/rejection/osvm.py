"""OSVM: support vector machines, and the probability that a score belongs to their class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.svm import SVC
from torch import Tensor

from opensetda.openness.decision import Matrix, Scores, Vector
from opensetda.rejection import source_rows
from opensetda.rejection.base import Rejector
from opensetda.rows import IntArray, first_of_every_class

DEFAULT_THRESHOLD = 0.001
"""delta with two classes, of which none can be hidden."""
PENALTY = 1.0
"""C of the machines."""

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


class InclusionRejector(Rejector):
    r"""One-versus-rest machines, calibrated by the extreme values of their own class (P_I-SVM).

    Jain, Scheirer, Boult, "Multi-class open set recognition using probability of inclusion",
    ECCV 2014. :math:`f_c` separates class c from all others, with the kernel
    :math:`\exp(-\gamma \|x - x'\|^2)`. The smallest of the scores :math:`f_c` of the rows of c
    lie at its boundary, and extreme value theory says they follow a Weibull distribution.
    The probability of inclusion is its distribution function,

    .. math:: P_I(c \mid x) = \rho(c) \Big(1 - \exp\Big(-\Big(
        \frac{f_c(x) - \tau}{\lambda_c}\Big)^{\kappa}\Big)\Big)

    and x is unknown where :math:`\max_c P_I(c \mid x) < \delta`. All priors :math:`\rho` are
    equal and left out. :math:`\delta` is chosen on the source: half of the classes in turn are
    hidden and used as unknowns (`best_threshold`).

    Our choices: :math:`\gamma` is one over the mean squared distance of the source; the tail is the
    lower half of a class's scores; :math:`\tau` lies one margin below the smallest score of any
    tail. Tau and kappa are the same for all classes (`SharedShapeWeibull`): with those of the
    paper, per class, a compact class rejects nearly all of its targets, and the HOS of the source
    alone on Office-31 (true openness; EfficientNet-Lite0, ResNet-50) is 70.4 and 69.3 instead of
    84.6 and 84.0. These choices were made with target labels, in favour of the rivals.

    The known score is the largest :math:`(f_c - \tau) / \lambda_c`, in which P_I is increasing;
    scaled, they are the class scores.
    """

    needs_logits = False
    kept = ("rows", "gamma", "weights", "offsets", "location", "scales")

    # The support vectors of all machines, and the kernel's parameter; the rest are `Machines`.
    rows: Tensor
    gamma: Tensor

    def fit(self, features: Tensor, y: IntArray, n_classes: int) -> None:
        """Train the machines on rows (n, d), fit the tails, and choose delta."""
        own = first_of_every_class(y, n_classes, TRAINING_ROWS)
        rows, y = features[own], y[own]
        squared = source_rows.squared_distances(rows, rows)
        gamma = 1 / squared.mean().clamp_min(1e-12)
        kernel = (-gamma * squared).exp().numpy()
        machines, self.weibull = train_machines(kernel, y, np.arange(n_classes))
        supporting = machines.weights.any(dim=0)
        machines = machines._replace(weights=machines.weights[:, supporting].contiguous())
        self.keep({"rows": rows[supporting], "gamma": gamma, **machines._asdict()})
        self.threshold = self._choose_threshold(kernel, y, n_classes)

    def forward(self, features: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score rows (m, d) by the machines; the logits are not used."""
        squared = source_rows.squared_distances(features, self.rows)
        machines = Machines(*(getattr(self, name) for name in Machines._fields))
        standardised = machines.standardised((-self.gamma * squared).exp())
        return CLASS_SCALE * standardised, standardised.amax(dim=1)

    def own_cut(self, scores: Scores) -> float | None:
        """Return the known score whose probability of inclusion is delta."""
        return self.weibull.quantile(self.threshold)

    def _choose_threshold(self, kernel: Matrix, y: IntArray, n_classes: int) -> float:
        """Hide classes in turn; train on two thirds of the others, test on the rest."""
        own = first_of_every_class(y, n_classes, VALIDATION_ROWS)
        kernel, y = kernel[np.ix_(own, own)], y[own]
        fold = np.empty(len(y), dtype=np.intp)
        for label in range(n_classes):
            fold[y == label] = np.arange(np.count_nonzero(y == label)) % FOLDS
        rounds = []
        for number, hidden in enumerate(source_rows.hidings(n_classes)):
            learn = ~hidden[y] & (fold != number % FOLDS)
            seen = np.unique(y[learn])
            # A class without training rows is neither seen nor hidden.
            judge = ~learn & (hidden[y] | np.isin(y, seen))
            if len(seen) < 2:
                continue
            machines, weibull = train_machines(kernel[np.ix_(learn, learn)], y[learn], seen)
            judged = torch.from_numpy(kernel[np.ix_(judge, learn)])
            standardised = machines.standardised(judged).numpy()
            # Comparable across rounds, as P_I is, but without rounding.
            inclusion = weibull.log_hazard(standardised.max(axis=1))
            correct = seen[standardised.argmax(axis=1)] == y[judge]
            rounds.append(source_rows.Round(inclusion, hidden[y[judge]], correct))
        default = float(np.log(-np.log1p(-DEFAULT_THRESHOLD)))
        # Probabilities that differ from 0 and 1 in double precision.
        hazard = np.exp(np.clip(source_rows.best_threshold(rounds, default), -600.0, 3.0))
        return float(-np.expm1(-hazard))


class Machines(NamedTuple):
    r"""One-versus-rest machines, and location and scales of their tails.

    Weights (C, n) of the rows, offsets (C,), :math:`\tau` () and :math:`\lambda` (C,).
    """

    weights: Tensor
    offsets: Tensor
    location: Tensor
    scales: Tensor

    def standardised(self, kernel: Tensor) -> Tensor:
        """Return (f - tau) / lambda of rows, by their kernel with the trained ones: (m, C)."""
        return (kernel @ self.weights.T + self.offsets - self.location) / self.scales


def train_machines(
    kernel: Matrix, y: IntArray, seen: IntArray
) -> tuple[Machines, SharedShapeWeibull]:
    """Train one machine for each class in `seen`, on a kernel (n, n) and classes (n,)."""
    weights, offsets, tails = np.zeros((len(seen), len(y))), np.zeros(len(seen)), []
    for place, label in enumerate(seen):
        machine = SVC(C=PENALTY, kernel="precomputed").fit(kernel, y == label)
        weights[place, machine.support_] = machine.dual_coef_[0]
        offsets[place] = machine.intercept_[0]
        own = np.sort(machine.decision_function(kernel[y == label]))
        tails.append(own[: max(SMALLEST_TAIL, int(TAIL * len(own)))])
    # One margin below: P_I is zero for a row as deep among the others as the worst row of a class.
    weibull = SharedShapeWeibull.fit(tails, min(float(tail[0]) for tail in tails) - 1.0)
    parts = (weights, offsets, np.array(weibull.location), weibull.scales)
    return Machines(*(torch.from_numpy(part) for part in parts)), weibull


@dataclass(frozen=True)
class SharedShapeWeibull:
    r"""One Weibull distribution per class, with a common location and shape.

    .. math:: F_c(f) = 1 - \exp\big(-((f - \tau) / \lambda_c)^\kappa\big), \qquad f > \tau

    A class of a dozen samples has a tail of six scores: too few for a shape. With one shape
    :math:`(f - \tau) / \lambda_c` ranks samples of all classes without saturating. The location is
    tau, the scales (C,) are lambda, the shape is kappa.
    """

    location: float
    scales: Vector
    shape: float

    @classmethod
    def fit(cls, tails: list[Matrix], location: float) -> SharedShapeWeibull:
        """Maximise the likelihood of each class's scores; only the shape is searched."""
        logs = [np.log(np.maximum(tail - location, SMALLEST)) for tail in tails]

        def negative_log_likelihood(log_shape: float) -> float:
            shape = float(np.exp(log_shape))
            return -sum(
                len(x) * (log_shape - shape * _log_scale(x, shape)) + (shape - 1) * float(x.sum())
                for x in logs
            )

        bounds = tuple(np.log(SHAPES))
        shape = float(np.exp(minimize_scalar(negative_log_likelihood, bounds=bounds).x))
        return cls(location, np.exp([_log_scale(x, shape) for x in logs]), shape)

    def log_hazard(self, standardised: Matrix) -> Matrix:
        """Return kappa log((f - tau) / lambda): the probability is 1 - exp(-exp(.)), unrounded."""
        return np.asarray(self.shape * np.log(np.maximum(standardised, SMALLEST)))

    def quantile(self, probability: float) -> float:
        """Return the standardised score of a probability."""
        return float((-np.log1p(-probability)) ** (1 / self.shape))


def _log_scale(x: Matrix, shape: float) -> float:
    """Logarithm of the most likely scale, from logarithms of scores."""
    largest = x.max()
    return float(largest + np.log(np.mean(np.exp(shape * (x - largest)))) / shape)
