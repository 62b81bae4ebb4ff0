"""Collect what the report of a run shows."""

from __future__ import annotations

import base64
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opensetda.data.names import printable
from opensetda.features.scaling import SENTENCES
from opensetda.report.charts import curve_panels
from opensetda.report.content import (
    ClassGallery,
    Indices,
    LabelCount,
    Marks,
    Report,
    Sample,
    SampleMap,
    UnknownGroup,
)
from opensetda.report.plane import CountingProgress, Plane, plane_of
from opensetda.report.run_parts import RunParts, own_labels, refit_of, what_if
from opensetda.runs.folder import RunFolder
from opensetda.runs.pictures import SOURCE, TARGET, Pictures, Shown, smaller
from opensetda.runs.predictions import PredictionTable
from opensetda.runs.registry import METHODS, method_class
from opensetda.runs.sample_map import unknown_groups
from opensetda.usecases.suggest_samples import suggest

# Cards in each list; fewer per class if there are many classes.
_BORDER = 12
_OTHERS = 2
_TYPICAL = 8
_CARDS = 6
_FEWER_CARDS = 4
_MANY_CLASSES = 30
_NEAR = 3
_ASKED = 10  # samples to mark next
# Few pictures may be larger; 7,000 of the small ones take about 6 MB.
_FEW_PICTURES = 1500
_LARGE = 96
_SMALL = 48
_WORKERS = 4
_METRICS = ("HOS", "OS*", "UNK", "OS", "ALL", "AUROC")


@dataclass(frozen=True)
class Progress:
    """Called with done and total of the slow parts of a report."""

    map: CountingProgress | None = None
    pictures: CountingProgress | None = None


def collect(run: RunFolder, images: Path | None = None, progress: Progress | None = None) -> Report:
    """Collect everything that a report shows; map and thumbnails are kept in the run folder.

    `images` is the folder of the images of a feature table, or of a run whose images have moved.
    """
    return _Collector(run, images).report(progress or Progress())


