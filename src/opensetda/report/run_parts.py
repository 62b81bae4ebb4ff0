"""The parts of a run that can be drawn, in its report and in figures for a paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.report.content import (
    AUDITED,
    ESTIMATED,
    GIVEN,
    OWN_BOUNDARY,
    Confusion,
    EdgeMap,
    Indices,
    Numbers,
    Openness,
    SampleMap,
    ScoreHistogram,
)
from opensetda.report.plane import Plane
from opensetda.runs.curves import Panel, curve_panels
from opensetda.runs.evaluation import Evaluation, evaluate_labels
from opensetda.runs.folder import RunFolder, StepLabels
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.view import RunView

BINS = 60
NO_TRUTH = "no true label"
# Which targets each estimate of the share counts.
_LOOKED_AT = (
    ("hidden", "score as samples do whose class was left out of the source"),
    ("hidden_moved", "do so after the classes have moved towards the targets"),
    ("below", "fit their nearest class worse than nine in ten source samples fit theirs"),
)


class RunParts:
    """A complete run, read once."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.predictions = run.predictions()
        self.steps: StepLabels = run.steps()
        self.estimates = run.estimates()
        self.history = run.history()
        self.truth = run.truth()
        self.evaluation: Evaluation | None = None
        if self.truth is not None:
            given = (self.predictions, self.steps, self.truth, run.unknown_label)
            self.evaluation = evaluate_labels(*given)
        self.view: RunView = run.view()

    def panels(self) -> list[Panel]:
        """Return the curves over steps."""
        found = self.evaluation
        if found is None:
            return curve_panels(self.history)
        return curve_panels(self.history, found.steps, found.true_openness)

    def openness(self) -> Openness:
        """Return the share of unknowns."""
        found = self.estimates["openness"]
        seen: Mapping[str, Any] = found.get("evidence", {})
        kind = OWN_BOUNDARY if found["own_boundary"] else ESTIMATED
        kind = GIVEN if found["told"] else AUDITED if found.get("audit") else kind
        return Openness(
            share=found["share"],
            low=found["low"],
            high=found["high"],
            kind=kind,
            # The rest of an audited origin is how the share looked before.
            sentence=f"checked by hand: {found['audit']}" if kind == AUDITED else found["origin"],
            true=None if self.evaluation is None else self.evaluation.true_openness,
            looked_at=tuple((seen[name], words) for name, words in _LOOKED_AT if name in seen),
            confidence=found["confidence"],
        )

    def sample_map(
        self,
        view: RunView,
        planes: Mapping[int, Plane],
        pictures: tuple[str | None, ...] | None = None,
    ) -> SampleMap:
        """Return the map of the samples of the run's view.

        `planes` are their positions by step, one plane if the method has no steps; `pictures` are
        ``data:`` addresses of thumbnails, sources first.
        """
        table, source = self.predictions, self.run.settings["inputs"]["source"]
        n_source, n_target = len(view.source), len(view.target)
        kept = self.run.kept_place(view) + 1
        moves = len(planes) > 1
        # Without positions for each step, the labels of the steps are shown.
        numbers = sorted(planes) if moves else sorted(self.steps)
        places = np.stack([planes[n] if moves else planes[kept] for n in numbers])
        stated = self.estimates["kept_step"]
        if not moves:
            kept = numbers[-1] if stated is None else int(stated["step"])
        given = {number: self.steps.get(number, table.labels) for number in numbers}
        given[kept] = table.labels
        labels = [self._indices(view, given[number]) for number in numbers]
        true_classes = () if self.truth is None else self._true_classes(self.truth)
        is_partial = self.evaluation is not None and self.evaluation.is_partial
        no_truth = len(true_classes) if is_partial else None
        return SampleMap(
            classes=table.classes,
            true_classes=(*true_classes, NO_TRUTH) if is_partial else true_classes,
            steps=tuple(numbers),
            kept=numbers.index(kept),
            places=places.astype(np.float64),
            is_target=np.arange(n_source + n_target) >= n_source,
            labels=np.stack(labels),
            confidence=np.concatenate([np.ones(n_source), table.confidence[view.target]]),
            truth=None if self.truth is None else self._indices(view, self.truth, true_classes),
            no_truth=no_truth,
            names=(*(view.source_names or ("",) * n_source), *table.ids[view.target].tolist()),
            pictures=pictures or (None,) * (n_source + n_target),
            n_source=int(source.get("rows", 0)) or int(source.get("images", n_source)),
            n_target=len(table),
            moves=moves,
        )

    def _indices(
        self, view: RunView, given: npt.NDArray[np.str_], names: tuple[str, ...] | None = None
    ) -> Indices:
        """Return the samples' places in `names`, by default the known classes; sources first."""
        names = self.predictions.classes if names is None else names
        code = {name: index for index, name in enumerate(names)}
        of_targets = [code.get(label, len(code)) for label in given[view.target].tolist()]
        return np.array([*view.source_labels.tolist(), *of_targets], dtype=np.intp)

    def _true_classes(self, truth: npt.NDArray[np.str_]) -> tuple[str, ...]:
        known = self.predictions.classes
        return (*known, *sorted(set(truth.tolist()) - {*known, ""}))

    def histogram(self, is_unknown: npt.NDArray[np.bool_] | None = None) -> ScoreHistogram:
        """Return the histogram of known scores; `is_unknown` by default as labelled."""
        table, unknown = self.predictions, self.run.unknown_label
        cut = cut_of(table, unknown)
        edges = _bin_edges(table.known_scores, min(BINS, max(10, len(table) // 10)), cut)
        mask = table.labels == unknown if is_unknown is None else is_unknown
        known, others = (
            np.histogram(table.known_scores[chosen], edges)[0].astype(np.intp)
            for chosen in (~mask, mask)
        )
        return ScoreHistogram(edges, known, others, cut, self._later_threshold(cut))

    def _later_threshold(self, cut: float | None) -> float | None:
        """Return the threshold of later samples; None if it is the one of the targets."""
        later, scores = self.estimates["rejection"]["threshold"], self.predictions.known_scores
        if cut is None or later is None or isinstance(later, str):
            return None
        # Between the same two scores, both are one threshold.
        same = (scores < cut).sum() == (scores < later).sum()
        return None if same else later

    def confusion(self) -> Confusion | None:
        """Return the confusion matrix; None without truth."""
        if self.truth is None:
            return None
        table = self.predictions
        rows, columns = self._true_classes(self.truth), (*table.classes, self.run.unknown_label)
        row_of, column_of = ({n: i for i, n in enumerate(names)} for names in (rows, columns))
        counts = np.zeros((len(rows), len(columns)), dtype=np.intp)
        there = self.truth != ""
        places = [row_of[label] for label in self.truth[there].tolist()]
        given = [column_of.get(label, len(columns) - 1) for label in table.labels[there].tolist()]
        np.add.at(counts, (places, given), 1)
        return Confusion(rows, columns, counts, len(table.classes))

    def edges(self) -> EdgeMap | None:
        """Return the learned affinities; None if the method has no graph."""
        view = self.view
        if not len(view.nodes):
            return None
        table = self.predictions
        labels = self._indices(view, table.labels)[view.nodes]
        is_target = view.nodes >= len(view.source)
        order = np.lexsort((is_target, labels))
        return EdgeMap(
            affinity=view.affinity[np.ix_(order, order)] / 255.0,
            labels=labels[order],
            is_target=is_target[order],
            names=(*table.classes, self.run.unknown_label),
        )


def cut_of(table: PredictionTable, unknown: str) -> float | None:
    """Return the known score half way between rejected and other targets; None without unknowns.

    Manually corrected labels do not count.
    """
    own, rejected = own_labels(table), table.labels == unknown
    below, above = table.known_scores[rejected & own], table.known_scores[~rejected & own]
    if not len(below):
        return None
    if not len(above):
        return float(np.nextafter(below.max(), np.inf))
    return float((below.max() + above.min()) / 2)


def _bin_edges(scores: Numbers, bins: int, cut: float | None) -> Numbers:
    """Return the edges of about `bins` bins; the threshold is one of them."""
    edges = np.histogram_bin_edges(scores, bins).astype(np.float64)
    low, high = float(edges[0]), float(edges[-1])
    if cut is None or not low < cut < high:
        return edges
    width = (high - low) / bins
    below, above = np.ceil((cut - low) / width), np.ceil((high - cut) / width)
    edges = cut + width * np.arange(-below, above + 1)
    # Rounding must not leave out the first or the last score.
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    return edges


def nearest_to_cut(table: PredictionTable, unknown: str) -> npt.NDArray[np.intp]:
    """Return target rows, nearest to the threshold first, or by ascending confidence without one.

    Manually corrected ones are left out.
    """
    cut, own = cut_of(table, unknown), np.flatnonzero(own_labels(table))
    distance = table.confidence if cut is None else np.abs(table.known_scores - cut)
    return np.asarray(own[np.argsort(distance[own], kind="stable")])


def own_labels(table: PredictionTable) -> npt.NDArray[np.bool_]:
    """Return which labels were not corrected manually."""
    return np.ones(len(table), dtype=bool) if table.corrected is None else ~table.corrected
