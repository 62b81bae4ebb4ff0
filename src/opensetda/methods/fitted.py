"""What a fitted method does: label later samples, and be saved and loaded."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from opensetda.data.tables.formats import frame_table, is_frame
from opensetda.errors import InputError, one_line
from opensetda.features.scaling import Scaling
from opensetda.methods import saving
from opensetda.methods.groups import TargetGroups
from opensetda.methods.marks import MarkedScorer
from opensetda.rows import IntArray, check_finite, copies_of, moderated
from opensetda.share.decision import (
    Decision,
    Matrix,
    MostVotes,
    NothingUnknown,
    Rejection,
    Scores,
    Vector,
)
from opensetda.share.report import OpennessReport, ShareSource

SCORED_ROWS = 64  # samples that are scored at a time


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


class FittedClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """The part of every method that needs its fitted attributes only, see `OpenSetClassifier`."""

    classes_: npt.NDArray[Any]
    decision_: Decision
    has_target_: bool
    openness_report_: OpennessReport
    scaler_: Scaling
    scorer_: Any
    transduction_: npt.NDArray[Any]
    transduction_nearest_: npt.NDArray[Any]
    transduction_proba_: Matrix
    unknown_label: Any

    @abstractmethod
    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> nn.Module:
        """Return the module that these arrays, its saved state, are then loaded into."""

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
