"""Confidence intervals of the metrics: what the truth of some samples says about all like them.

An interval assumes that the samples were drawn at random. None has a width of 0 after few samples
that are all right, as a bootstrap would have. Shares have the exact binomial one (Clopper-Pearson),
means of classes and HOS combine those of their parts by MOVER, AUROC has Newcombe's score
interval, and OSCR combines both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from scipy.optimize import brentq
from scipy.special import betaincinv

from opensetda.metrics.open_set import OpenSetMetrics, harmonic_mean

LEVEL = 0.95
# The normal quantile of `LEVEL`.
_Z = 1.959963984540054

Interval = tuple[float, float]


def metric_intervals(
    metrics: OpenSetMetrics, n_nearest: int | None = None
) -> dict[str, Interval | None]:
    """Return an interval for each metric and for the share of unknowns; None if there is none.

    `n_nearest` is the number of known samples whose nearest class is right, which OSCR needs. The
    calibration errors have none: they are biased, the more so the fewer samples there are.
    """
    counts = [(row.kind, row.correct, row.n) for row in metrics.per_class if row.n]
    known = [count for kind, *count in counts if kind == "known"]
    unknown = [count for kind, *count in counts if kind == "unknown"]
    right, n_known = (sum(count[i] for count in known) for i in (0, 1))
    rejected, n_unknown = (sum(count[i] for count in unknown) for i in (0, 1))
    pooled = [[rejected, n_unknown]] if unknown else []
    found: dict[str, Interval | None] = {
        "true_openness": binomial_interval(n_unknown, n_known + n_unknown),
        "all": binomial_interval(right + rejected, n_known + n_unknown),
        "os_star": (of_known := _mean_interval(known)),
        "unk": (of_unknown := binomial_interval(rejected, n_unknown) if unknown else None),
        "unk_per_class": _mean_interval(unknown),
        "os": _mean_interval(known + pooled),
    }
    found |= dict.fromkeys(("hos", "auroc", "oscr", "ece", "unknown_ece"))
    if of_known is None or of_unknown is None:
        return found
    lows, highs = [
        (harmonic_mean(of_known[end], metrics.unk), harmonic_mean(metrics.os_star, of_unknown[end]))
        for end in (0, 1)
    ]
    found["hos"] = _combined(metrics.hos, lows, highs)
    if metrics.auroc is not None:
        found["auroc"] = area_interval(metrics.auroc, n_known, n_unknown)
    if metrics.oscr is not None and n_nearest is not None:
        share = n_nearest / n_known
        of_share = binomial_interval(n_nearest, n_known)
        # The area over the unknowns of those whose nearest class is right.
        area = min(metrics.oscr / share, 1.0) if n_nearest else 1.0
        of_area = area_interval(area, max(n_nearest, 1), n_unknown)
        lows, highs = [(of_share[end] * area, share * of_area[end]) for end in (0, 1)]
        found["oscr"] = _combined(metrics.oscr, lows, highs)
    return found


def intervals_to_dict(intervals: Mapping[str, Interval | None]) -> dict[str, Any]:
    """Return intervals with their level, for JSON."""
    return {"level": LEVEL} | {name: ends and list(ends) for name, ends in intervals.items()}


def binomial_interval(part: int, whole: int) -> Interval:
    """Return the exact interval (Clopper and Pearson) of a share that was `part` of `whole`."""
    tail = (1 - LEVEL) / 2
    low = float(betaincinv(part, whole - part + 1, tail)) if part else 0.0
    high = float(betaincinv(part + 1, whole - part, 1 - tail)) if part < whole else 1.0
    return low, high


def area_interval(area: float, n_known: int, n_unknown: int) -> Interval:
    """Return Newcombe's score interval (2006, method 5) of the area under the ROC curve.

    The ends are the areas t at which the observed one is `_Z` standard deviations away, by the
    variance of Hanley and McNeil, with both sample sizes replaced by their mean in its last term::

        t (1 - t) / (m n) * (1 + ((m + n) / 2 - 1) * ((1 - t) / (2 - t) + t / (1 + t)))
    """
    pairs = n_known * n_unknown
    more = (n_known + n_unknown) / 2 - 1

    def deviation(t: float) -> float:
        spread = 1 + more * ((1 - t) / (2 - t) + t / (1 + t))
        return _Z * math.sqrt(t * (1 - t) / pairs * spread)

    # At 0 and 1 the deviation is 0, which is a root of its own.
    edge = 1e-12
    low = high = area
    if area > edge:
        low = brentq(lambda t: area - t - deviation(t), 0.0, min(area, 1 - edge))
    if area < 1 - edge:
        high = brentq(lambda t: t - area - deviation(t), max(area, edge), 1.0)
    return float(low), float(high)


def _mean_interval(counts: list[list[int]]) -> Interval | None:
    """Return the interval of the mean of the accuracies of classes; None without a class."""
    if not counts:
        return None
    n = len(counts)
    shares = [part / whole for part, whole in counts]
    mean = math.fsum(shares) / n
    each = [binomial_interval(part, whole) for part, whole in counts]
    lows, highs = [
        [mean + (own[end] - share) / n for own, share in zip(each, shares, strict=True)]
        for end in (0, 1)
    ]
    return _combined(mean, lows, highs)


def _combined(value: float, lows: Iterable[float], highs: Iterable[float]) -> Interval:
    """Combine independent parts by MOVER (Zou and Donner, 2008).

    `lows` and `highs` are the values that result if one part is at the end of its interval and the
    others are as observed; their distances are added as those of a right-angled triangle.
    """
    below, above = (math.hypot(*(end - value for end in ends)) for ends in (lows, highs))
    return max(value - below, 0.0), min(value + above, 1.0)
