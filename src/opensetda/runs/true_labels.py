"""Labels to be evaluated and their truth, of all samples or of some, put in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensetda.data.images.lists import MANIFEST_SUFFIXES, ImageColumns, header_of
from opensetda.data.images.loading import is_image_data, read_image_truth
from opensetda.data.names import shown, twins
from opensetda.data.reading import check_path, no_such
from opensetda.data.tables.loading import TableColumns, TruthTable, labels_with_gaps, read_truth
from opensetda.data.tables.mapped import as_text
from opensetda.errors import InputError
from opensetda.runs.checked import CheckedTable
from opensetda.runs.folder import RunFolder, StepLabels
from opensetda.runs.predictions import CLASS_PREFIX, IMAGE_ID, PredictionTable, row_numbers
from opensetda.system.files import open_regular

SUFFIXES = (".csv", ".parquet")
_AGAIN = "write it again with 'osda predict'"
# A file with these columns holds predictions: its column "label" is not the truth.
_PREDICTED = ("label", "p_unknown", "known_score", "nearest_class")


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
        return cls(run.path, run.predictions(), run.steps(), columns, run.settings["has_ids"])

    @classmethod
    def of_later(
        cls,
        table: PredictionTable,
        where: Path = Path("the predictions"),
        run: RunFolder | None = None,
    ) -> Labelled:
        """Return labels of later samples that `predict` returned or wrote."""
        has_ids = table.ids.tolist() != row_numbers(len(table)).tolist()
        return cls(where, table, {}, {} if run is None else run.settings["columns"], has_ids)


def read_label_file(path: Path, run: RunFolder | None = None) -> Labelled:
    """Read a file of `predict`, whose classes are those of the run, or of its columns."""
    check_path(path)
    if not path.exists():
        raise no_such(path, lambda name: name.lower().endswith(SUFFIXES))
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path}: neither a run folder nor a .csv or .parquet file of 'osda predict'; give one"
        )
    with open_regular(path) as stream:
        table = CheckedTable(stream.read(), path, advice=_AGAIN)
    for name in _PREDICTED:
        if name not in table.names:
            raise InputError(f"{path}: no column {name!r}; give a run or a file of 'osda predict'")
    named = [name for name in table.names if name.startswith(CLASS_PREFIX)]
    if run is None and not named:
        raise InputError(
            f"{path}: names only the likeliest classes of each sample; "
            "give the run that labelled them with --run"
        )
    own = tuple(name.removeprefix(CLASS_PREFIX) for name in named)
    classes = own if run is None else tuple(run.settings["classes"])
    found = PredictionTable.of_table(table, classes)
    if found.classes != classes:
        where = "the run" if run is None else run.path
        raise InputError(f"{path}: its classes are not those of {where}; give the run that made it")
    strange = sorted({*found.labels.tolist(), *found.nearest.tolist()} - {*classes})
    # Without a run, the one label that is not a class is that of unknowns.
    unknown = (strange or ["unknown"])[0] if run is None else run.unknown_label
    if others := [name for name in strange if name != unknown]:
        raise InputError(f"{path}: the label {shown(others[0])} is not a class; {_AGAIN}")
    return Labelled.of_later(replace(found, unknown_label=unknown), path, run)


def true_labels(
    labelled: Labelled, labels: Any, label_column: str | None, id_column: str | None
) -> TruthTable:
    """Read true labels from a file or folder, or take those of an array."""
    if not isinstance(labels, str | Path):
        values, where = np.asarray(labels), Path("labels")
        if values.ndim != 1 or not len(values):
            raise InputError(f"labels: shape {values.shape}; give one label per row")
        return TruthTable(labels_with_gaps(as_text(values, "labels"), where, "labels"), None, where)
    path, columns = Path(labels), labelled.columns
    is_table = path.suffix.lower() in MANIFEST_SUFFIXES and path.is_file()
    names = header_of(path) if is_table else ()
    label = label_column or columns.get("label")
    if label in (None, "label") and {*names} >= {*_PREDICTED}:
        raise InputError(
            f"{path}: its column 'label' holds predictions, not the truth; name the column of the "
            "true labels with --label-column"
        )
    if labelled.predictions.id_name == IMAGE_ID:
        usual = columns.get("path")
        manifest = ImageColumns(id_column or (usual if usual in names else None), label)
        # Further columns, such as those of predictions.csv, are ignored.
        if is_image_data(path, manifest) or IMAGE_ID in names:
            return read_image_truth(path, manifest)
    if id_column is None and labelled.has_ids:
        id_column = columns.get("id", labelled.predictions.id_name)
    return read_truth(path, TableColumns(label=label or "y", id=id_column), partial=True)


def align(
    labelled: Labelled, truth: TruthTable
) -> tuple[npt.NDArray[np.str_], int, tuple[str, ...]]:
    """Find the true label of each prediction: by id, else by row; "" where it is not known.

    Returns them, how many labels are of other samples, and notes about what does not match.
    """
    names = labelled.predictions.ids.tolist()
    if truth.ids is None:
        if len(truth.labels) != len(names):
            raise InputError(
                f"{truth.path}: {len(truth.labels)} labels for {len(names)} predictions; "
                "give one per row, in the same order (empty where the truth is not known), or "
                "name the column of the ids with --id-column"
            )
        found, others = truth.labels, []
    else:
        pairs = zip(truth.ids.tolist(), truth.labels.tolist(), strict=True)
        known = {name: label for name, label in pairs if label}
        found = np.array([known.get(name, "") for name in names], dtype=np.str_)
        others = sorted(known.keys() - {*names})
    n_found, notes = int((found != "").sum()), []
    if not n_found:
        how = "write the ids as there" if labelled.has_ids else "its rows are numbered, from 1"
        raise InputError(
            f"{truth.path}: none of its {len(others):,} ids (such as {shown(others[0])}) with a "
            f"label is a sample of {labelled.where} (such as {shown(names[0])}); {how}, or name "
            "their column with --id-column"
        )
    if n_found < len(found):
        example = shown(names[int((found == "").argmax())])
        line = f"True labels of {n_found:,} of {len(found):,} samples"
        notes.append(f"{line}; none of {example}, for example.")
    if others:
        line = f"{len(others):,} true label{'s' if len(others) > 1 else ''} of samples that are not"
        notes.append(f"{line} in {labelled.where}, for example {shown(others[0])}: ignored.")
    notes += _class_notes(labelled.predictions, truth.path, {*np.unique(found).tolist()} - {""})
    return found, len(others), tuple(notes)


def _class_notes(predictions: PredictionTable, path: Path, true_classes: set[str]) -> list[str]:
    """Return notes about the classes of the truth; an `InputError` if none is a known one."""
    known, notes = predictions.classes, []
    if not true_classes & {*known} and true_classes != {predictions.unknown_label}:
        raise InputError(
            f"{path}: none of its labels (such as {min(true_classes)!r}) is a known class "
            f"(such as {known[0]!r}); spell them as in the source, or write "
            f"{predictions.unknown_label!r}"
        )
    if missing := [name for name in known if name not in true_classes]:
        some = ", ".join(map(shown, missing[:5])) + (", ..." if len(missing) > 5 else "")
        notes.append(
            f"No true label of {len(missing):,} of {len(known):,} known classes ({some}): OS, OS* "
            "and HOS are means of the others."
        )
    if true_classes <= {*known}:
        notes.append("No true label of an unknown: UNK, HOS, AUROC and OSCR cannot be known.")
    return [*notes, *twins({*known, *true_classes})]
