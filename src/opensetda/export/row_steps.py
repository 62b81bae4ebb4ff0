"""What happens to rows before a method scores them: moderation, scaling, unit length, alignment."""

from __future__ import annotations

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from onnx import numpy_helper
from scipy.special import ndtri

from opensetda.export.onnx_graph import Value
from opensetda.nn.alignment import Alignment
from opensetda.nn.scaling import NONE, OUTERMOST, RANKS, Scaling, Table

# Of the polynomial for normal scores: its error is below 1e-10.
_DEGREE = 16
_TINY = float(np.finfo(np.float64).tiny)


def scaled_rows(rows: Value, scaling: Scaling) -> Value:
    """Moderate and scale later rows, see `Scaling`: float32 (n, D) -> float64 (n, D)."""
    moderation = scaling.moderation
    if moderation is not None:
        rows = rows.cast(np.float64)
        rows = rows if moderation.offset is None else rows - moderation.offset
        rows = rows * 2.0**-moderation.exponent
    if scaling.name == NONE:
        return rows.cast(np.float64)
    table: Table = scaling.arrays()["scaling.target"]
    rows = rows.cast(np.float32).cast(np.float64)
    if scaling.name == RANKS:
        rows = _normal_scores(_ranks(rows, table))
    else:
        rows = rows.op("Sub", table[0]).op("Div", table[1])
    return rows.cast(np.float32).cast(np.float64)


def _ranks(rows: Value, table: Table) -> Value:
    """Find the rank of each value among the quantiles of its column: (n, D) -> (n, D) in [0, 1]."""
    graph, (levels, width) = rows.graph, table.shape
    # One more row, for values below all quantiles; and so many that halving them ends at one.
    size = 1 << int(levels).bit_length()
    ends = np.full((size - levels - 1, width), np.inf)
    ordered = graph.constant(np.concatenate([np.full((1, width), -np.inf), table, ends]))
    place = rows.op("Mul", 0.0).cast(np.int64)
    step = size // 2
    while step:
        further = place.op("Add", step)
        found = ordered.op("GatherElements", further, axis=0)
        place = (rows >= found).where(further, place, np.int64)
        step //= 2
    shares = np.linspace(0, 1, levels)[:, None] * np.ones(width)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.diff(shares, axis=0) / np.diff(table, axis=0)
    slopes = np.where(np.isfinite(slopes), slopes, 0.0)
    # Equal quantiles share the middle of their ranks.
    first = np.stack([np.searchsorted(column, column) for column in table.T], axis=1)
    middle = (np.take_along_axis(shares, first, axis=0) + shares) / 2
    zeros = np.zeros((1, width))
    tables = ([zeros, table], [zeros, slopes, zeros], [zeros, shares], [zeros, middle])
    start, slope, share, equal = (
        graph.op("GatherElements", graph.constant(np.concatenate(parts)), place, axis=0)
        for parts in tables
    )
    below = place.op("Less", 1, dtype=bool)
    rank = rows.op("Equal", start, dtype=bool).where(equal, share + slope * (rows - start))
    return below.where(0.0, rank)


def _normal_scores(ranks: Value) -> Value:
    """Return `ndtri` of ranks, by a polynomial of sqrt(-2 log p) for the tail p of a rank."""

    def variable(tail: float) -> float:
        return float(np.sqrt(-2 * np.log(tail)))

    domain = [variable(0.5), variable(OUTERMOST)]
    fitted = Chebyshev.interpolate(lambda t: -ndtri(np.exp(-(t**2) / 2)), _DEGREE, domain)
    # In powers of a variable within [-1, 1], where rounding errors do not grow.
    powers = Chebyshev(fitted.coef).convert(kind=Polynomial).coef
    centre, reach = sum(domain) / 2, (domain[1] - domain[0]) / 2
    offset = (ranks - 0.5).minimum(0.5 - OUTERMOST).maximum(OUTERMOST - 0.5)
    tail = -(offset.op("Abs") - 0.5)
    t = ((tail.op("Log") * -2.0).op("Sqrt") - centre) / reach
    highest, *others = powers[::-1].tolist()
    score: Value = t * 0.0 + highest
    for power in others:
        score = score * t + power
    return score * offset.op("Sign")


def unit_rows(x: Value, shortest: float = _TINY) -> Value:
    """Scale rows to unit length, but for those shorter than `shortest`; zeros stay zeros.

    Squares of numbers that come from single precision neither overflow nor vanish.
    """
    return x / x.op("ReduceL2", axes=[-1], keepdims=1).maximum(shortest)


def aligned_rows(x: Value, alignment: Alignment) -> Value:
    """Centre and project later rows as `Alignment.later` does: (n, D) -> (n, d)."""
    normalise = alignment.settings.normalise
    x = (unit_rows(x) if normalise else x) - alignment.target_mean
    x = unit_rows(x) if normalise else x
    if alignment.projection is not None:
        x = x @ alignment.projection
    return unit_rows(x) if normalise else x


def squares(x: Value) -> Value:
    """Return the squared length of each row: (n, d) -> (n, 1)."""
    return x.op("Mul", x).sum()


def top_rows(values: Value, count: int) -> tuple[Value, Value]:
    """Return the largest entries of each row, and their places: (n, d) -> (n, k), (n, k)."""
    size = values.graph.constant([count], np.int64)
    largest, places = values.graph.ops("TopK", values, size, dtypes=[None, np.int64])
    return largest, places


def spread(values: Value, places: Value, like: Value) -> Value:
    """Put entries at their places into rows of zeros: (n, k), (n, k), (n, d) -> (n, d)."""
    shape = like.op("Shape", dtype=np.int64)
    zero = numpy_helper.from_array(np.zeros(1))
    zeros = shape.op("ConstantOfShape", dtype=np.float64, value=zero)
    return zeros.op("ScatterElements", places, values, axis=1)


def logsumexp(values: Value) -> Value:
    """Return log sum exp of each row: (n, d) -> (n, 1)."""
    largest = values.max()
    return (values - largest).op("Exp").sum().op("Log") + largest


def softmax_score(logits: Value) -> Value:
    """Return the largest softmax of each row: (n, C) -> (n, 1)."""
    return logits.op("Softmax", axis=-1).max()
