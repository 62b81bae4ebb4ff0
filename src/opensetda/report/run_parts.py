"""The parts of a run that can be drawn, in its report and in figures for a paper."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from opensetda.report.content import (
    Confusion,
    EdgeMap,
    Numbers,
    Openness,
    SampleMap,
    ScoreHistogram,
)
from opensetda.report.plane import Plane
from opensetda.runs.curves import Panel, curve_panels
from opensetda.runs.evaluation import Evaluation, evaluate_labels
from opensetda.runs.folder import VIEW, RunFolder, RunView, StepLabels, kept_place
from opensetda.runs.predictions import PredictionTable

BINS = 60


class RunParts:
    """A run, read once.

    Parameters
    ----------
    run : RunFolder
        A complete run; one of an earlier release has no view, hence no map and no edges.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.predictions = run.predictions()
        self.steps: StepLabels = run.steps()
        self.estimates = run.estimates()
        self.history = run.history()
        self.truth = run.truth()
        self.evaluation = self._evaluation()
        self.view: RunView | None = run.view() if (run.path / VIEW).exists() else None

    def _evaluation(self) -> Evaluation | None:
        if self.truth is None:
            return None
        return evaluate_labels(self.predictions, self.steps, self.truth, self.run.unknown_label)

    def panels(self) -> list[Panel]:
        """Return the curves over steps."""
        found = self.evaluation
        if found is None:
            return curve_panels(self.history)
        return curve_panels(self.history, found.steps, found.true_openness)

    def openness(self) -> Openness:
        """Return the share of unknowns."""
        found = self.estimates["openness"]
        return Openness(
            share=float(found["share"]),
            low=float(found["low"]),
            high=float(found["high"]),
            is_given=bool(found["told"]),
            sentence=str(found.get("origin", "as given" if found["told"] else "estimated")),
            true=None if self.evaluation is None else self.evaluation.true_openness,
        )

    def sample_map(
        self,
        view: RunView,
        planes: Mapping[int, Plane],
        pictures: tuple[str | None, ...] | None = None,
    ) -> SampleMap:
        """Return the map of the samples.

        Parameters
        ----------
        view : RunView
            The run's.
        planes : mapping of int to Plane
            Positions of the samples by step; one plane if the method has no steps.
        pictures : tuple of (str or None), optional
            ``data:`` addresses of thumbnails, sources first.
        """
        table = self.predictions
        n_source, n_target = len(view.source), len(view.target)
        kept = kept_place(self.run, view) + 1
        moves = len(planes) > 1
        # Without positions for each step, the labels of the steps are shown.
        numbers = sorted(planes) if moves else sorted(self.steps)
        places = np.stack([planes[n] if moves else planes[kept] for n in numbers])
        shown_kept = self._kept_number(numbers, kept, moves)
        code = {name: index for index, name in enumerate(table.classes)}
        labels = np.empty((len(numbers), n_source + n_target), dtype=np.intp)
        labels[:, :n_source] = view.source_labels
        for place, number in enumerate(numbers):
            given = table.labels if number == shown_kept else self.steps.get(number, table.labels)
            labels[place, n_source:] = [
                code.get(label, len(code)) for label in given[view.target].tolist()
            ]
        truth, true_classes = self._true_indices(view)
        return SampleMap(
            classes=table.classes,
            true_classes=true_classes,
            steps=tuple(numbers),
            kept=numbers.index(shown_kept),
            places=places.astype(np.float64),
            is_target=np.arange(n_source + n_target) >= n_source,
            labels=labels,
            confidence=np.concatenate([np.ones(n_source), table.confidence[view.target]]),
            truth=truth,
            names=(
                *(view.source_names or ("",) * n_source),
                *table.ids[view.target].tolist(),
            ),
            pictures=pictures or (None,) * (n_source + n_target),
            n_source=int(self.run.settings["inputs"]["source"].get("rows", 0))
            or int(self.run.settings["inputs"]["source"].get("images", n_source)),
            n_target=len(table),
            moves=moves,
        )

    def _kept_number(self, numbers: list[int], kept: int, moves: bool) -> int:
        if moves:
            return kept
        stated = self.estimates["kept_step"]
        return numbers[-1] if stated is None else int(stated["step"])

    def _true_indices(self, view: RunView) -> tuple[npt.NDArray[np.intp] | None, tuple[str, ...]]:
        if self.truth is None:
            return None, ()
        known = self.predictions.classes
        names = (*known, *sorted(set(self.truth.tolist()) - set(known)))
        code = {name: index for index, name in enumerate(names)}
        theirs = [code[label] for label in self.truth[view.target].tolist()]
        return np.array([*view.source_labels.tolist(), *theirs], dtype=np.intp), names

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
        table = self.predictions
        rows = (*table.classes, *sorted(set(self.truth.tolist()) - set(table.classes)))
        columns = (*table.classes, self.run.unknown_label)
        row_of, column_of = ({n: i for i, n in enumerate(names)} for names in (rows, columns))
        counts = np.zeros((len(rows), len(columns)), dtype=np.intp)
        places = [row_of[label] for label in self.truth.tolist()]
        given = [column_of.get(label, len(columns) - 1) for label in table.labels.tolist()]
        np.add.at(counts, (places, given), 1)
        return Confusion(rows, columns, counts, len(table.classes))

    def edges(self) -> EdgeMap | None:
        """Return the learned affinities; None if the method has no graph."""
        view = self.view
        if view is None or not len(view.nodes):
            return None
        table, n_source = self.predictions, len(view.source)
        code = {name: index for index, name in enumerate(table.classes)}
        of_targets = [code.get(label, len(code)) for label in table.labels[view.target].tolist()]
        labels = np.array([*view.source_labels.tolist(), *of_targets], dtype=np.intp)[view.nodes]
        is_target = view.nodes >= n_source
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
