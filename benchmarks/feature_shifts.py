"""Feature tasks with a domain shift of known kind and strength, and the truth.

Estimates of the share of unknowns, of the accuracy or of the best step without labels are tested
where the answers are known. `feature_task` draws clusters and shifts those of the target.

Accuracy on the known classes (%) of the nearest source class mean, by cosine, and how well
its cosine separates known from unknown rows (AUROC in %), for 10 known and 10 unknown classes,
64 features and openness 0.5, mean of the seeds 0 to 4. More features are easier.

=================  ========  =====
shift              accuracy  AUROC
=================  ========  =====
none               96.1      92.3
rotation           82.1      78.7
noise              89.8      82.0
translation        78.4      74.1
class-translation  87.2      77.4
all                82.9      75.7
=================  ========  =====

``pytest tests/benchmark/test_shifts.py`` measures the table.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from opensetda.data.benchmarks.protocols import (
    OpenSetTask,
    open_set_split,
    open_set_task,
    with_openness,
)
from opensetda.errors import InputError

Rows = npt.NDArray[np.float64]
Classes = npt.NDArray[np.intp]

_GROUP, _GROUP_SHARE = 4, 0.5
_SPREAD = 1.0
_OWN_SPREAD, _OWN_DIRECTIONS = 0.3, 3


@dataclass(frozen=True)
class FeatureShift:
    """What happens to the target's features; lengths are in units of the norm of a class centre.

    Applied in this order: scaling, rotation, translations, noise. Zero means no shift.

    Attributes
    ----------
    rotation : float
        Angle in radians by which random planes turn. They fill the space (except for one
        direction if the number of features is odd), so each row turns by that angle.
    noise : float
        Length (root of the mean square) of Gaussian noise added to each row.
    translation : float
        Length of one translation of all rows.
    class_translation : float
        Length of a translation of its own for each class, known or unknown.
    scaling : float
        Standard deviation of the logarithm of a factor for each feature.
    """

    rotation: float = 0.0
    noise: float = 0.0
    translation: float = 0.0
    class_translation: float = 0.0
    scaling: float = 0.0

    def __post_init__(self) -> None:
        if not all(np.isfinite(value) and value >= 0 for value in astuple(self)):
            raise InputError(f"FeatureShift: strengths are finite and not below 0, got {self}")


FEATURE_SHIFTS: dict[str, FeatureShift] = {
    "none": FeatureShift(),
    "rotation": FeatureShift(rotation=1.0),
    "noise": FeatureShift(noise=1.5),
    "translation": FeatureShift(translation=1.0),
    "class-translation": FeatureShift(class_translation=0.8),
    "all": FeatureShift(
        rotation=0.5, noise=0.8, translation=0.5, class_translation=0.4, scaling=0.3
    ),
}
"""Named shifts, strong enough to hurt and weak enough to leave a solvable task."""


def feature_task(
    n_known: int,
    n_unknown: int,
    n_features: int,
    shift: FeatureShift | str,
    openness: float,
    seed: int,
    per_class: int = 50,
) -> OpenSetTask:
    """Draw a task of clusters, similar to pooled features of a network, and shift its target.

    Classes come in groups of about four similar ones, and each group has known and unknown
    classes if there are enough: an unknown class is often near a known one. Rows scatter along
    a few directions that all classes share, and a little along some of their own. The same
    seed gives the same rows under every shift.

    Parameters
    ----------
    n_known, n_unknown : int
        Numbers of classes; at least two known.
    n_features : int
        Number of features; at least 2, so that there is a plane to turn.
    shift : FeatureShift or str
        The shift, or its name in `FEATURE_SHIFTS`.
    openness : float
        Share of unknowns in the target, in [0, 1); see `with_openness`.
    seed : int
        Seed of all draws.
    per_class : int
        Source rows of each known class. The target draws as many of every class, and
        `openness` drops some.
    """
    if isinstance(shift, str):
        shift = FEATURE_SHIFTS[shift]
    if n_features < 2 or per_class < 1:
        raise InputError("feature_task: at least 2 features and 1 row per class are needed")
    n_classes = n_known + n_unknown
    names = np.array([f"class-{number:04d}" for number in range(n_classes)])
    split = open_set_split(names.tolist(), n_known, n_unknown)
    class_rng, source_rng, target_rng, shift_rng = np.random.default_rng(seed).spawn(4)

    clusters = _clusters(n_classes, n_features, class_rng)
    source_class = np.repeat(np.arange(n_known), per_class)
    target_class = target_rng.permutation(np.repeat(np.arange(n_classes), per_class))
    source = _draw(clusters, source_class, source_rng)
    target = _draw(clusters, target_class, target_rng)
    target = _shifted(target, target_class, clusters[0], shift, shift_rng)
    labelled = source.astype(np.float32), names[source_class]
    hidden = target.astype(np.float32), names[target_class]
    return with_openness(open_set_task(labelled, hidden, split), openness, seed)


def _clusters(n_classes: int, n_features: int, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Return class centres, and the directions in which all and each of them scatter."""
    n_groups = max(1, round(n_classes / _GROUP))
    variances = 1 / np.arange(1, n_features + 1)
    axes = np.sqrt(variances / variances.sum())[:, None] * _orthogonal(n_features, rng)
    # Classes differ where rows scatter most; otherwise many features would make the task easy.
    groups = rng.normal(size=(n_groups, n_features))[np.arange(n_classes) % n_groups]
    alone = rng.normal(size=(n_classes, n_features))
    centres = (np.sqrt(_GROUP_SHARE) * groups + np.sqrt(1 - _GROUP_SHARE) * alone) @ axes
    own = _unit(rng.normal(size=(n_classes, _OWN_DIRECTIONS, n_features)))
    return _unit(centres), _SPREAD * axes, _OWN_SPREAD / np.sqrt(_OWN_DIRECTIONS) * own


def _draw(clusters: tuple[Rows, Rows, Rows], classes: Classes, rng: np.random.Generator) -> Rows:
    centres, shared, own = clusters
    scatter = rng.normal(size=(len(classes), len(shared))) @ shared
    own_scatter = rng.normal(size=(len(classes), 1, _OWN_DIRECTIONS)) @ own[classes]
    return np.asarray(centres[classes] + scatter + own_scatter[:, 0])


def _shifted(
    rows: Rows, classes: Classes, centres: Rows, shift: FeatureShift, rng: np.random.Generator
) -> Rows:
    n_features = rows.shape[1]
    # Draw everything, whatever the strengths, so that a shift is the same alone or combined.
    gain = np.exp(shift.scaling * rng.normal(size=n_features))
    planes = _orthogonal(n_features, rng)
    # Translations mix centres: outside the span of the classes they would do little.
    common = _unit(rng.normal(size=len(centres)) @ centres)
    own = _unit(rng.normal(size=(len(centres), len(centres))) @ centres)
    noise = rng.normal(size=rows.shape) / np.sqrt(n_features)

    along = rows * gain @ planes.T
    first, second = along[:, : n_features - 1 : 2], along[:, 1::2]
    cos, sin = np.cos(shift.rotation), np.sin(shift.rotation)
    turned = cos * first - sin * second, sin * first + cos * second
    along[:, : n_features - 1 : 2], along[:, 1::2] = turned
    moved = along @ planes + shift.translation * common + shift.class_translation * own[classes]
    return np.asarray(moved + shift.noise * noise)


def _orthogonal(size: int, rng: np.random.Generator) -> Rows:
    return np.asarray(np.linalg.qr(rng.normal(size=(size, size)))[0])


def _unit(rows: Rows) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))
