"""Services of a `fit`, which are not parameters of a method: most do not change its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from opensetda.openness.audit import CheckedTargets
from opensetda.progress import ProgressListener
from opensetda.rows import IntArray

if TYPE_CHECKING:
    from torch import Tensor, nn

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Record:
    """One checkpoint: values that JSON can hold, and arrays."""

    values: dict[str, Any]
    arrays: Arrays = field(default_factory=dict)


class CheckpointStore(Protocol):
    """Keeps the record of the last finished step; an incomplete one does not exist."""

    def write(self, record: Record) -> None:
        """Keep a record, in the place of the one before."""

    def read(self) -> Record | None:
        """Return the record, None if there is none."""


class TrainableImages(Protocol):
    """Images, and the backbone that computes their features: (N, ...) -> (N, D).

    An image has `averaged` fixed views, the image itself first; the mean of their features is
    the feature of the image. `settings` are `opensetda.finetuning.settings.FineTuneSettings`.
    """

    backbone: nn.Module
    averaged: int
    settings: Any

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters to train."""

    def view(self, rows: IntArray, number: int) -> Tensor:
        """Return a fixed view of the images of some rows of X: (N, ...)."""

    def augmented(self, rows: IntArray, rng: np.random.Generator) -> Tensor:
        """Return them with random augmentation, for training."""


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
        Where a method of several steps saves each of them, and continues from the last one of the
        same data and settings.
    checked : CheckedTargets, optional
        How many targets a person called known or unknown: an audit overrules the estimate of the
        share of unknowns.
    """

    progress: ProgressListener | None = None
    images: TrainableImages | None = None
    checkpoints: CheckpointStore | None = None
    checked: CheckedTargets | None = None
