"""Entropic optimal transport in numpy, with exact or with relaxed marginals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]


class UnbalancedPlan(NamedTuple):
    """A plan Q (n, C), and log v (C,), the potential by which rows can be added to it."""

    plan: Matrix
    potential: Vector


def balanced_transport(similarity: Matrix, entropy: float, iterations: int) -> Matrix:
    r"""Sinkhorn's algorithm for equal marginals (Cuturi, NeurIPS 2013).

    .. math::
        \max_Q \langle S, Q \rangle + \epsilon H(Q) \quad \text{with} \quad
        Q 1 = 1/n, \quad Q^\top 1 = 1/m

    Computed in logarithms, without overflow. After the last iteration the rows are exact.

    Shapes: S (n, m) -> Q (n, m).
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
    most_iterations: int = 1000,
) -> UnbalancedPlan:
    r"""Transport with relaxed marginals (Chizat et al., 2018).

    .. math::
        \max_Q \langle S, Q \rangle + \epsilon H(Q)
            - \kappa \operatorname{KL}(Q 1 \| 1/n) - \kappa \operatorname{KL}(Q^\top 1 \| \beta)

    solved by :math:`u = (n^{-1} / K v)^\rho`, :math:`v = (\beta / K^\top u)^\rho` with
    :math:`K = e^{S/\epsilon}` and :math:`\rho = \kappa / (\kappa + \epsilon)`, from the potential
    `start` until no log v changes by more than `tolerance`. Given v, a row of the plan depends on
    its own similarities only (`plan_rows`): so later samples have rows too.

    Shapes: similarity S (n, C), columns beta (C,), entropy epsilon, marginals kappa.
    """
    n, n_columns = similarity.shape
    rho = marginals / (marginals + entropy)
    largest = similarity.max(axis=1)
    kernel = np.exp((similarity - largest[:, None]) / entropy)
    transposed = np.ascontiguousarray(kernel.T)
    row_part = (1 - rho) * largest / entropy - rho * np.log(n)
    log_columns = np.log(np.maximum(columns, np.finfo(np.float64).tiny))
    potential = np.full(n_columns, -np.log(n_columns)) if start is None else start
    for _ in range(most_iterations):
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
