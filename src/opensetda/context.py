"""Services that a `fit` may use: they change no result, so they are no parameters of a method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

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
        ...

    def write(self, name: str, record: Record) -> None:
        """Keep a record, in the place of an earlier one of that name."""
        ...

    def read(self, name: str) -> Record | None:
        """Return a record, None if there is none."""
        ...


@dataclass(frozen=True)
class FitContext:
    """Services of one `fit`.

    Attributes
    ----------
    progress : callable, optional
        Called with a `ProgressEvent` after every iteration or step.
    images : TrainableImages, optional
        The images that the rows of X are features of, image i of row i, with their backbone,
        which is then trained along (methods with `trains_backbone`). Later samples are to be
        given as features of the backbone as `fit` leaves it. None keeps the features as they are.
    checkpoints : CheckpointStore, optional
        Where PGL keeps checkpoints. If the store has some already, `fit` continues from the latest,
        and needs the same data and settings.
    view : bool
        Keep embeddings of some samples after each step in `view_`, for a map.
    team : Team
        The processes that work together, under `torchrun`; all of them call `fit` with the same
        arguments, and get the same result.
    """

    progress: ProgressListener | None = None
    images: TrainableImages | None = None
    checkpoints: CheckpointStore | None = None
    view: bool = False
    team: Team = ALONE