class _Collector:
    def __init__(self, run: RunFolder, images: Path | None) -> None:
        self.run = run
        self.parts = RunParts(run)
        self.pictures = Pictures(run, images)
        self.table = self.parts.predictions
        self.truth = self.parts.truth

    def report(self, progress: Progress) -> Report:
        run = self.run
        table = self.table
        parts = self.parts
        settings = self.run.settings
        plane = plane_of(run, progress.map)
        is_unknown = table.labels == run.unknown_label
        grouped = unknown_groups(parts.view, is_unknown)
        counts = _counts(table, run.unknown_label)
        of_classes = list(_most_and_least_sure(table, counts))
        by_confidence = np.argsort(table.confidence, kind="stable")
        border = by_confidence[own_labels(table)[by_confidence]][:_BORDER]
        cards = [rows for _, *both in of_classes for rows in both]
        cards += [border, *(rows[:_TYPICAL] for rows in grouped.groups)]
        shown = [Shown(TARGET, row) for rows in cards for row in rows.tolist()]
        self.pictures.keep(list(dict.fromkeys([*shown, *self._in_map()])), progress.pictures)
        sample_map = self._map(plane)
        noun = "image" if self.pictures.any else "row"
        name = _input_name(settings)
        return Report(
            title=f"{name}: {_counted(len(table), noun)} labelled by {settings['method']}",
            noun=noun,
            headline=_headline(name, noun, table, counts, parts.estimates.get("right")),
            how=tuple(self._how()),
            n_target=len(table),
            counts=counts,
            openness=parts.openness(),
            warnings=(*parts.estimates["openness"]["warnings"], *self._lost_images()),
            **self._metrics(),
            panels=tuple(curve_panels(parts.history, parts.evaluation)),
            map=sample_map,
            histogram=parts.histogram(),
            what_if=what_if(table, run.unknown_label, parts.view.target),
            refit=refit_of(settings, run.path),
            confusion=parts.confusion(),
            galleries=tuple(
                ClassGallery(count.name, count.count, self._cards(surest), self._cards(least))
                for count, surest, least in of_classes
            ),
            groups=tuple(map(self._group, grouped.groups)),
            groups_note=grouped.note,
            border=self._cards(border),
            facts=facts_of(settings, run.environment(), parts.estimates),
            run=str(run.path),
            marks=self._marks(),
        )

    def _marks(self) -> Marks | None:
        """Return what marks have changed, and what more would bring."""
        corrected = self.table.corrected
        rows = np.arange(0) if corrected is None else np.flatnonzero(corrected)
        done = self.parts.estimates.get("marks") or {}
        names = self.table.ids.tolist()
        labels = self.table.labels.tolist()
        own = {names[row]: labels[row] for row in rows.tolist()}
        asked = suggest(self.run, _ASKED, own)
        gain = round(asked.gain, 4)
        shown = tuple(asked.ids)
        return Marks(len(rows), int(done.get("changed", 0)), done.get("trust"), gain, shown)

    def _how(self) -> Iterator[str]:
        """Say how the targets were labelled, by the summary of the method's own docstring."""
        method = self.run.settings["method"]
        if method.partition("+")[0] in METHODS:
            summary = (method_class(method).__doc__ or "").strip().partition("\n")[0]
            yield f"Labelled by {method}. {summary.replace('`', '')}"
        if self.run.is_finetuned:
            yield "The backbone was trained, too."
        if chain := self.run.chain:
            agree = f"the run before gives {chain[-1]['agreement']:.0%} of the labels, too"
            yield f"Adapted {_counted(len(chain), 'time')} since labelled data; {agree}."
        if separation := self.parts.estimates.get("separation"):
            yield f"{separation['sentence'].capitalize()}."
            return
        yield f"Columns: {SENTENCES[self.run.settings['scaling']]}."

    def _lost_images(self) -> list[str]:
        if not (lost := self.pictures.lost):
            return []
        many = f"{_counted(len(lost), 'image')} cannot be read, the first is {lost[0]}"
        return [f"{many}; give their folder to 'osda report' with --images"]

    def _metrics(self) -> dict[str, Any]:
        """Return the metrics; their intervals and the number of true labels if some are missing."""
        found = self.parts.evaluation
        if found is None:
            return {"metrics": None}
        fields = {name: name.lower().replace("*", "_star") for name in _METRICS}
        values = {name: getattr(found.final, field) for name, field in fields.items()}
        metrics = {name: float(v) for name, v in values.items() if v is not None and v == v}
        if not found.is_partial:
            return {"metrics": metrics}
        intervals = {name: found.intervals[field] for name, field in fields.items()}
        return {"metrics": metrics, "n_truth": found.n_labelled, "intervals": intervals}

    def _in_map(self) -> list[Shown]:
        view = self.parts.view
        sources = [Shown(SOURCE, row) for row in view.source.tolist()]
        return sources + [Shown(TARGET, row) for row in view.target.tolist()]

    def _map(self, plane: Plane) -> SampleMap:
        """Return the map; its pictures are smaller if there are many."""
        if not self.pictures.any:
            return self.parts.sample_map(plane)
        shown = self._in_map()
        side = _LARGE if len(shown) <= _FEW_PICTURES else _SMALL

        def small(sample: Shown) -> str | None:
            image = self.pictures.thumbnail(sample.row, sample.domain)
            return _address(None if image is None else smaller(image, side))

        with ThreadPoolExecutor(_WORKERS) as pool:
            return self.parts.sample_map(plane, tuple(pool.map(small, shown)))

    def _group(self, rows: Indices) -> UnknownGroup:
        near = Counter(self.table.nearest[rows].tolist()).most_common(_NEAR)
        truth = Counter([] if self.truth is None else filter(None, self.truth[rows].tolist()))
        names = tuple(name for name, _ in near)
        typical = self._cards(rows[:_TYPICAL])
        return UnknownGroup(len(rows), names, tuple(truth.most_common(_NEAR)), typical)

    def _others(self, row: int) -> tuple[tuple[str, float], ...]:
        """Return the likeliest columns beside the label of a target."""
        table = self.table
        names = [*table.classes, self.run.unknown_label]
        ordered = np.argsort(-table.proba[row], kind="stable").tolist()
        kept = [place for place in ordered if names[place] != str(table.labels[row])]
        return tuple((names[place], float(table.proba[row, place])) for place in kept[:_OTHERS])

    def _cards(self, rows: Indices) -> tuple[Sample, ...]:
        table = self.table
        confidence = self.table.confidence
        return tuple(
            Sample(
                row=row,
                name=str(table.ids[row]),
                label=str(table.labels[row]),
                nearest=str(table.nearest[row]),
                confidence=float(confidence[row]),
                p_unknown=float(table.proba[row, -1]),
                truth=None if self.truth is None else str(self.truth[row]) or None,
                picture=_address(self.pictures.thumbnail(row)),
                others=self._others(row),
            )
            for row in rows.tolist()
        )


