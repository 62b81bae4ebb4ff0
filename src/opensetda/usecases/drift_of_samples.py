"""How later samples differ from the target of a run, and what to do about it.

Up to 800 samples, drawn by their content, are compared with the targets that the run kept: their
features by a permutation test, their similarity to the classes of the source by that of Kolmogorov
and Smirnov. Both together raise a false alarm in about 5 % of the cases. The known scores of the
method are no test: those of targets that were in `fit` are higher than those of later samples.
Everything else is description.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest, ks_2samp

from opensetda.errors import InputError
from opensetda.metrics.two_samples import FEWEST, Comparison, compare_samples
from opensetda.rows import content_keys, unit_rows
from opensetda.runs.folder import RunFolder
from opensetda.runs.kept import Kept, most_rows
from opensetda.runs.predictions import PredictionTable
from opensetda.system.files import new_file, open_regular
from opensetda.usecases.keeping import LONGEST_CHAIN, since_labels

FEATURES_LEVEL = 0.04
SCORES_LEVEL = 0.01
"""Levels of the two tests; together they raise about 5 % of false alarms."""
MOVED = 0.62
"""The domain has changed if neighbours assign this share of the rows to the right sample."""
CLASS_LEVEL = 0.01  # of the test whether the share of a class changed, for all classes together
MOST_NAMES = 10  # of a group's samples, to look at

Action = Literal["nothing", "review", "adapt", "fit again"]
ADVICE: dict[Action, str] = {
    "nothing": "nothing to do",
    "review": "look at them: osda review",
    "adapt": "follow them: osda adapt",
    "fit again": "fit again with a source that is more like them",
}


@dataclass(frozen=True)
class ClassChange:
    """A class whose share differs from that in the run's target by more than chance."""

    name: str
    expected: float
    found: float


@dataclass(frozen=True)
class Drift:
    """Later samples compared with the target of a run.

    `p_features` and `p_scores` are None for fewer than 20 samples, of which nothing is said;
    `p_scores` also if nothing of the source was kept.
    `apart` goes from 0.5 to 1: how well the samples and the target can be told apart. `group` are
    samples of the largest group that the target does not have, and `group_size` is its share of
    all samples; `group_unknown` of it are labelled unknown.
    """

    samples: int
    compared: int
    p_features: float | None
    p_scores: float | None
    apart: float
    unknown: float
    expected_unknown: float
    classes: tuple[ClassChange, ...]
    group: tuple[str, ...]
    group_size: float
    group_unknown: float
    action: Action

    @property
    def is_drift(self) -> bool:
        """Whether one of the tests raises an alarm."""
        return _alarm(self.p_features, self.p_scores)

    @property
    def line(self) -> str:
        """What was found and what to do, in a line."""
        if self.p_features is None:
            return f"drift: too few to tell (samples and target need at least {FEWEST} each)"
        share = f"{self.unknown:.0%} unknown, expected {self.expected_unknown:.0%}"
        p_values = f"p {_p_value(self.p_features)} (features)"
        if self.p_scores is not None:
            p_values += f", p {_p_value(self.p_scores)} (scores)"
        if not self.is_drift:
            return f"drift: none found ({p_values}; {share}); {ADVICE[self.action]}"
        parts = [p_values, share]
        if self.group_size:
            parts.append(
                f"a new group of {self.group_size:.0%}, {self.group_unknown:.0%} of it unknown"
            )
        if self.apart >= MOVED:
            parts.insert(0, f"{self.apart:.0%} of the samples can be told apart")
        gone = [one.name for one in self.classes if not one.found]
        if gone:
            parts.append(f"no longer there: {', '.join(gone[:3])}")
        return f"drift: these samples differ from the target ({'; '.join(parts)}); {self.advice}"

    @property
    def advice(self) -> str:
        """What to do, in words."""
        return ADVICE[self.action]


