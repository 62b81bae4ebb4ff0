"""From a run folder to what its report says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.lists import printable
from opensetda.report.cards import Cards
from opensetda.report.content import (
    ClassGallery,
    KeptStep,
    LabelCount,
    Report,
    SampleMap,
    UnknownGroup,
)
from opensetda.report.facts import facts_of
from opensetda.report.plane import Plane, planes_of
from opensetda.report.run_parts import RunParts, nearest_to_cut, own_labels
from opensetda.runs.folder import ENVIRONMENT, RunFolder
from opensetda.runs.groups import UnknownGroups, unknown_groups
from opensetda.runs.pictures import SOURCE, TARGET, Pictures, Shown
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import read_json

CountingProgress = Callable[[int, int], None]

_BORDER = 24
_TYPICAL = 8
_CARDS, _FEWER_CARDS, _MANY_CLASSES = 6, 4, 30
_NEAR = 3


@dataclass(frozen=True)
class Progress:
    """Who is told how far the long parts of a report are; each gets how many are done of all."""

    map: CountingProgress | None = None
    pictures: CountingProgress | None = None


def collect(run: RunFolder, images: Path | None = None, progress: Progress | None = None) -> Report:
    """Gather all that a report shows; map and thumbnails are kept in the run folder.

    Parameters
    ----------
    run : RunFolder
        A complete run; one of an earlier release has no map and no groups.
    images : Path, optional
        Where the images of a feature table are.
    progress : Progress, optional
        Told about the map and the thumbnails.
    """
    return _Collector(run, images, progress or Progress()).report()


class _Collector:
    def __init__(self, run: RunFolder, images: Path | None, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.parts = RunParts(run)
        self.predictions, self.truth = self.parts.predictions, self.parts.truth
        self.estimates, self.view = self.parts.estimates, self.parts.view
        self.pictures = Pictures(run, images)

    def report(self) -> Report:
        run, table, settings = self.run, self.predictions, self.run.settings
        planes = {} if self.view is None else planes_of(run, self.progress.map)
        grouped = UnknownGroups((), "") if self.view is None else unknown_groups(run)
        chosen = _ChosenRows.of(table, run.unknown_label, grouped)
        self.pictures.keep(self._shown(chosen), self.progress.pictures)
        cards = Cards(table, self.truth, self.pictures)
        environment = read_json(run.path / ENVIRONMENT)
        kept = self.estimates["kept_step"]
        inputs, n_target = settings["inputs"], len(table)
        noun = "image" if self.pictures.any else "row"
        name = _name(inputs["target"])
        return Report(
            title=f"{name}: {_counted(n_target, noun)} labelled by {settings['method']}",
            noun=noun,
            headline=_headline(name, noun, table, run.unknown_label),
            n_source=int(inputs["source"].get("rows", inputs["source"].get("images", 0))),
            n_target=n_target,
            counts=_counts(table, run.unknown_label),
            openness=self.parts.openness(),
            kept=None if kept is None else KeptStep(**kept),
            warnings=(*self.estimates["openness"]["warnings"], *self._lost_images()),
            metrics=self._metrics(),
            panels=tuple(self.parts.panels()),
            n_steps=max(len(self.parts.history), 1),
            map=self._map(planes, cards),
            histogram=self.parts.histogram(),
            confusion=self.parts.confusion(),
            edges=self.parts.edges(),
            galleries=tuple(
                ClassGallery(
                    label,
                    count,
                    cards.of_rows(surest),
                    cards.of_rows(least),
                )
                for label, count, surest, least in chosen.galleries
            ),
            groups=tuple(
                self._group(number, rows, cards)
                for number, rows in enumerate(grouped.groups, start=1)
            ),
            groups_note=grouped.note,
            border=cards.of_rows(chosen.border),
            facts=facts_of(settings, environment, self.estimates),
            run=str(run.path),
        )

    def _shown(self, chosen: _ChosenRows) -> list[Shown]:
        shown = [Shown(TARGET, row) for row in chosen.all()]
        if self.view is not None:
            shown += [Shown(TARGET, row) for row in self.view.target.tolist()]
            shown += [Shown(SOURCE, row) for row in self.view.source.tolist()]
        return list(dict.fromkeys(shown))

    def _lost_images(self) -> list[str]:
        """Tell of images that are no longer where they were."""
        lost = self.pictures.lost
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
        values = {
            "HOS": final.hos,
            "OS*": final.os_star,
            "UNK": final.unk,
            "OS": final.os,
            "ALL": final.all,
            "AUROC": final.auroc,
        }
        return {name: float(v) for name, v in values.items() if v is not None and v == v}

    def _map(self, planes: Mapping[int, Plane], cards: Cards) -> SampleMap | None:
        view = self.view
        if view is None:
            return None
        pictures = cards.small_pictures(view.source.tolist(), view.target.tolist())
        return self.parts.sample_map(view, planes, pictures)

    def _group(self, number: int, rows: npt.NDArray[np.intp], cards: Cards) -> UnknownGroup:
        near = Counter(self.predictions.nearest[rows].tolist()).most_common(_NEAR)
        truth = Counter([] if self.truth is None else self.truth[rows].tolist())
        return UnknownGroup(
            number=number,
            size=len(rows),
            near=tuple(name for name, _ in near),
            truth=tuple(truth.most_common(_NEAR)),
            typical=cards.of_rows(rows[:_TYPICAL].tolist()),
        )


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
            # How sure the method is, a person's word does not tell; better than nothing it is.
            rows = np.flatnonzero(theirs & own if (theirs & own).any() else theirs)
            # Equally sure: by the score; sure of unknown is who scores lowest.
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
    counts = Counter(table.labels.tolist())
    confidence = table.confidence

    def row(name: str) -> LabelCount:
        theirs = table.labels == name
        mean = float(confidence[theirs].mean()) if theirs.any() else None
        return LabelCount(name, counts[name], counts[name] / len(table), mean, name == unknown)

    ordered = sorted(table.classes, key=lambda name: (-counts[name], name))
    return (*(row(name) for name in ordered), row(unknown))


def _headline(name: str, noun: str, table: PredictionTable, unknown: str) -> str:
    n_unknown = int((table.labels == unknown).sum())
    known, told = len(table) - n_unknown, int((~own_labels(table)).sum())
    share, looks = 100 * n_unknown / max(len(table), 1), "looks" if known == 1 else "look"
    classes = f"one of the {len(table.classes)} known classes"
    line = (
        f"Of {_counted(len(table), noun)} in {name}, {known:,} {looks} like {classes}, and "
        f"{n_unknown:,} ({share:.0f}\u202f%) like none of them."
    )
    if told:
        line += f" A person told {_counted(told, 'label')} of these."
    return line


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _name(record: dict[str, Any]) -> str:
    return str(record["embedded"]) if "embedded" in record else printable(Path(record["path"]).name)
