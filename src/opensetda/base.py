"""The contract of every method: a scikit-learn classifier that knows two domains."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from opensetda import state
from opensetda.context import FitContext
from opensetda.errors import InputError
from opensetda.metrics.source_labels import encode_classes, source_labels
from opensetda.nn.doubts import study_domains
from opensetda.nn.scaling import NONE, Scaling, check_scaling
from opensetda.openness.mixtures import fit_slope, rejection_cut, unknown_posterior
from opensetda.openness.tracker import KeptStep, OpennessTracker
from opensetda.rows import (
    CHUNK_ROWS,
    FloatArray,
    IntArray,
    Rows,
    canonical_source,
    check_finite,
    moderated,
    split_domains,
)

Vector = npt.NDArray[np.float64]

# Later samples are scored in blocks of this size.
SCORED_ROWS = 64


class Scores(NamedTuple):
    """The scores of n samples."""

    classes: npt.NDArray[np.float64]
    """Logits of the known classes: (n, C)."""
    known: Vector
    """Confidence that the sample is of a known class."""
    held_out: Vector
    """The known score if the nearest class were not known (`openness.held_out`), or NaN."""

    @property
    def nearest(self) -> IntArray:
        """The class of each sample, if it is known."""
        return np.asarray(self.classes.argmax(axis=1))


class Rejection(NamedTuple):
    """The decision between known and unknown.

    A sample whose known score lies below `threshold` is unknown. The probability of unknown is
    1/2 there, and its logit falls with `slope`.
    """

    threshold: float
    slope: float

    def labels(self, known: Vector, nearest: IntArray, n_classes: int) -> IntArray:
        """Return the nearest class, or `n_classes` for unknown: (n,), (n,) -> (n,)."""
        return np.where(known < self.threshold, n_classes, nearest)

    def probability(self, known: Vector) -> Vector:
        """Return the probability of unknown: (n,) -> (n,)."""
        if not np.isfinite(self.threshold):
            return np.zeros(len(known))
        return np.asarray(expit(self.slope * (self.threshold - known)))

    def probabilities(self, scores: Scores) -> npt.NDArray[np.float64]:
        """Return the probabilities of the classes, then of unknown: (n, C + 1)."""
        unknown = self.probability(scores.known)
        classes = softmax(scores.classes, axis=1) * (1 - unknown)[:, None]
        return np.column_stack([classes, unknown])


class OpenSetClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base of every method: checks the input, hides the target's labels, rejects unknowns.

    A subclass stores its parameters in ``__init__`` (`openness`, `scaling`, `unknown_label`)
    and implements `_fit_domains` and `_score_rows`, and, so that it can be saved,
    `_fitted_state` and `_restore_fitted_state`.

    Without target rows in `fit` the classifier is an ordinary closed-set one, and `predict_proba`
    and `decision_function` have scikit-learn's shapes.

    Attributes
    ----------
    classes_ : array of shape (C,)
        The known classes, those of the source.
    transduction_ : array of shape (n_targets,)
        The label of each target row of `fit`, in the order of those rows.
    transduction_nearest_ : array of shape (n_targets,)
        The class of each target if nothing were rejected.
    transduction_proba_ : array of shape (n_targets, C + 1)
        Probabilities of `classes_`, then of unknown.
    transduction_scores_ : array of shape (n_targets,)
        The score by which the targets were ranked; higher is more likely known.
    scaling_ : {"none", "standard", "ranks"}
        How columns were scaled, and are scaled in later samples.
    scaler_ : Scaling
        Scales rows of either domain; `reason` and `quality` say why it was chosen.
    openness_ : float
        The share of unknowns that was used: given, audited, estimated, or rejected by the
        method's own boundary.
    openness_report_ : OpennessReport
        The estimates with their intervals, step by step, and warnings.
    rejection_threshold_, rejection_slope_ : float
        How later samples are rejected, see `Rejection`.
    history_ : list of dict
        One entry per step, with numbers that need no target label.
    """

    # Pipelines, searches and skada pass the domain without set_fit_request.
    __metadata_request__fit: ClassVar = {"sample_domain": True}
    __metadata_request__score: ClassVar = {"sample_domain": True}
    __metadata_request__transform: ClassVar = {"sample_domain": True}

    openness: float | str
    # A method without this parameter takes columns as given.
    scaling: str = NONE
    unknown_label: Any

    # What a method can do; a subclass declares what differs.
    is_random: ClassVar[bool] = False
    """Another `random_state` gives another result."""
    trains_backbone: ClassVar[bool] = False
    """Can train the backbone of images (`FitContext.images`)."""
    transforms_domains: ClassVar[bool] = False
    """Has ``transform(X, sample_domain)``, the learned features of either domain."""
    presets: ClassVar[tuple[str, ...]] = ()
    """Named settings; a method that has them has parameters `preset` and `settings`."""

    # Set by some methods only.
    kept_step_: KeptStep | None = None
    step_labels_: IntArray | None = None
    view_: Any = None

    @abstractmethod
    def _fit_domains(
        self,
        source: Rows,
        y: IntArray,
        target: Rows,
        openness: OpennessTracker,
        context: FitContext,
    ) -> Scores:
        """Learn from both domains, set `history_`, and return the scores of the targets, if any.

        A method of several steps calls ``openness.update`` at each of them.
        """

    @abstractmethod
    def _score_rows(self, X: FloatArray) -> Scores:
        """Score later samples, each on its own; called with `SCORED_ROWS` rows at a time."""

    @abstractmethod
    def _fitted_state(self) -> tuple[dict[str, Any], state.Arrays]:
        """Return what `_score_rows` needs: JSON-safe values, and arrays (none of objects)."""

    @abstractmethod
    def _restore_fitted_state(
        self, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Set what `_score_rows` needs; `from_state` turns a `KeyError` into an `InputError`."""

    def _own_cut(self, scores: Scores) -> float | None:
        """Return the method's own threshold, if it has one and the share was not given."""
        return None

    def _known_as_later(self, target: Rows, known_score: Vector) -> Vector:
        """Return known scores of the first targets, if a method scores later samples otherwise."""
        return known_score

    @classmethod
    def settings_of(cls, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a preset with changes by name; for methods with `presets`."""
        raise InputError(f"preset {preset!r}: {cls.__name__} has no presets")

    # fit --------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, sample_domain: Any = None, context: FitContext | None = None
    ) -> Self:
        """Learn from labelled source rows and unlabelled target rows.

        Parameters
        ----------
        X : array of shape (n, n_features)
            Source and target rows; a memory map is read in chunks.
        y : array of shape (n,)
            Labels. Those of target rows are never read and may be anything. Source rows without
            a label ("", None, NaN) are refused, and so is -1 where it reads as "label missing":
            if `sample_domain` is None, and there are at least two classes from 0 on.
        sample_domain : array of int of shape (n,), optional
            0 or more: source; negative: target (skada's convention). None: all source.
        context : FitContext, optional
            Progress, checkpoints and other services. Only images, whose backbone is then
            trained, and targets that a person has checked change the result.
        """
        if y is None:
            name = type(self).__name__
            raise ValueError(f"{name} requires y to be passed, but the target y is None")
        context = context or FitContext()
        openness = OpennessTracker(self.openness, context.checked)
        check_scaling(self.scaling)
        self._forget()
        X = self._check_rows(X, reset=True)
        check_consistent_length(X, y)
        source_rows, target_rows = split_domains(sample_domain, len(X))
        labels = source_labels(y, source_rows, domain_given=sample_domain is not None)
        self.classes_, y_source = encode_classes(labels, self.unknown_label)

        # From here on the order of the caller's rows has no effect, see Rows.in_canonical_order.
        source, y_source = canonical_source(Rows(X, source_rows), y_source)
        target = Rows(X, target_rows).in_canonical_order()
        self.openness_, self.has_target_ = 0.0, len(target) > 0
        self.history_: list[dict[str, Any]] = []
        # A backbone that is trained changes its features: their scales cannot be fixed before.
        name = self._own_scaling() if context.images is None else NONE
        self.scaler_ = Scaling.fit(name, source, y_source, target)
        self.scaling_ = self.scaler_.name
        source, target = self.scaler_.domains(source, target)
        if self.has_target_:
            study_domains(openness, source, y_source, target, self.classes_, self.scaler_)
        scores = self._fit_domains(source, y_source, target, openness, context)
        if self.has_target_:
            scores = Scores(*(target.mean_of_twins(values) for values in scores))
            self._reject(target, scores, openness)
        return self

    def _own_scaling(self) -> str:
        """Return the parameter `scaling`, unless the method's other parameters decide."""
        return self.scaling

    def _reject(self, target: Rows, scores: Scores, openness: OpennessTracker) -> None:
        """Label the targets of `fit`, and find threshold and slope for later samples."""
        n_classes = len(self.classes_)
        if not openness.estimates:  # A method of one step need not do it.
            openness.update(scores.known, scores.held_out)
        own_cut = self._own_cut(scores) if openness.told is None else None
        cut = rejection_cut(scores.known, openness.share) if own_cut is None else own_cut
        note = openness.note_rejected if own_cut is None else openness.follow
        note(float((scores.known < cut).mean()))
        report = openness.report()
        self.openness_report_, self.openness_ = report, report.share
        posterior = unknown_posterior(scores.known, scores.held_out, report.share)
        # The same share of the targets is rejected when they are scored as later samples.
        later = self._known_as_later(target, scores.known)
        self.rejection_threshold_ = rejection_cut(later, report.share) if own_cut is None else cut
        self.rejection_slope_ = fit_slope(later, posterior[: len(later)], self.rejection_threshold_)

        in_callers_order = np.argsort(target.index)
        rejection = Rejection(cut, fit_slope(scores.known, posterior, cut))
        labels = rejection.labels(scores.known, scores.nearest, n_classes)
        self.transduction_ = self.decode_labels(labels[in_callers_order])
        if self.step_labels_ is not None:
            # The kept step was scored again, more precisely.
            self.step_labels_[openness.kept - 1] = labels[in_callers_order]
        self.transduction_nearest_ = self.classes_[scores.nearest[in_callers_order]]
        self.transduction_scores_ = scores.known[in_callers_order]
        self.transduction_proba_ = np.empty((len(labels), n_classes + 1))
        # With many classes there is no memory for several tables of all targets.
        for start in range(0, len(labels), CHUNK_ROWS):
            rows = in_callers_order[start : start + CHUNK_ROWS]
            part = Scores(*(values[rows] for values in scores))
            self.transduction_proba_[start : start + len(rows)] = rejection.probabilities(part)

    def _forget(self) -> None:
        """Delete the attributes of an earlier `fit`, which this one may not set."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)

    def decode_labels(self, indices: IntArray) -> npt.NDArray[Any]:
        """Turn class indices, C for unknown, into labels."""
        # numpy would turn the number 3 beside "unknown" into the string "3".
        names = self.classes_.tolist()
        same_kind = isinstance(self.unknown_label, str) == isinstance(names[0], str)
        if not same_kind and not (indices == len(names)).any() and not self.has_target_:
            return np.asarray(self.classes_[indices])
        table = np.array([*names, self.unknown_label], dtype=None if same_kind else object)
        return np.asarray(table[indices])

    # predict ----------------------------------------------------------------------------

    def _check_rows(self, X: Any, reset: bool = False) -> FloatArray:
        if not reset:
            check_is_fitted(self)
        floats = {"dtype": [np.float32, np.float64], "ensure_all_finite": False}
        with warnings.catch_warnings():
            # Rows without names are as good as those with the names of `fit`; others are refused.
            warnings.filterwarnings("ignore", "X (does not have valid|has) feature names")
            X = validate_data(self, X, reset=reset, **floats)
        limits = check_finite(X)
        return moderated(X, *limits) if reset else self.scaler_.moderate(np.asarray(X))

    def open_set_scores(self, X: Any) -> Scores:
        """Check later samples and score them.

        Blocks have one size, the last one padded: BLAS rounds a product of one row differently
        from one of many, and a sample must get the same bits in every batch.
        """
        rows = self._check_rows(X)
        return self._score_scaled(self.scaler_.of_target(rows))

    def _score_scaled(self, rows: FloatArray) -> Scores:
        """Score rows that are checked and scaled, block by block."""
        blocks = []
        for start in range(0, len(rows), SCORED_ROWS):
            part = rows[start : start + SCORED_ROWS]
            filled = np.zeros((SCORED_ROWS, rows.shape[1]), dtype=rows.dtype)
            filled[: len(part)] = part
            blocks.append([values[: len(part)] for values in self._score_rows(filled)])
        return Scores(*(np.concatenate(values) for values in zip(*blocks, strict=True)))

    @property
    def rejection(self) -> Rejection:
        """How later samples are rejected, if there were targets in `fit`."""
        return Rejection(self.rejection_threshold_, self.rejection_slope_)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Label later samples: a class, or `unknown_label` where its probability is above 1/2."""
        scores = self.open_set_scores(X)
        if not self.has_target_:
            return self.decode_labels(scores.nearest)
        labels = self.rejection.labels(scores.known, scores.nearest, len(self.classes_))
        return self.decode_labels(labels)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities; the columns are `classes_`, then unknown."""
        scores = self.open_set_scores(X)
        if not self.has_target_:
            return np.asarray(softmax(scores.classes, axis=1))
        return self.rejection.probabilities(scores)

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Confidence that a sample is of a known class: negative is rejected.

        Without targets in `fit`: the class scores, in scikit-learn's shape.
        """
        scores = self.open_set_scores(X)
        if self.has_target_:
            if np.isneginf(self.rejection_threshold_):
                # Nothing is rejected: all values are positive, in the same order.
                return np.asarray(np.exp(scores.known))
            return np.asarray(scores.known - self.rejection_threshold_)
        if len(self.classes_) == 2:
            return np.asarray(scores.classes[:, 1] - scores.classes[:, 0])
        return scores.classes

    def score(self, X: Any, y: Any, sample_weight: Any = None, sample_domain: Any = None) -> float:
        """Accuracy (ALL), where a label outside `classes_` means unknown.

        Given `sample_domain`, only target rows count, unless there are none.
        """
        known, truth = set(self.classes_.tolist()), np.asarray(y).tolist()
        correct = [
            predicted == (true if true in known else self.unknown_label)
            for predicted, true in zip(self.predict(X).tolist(), truth, strict=True)
        ]
        counted = np.ones(len(correct)) if sample_weight is None else np.asarray(sample_weight)
        if sample_domain is not None and (is_target := np.asarray(sample_domain) < 0).any():
            counted = counted * is_target
        return float(np.average(correct, weights=counted))

    # save and load ----------------------------------------------------------------------

    def get_state(self) -> tuple[dict[str, Any], state.Arrays]:
        """Return everything `predict` needs: a JSON-safe dict, and arrays by name."""
        check_is_fitted(self)
        values, arrays = self._fitted_state()
        return state.pack(self, values), arrays | self.scaler_.arrays()

    @classmethod
    def from_state(cls, saved: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return a classifier that predicts as the one that `get_state` was called on."""
        try:
            classifier: Self = state.unpack(cls, saved)
            classifier.scaler_ = Scaling.restore(classifier.scaling_, arrays)
            classifier._restore_fitted_state(saved["values"], arrays)
        except KeyError as error:
            raise InputError(f"saved model: {error} is missing; fit again") from None
        return classifier
