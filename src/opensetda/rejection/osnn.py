"""OSNN: the ratio of the distances to the nearest class and to the next."""

from __future__ import annotations

import numpy as np

from opensetda.base import Scores
from opensetda.rejection import source_rows
from opensetda.rejection.base import Matrix, Rejector, Saved, State, Vector
from opensetda.rows import FloatArray, IntArray, first_of_every_class

DEFAULT_THRESHOLD = 0.8
"""T with two classes, of which none can be hidden; Lowe's value for matching key points."""

# Number of source rows that choose the threshold: all distances between them are computed.
VALIDATION_ROWS = 4000
# Number of rows whose distances are computed at a time.
BLOCK_ROWS = 512
# Distances to neighbouring classes differ by little: as logits they need a scale.
DISTANCE_SCALE = 16.0


class DistanceRatioRejector(Rejector):
    r"""Open-set nearest neighbours by the ratio of two distances.

    Mendes Júnior et al., "Nearest neighbors distance ratio open-set classifier", Machine
    Learning 106, 2017. With t the nearest neighbour of a sample s among the source, and u the
    nearest one of another class than t's,

    .. math:: R(s) = d(s, t) / d(s, u), \qquad
        \text{s has the class of t if } R(s) \le T, \text{ else it is unknown.}

    T is chosen on the source: half of the classes in turn are hidden and used as unknowns, and
    T maximises the normalised accuracy (`best_threshold`). The paper splits the samples of
    seen classes in two, one half to be neighbours of the other; here all other samples are
    neighbours.

    The known score is -R. The class scores are minus the distances to the nearest row of each
    class. The held-out score is that of the next two classes.
    """

    needs_logits = False

    def __init__(self) -> None:
        # Rows of the source class by class, where each class starts among them, and the mean
        # distance of a row to another class.
        self.rows: Matrix = np.zeros((0, 0))
        self.starts: IntArray = np.zeros(0, dtype=np.intp)
        self.typical = 1.0
        self.threshold = DEFAULT_THRESHOLD

    def fit(self, features: FloatArray, y: IntArray, n_classes: int) -> None:
        """Keep the rows (n, d), and choose the threshold."""
        order = np.argsort(y, kind="stable")
        self.rows = source_rows.as_stored(features)[order]
        self.starts = np.searchsorted(y[order], np.arange(n_classes))
        own = first_of_every_class(y, n_classes, VALIDATION_ROWS)
        places = np.empty(len(y), dtype=np.intp)
        places[order] = np.arange(len(y))
        distances = self._distances(self.rows[places[own]], without=places[own])
        others = np.where(np.arange(n_classes) == y[own][:, None], np.inf, distances).min(axis=1)
        self.typical = max(float(others.mean()), 1e-12)
        # A class of one sample has no neighbour of its own class: it cannot be recognised.
        alone = np.isinf(distances[np.arange(len(own)), y[own]])
        distances, y = distances[~alone], y[own][~alone]
        rounds = [_simulate(distances, y, hidden) for hidden in source_rows.hidings(n_classes)]
        self.threshold = -source_rows.best_threshold(rounds, -DEFAULT_THRESHOLD)

    def scores(self, features: FloatArray, logits: Matrix) -> Scores:
        """Score rows (m, d) by their neighbours; the logits are not used."""
        distances = self._distances(np.asarray(features, dtype=np.float64))
        held_out = np.full(len(distances), np.nan)
        if distances.shape[1] > 2:
            held_out = -distance_ratio(np.sort(distances, axis=1)[:, 1:])
        classes = -DISTANCE_SCALE / self.typical * distances
        return Scores(classes, -distance_ratio(distances), held_out)

    def own_cut(self, scores: Scores) -> float | None:
        """Return -T: a ratio above T is unknown."""
        return -self.threshold

    def state(self) -> State:
        """Return the rows, in single precision, class by class, and the threshold."""
        values = {"threshold": self.threshold, "typical": self.typical}
        return values, {"rows": self.rows.astype(np.float32), "starts": self.starts}

    def restore(self, values: Saved, arrays: Saved) -> None:
        """Restore rows and threshold."""
        self.threshold, self.typical = float(values["threshold"]), float(values["typical"])
        self.rows = arrays["rows"].astype(np.float64)
        self.starts = np.asarray(arrays["starts"], dtype=np.intp)

    def _distances(self, features: Matrix, without: IntArray | None = None) -> Matrix:
        """Distances to the nearest row of each class, perhaps without one row each: (m, C)."""
        nearest = np.empty((len(features), len(self.starts)))
        for start in range(0, len(features), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            squared = source_rows.squared_distances(features[block], self.rows)
            if without is not None:
                squared[np.arange(len(squared)), without[block]] = np.inf
            nearest[block] = np.minimum.reduceat(squared, self.starts, axis=1)
        return np.sqrt(nearest)


def distance_ratio(distances: Matrix) -> Vector:
    """R, from distances (n, C) to each class -> (n,); 1 for rows equal to rows of two classes."""
    nearest = np.partition(distances, 1, axis=1)
    same = nearest[:, 1] <= nearest[:, 0]
    return np.asarray(np.divide(nearest[:, 0], nearest[:, 1], out=np.ones(len(same)), where=~same))


def _simulate(distances: Matrix, y: IntArray, hidden: source_rows.Mask) -> source_rows.Round:
    """Hide classes from rows whose distances to all classes are known: (n, C)."""
    seen = np.where(hidden, np.inf, distances)
    return source_rows.Round(-distance_ratio(seen), hidden[y], seen.argmin(axis=1) == y)
