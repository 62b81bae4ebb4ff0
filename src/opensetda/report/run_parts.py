"""The parts of a run that can be drawn, in its report and in figures for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensetda.report.content import (
    AUDITED,
    ESTIMATED,
    GIVEN,
    OWN_BOUNDARY,
    Confusion,
    Indices,
    Numbers,
    Openness,
    SampleMap,
    ScoreHistogram,
)
from opensetda.report.plane import Plane
from opensetda.report.wording import is_trained
from opensetda.runs.evaluation import Evaluation, evaluate_labels
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.view import RunView

if TYPE_CHECKING:
    from opensetda.report.content import LinePanel

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
        self.estimates = run.estimates()
        self.history = run.history()
        self.truth = run.truth()
        self.evaluation: Evaluation | None = None
        if self.truth is not None:
            given = (self.predictions, run.steps(), self.truth, run.unknown_label)
            self.evaluation = evaluate_labels(*given)
        self.view: RunView = run.view()

    def panels(self) -> list[LinePanel]:
        """Return the curves over steps."""
        # Not above: matplotlib, which a review does not need.
        from opensetda.report.curves import curve_panels

        found = {} if self.evaluation is None else self.evaluation.steps
        trained = self.run.is_finetuned or is_trained(self.run.settings["method"])
        return curve_panels(self.history, found, trained)

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

    def sample_map(self, plane: Plane, pictures: tuple[str | None, ...] | None = None) -> SampleMap:
        """Return the map of the samples of the run's view.

        `plane` are their positions; `pictures` are ``data:`` addresses of thumbnails, sources
        first.
        """
        view, table, source = self.view, self.predictions, self.run.settings["inputs"]["source"]
        n_source, n_target = len(view.source), len(view.target)
        true_classes = () if self.truth is None else self._true_classes(self.truth)
        is_partial = self.evaluation is not None and self.evaluation.is_partial
        return SampleMap(
            classes=table.classes,
            true_classes=(*true_classes, NO_TRUTH) if is_partial else true_classes,
            places=plane.astype(np.float64),
            is_target=np.arange(n_source + n_target) >= n_source,
            labels=self._indices(table.labels, table.classes),
            confidence=np.concatenate([np.ones(n_source), table.confidence[view.target]]),
            truth=None if self.truth is None else self._indices(self.truth, true_classes),
            no_truth=len(true_classes) if is_partial else None,
            names=(*(view.source_names or ("",) * n_source), *table.ids[view.target].tolist()),
            pictures=pictures or (None,) * (n_source + n_target),
            n_source=int(source.get("rows", 0)) or int(source.get("images", n_source)),
            n_target=len(table),
        )

    def _indices(self, given: npt.NDArray[np.str_], names: tuple[str, ...]) -> Indices:
        """Return the places of the view's samples in `names`, sources first."""
        return np.concatenate([self.view.source_labels, codes_of(given[self.view.target], names)])

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
        return ScoreHistogram(edges, known, others, cut)

    def confusion(self) -> Confusion | None:
        """Return the confusion matrix; None without truth."""
        if self.truth is None:
            return None
        table, there = self.predictions, self.truth != ""
        rows, columns = self._true_classes(self.truth), (*table.classes, self.run.unknown_label)
        counts = np.zeros((len(rows), len(columns)), dtype=np.intp)
        given = codes_of(table.labels[there], table.classes)
        np.add.at(counts, (codes_of(self.truth[there], rows), given), 1)
        return Confusion(rows, columns, counts, len(table.classes))


def codes_of(labels: npt.NDArray[np.str_], names: Sequence[str]) -> Indices:
    """Return places in `names`, or their number for another label."""
    place = {name: index for index, name in enumerate(names)}
    return np.array([place.get(label, len(place)) for label in labels.tolist()], dtype=np.intp)


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
