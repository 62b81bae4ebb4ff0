"""The contract of every method: a scikit-learn classifier that knows two domains."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.validation import check_consistent_length
from torch import nn

from opensetda.context import FitContext
from opensetda.data.tables.preparation import column_doubts
from opensetda.errors import InputError
from opensetda.features.alignment import aligned_samples
from opensetda.features.doubts import find_doubts
from opensetda.features.scaling import NONE, SENTENCES, Scaling, check_scaling
from opensetda.labels import encode_classes, source_labels
from opensetda.methods.fitted import FittedClassifier, in_blocks
from opensetda.methods.groups import TargetGroups
from opensetda.methods.marks import MarkedScorer, follow_marks
from opensetda.progress import finish_step
from opensetda.rows import (
    Domains,
    FloatArray,
    IntArray,
    Marks,
    Rows,
    split_domains,
)
from opensetda.share.decision import (
    Decision,
    MostVotes,
    NothingUnknown,
    Rejection,
    Scores,
    rejection_cut,
    unknown_votes,
)
from opensetda.share.report import OpennessReport, check_openness, study_openness


@dataclass(eq=False, repr=False, kw_only=True)
class OpenSetClassifier(FittedClassifier):
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

    def _given_openness(self) -> float | str:
        """Return the parameter `openness`, unless a method reads it in its own way."""
        return self.openness

    def rejected_share(self, share: float) -> float:
        """Return the share of the targets to label unknown, if `share` of them are."""
        return share

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
        wanted = self.rejected_share(report.share)
        cut = rejection_cut(scores.known, wanted) if own_cut is None else own_cut
        rejected = float((scores.known < cut).mean())
        report = report.finished(rejected, own_cut is not None, len(target), wanted)
        self.openness_report_ = report
        self.openness_ = report.share
        share = self.rejected_share(report.share_of(scores.known))
        unknown = unknown_votes(scores.known, share, report.spread)
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
        scorer = MarkedScorer.of(self.scorer_, self.decision_, groups, followed).double().eval()
        # With the bits of `predict`.
        both = torch.from_numpy(np.hstack([votes, cells]))
        n_columns = votes.shape[1]
        classes, known = in_blocks(
            scorer,
            lambda rows: scorer.corrected(rows[:, :n_columns], rows[:, n_columns:].long()),
            both,
        )
        self.scorer_ = scorer
        self.decision_ = MostVotes()
        self.marked_ = followed.summary
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
        self._set_transduction(target, Scores(classes, known))
