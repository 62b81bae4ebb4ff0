"""Collect what the report of a run shows."""

from __future__ import annotations

import base64
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.lists import printable
from opensetda.nn.scaling import columns_sentence
from opensetda.report.content import (
    ClassGallery,
    KeptStep,
    LabelCount,
    Report,
    Sample,
    SampleMap,
    UnknownGroup,
)
from opensetda.report.plane import CountingProgress, Plane, planes_of
from opensetda.report.run_parts import RunParts, nearest_to_cut, own_labels
from opensetda.report.what_if import refit_of, what_if
from opensetda.runs.folder import RunFolder
from opensetda.runs.groups import UnknownGroups, unknown_groups
from opensetda.runs.pictures import SOURCE, TARGET, Pictures, Shown, smaller
from opensetda.runs.predictions import PredictionTable

_BORDER = 24
_TYPICAL = 8
_CARDS, _FEWER_CARDS, _MANY_CLASSES = 6, 4, 30
_NEAR = 3
# Few pictures may be larger; 7,000 of the small ones take about 6 MB.
_FEW_PICTURES, _LARGE, _SMALL = 1500, 96, 48
_WORKERS = 4
_METRICS = ("HOS", "OS*", "UNK", "OS", "ALL", "AUROC")


@dataclass(frozen=True)
class Progress:
    """Called with done and total of the slow parts of a report."""

    map: CountingProgress | None = None
    pictures: CountingProgress | None = None


def collect(run: RunFolder, images: Path | None = None, progress: Progress | None = None) -> Report:
    """Collect everything that a report shows; map and thumbnails are kept in the run folder.

    `images` is the folder of the images of a feature table, or of somebody else's run.
    """
    return _Collector(run, images, progress or Progress()).report()