class SampleOfRows:
    """Up to a number of rows of a stream: those whose content has the smallest hashes."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: dict[str, npt.NDArray[Any]] = {}

    def add(self, rows: npt.NDArray[np.float32], table: PredictionTable) -> None:
        """Add rows with their predictions."""
        self.count += len(rows)
        new: dict[str, npt.NDArray[Any]] = {
            "key": content_keys(rows),
            "row": rows,
            "id": table.ids,
            "label": table.labels,
        }
        if self._kept:
            new = {name: np.concatenate([self._kept[name], new[name]]) for name in new}
        first = np.argsort(new["key"], kind="stable")[: most_rows(rows.shape[1])]
        self._kept = {name: values[first] for name, values in new.items()}

    def drift_of(self, run: RunFolder) -> Drift:
        """Compare the rows with the target of a run; there is one at least."""
        kept = self._kept
        return compared_with(run, kept["row"], kept["id"], kept["label"], self.count)


def kept_target(run: RunFolder) -> Kept:
    """Return what a run kept of its domains, or an `InputError` if it is too old for that."""
    kept = run.kept()
    if kept is None:
        problem = "kept nothing of its target: it is of 'osda demo' or an older release"
        raise InputError(f"{run.path}: {problem}; fit again with this one")
    return kept


def compared_with(
    run: RunFolder,
    rows: npt.NDArray[np.float32],
    ids: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    count: int,
) -> Drift:
    """Compare rows and their labels with the target of a run."""
    kept = kept_target(run)
    before = run.predictions()
    expected = float((before.labels == run.unknown_label).mean())
    unknown = float((labels == run.unknown_label).mean()) if len(labels) else 0.0
    found = Comparison(1.0, 0.5, np.arange(0))
    p_features = p_scores = None
    if min(len(rows), len(kept.target)) >= FEWEST:
        found = compare_samples(kept.target, rows)
        p_features = found.p_value
        p_scores = _score_test(kept, rows)
    is_drift = _alarm(p_features, p_scores)
    group = found.group if is_drift and found.apart < MOVED else found.group[:0]
    return Drift(
        samples=count,
        compared=len(rows),
        p_features=p_features,
        p_scores=p_scores,
        apart=found.apart,
        unknown=unknown,
        expected_unknown=expected,
        classes=_class_changes(Counter(before.labels.tolist()), Counter(labels.tolist())),
        group=tuple(ids[group[:MOST_NAMES]].tolist()),
        group_size=len(group) / max(len(rows), 1),
        group_unknown=float((labels[group] == run.unknown_label).mean()) if len(group) else 0.0,
        action=_action(run, kept, is_drift, found.apart),
    )


def _alarm(p_features: float | None, p_scores: float | None) -> bool:
    by_features = p_features is not None and p_features <= FEATURES_LEVEL
    return by_features or (p_scores is not None and p_scores <= SCORES_LEVEL)


def _score_test(kept: Kept, rows: npt.NDArray[np.float32]) -> float | None:
    """Compare how similar both samples are to the classes of the source; None without a source.

    The score is the cosine to the nearest class mean, each domain standardised by itself. Both
    samples are standardised together, so neither is favoured.
    """
    source, y = kept.source()
    if not len(source):
        return None
    labelled = unit_rows(_standardised(source))
    means = np.stack([labelled[y == one].mean(axis=0) for one in np.unique(y)])
    both = unit_rows(_standardised(np.concatenate([rows, kept.target])))
    scores = (both @ unit_rows(means).T).max(axis=1)
    return float(ks_2samp(scores[: len(rows)], scores[len(rows) :]).pvalue)


def _standardised(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    centred = rows - rows.mean(axis=0, dtype=np.float64)
    deviation = centred.std(axis=0)
    return np.asarray(centred / np.where(deviation > 0, deviation, 1))


def _p_value(value: float) -> str:
    return f"= {value:.3f}" if value >= 0.0005 else "< 0.001"


def _action(run: RunFolder, kept: Kept, is_drift: bool, apart: float) -> Action:
    """Return what to do."""
    if not is_drift:
        return "nothing"
    if apart < MOVED:
        return "review"
    is_far = since_labels(run.chain) >= LONGEST_CHAIN
    return "fit again" if is_far or kept.how == "none" else "adapt"


def _class_changes(before: Counter[str], now: Counter[str]) -> tuple[ClassChange, ...]:
    """Return the labels whose share changed by more than chance, the largest change first."""
    names = sorted({*before, *now})
    changes: list[ClassChange] = []
    for name in names:
        # One more on either side: a share is never exactly 0 or 1.
        usual = (before[name] + 1) / (before.total() + 2)
        p_value = binomtest(now[name], max(now.total(), 1), usual).pvalue
        if p_value <= CLASS_LEVEL / len(names):
            expected = before[name] / max(before.total(), 1)
            changes.append(ClassChange(name, expected, now[name] / max(now.total(), 1)))
    return tuple(sorted(changes, key=lambda one: -abs(one.found - one.expected)))


RECORD = ("time", "run", "file", *(f.name for f in fields(Drift) if f.name not in ("classes",)))


def record(path: Path, run: RunFolder, name: str, found: Drift) -> None:
    """Append a row to a CSV file for monitoring, which is made with its header if need be."""
    lines: list[list[Any]] = []
    if path.exists():
        with open_regular(path) as stream:
            lines = list(csv.reader(StringIO(stream.read().decode("utf-8", "replace"))))
        if not lines or lines[0] != list(RECORD):
            raise InputError(f"{path}: not a record of drift; give another file to --record")
    else:
        lines = [list(RECORD)]
    values = asdict(found)
    values["group"] = " ".join(found.group)
    values["time"] = datetime.now(UTC).isoformat(timespec="seconds")
    values["run"] = run.settings["identity"] or str(run.path)
    values["file"] = name
    cells = [values[column] for column in RECORD]
    lines.append([f"{c:.4g}" if isinstance(c, float) else "" if c is None else c for c in cells])
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    with new_file(path) as aside:
        aside.write_text(text.getvalue(), encoding="utf-8")
