"""Services of a `fit`, which are not parameters of a method: most do not change its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from opensetda.openness.audit import CheckedTargets
from opensetda.progress import ProgressListener
from opensetda.system.team import ALONE, Team

if TYPE_CHECKING:
    from opensetda.nn.inputs import TrainableImages

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Record:
    """One checkpoint: values that JSON can hold, and arrays."""

    values: dict[str, Any]
    arrays: Arrays = field(default_factory=dict)


class CheckpointStore(Protocol):
    """Keeps records by name; an incomplete record does not exist."""

    def due(self) -> bool:
        """Whether the latest record is old enough to be replaced."""

    def write(self, name: str, record: Record) -> None:
        """Keep a record, in the place of an earlier one of that name."""

    def read(self, name: str, is_needed: bool = False) -> Record | None:
        """Return a record; None if there is none, an error if one is needed."""


@dataclass(frozen=True)
class FitContext:
    """Services of one `fit`.

    Attributes
    ----------
    progress : callable, optional
        Called with a `ProgressEvent` after every iteration or step.
    images : TrainableImages, optional
        The images behind the rows of X with their backbone, which is then trained (methods with
        `trains_backbone`). Later samples must be features of the trained backbone.
    checkpoints : CheckpointStore, optional
        Where PGL saves checkpoints, and continues from the latest of the same data and settings.
    view : bool
        Keep embeddings of some samples after each step in `view_`, for a map.
    team : Team
        The processes under `torchrun`. All call `fit` with the same arguments and get the same
        result; they share the forward pass over all images where a backbone is trained.
    checked : CheckedTargets, optional
        How many targets a person called known or unknown: an audit overrules the estimate of the
        share of unknowns.
    """

    progress: ProgressListener | None = None
    images: TrainableImages | None = None
    checkpoints: CheckpointStore | None = None
    view: bool = False
    team: Team = ALONE
    checked: CheckedTargets | None = None
