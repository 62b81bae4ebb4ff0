"""What `osda fit` was asked to do, in a form that can be written down and taken up again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from opensetda.errors import InputError


@dataclass(frozen=True)
class TableOptions:
    """What is where in feature tables, lists and manifests; see `TableColumns`, `ImageColumns`."""

    label: str | None = None
    id: str | None = None
    features: str = "X"
    drop: tuple[str, ...] = ()
    path: str | None = None
    root: str | None = None


@dataclass(frozen=True)
class ImageOptions:
    """How images become features.

    Attributes
    ----------
    backbone : str or None
        Name in the registry; None takes the embedded one.
    weights : str or None
        File with the backbone's weights.
    size : int or None
        Side of the images in pixels; None takes the backbone's own.
    cache : str or None
        Folder of the feature cache; None uses none.
    strict : bool
        A broken image is an error.
    finetune : bool
        The backbone learns, too.
    """

    backbone: str | None = None
    weights: str | None = None
    size: int | None = None
    cache: str | None = None
    strict: bool = False
    finetune: bool = False


SAMPLE = 65_536
"""Targets that a method learns from at the most, unless it is told otherwise."""


@dataclass(frozen=True)
class FitRequest:
    """Everything that `osda fit` was told; paths are absolute, so that it means the same anywhere.

    Attributes
    ----------
    identity : str
        Tells this run from any other.
    command : tuple of str
        The command line, for the record.
    checkpoint_seconds : float
        How often to write down how far the training is, beside the end of each step.
    tensorboard : str or None
        Folder of event files to write while it trains.
    corrections : str or None
        CSV file with labels of targets, told by a person.
    sample : int
        Targets that are learned from at the most.
    report : bool
        Whether to make the report at the end.
    overwrite : bool
        Whether a run that is there already may be replaced.
    """

    identity: str
    source: str
    target: str
    openness: float | str = "auto"
    method: str = "pgl"
    preset: str = "default"
    changes: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    unknown_label: str = "unknown"
    tables: TableOptions = TableOptions()
    images: ImageOptions = ImageOptions()
    checkpoint_seconds: float = 60.0
    tensorboard: str | None = None
    corrections: str | None = None
    sample: int = SAMPLE
    report: bool = True
    overwrite: bool = False
    command: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Any, where: Path) -> Self:
        """Build a request from what `to_dict` returned; `where` is named if it is damaged."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"]) or "content"
            raise InputError(
                f"{where}: damaged ({name}: {first['msg']}); "
                "start anew with 'osda fit ... --overwrite'"
            ) from None
