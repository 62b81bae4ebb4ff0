"""The contract of every method: a scikit-learn classifier that knows two domains."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils._param_validation import Interval, InvalidParameterError
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from opensetda.context import FitContext
from opensetda.data.tables.formats import frame_table, is_frame
from opensetda.data.tables.preparation import column_doubts
from opensetda.errors import InputError, one_line
from opensetda.features.alignment import aligned_samples
from opensetda.features.doubts import find_doubts
from opensetda.features.scaling import NONE, SENTENCES, Scaling, check_scaling
from opensetda.labels import encode_classes, source_labels
from opensetda.methods import saving
from opensetda.methods.groups import TargetGroups
from opensetda.methods.marks import MarkedScorer, follow_marks
from opensetda.progress import finish_step
from opensetda.rows import (
    Domains,
    FloatArray,
    IntArray,
    Marks,
    Rows,
    check_finite,
    copies_of,
    moderated,
    split_domains,
)
from opensetda.share.decision import (
    Decision,
    Matrix,
    MostVotes,
    NothingUnknown,
    Rejection,
    Scores,
    Vector,
    rejection_cut,
    unknown_votes,
)
from opensetda.share.report import OpennessReport, ShareSource, check_openness, study_openness

SCORED_ROWS = 64  # samples that are scored at a time

COUNT = Interval(Integral, 1, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")
POSITIVE_OR_INFINITE = Interval(Real, 0, None, closed="right")  # an inverse regularisation
NON_NEGATIVE = Interval(Real, 0, None, closed="left")
SHARE = Interval(Real, 0, 1, closed="both")


def checked(default: Any, *allowed: Any) -> Any:
    """Declare a parameter whose values are checked in `fit`, by constraints of scikit-learn."""
    return field(default=default, metadata={"allowed": list(allowed)})


class Decided(NamedTuple):
    """What a method says of n samples."""

    scores: Scores
    probabilities: Matrix
    """Of the classes, then of unknown: (n, C + 1)."""
    labels: npt.NDArray[Any]


@torch.no_grad()
def in_blocks(
    module: nn.Module, call: Callable[[Tensor], Sequence[Tensor]], rows: Tensor
) -> list[npt.NDArray[Any]]:
    """Return what `call`, which uses the tables of `module`, says of scaled rows: (n, D).

    A sample must get the same bits in every batch, but BLAS rounds by the number of rows: blocks
    have one size, the last one padded. And by whether a row begins at an odd place in memory: of
    odd sizes only every other row is filled.
    """
    tables = [array.shape for array in module.state_dict().values() if array.ndim == 2]
    sizes = [rows.shape[1], *(size for shape in tables for size in shape)]
    apart = 2 if any(size % 2 for size in sizes) else 1
    blocks = []
    for start in range(0, len(rows), SCORED_ROWS):
        part = rows[start : start + SCORED_ROWS]
        filled = torch.zeros((apart * SCORED_ROWS, rows.shape[1]), dtype=torch.float64)
        places = slice(0, apart * len(part), apart)
        filled[places] = part
        blocks.append([values[places].numpy() for values in call(filled)])
    return [np.concatenate(values) for values in zip(*blocks, strict=True)]


@dataclass(eq=False, repr=False, kw_only=True)
class OpenSetClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base of every method: checks the input, hides the target's labels, rejects unknowns.

    A method is a dataclass whose fields are its parameters (`checked`). It implements `_learn`,
    which sets `scorer_`, and `_make_scorer`. The scorer is a module from scaled rows, float64
    (n, D), to class logits (n, C) and known scores (n,), each row on its own. Without target rows
    in `fit` the classifier is an ordinary closed-set one.

    Parameters
    ----------
    openness : float or "auto", default="auto"
        Share of the target that is unknown, in [0, 1). "auto" leaves it to the method's own
        boundary, or estimates it if there is none. Neither needs labels.
    scaling : {"none", "standard", "ranks"}, default="none"
        How columns are scaled, see `opensetda.features.scaling`.
    unknown_label : default="unknown"
        Label of unknowns. With numeric classes, a number keeps predictions numeric.

    Attributes
    ----------
    classes_ : array of shape (C,)
        The known classes, those of the source.
    transduction_, transduction_nearest_ : arrays of shape (n_targets,)
        The label of each target row of `fit`, in their order; its class if nothing were rejected.
    transduction_proba_, transduction_scores_ : arrays of shape (n_targets, C + 1), (n_targets,)
        Probabilities of `classes_`, then of unknown; the score by which the targets were ranked.
    scaler_, scorer_ : nn.Module
        Scale rows of either domain, and score them then.
    openness_, openness_report_ : float, OpennessReport
        The share of unknowns that was used: given, audited, estimated, or rejected by the
        method's own boundary; and the estimates with their intervals and warnings.
    decision_ : nn.Module
        How scores become probabilities and labels, see `opensetda.share.decision`.
    history_ : list of dict
        One entry per step, with numbers that need no target label.
    step_labels_ : array of int of shape (steps, n_targets), or None
        The label of every target at every step, as an index into `classes_`; C is unknown.
    """

    openness: float | str = field(default="auto", kw_only=False)
    scaling: str = NONE
    unknown_label: Any = "unknown"

    # Pipelines, searches and skada pass the domain without set_fit_request.
    __metadata_request__fit: ClassVar = {"sample_domain": True}
    __metadata_request__score: ClassVar = {"sample_domain": True}
    __metadata_request__transform: ClassVar = {"sample_domain": True}

    # What a method can do; a subclass declares what differs.
    is_random: ClassVar[bool] = False  # another `random_state` gives another result
    trains_backbone: ClassVar[bool] = False  # trains that of images itself (`FitContext.images`)
    transforms_domains: ClassVar[bool] = False  # has ``transform(X, sample_domain)``
    scalings: ClassVar[tuple[str, ...]] = tuple(SENTENCES)  # what `scaling` may be
    joins_marks: ClassVar[bool] = True  # targets that a person marked are rows of the source, too
    # Named settings: it has parameters `preset` and `settings`.
    presets: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def _learn(self, domains: Domains, share: float, context: FitContext) -> Scores | None:
        """Learn from scaled rows of both domains; set `scorer_`, and add to `history_`.

        Returns the scores of the targets, or None to have them scored as later samples are.
        """

    @abstractmethod
    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> nn.Module:
        """Return the module that these arrays, its saved state, are then loaded into."""

    def _given_openness(self) -> float | str:
        """Return the parameter `openness`, unless a method reads it in its own way."""
        return self.openness

    def _own_cut(self, scores: Scores) -> float | None:
        """Return the method's own threshold, if it has one and the share was not given."""
        return None

    @classmethod
    def settings_of(cls, preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a preset with changes by name; for methods with `presets`."""
        raise InputError(f"preset {preset!r}: {cls.__name__} has no presets")

    @property
    def _parameter_constraints(self) -> dict[str, list[Any]]:
        # From the bases on: a subclass may change a default only.
        own = [vars(cls).get("__dataclass_fields__", {}) for cls in reversed(type(self).__mro__)]
        declared = [parameter for fields in own for parameter in fields.values()]
        return {p.name: p.metadata["allowed"] for p in declared if "allowed" in p.metadata}

    def fit(
        self, X: Any, y: Any, sample_domain: Any = None, context: FitContext | None = None
    ) -> Self:
        """Learn from labelled source rows and unlabelled target rows.

        Parameters
        ----------
        X : array of shape (n, n_features)
            Source and target rows; a memory map is read in chunks.
        y : array of shape (n,)
            Labels. Those of target rows are never read. Source rows without one ("", None, NaN)
            are refused, and -1 where it reads as "missing", see `source_labels`.
        sample_domain : array of int of shape (n,), optional
            0 or more: source; negative: target (skada's convention). None: all source.
        context : FitContext, optional
            Services; only images to train on and checked targets change the result. Without one,
            warnings of `openness_report_` are raised, and one of named columns that
            `opensetda.usecases.fit` would leave out: `fit` leaves out none.
        """
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        self._check_parameters()
        self._forget()
        X = self._check_rows(X, reset=True)
        check_consistent_length(X, y)
        source_rows, target_rows = split_domains(sample_domain, len(X))
        labels = source_labels(y, source_rows, domain_given=sample_domain is not None)
        classes, y_source = encode_classes(labels, self.unknown_label)
        domains = Domains.of(
            source=Rows(X, source_rows),
            y=y_source,
            target=Rows(X, target_rows),
            classes=classes,
        )
        self._fit(domains, context or FitContext())
        if context is None and self.has_target_:
            from opensetda.runs.options import in_python

            names = getattr(self, "feature_names_in_", ())
            of_columns = column_doubts(names, X, source_rows, target_rows)
            for line in (*of_columns, *self.openness_report_.warnings):
                warnings.warn(in_python(line), UserWarning, stacklevel=2)
        return self

    def fit_domains(self, domains: Domains, context: FitContext | None = None) -> Self:
        """Learn from two domains, whose rows are checked, and raise no warnings.

        `transduction_` and what belongs to it has the order of the targets' row numbers.
        """
        self._check_parameters()
        self._forget()
        self.n_features_in_ = domains.source.width
        self._fit(domains, context or FitContext())
        return self

    def _check_parameters(self) -> None:
        check_openness(self._given_openness())
        check_scaling(self.scaling, self.scalings)
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise InputError(str(error)) from None

    def _forget(self) -> None:
        """Delete the attributes of an earlier `fit`, which this one may not set."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)

    def _fit(self, domains: Domains, context: FitContext) -> None:
        """Scale the rows, find the share of unknowns, learn, and label the targets."""
        if self.joins_marks or context.images is not None:
            domains = domains.joined()
        self._begin(domains)
        # A backbone that is trained changes its features: their scales cannot be fixed before.
        name = self.scaling if context.images is None else NONE
        self.scaler_, scaled = Scaling.applied(name, domains)
        report: OpennessReport | None = None
        share = 0.0
        if domains.has_target:
            report = context.studied or self._study_openness(scaled, context)
            share = report.share
            if context.studied is not None:
                # All may be beyond the boundary of a method.
                share = min(share, 1 - 1 / (len(domains.target) + 1))
        scores = self._learn(scaled, share, context)
        self.scorer_: Any = self.scorer_.cpu().double().eval()
        self.decision_: Decision = NothingUnknown()
        if report is not None:
            self._label_targets(scaled.target, scores, report, self._is_share_fixed(context))
            if domains.marks is not None and context.images is None:
                self._follow_marks(scaled.target, domains.marks)

    def learn_scorer(self, domains: Domains, share: float) -> nn.Module:
        """Learn from scaled rows for another method, and return the scorer; nothing is labelled."""
        self._check_parameters()
        self._begin(domains)
        self._learn(domains, share, FitContext())
        scorer: nn.Module = self.scorer_.cpu().double().eval()
        return scorer

    def _begin(self, domains: Domains) -> None:
        """Set what a method needs while it learns."""
        self.classes_ = domains.classes
        self.openness_ = 0.0
        self.has_target_ = domains.has_target
        self.history_: list[dict[str, Any]] = []
        self.step_labels_: IntArray | None = None

    def _is_share_fixed(self, context: FitContext) -> bool:
        """Return whether the share is given, audited or known from an earlier fit."""
        is_audited = context.checked is not None and context.checked.audit is not None
        is_given = check_openness(self._given_openness()) is not None
        return is_given or is_audited or context.studied is not None

    def _study_openness(self, scaled: Domains, context: FitContext) -> OpennessReport:
        """Find the share of unknowns of scaled rows, and what may be wrong with them."""
        openness = self._given_openness()
        aligned = aligned_samples(scaled)
        given = check_openness(openness) is not None
        doubts = find_doubts(scaled.source, scaled.target, aligned, self.scaler_.name, given)
        return study_openness(openness, context.checked, aligned, len(scaled.target), doubts)

    def _score_targets(self, target: Rows) -> Scores:
        """Score targets, scaled rows, as later samples are scored."""
        parts = [self._score_scaled(torch.from_numpy(chunk)) for _, chunk in target.chunks()]
        return Scores.joined(parts)

    def _finish_step(
        self, known: FloatArray, context: FitContext, steps: int, **entry: Any
    ) -> None:
        """Add a step to `history_` and report it; `known` are the scores of the targets."""
        step = {"step": len(self.history_) + 1, "mean_score": float(known.mean())}
        step.update(entry)
        finish_step(self.history_, context.progress, step, steps)

    def _label_targets(
        self, target: Rows, scores: Scores | None, report: OpennessReport, is_share_fixed: bool
    ) -> None:
        """Find the threshold, and label the targets of `fit`."""
        scores = self._score_targets(target) if scores is None else scores
        own_cut = None if is_share_fixed else self._own_cut(scores)
        cut = rejection_cut(scores.known, report.share) if own_cut is None else own_cut
        rejected = float((scores.known < cut).mean())
        report = report.finished(rejected, own_cut is not None, len(target))
        self.openness_report_ = report
        self.openness_ = report.share
        unknown = unknown_votes(scores.known, report.share_of(scores.known), report.spread)
        self.decision_ = Rejection.fit(scores.known, unknown, cut)
        self._keep_transduction(target, scores)

    def _keep_transduction(self, target: Rows, scores: Scores) -> None:
        """Label the targets of `fit`, in the order of their row numbers."""
        if self.step_labels_ is not None:
            self.step_labels_ = self.step_labels_[:, np.argsort(target.index)]
        self._set_transduction(target, scores)

    def _set_transduction(self, target: Rows, scores: Scores) -> None:
        probabilities, labels = self.decision_.decide(scores)
        in_callers_order = np.argsort(target.index)
        self.transduction_ = self.decode_labels(labels[in_callers_order])
        if self.step_labels_ is not None:
            self.step_labels_[-1] = labels[in_callers_order]
        self.transduction_nearest_ = self.classes_[scores.nearest[in_callers_order]]
        self.transduction_scores_ = scores.known[in_callers_order]
        self.transduction_proba_ = probabilities[in_callers_order]

    def _follow_marks(self, target: Rows, marks: Marks) -> None:
        """Correct the labels by what a person said about some targets (scaled rows)."""
        groups = TargetGroups.fit(target, self.scaler_.name).double().eval()
        parts = [
            in_blocks(groups, lambda rows: (groups(rows),), torch.from_numpy(chunk).double())[0]
            for _, chunk in target.chunks()
        ]
        cells = np.concatenate(parts)
        in_callers_order = np.argsort(target.index)
        votes = np.empty_like(self.transduction_proba_)
        votes[in_callers_order] = self.transduction_proba_
        followed = follow_marks(self.classes_, votes, cells, target, marks)
        self.scorer_ = MarkedScorer.of(self.scorer_, self.decision_, groups, followed)
        self.scorer_ = self.scorer_.double().eval()
        self.decision_ = MostVotes()
        scores = followed.scores
        if self.step_labels_ is not None:
            # As indices into classes that may be more now.
            places = np.append(np.searchsorted(marks.classes, self.classes_), len(marks.classes))
            self.step_labels_ = places[self.step_labels_]
        self.classes_ = marks.classes
        if not self.openness_report_.is_vouched and followed.share is not None:
            self.openness_report_ = self.openness_report_.by_marks(
                followed.share, followed.sentence, len(target)
            )
            self.openness_ = self.openness_report_.share
        self._set_transduction(target, scores)

    @property
    def transduction_confidence_(self) -> Vector:
        """The probability of each label of `transduction_`."""
        nearest = np.searchsorted(self.classes_, self.transduction_nearest_)
        is_unknown = self.transduction_ == self.unknown_label
        columns = np.where(is_unknown, len(self.classes_), nearest)
        return np.asarray(self.transduction_proba_[np.arange(len(columns)), columns])

    def decode_labels(self, indices: IntArray) -> npt.NDArray[Any]:
        """Turn class indices, C for unknown, into labels."""
        # numpy would turn the number 3 beside "unknown" into the string "3".
        names = self.classes_.tolist()
        same_kind = isinstance(self.unknown_label, str) == isinstance(names[0], str)
        if not same_kind and not (indices == len(names)).any() and not self.has_target_:
            return np.asarray(self.classes_[indices])
        table = np.array([*names, self.unknown_label], dtype=None if same_kind else object)
        return np.asarray(table[indices])

    def _check_rows(self, X: Any, reset: bool = False) -> Any:
        if not reset:
            check_is_fitted(self)
            X = self._in_order(X)
        floats = {"dtype": [np.float32, np.float64], "ensure_all_finite": False}
        with warnings.catch_warnings():
            # Rows without names are as good as those with the names of `fit`; others are refused.
            warnings.filterwarnings("ignore", "X (does not have valid|has) feature names")
            try:
                X = validate_data(self, X, reset=reset, **floats)
            except (TypeError, ValueError):
                if is_frame(X):
                    table = frame_table(X, "X")
                    table.features(table.names, {})  # An error that names a column of text.
                raise
        low, high = check_finite(X)
        return moderated(X, low, high) if reset else X

    def _in_order(self, X: Any) -> Any:
        """Return a DataFrame with the columns of `fit`, by their names; others are left out."""
        wanted = getattr(self, "feature_names_in_", None)
        if wanted is None or not is_frame(X) or not {*wanted} <= {*X.columns}:
            return X
        return X[list(wanted)]

    @torch.no_grad()
    def open_set_scores(self, X: Any) -> Scores:
        """Check later samples and score them."""
        rows = np.array(self._check_rows(X))
        copies = copies_of(rows)  # One of them is scored: its bits are the same in every batch.
        scores = self._score_scaled(self.scaler_(torch.from_numpy(rows[copies.first])))
        return Scores(classes=scores.classes[copies.place], known=scores.known[copies.place])

    @torch.no_grad()
    def _score_scaled(self, rows: Tensor) -> Scores:
        """Score rows that are checked and scaled."""
        classes, known = in_blocks(self.scorer_, self.scorer_, rows)
        return Scores(classes=classes, known=known)

    @property
    def cuts_by_share_(self) -> bool:
        """Whether the share of unknowns decides where samples are rejected."""
        is_own = self.openness_report_.source is ShareSource.OWN_BOUNDARY
        return isinstance(self.decision_, Rejection) and not is_own

    def rejecting_at(self, threshold: float) -> Self:
        """Return a copy that rejects samples whose known score is lower."""
        assert isinstance(self.decision_, Rejection)
        other = copy(self)
        other.decision_ = Rejection(threshold, self.decision_.slope, self.decision_.base)
        return other

    def decide(self, X: Any) -> Decided:
        """Score and label later samples."""
        scores = self.open_set_scores(X)
        probabilities, labels = self.decision_.decide(scores)
        return Decided(scores, probabilities, self.decode_labels(labels))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Label later samples: the most probable class, or `unknown_label`."""
        return self.decide(X).labels

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities; the columns are `classes_`, then unknown if there was a target."""
        return self.decide(X).probabilities

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Confidence to be known, negative if rejected; class scores without targets in `fit`."""
        scores = self.open_set_scores(X)
        if self.has_target_:
            if np.isneginf(self.decision_.threshold):
                # Nothing is rejected: all values are positive, in the same order.
                return np.asarray(np.exp(scores.known))
            return np.asarray(scores.known - self.decision_.threshold)
        if len(self.classes_) == 2:
            return np.asarray(scores.classes[:, 1] - scores.classes[:, 0])
        return scores.classes

    def score(self, X: Any, y: Any, sample_weight: Any = None, sample_domain: Any = None) -> float:
        """Accuracy (ALL) of the target rows, if any; a label outside `classes_` means unknown."""
        known = set(self.classes_.tolist())
        truth = [true if true in known else self.unknown_label for true in np.asarray(y).tolist()]
        pairs = zip(self.predict(X).tolist(), truth, strict=True)
        correct = [predicted == true for predicted, true in pairs]
        counted = np.ones(len(correct)) if sample_weight is None else np.asarray(sample_weight)
        if sample_domain is not None and (is_target := np.asarray(sample_domain) < 0).any():
            counted = counted * is_target
        return float(np.average(correct, weights=counted))

    def _more_state(self) -> dict[str, Any]:
        """Return further JSON-safe values, which `_restore` gets."""
        return {}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Set what `_make_scorer` needs besides arrays and `classes_`."""

    def _load_decision(self, saved: Mapping[str, Any]) -> Decision:
        """Return the decision that `pack` saved the numbers of."""
        if not self.has_target_:
            return NothingUnknown()
        numbers = saved["rejection"]
        return Rejection(
            threshold=float(numbers["threshold"]),
            slope=float(numbers["slope"]),
            base=float(numbers["base"]),
        )

    def get_state(self) -> tuple[dict[str, Any], saving.Arrays]:
        """Return everything `predict` needs: a JSON-safe dict, and arrays by name."""
        check_is_fitted(self)
        arrays = {f"scaling.{k}": v.numpy() for k, v in self.scaler_.state_dict().items()}
        arrays |= {f"scorer.{k}": v.numpy() for k, v in self.scorer_.state_dict().items()}
        state = saving.pack(self) | self._more_state()
        if isinstance(self.scorer_, MarkedScorer):
            state["marked"] = self.scorer_.state_of_method()
        return state, {name: saving.compact(array) for name, array in arrays.items()}

    @classmethod
    def from_state(cls, saved: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return a classifier that predicts as the one that `get_state` was called on."""
        try:
            classifier: Self = saving.unpack(cls, saved)
            tables = saving.tensors(arrays, "scaling.")
            classifier.scaler_ = Scaling(saved["scaling"], tables)
            tensors = saving.tensors(arrays, "scorer.")
            classifier._restore(saved)
            if "marked" in saved:
                classifier._make_marked_scorer(saved, tensors)
            else:
                classifier.scorer_ = classifier._make_scorer(tensors).double().eval()
                classifier.decision_ = classifier._load_decision(saved)
            classifier.scorer_.load_state_dict(tensors)
        except (KeyError, RuntimeError) as error:
            missing = " is missing" if isinstance(error, KeyError) else ""
            raise InputError(f"saved model: {one_line(error)}{missing}; fit again") from None
        return classifier

    def _make_marked_scorer(self, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Set scorer and decision of a method that followed marks."""
        classes = self.classes_
        own = saved["marked"]
        # Those of the method alone, which had no new ones.
        self.classes_ = classes[own["classes"]]
        scorer = self._make_scorer(saving.part(tensors, "inner."))
        decision = self._load_decision({**saved, "rejection": own["rejection"]})
        self.classes_ = classes
        groups = TargetGroups.of_state(self.scaler_.name, saving.part(tensors, "groups."))
        self.scorer_ = MarkedScorer.of_state(scorer, decision, groups, tensors).double().eval()
        self.decision_ = MostVotes()
