"""What a fit was asked to do, in a form that can be written to a file and resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from opensetda.errors import InputError
from opensetda.runs.checked import check_value

SAMPLE, SMALLEST_SAMPLE = 65_536, 1024
"""Default of the largest number of targets to learn from."""

START_ANEW = "start anew with 'osda fit ... --overwrite'"

ARRAY = "array"
"""Stands in place of the path of a domain that was given as an array."""


FineTuning = Literal["auto", "last", "all"] | None


@dataclass(frozen=True)
class TableOptions:
    """Names of columns and arrays in feature tables, lists and manifests.

    Attributes
    ----------
    label : str or None
        Column of the labels; None is "y" in tables and "label" in manifests.
    id, drop : str or None, and tuple of str
        Column of the sample names in tables, and columns to leave out.
    keep, one_hot : tuple of str
        Columns of tables to use even if they look like counters, times or marks of a domain, and
        columns of text of which each value becomes a feature.
    impute : {"none", "median"}
        Whether empty cells of tables get the median of their column and domain.
    features : str
        Array of the features in ``.npz`` files.
    path, root : str or None
        Column of the image files in manifests, and the folder that relative paths start from.
    """

    label: str | None = None
    id: str | None = None
    features: str = "X"
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    impute: Literal["none", "median"] = "none"
    path: str | None = None
    root: str | None = None


@dataclass(frozen=True)
class ImageOptions:
    """How images become features.

    Attributes
    ----------
    backbone, weights : str or None
        Name in the registry, None is the bundled one; file with its weights.
    size : int or None
        Side of the images in pixels; None is the backbone's own.
    cache : str or None
        Folder of the feature cache; None keeps no features.
    strict : bool
        Whether a broken image is an error.
    finetune : {"auto", "last", "all"} or None
        What of the backbone is trained: its last stages, from stored activations; all of it;
        "auto" is "last" on a CPU and "all" on a GPU; None is nothing.
    """

    backbone: str | None = None
    weights: str | None = None
    size: int | None = None
    cache: str | None = None
    strict: bool = False
    finetune: FineTuning = None


@dataclass(frozen=True)
class FitRequest:
    """Everything that was asked of a fit; paths are absolute, so that any folder may resume it.

    `identity` distinguishes the run from any other; `report` is whether the command line writes
    the report at the end; `preset` and `scaling` None are the method's default.
    """

    identity: str
    source: str
    target: str
    openness: float | str = "auto"
    method: str = "moving-means"
    preset: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    unknown_label: str = "unknown"
    scaling: str | None = None
    tables: TableOptions = TableOptions()
    images: ImageOptions = ImageOptions()
    tensorboard: str | None = None
    corrections: str | None = None
    sample: int = SAMPLE
    report: bool = True
    overwrite: bool = False
    command: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return dataclasses.asdict(self)

    def method_arguments(self) -> dict[str, Any]:
        """Return the arguments of `opensetda.runs.methods.build_method`."""
        names = ("method", "openness", "preset", "changes", "seed", "unknown_label", "scaling")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, values: Any, where: Path) -> Self:
        """Build a request from what `to_dict` returned; errors name the file `where`."""
        return check_value(values, cls, where, START_ANEW)


def trained_part(choice: bool | str | None) -> Literal["last", "all"] | None:
    """Return what of a backbone is to be trained; the default depends on the device."""
    if choice is True or choice == "auto":
        from accelerate import PartialState

        return "last" if PartialState().device.type == "cpu" else "all"
    if choice == "last" or choice == "all":
        return choice
    if choice:
        raise InputError(f"finetune={choice!r}: give 'last' or 'all'")
    return None