def _address(webp: bytes | None) -> str | None:
    if webp is None:
        return None
    return "data:image/webp;base64," + base64.b64encode(webp).decode("ascii")


def _counts(table: PredictionTable, unknown: str) -> tuple[LabelCount, ...]:
    """Return the known classes, the largest first, and unknown."""
    counts = Counter(table.labels.tolist())
    confidence = table.confidence

    def row(name: str) -> LabelCount:
        theirs = table.labels == name
        mean = float(confidence[theirs].mean()) if theirs.any() else None
        return LabelCount(name, counts[name], counts[name] / len(table), mean)

    ordered = sorted(table.classes, key=lambda name: (-counts[name], name))
    return tuple(row(name) for name in (*ordered, unknown))


def _most_and_least_sure(
    table: PredictionTable, counts: Sequence[LabelCount]
) -> Iterator[tuple[LabelCount, Indices, Indices]]:
    """Yield each label that was given, with its most and its least confident targets."""
    many = _FEWER_CARDS if len(table.classes) > _MANY_CLASSES else _CARDS
    confidence = table.confidence
    own = own_labels(table)
    *known, unknown = counts
    for count in (*sorted(known, key=lambda count: count.name), unknown):
        theirs = table.labels == count.name
        # Manual corrections say nothing about the method's confidence.
        rows = np.flatnonzero(theirs & own if (theirs & own).any() else theirs)
        # Ties go by the score; a confident unknown has a low one.
        scores = table.known_scores[rows] * (-1 if count is unknown else 1)
        ordered = rows[np.lexsort((-scores, -confidence[rows]))]
        half = min(many, -(-len(rows) // 2))
        if len(rows):
            yield count, ordered[:half], ordered[::-1][: min(many, len(rows) - half)]


def _headline(
    name: str,
    noun: str,
    table: PredictionTable,
    counts: Sequence[LabelCount],
    right: Sequence[float] | None,
) -> str:
    *classes, unknown = counts
    known = len(table) - unknown.count
    corrected = int((~own_labels(table)).sum())
    line = (
        f"Of {_counted(len(table), noun)} in {name}, {known:,} look{'s' if known == 1 else ''} "
        f"like one of the {len(classes)} known classes, and {unknown.count:,} "
        f"({100 * unknown.share:.0f}\u202f%) like none of them."
    )
    if right is not None:
        low, high = (f"{100 * part:.0f}" for part in right)
        line += f" About {low} to {high}\u202f% of these labels should be right."
    if corrected:
        verb = "was" if corrected == 1 else "were"
        line += f" {_counted(corrected, 'label')} {verb} set manually."
    return line


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _input_name(settings: Mapping[str, Any]) -> str:
    target = settings["inputs"]["target"]
    return str(target["embedded"]) if "embedded" in target else printable(Path(target["path"]).name)


def facts_of(
    settings: Mapping[str, Any], environment: Mapping[str, Any], estimates: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """Return how a run was made, as heading -> name -> value, without what is not recorded."""
    data = {**settings["inputs"], "backbone": settings.get("backbone") or {}}
    asked = {name: settings.get(name) for name in ("method", "preset", "seed", "scaling")}
    asked["requested share of unknowns"] = settings.get("openness")
    share = "{share:.4f} ({low:.4f} to {high:.4f})".format(**estimates["openness"])
    sections: dict[str, Mapping[str, Any]] = {
        "Command": {"command": shlex.join(settings["command"] or ()) or None},
        "Time and memory": {
            "reading and features": _seconds(environment.get("data_seconds")),
            "fitting and labelling": _seconds(environment.get("fit_seconds")),
            "peak memory in MB": environment.get("peak_megabytes"),
        },
        "Data": {f"{of} {name}": v for of, record in data.items() for name, v in record.items()},
        "Estimates": {
            "share of unknowns": share,
            # A committee has none.
            "threshold of the known score": (estimates["rejection"] or {}).get("threshold"),
        },
        "Settings": asked | settings["settings"],
        "Machine": {name: environment.get(name) for name in ("python", "platform", "cpu_count")},
        "Versions": environment.get("packages", {}),
    }
    written = {
        heading: {
            name: f"{value:g}" if isinstance(value, float) else str(value)
            for name, value in values.items()
            if value is not None and not isinstance(value, Mapping)
        }
        for heading, values in sections.items()
    }
    return {heading: values for heading, values in written.items() if values}


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    minutes, seconds = divmod(value, 60)
    return f"{int(minutes)} min {seconds:.0f} s" if minutes else f"{seconds:.1f} s"
