"""True labels for an evaluation, of all samples or of some: read, and put in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.lists import MANIFEST_SUFFIXES, ImageColumns, header_of
from opensetda.data.images.loading import is_image_data, read_image_truth
from opensetda.data.names import shown, twins
from opensetda.data.tables.loading import TableColumns, TruthTable, labels_with_gaps, read_truth
from opensetda.data.tables.mapped import as_text
from opensetda.errors import InputError
from opensetda.runs.folder import RunFolder, StepLabels
from opensetda.runs.predictions import IMAGE_ID, PredictionTable

# A file with these columns holds predictions: its column "label" is not the truth.
_PREDICTED = {"label", "known_score", "nearest_class"}


@dataclass(frozen=True)
class Labelled:
    """Labels that are to be compared with the truth: those of a run, or of later samples.

    `where` is the run or the file; `columns` are the names that columns had in `fit`; `has_ids` is
    whether `predictions.ids` are names and not row numbers.
    """

    where: Path
    predictions: PredictionTable
    steps: StepLabels = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    has_ids: bool = True

    @classmethod
    def of_run(cls, run: RunFolder) -> Labelled:
        """Return the labels of the targets of a run, and those after each step."""
        columns = run.settings["columns"]
        return cls(run.path, run.predictions(), run.steps(), columns, run.has_ids)

    @property
    def has_images(self) -> bool:
        """Whether the samples are images."""
        return self.predictions.id_name == IMAGE_ID


@dataclass(frozen=True)
class Aligned:
    """The true label of each prediction, "" where it is not known.

    `n_ignored` true labels are of other samples; `notes` say what does not match, one line each.
    """

    labels: npt.NDArray[np.str_]
    n_ignored: int = 0
    notes: tuple[str, ...] = ()


def true_labels(
    labelled: Labelled, labels: Any, label_column: str | None, id_column: str | None
) -> TruthTable:
    """Read true labels from a file or folder, or take those of an array."""
    if isinstance(labels, str | Path):
        return _read(labelled, Path(labels), label_column, id_column)
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise InputError(f"labels: shape {values.shape}; give one label per row")
    where = Path("labels")
    return TruthTable(labels_with_gaps(as_text(values, "labels"), where, "labels"), None, where)


def _read(
    labelled: Labelled, path: Path, label_column: str | None, id_column: str | None
) -> TruthTable:
    columns, is_table = labelled.columns, path.suffix.lower() in MANIFEST_SUFFIXES
    names = header_of(path) if is_table and path.is_file() else ()
    label = label_column or columns.get("label")
    if label in (None, "label") and {*names} >= _PREDICTED:
        raise InputError(
            f"{path}: its column 'label' holds predictions, not the truth; name the column of the "
            "true labels with --label-column"
        )
    if labelled.has_images:
        usual = columns.get("path")
        manifest = ImageColumns(id_column or (usual if usual in names else None), label)
        # Further columns, such as those of predictions.csv, are ignored.
        if is_image_data(path, manifest) or IMAGE_ID in names:
            return read_image_truth(path, manifest)
    id_name = id_column
    if id_name is None and labelled.has_ids:
        id_name = columns.get("id", labelled.predictions.id_name)
    return read_truth(path, TableColumns(label=label or "y", id=id_name), partial=True)


def align(labelled: Labelled, truth: TruthTable) -> Aligned:
    """Find the true label of each prediction: by id, else by row."""
    predictions = labelled.predictions
    notes: list[str] = []
    if truth.ids is None:
        if len(truth.labels) != len(predictions):
            raise InputError(
                f"{truth.path}: {len(truth.labels)} labels for {len(predictions)} predictions; "
                "give one per row, in the same order (empty where the truth is not known), or "
                "name the column of the ids with --id-column"
            )
        rows = np.arange(len(predictions))
    else:
        names, ids = predictions.ids.tolist(), truth.ids.tolist()
        place = {name: row for row, name in enumerate(ids)}
        rows = np.array([place.get(name, -1) for name in names], dtype=np.intp)
    found = np.where(rows >= 0, truth.labels[rows], "")
    others = np.ones(len(truth.labels), dtype=bool)
    others[rows[rows >= 0]] = False
    others &= truth.labels != ""
    n_ignored, without = int(others.sum()), np.flatnonzero(found == "")
    if len(without) == len(found):
        raise _nothing_matches(labelled, truth)
    if len(without):
        line = f"True labels of {len(found) - len(without):,} of {len(found):,} samples"
        notes.insert(0, f"{line}; none of {shown(str(predictions.ids[without[0]]))}, for example.")
    if n_ignored:
        assert truth.ids is not None, "rows match one by one"
        example = shown(str(truth.ids[int(others.argmax())]))
        line = f"{n_ignored:,} true label{'s' if n_ignored > 1 else ''} of samples that are not in"
        notes.append(f"{line} {labelled.where}, for example {example}: ignored.")
    return Aligned(found, n_ignored, (*notes, *_check_classes(labelled, truth, found)))


def _nothing_matches(labelled: Labelled, truth: TruthTable) -> InputError:
    ids = truth.ids
    assert ids is not None, "an array or column without any label is refused before"
    first = shown(str(ids[int((truth.labels != "").argmax())]))
    example = shown(str(labelled.predictions.ids[0]))
    how = "write the ids as there" if labelled.has_ids else "its rows are numbered, from 1"
    return InputError(
        f"{truth.path}: none of its {len(ids):,} ids (such as {first}) with a label is a sample "
        f"of {labelled.where} (such as {example}); {how}, or name their column with --id-column"
    )


def _check_classes(
    labelled: Labelled, truth: TruthTable, found: npt.NDArray[np.str_]
) -> tuple[str, ...]:
    """Return notes about the classes of the truth; an `InputError` if none is a known one."""
    predictions, true_classes = labelled.predictions, {*np.unique(found).tolist()} - {""}
    known = predictions.classes
    if not true_classes & {*known} and true_classes != {predictions.unknown_label}:
        raise InputError(
            f"{truth.path}: none of its labels (such as {min(true_classes)!r}) is a known class "
            f"(such as {known[0]!r}); spell them as in the source, or write "
            f"{predictions.unknown_label!r}"
        )
    missing, notes = [name for name in known if name not in true_classes], []
    if missing:
        some = ", ".join(map(shown, missing[:5])) + (", ..." if len(missing) > 5 else "")
        notes.append(
            f"No true label of {len(missing):,} of {len(known):,} known classes ({some}): OS, OS* "
            "and HOS are means of the others."
        )
    if true_classes <= {*known}:
        notes.append("No true label of an unknown: UNK, HOS, AUROC and OSCR cannot be known.")
    return (*notes, *twins({*known, *true_classes}))
