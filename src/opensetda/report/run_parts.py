"""The parts of a run that its report draws, as numbers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.report.content import (
    Confusion,
    Indices,
    Numbers,
    Openness,
    Refit,
    SampleMap,
    ScoreHistogram,
    WhatIf,
)
from opensetda.report.plane import Plane
from opensetda.runs.folder import RunFolder
from opensetda.runs.predictions import PredictionTable
from opensetda.share.decision import rejection_cut
from opensetda.share.report import ShareSource
from opensetda.system.files import in_shell
from opensetda.usecases.evaluate_run import Evaluation, evaluate_labels

BINS = 60
# Closer to the share of the run than this, a whole percentage has no position of its own.
_CLOSE = 0.0025
# What another fit has otherwise: options with a value, and one without.
_REPLACED = ("--openness", "--unknown-share", "--out")
_OVERWRITE = "--overwrite"
NO_TRUTH = "no true label"
# Which targets each estimate of the share counts.
_LOOKED_AT = {
    "hidden": "score as samples do whose class was left out of the source",
    "hidden_moved": "do so after the classes have moved towards the targets",
    "between": "of the distance that source samples keep between their best and second-best class",
    "below": "fit their nearest class worse than nine in ten source samples fit theirs",
}


class RunParts:
    """A complete run, read once."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.view = run.view()
        self.predictions = run.predictions()
        self.estimates = run.estimates()
        self.history = run.history()
        self.truth = run.truth()
        self.evaluation: Evaluation | None = None
        self.true_classes: tuple[str, ...] = ()
        if self.truth is not None:
            self.evaluation = evaluate_labels(
                self.predictions, run.steps(), self.truth, run.unknown_label
            )
            known = self.predictions.classes
            self.true_classes = (*known, *sorted(set(self.truth.tolist()) - {*known, ""}))

    def openness(self) -> Openness:
        """Return the share of unknowns."""
        found = self.estimates["openness"]
        seen: dict[str, Any] = dict(found["evidence"] or {})
        if seen:
            # Beside the three shares, which all four were weighed.
            seen["between"] = min(float(np.exp(seen["margin"])), 1.0)
        source = ShareSource(found["source"])
        is_audited = source is ShareSource.AUDITED
        return Openness(
            share=found["share"],
            low=found["low"],
            high=found["high"],
            source=source,
            # The rest of an audited origin is how the share looked before.
            sentence=f"checked by hand: {found['audit']}" if is_audited else found["origin"],
            true=None if self.evaluation is None else self.evaluation.true_openness,
            looked_at=tuple((seen[k], words) for k, words in _LOOKED_AT.items() if k in seen),
            confidence=found["confidence"],
        )

    def sample_map(self, plane: Plane, pictures: tuple[str | None, ...] = ()) -> SampleMap:
        """Return the map of the samples of the run's view.

        `plane` are their positions; `pictures`, if there are any, ``data:`` addresses of
        thumbnails, sources first.
        """
        view = self.view
        table = self.predictions
        source = self.run.settings["inputs"]["source"]
        n_source = len(view.source)
        true_classes = self.true_classes
        is_partial = self.evaluation is not None and self.evaluation.is_partial

        def indices(given: npt.NDArray[np.str_], names: Sequence[str]) -> Indices:
            return np.concatenate([view.source_labels, codes_of(given[view.target], names)])

        return SampleMap(
            classes=table.classes,
            true_classes=(*true_classes, NO_TRUTH) if is_partial else true_classes,
            places=plane.astype(np.float64),
            is_target=np.arange(len(plane)) >= n_source,
            labels=indices(table.labels, table.classes),
            confidence=np.concatenate([np.ones(n_source), table.confidence[view.target]]),
            truth=None if self.truth is None else indices(self.truth, true_classes),
            no_truth=len(true_classes) if is_partial else None,
            names=(*(view.source_names or ("",) * n_source), *table.ids[view.target].tolist()),
            pictures=pictures or (None,) * len(plane),
            n_source=int(source.get("rows", 0)) or int(source.get("images", n_source)),
            n_target=len(table),
        )

    def histogram(self) -> ScoreHistogram:
        """Return the histogram of known scores, by what the targets were labelled."""
        table = self.predictions
        scores = self.predictions.known_scores
        cut = cut_of(table, self.run.unknown_label)
        unknown = table.labels == self.run.unknown_label
        edges = np.histogram_bin_edges(scores, min(BINS, max(10, len(table) // 10)))
        if cut is not None and edges[0] < cut < edges[-1]:
            # No bin lies on both sides of the threshold; none is lost to rounding.
            width = edges[1] - edges[0]
            below = (cut - edges[0]) / width
            above = (edges[-1] - cut) / width
            edges = cut + width * np.arange(-np.ceil(below + 1e-9), np.ceil(above + 1e-9) + 1)
        known, others = (np.histogram(scores[kind], edges)[0] for kind in (~unknown, unknown))
        return ScoreHistogram(edges, known, others, cut)

    def confusion(self) -> Confusion | None:
        """Return the confusion matrix; None without truth."""
        if self.truth is None:
            return None
        table = self.predictions
        there = self.truth != ""
        counts = np.zeros((len(self.true_classes), len(table.classes) + 1), dtype=np.intp)
        given = codes_of(table.labels[there], table.classes)
        np.add.at(counts, (codes_of(self.truth[there], self.true_classes), given), 1)
        names = (*table.classes, self.run.unknown_label)
        return Confusion(self.true_classes, names, counts, len(table.classes))


def codes_of(labels: npt.NDArray[np.str_], names: Sequence[str]) -> Indices:
    """Return places in `names`, or their number for another label."""
    place = {name: index for index, name in enumerate(names)}
    return np.array([place.get(label, len(place)) for label in labels.tolist()], dtype=np.intp)


def cut_of(table: PredictionTable, unknown: str) -> float | None:
    """Return the known score half way between rejected and other targets; None without unknowns.

    Manually corrected labels do not count.
    """
    own = own_labels(table)
    rejected = table.labels == unknown
    below = table.known_scores[rejected & own]
    above = table.known_scores[~rejected & own]
    if not len(below):
        return None
    if not len(above):
        return float(np.nextafter(below.max(), np.inf))
    return float((below.max() + above.min()) / 2)


def nearest_to_cut(table: PredictionTable, unknown: str) -> Indices:
    """Return target rows, nearest to the threshold first, or by ascending confidence without one.

    Manually corrected ones are left out.
    """
    cut = cut_of(table, unknown)
    own = np.flatnonzero(own_labels(table))
    distance: Numbers = table.confidence if cut is None else np.abs(table.known_scores - cut)
    return np.asarray(own[np.argsort(distance[own], kind="stable")])


def own_labels(table: PredictionTable) -> npt.NDArray[np.bool_]:
    """Return which labels were not corrected manually."""
    return np.ones(len(table), dtype=bool) if table.corrected is None else ~table.corrected


def what_if(table: PredictionTable, unknown: str, shown: Indices) -> WhatIf:
    """Return the labels at every whole percentage, and at the share of the run.

    The threshold on the known score moves, and nothing else: the scores are those of the run.
    `shown` are the target rows of the map: the samples nearest to a threshold are among them.
    """
    scores = table.known_scores
    cut = cut_of(table, unknown)
    own = own_labels(table)
    used = 0.0 if cut is None else float((scores < cut).mean())
    whole = (percent / 100 for percent in range(100))
    shares = sorted([used, *(share for share in whole if abs(share - used) >= _CLOSE)])
    ordered = np.sort(scores)
    place = shares.index(used)
    cuts = [rejection_cut(ordered, share) for share in shares]
    if cut is not None:
        cuts[place] = cut
    n_labels = len(table.classes) + 1
    given, nearest = (codes_of(labels, table.classes) for labels in (table.labels, table.nearest))
    # Corrected labels do not depend on the threshold.
    moved = (np.where(own, np.where(scores < at, n_labels - 1, nearest), given) for at in cuts)
    counts = np.stack([np.bincount(labels, minlength=n_labels) for labels in moved])
    counts[place] = np.bincount(given, minlength=n_labels)
    theirs = np.flatnonzero(own[shown])
    theirs = theirs[np.argsort(scores[shown[theirs]], kind="stable")]
    return WhatIf(
        shares=tuple(shares),
        cuts=tuple(cuts),
        used=place,
        counts=counts,
        order=theirs,
        nearest=nearest[shown[theirs]],
        below=tuple(np.searchsorted(scores[shown[theirs]], cuts, "left").tolist()),
    )


def refit_of(settings: Mapping[str, Any], run: Path) -> Refit:
    """Return the command that made a run, ready for another share and another folder."""
    command = list(settings["command"] or ())
    out = str(run)
    is_whole = command[:2] == ["osda", "fit"]
    if is_whole:
        kept = []
        words = iter(command)
        for word in words:
            name, equals, value = word.partition("=")
            if name in _REPLACED:
                value = value if equals else next(words, "")
                out = value if name == "--out" and value else out
            elif word != _OVERWRITE:
                kept.append(word)
        head = shlex.join(kept)
    else:
        given = list(settings["inputs"].items())[:2]
        paths = [in_shell(of["path"]) if "path" in of else name.upper() for name, of in given]
        head = " ".join(["osda fit", *paths])
    before, _, after = in_shell(f"{out.rstrip('/') or 'run'}-00").rpartition("00")
    return Refit(f"{head} --openness ", f" --out {before}", after, is_whole)
