"""Services of a `fit`, which are not parameters of a method: most do not change its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from opensetda.progress import ProgressListener
from opensetda.rows import IntArray

if TYPE_CHECKING:
    from torch import Tensor, nn

    from opensetda.share.audit import CheckedTargets
    from opensetda.share.report import OpennessReport


@dataclass(frozen=True)
class Record:
    """One checkpoint: values that JSON can hold, and arrays."""

    values: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


class CheckpointStore(Protocol):
    """Keeps the record of the last finished step; an incomplete one does not exist."""

    def write(self, record: Record) -> None:
        """Keep a record, in the place of the one before."""

    def read(self) -> Record | None:
        """Return the record, None if there is none."""


class TrainableImages(Protocol):
    """Images, and the backbone that computes their features: (N, ...) -> (N, D)."""

    backbone: nn.Module
    averaged: int  # fixed views, itself first: the mean of their features is that of the image
    settings: Any  # opensetda.training.settings.FineTuneSettings

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""

    def view(self, rows: IntArray, number: int) -> Tensor:
        """Return a fixed view of the images of some rows of X: (N, ...)."""

    def augmented(self, rows: IntArray, rng: np.random.Generator) -> Tensor:
        """Return them with random augmentation, for training."""


class FitContext(NamedTuple):
    """Services of one `fit`; later samples must be features of a backbone that it trained."""

    progress: ProgressListener | None = None  # called after every iteration or step
    images: TrainableImages | None = None  # behind the rows of X, to train their backbone
    checkpoints: CheckpointStore | None = None  # where steps are saved, and continued from
    checked: CheckedTargets | None = None  # by a person; an audit overrules the estimated share
    studied: OpennessReport | None = None  # the share, as an earlier fit to these targets found it
    earlier: Any = None  # the fitted method of the run that is adapted, to start from
