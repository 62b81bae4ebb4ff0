"""Weibull distributions of the smallest scores of several classes, with one shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

Vector = npt.NDArray[np.float64]

# Scores of a hard margin are all the same, and the likelihood rises with the shape for ever.
SHAPES = (0.2, 50.0)
SMALLEST = 1e-6


@dataclass(frozen=True)
class SharedShapeWeibull:
    r"""A Weibull distribution a class: location and shape of all, a scale of its own.

    .. math:: F_c(f) = 1 - \exp\big(-((f - \tau) / \lambda_c)^\kappa\big), \qquad f > \tau

    A dozen samples of a class have a tail of six scores: too few for a shape, and a shape too
    large makes its class refuse everybody. All classes together have enough. And with one
    shape :math:`F_c` rises with :math:`(f - \tau) / \lambda_c`, which ranks samples of all
    classes and never saturates, as a probability does.

    Attributes
    ----------
    location : float
        tau, below which the probability is zero.
    scales : array of shape (C,)
        lambda.
    shape : float
        kappa.
    """

    location: float
    scales: Vector
    shape: float

    @classmethod
    def fit(cls, tails: list[Vector], location: float) -> SharedShapeWeibull:
        r"""Maximise the likelihood of each class's scores, all above the location.

        For a given shape the best scale is known,
        :math:`\lambda_c^\kappa = \operatorname{mean} (f - \tau)^\kappa`, so only the shape is
        searched.
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
        return cls(location, np.exp([_log_scale(x, shape) for x in logs]), shape)

    def standardise(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return (f - tau) / lambda: (n, C) -> (n, C)."""
        return np.asarray((scores - self.location) / self.scales)

    def log_hazard(self, standardised: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return kappa log((f - tau) / lambda), of which the probability is 1 - exp(-exp(.)).

        It tells probabilities apart that round to 0 or 1.
        """
        return np.asarray(self.shape * np.log(np.maximum(standardised, SMALLEST)))

    def probability(self, standardised: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the distribution function at standardised scores, of any shape."""
        return np.asarray(-np.expm1(-(np.maximum(standardised, 0.0) ** self.shape)))

    def quantile(self, probability: float) -> float:
        """Return the standardised score of a probability."""
        return float((-np.log1p(-probability)) ** (1 / self.shape))


def _log_scale(x: Vector, shape: float) -> float:
    """Logarithm of the most likely scale, from logarithms of scores."""
    largest = x.max()
    return float(largest + np.log(np.mean(np.exp(shape * (x - largest)))) / shape)