class _Collector:
    def __init__(self, run: RunFolder, images: Path | None, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.parts = RunParts(run)
        self.table, self.truth = self.parts.predictions, self.parts.truth
        self.view, self.confidence = self.parts.view, self.table.confidence
        self.pictures = Pictures(run, images)

    def report(self) -> Report:
        run, table, parts, settings = self.run, self.table, self.parts, self.run.settings
        planes, grouped = planes_of(run, self.progress.map), unknown_groups(run)
        chosen = _ChosenRows.of(table, run.unknown_label, grouped)
        shown = [Shown(TARGET, row) for row in chosen.all()]
        shown += [Shown(TARGET, row) for row in self.view.target.tolist()]
        shown += [Shown(SOURCE, row) for row in self.view.source.tolist()]
        self.pictures.keep(list(dict.fromkeys(shown)), self.progress.pictures)
        kept, inputs = parts.estimates["kept_step"], settings["inputs"]
        scaling = parts.estimates["scaling"]
        noun, name = "image" if self.pictures.any else "row", _input_name(inputs["target"])
        galleries = (
            ClassGallery(label, count, self._cards(surest), self._cards(least))
            for label, count, surest, least in chosen.galleries
        )
        return Report(
            title=f"{name}: {_counted(len(table), noun)} labelled by {settings['method']}",
            noun=noun,
            headline=_headline(name, noun, table, run.unknown_label),
            n_source=int(inputs["source"].get("rows", inputs["source"].get("images", 0))),
            n_target=len(table),
            counts=_counts(table, run.unknown_label),
            openness=parts.openness(),
            kept=None if kept is None else KeptStep(**kept),
            columns=columns_sentence(scaling["name"], scaling["reason"]),
            warnings=(*parts.estimates["openness"]["warnings"], *self._lost_images()),
            metrics=self._metrics(),
            **self._partial_truth(),
            panels=tuple(parts.panels()),
            n_steps=max(len(parts.history), 1),
            map=self._map(planes),
            histogram=parts.histogram(),
            what_if=what_if(table, run.unknown_label, self.view.target),
            refit=refit_of(settings, run.path),
            confusion=parts.confusion(),
            edges=parts.edges(),
            galleries=tuple(galleries),
            groups=tuple(self._group(*group) for group in enumerate(grouped.groups, start=1)),
            groups_note=grouped.note,
            border=self._cards(chosen.border),
            facts=facts_of(settings, run.environment(), parts.estimates),
            run=str(run.path),
        )

    def _lost_images(self) -> list[str]:
        lost, withheld = self.pictures.lost, self.pictures.withheld
        if withheld:
            return [
                f"{_counted(withheld, 'image')} not shown: the run was made by another user or on "
                "another machine; to show them, give their folder to 'osda report' with --images"
            ]
        if not lost:
            return []
        return [
            f"{_counted(len(lost), 'image')} cannot be read any more, the first is {lost[0]}; "
            "put them back, or give their folder to 'osda report' with --images"
        ]

    def _metrics(self) -> dict[str, float] | None:
        if self.parts.evaluation is None:
            return None
        final = self.parts.evaluation.final
        values = {name: getattr(final, _field(name)) for name in _METRICS}
        return {name: float(v) for name, v in values.items() if v is not None and v == v}

    def _partial_truth(self) -> dict[str, Any]:
        """Return the number of true labels and the intervals, unless the truth is complete."""
        found = self.parts.evaluation
        if found is None or not found.is_partial:
            return {}
        intervals = {name: found.intervals[_field(name)] for name in _METRICS}
        return {"n_truth": found.n_labelled, "intervals": intervals}

    def _map(self, planes: Mapping[int, Plane]) -> SampleMap:
        """Return the map; its pictures are smaller if there are many."""
        view = self.view
        shown = [(row, SOURCE) for row in view.source.tolist()]
        shown += [(row, TARGET) for row in view.target.tolist()]
        if not self.pictures.any:
            return self.parts.sample_map(view, planes)
        side = _LARGE if len(shown) <= _FEW_PICTURES else _SMALL

        def small(sample: tuple[int, str]) -> str | None:
            image = self.pictures.thumbnail(*sample)
            return _address(None if image is None else smaller(image, side))

        with ThreadPoolExecutor(_WORKERS) as pool:
            return self.parts.sample_map(view, planes, tuple(pool.map(small, shown)))

    def _group(self, number: int, rows: npt.NDArray[np.intp]) -> UnknownGroup:
        near = Counter(self.table.nearest[rows].tolist()).most_common(_NEAR)
        truth = Counter([] if self.truth is None else filter(None, self.truth[rows].tolist()))
        return UnknownGroup(
            number=number,
            size=len(rows),
            near=tuple(name for name, _ in near),
            truth=tuple(truth.most_common(_NEAR)),
            typical=self._cards(rows[:_TYPICAL].tolist()),
        )

    def _cards(self, rows: Iterable[int]) -> tuple[Sample, ...]:
        table = self.table
        return tuple(
            Sample(
                row=row,
                name=str(table.ids[row]),
                label=str(table.labels[row]),
                nearest=str(table.nearest[row]),
                confidence=float(self.confidence[row]),
                p_unknown=float(table.proba[row, -1]),
                truth=None if self.truth is None else str(self.truth[row]) or None,
                picture=_address(self.pictures.thumbnail(row)),
            )
            for row in rows
        )


def _field(name: str) -> str:
    return name.lower().replace("*", "_star")


def _address(webp: bytes | None) -> str | None:
    if webp is None:
        return None
    return "data:image/webp;base64," + base64.b64encode(webp).decode("ascii")


@dataclass(frozen=True)
class _ChosenRows:
    """The targets that get a card."""

    galleries: list[tuple[str, int, list[int], list[int]]]
    border: list[int]
    typical: list[int]

    @classmethod
    def of(cls, table: PredictionTable, unknown: str, grouped: UnknownGroups) -> _ChosenRows:
        many = _FEWER_CARDS if len(table.classes) > _MANY_CLASSES else _CARDS
        galleries, confidence, own = [], table.confidence, own_labels(table)
        for name in (*table.classes, unknown):
            theirs = table.labels == name
            if not theirs.any():
                continue
            # Manual corrections say nothing about the method's confidence.
            rows = np.flatnonzero(theirs & own if (theirs & own).any() else theirs)
            # Ties go by the score; a confident unknown has a low one.
            scores = table.known_scores[rows] * (-1 if name == unknown else 1)
            ordered = rows[np.lexsort((-scores, -confidence[rows]))]
            half = min(many, -(-len(rows) // 2))
            least = ordered[::-1][: min(many, len(rows) - half)]
            galleries.append((name, int(theirs.sum()), ordered[:half].tolist(), least.tolist()))
        typical = [row for rows in grouped.groups for row in rows[:_TYPICAL].tolist()]
        return cls(galleries, nearest_to_cut(table, unknown)[:_BORDER].tolist(), typical)

    def all(self) -> list[int]:
        of_classes = [row for _, _, *both in self.galleries for rows in both for row in rows]
        return [*of_classes, *self.border, *self.typical]


def _counts(table: PredictionTable, unknown: str) -> tuple[LabelCount, ...]:
    counts, confidence = Counter(table.labels.tolist()), table.confidence

    def row(name: str) -> LabelCount:
        theirs = table.labels == name
        mean = float(confidence[theirs].mean()) if theirs.any() else None
        return LabelCount(name, counts[name], counts[name] / len(table), mean, name == unknown)

    ordered = sorted(table.classes, key=lambda name: (-counts[name], name))
    return (*(row(name) for name in ordered), row(unknown))


def _headline(name: str, noun: str, table: PredictionTable, unknown: str) -> str:
    n_unknown = int((table.labels == unknown).sum())
    known, corrected = len(table) - n_unknown, int((~own_labels(table)).sum())
    share, looks = 100 * n_unknown / max(len(table), 1), "looks" if known == 1 else "look"
    classes = f"one of the {len(table.classes)} known classes"
    line = (
        f"Of {_counted(len(table), noun)} in {name}, {known:,} {looks} like {classes}, and "
        f"{n_unknown:,} ({share:.0f}\u202f%) like none of them."
    )
    if corrected:
        verb = "was" if corrected == 1 else "were"
        line += f" {_counted(corrected, 'label')} {verb} set manually."
    return line


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _input_name(record: Mapping[str, Any]) -> str:
    return str(record["embedded"]) if "embedded" in record else printable(Path(record["path"]).name)


def facts_of(
    settings: Mapping[str, Any], environment: Mapping[str, Any], estimates: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """Return how a run was made, as heading -> name -> value, without what is not recorded."""
    backbone, share = settings.get("backbone") or {}, estimates["openness"]
    megabytes = environment.get("peak_megabytes")
    sections = {
        "Command": {"command": shlex.join(settings["command"])} if settings["command"] else {},
        "Time and memory": {
            "reading and features": _seconds(environment.get("data_seconds")),
            "training and labelling": _seconds(environment.get("fit_seconds")),
            "peak memory": None if megabytes is None else f"{megabytes:,.0f} MB",
        },
        "Data": {
            f"{domain} {name}": value
            for domain, record in settings["inputs"].items()
            for name, value in record.items()
            if not isinstance(value, Mapping)
        }
        | {f"backbone {name}": value for name, value in _flat(backbone)},
        "Estimates": {
            "share of unknowns": "{share:.4f} ({low:.4f} to {high:.4f})".format(**share),
            "threshold for later samples": estimates["rejection"]["threshold"],
        },
        "Settings": {
            "method": settings["method"],
            "preset": settings["preset"],
            "seed": settings["seed"],
            "requested share of unknowns": settings["openness"],
            "scaling of columns": settings.get("scaling"),
            **dict(_flat(settings["settings"])),
        },
        "Machine": {
            "python": environment.get("python"),
            "system": environment.get("platform"),
            "processors": environment.get("cpu_count"),
        },
        "Versions": environment.get("packages", {}),
    }
    written = {
        heading: {name: _written(value) for name, value in values.items() if value is not None}
        for heading, values in sections.items()
    }
    return {heading: values for heading, values in written.items() if values}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return str(value)


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    minutes, seconds = divmod(value, 60)
    return f"{int(minutes)} min {seconds:.0f} s" if minutes else f"{seconds:.1f} s"
