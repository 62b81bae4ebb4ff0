"""Every setting of training a backbone, with one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from opensetda.errors import checked_settings

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]

PREFIX = "finetune."
"""What the names of these settings begin with, among those of a method."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class FineTuneSettings:
    """How an image backbone is trained; those in `OF_ROUNDS` if the method does not train it."""

    rounds: Annotated[int, Field(ge=0)] = 3
    """Rounds of training; the targets are labelled before the first and after each."""
    iterations: Count = 75
    """Batches per round."""
    rate: Annotated[float, Field(gt=0)] = 3e-4
    """Learning rate of Adam."""
    labelled: Share = 0.6
    """The surest share of targets that has labels at the end; round m of M trains on m / (M + 1)
    of it."""
    per_class: Annotated[int, Field(ge=2)] = 12
    """Labelled images of each class in a batch, at most, and as many targets."""
    batch_size: Annotated[int, Field(ge=8)] = 96
    """Images in a batch, at most: with many classes fewer of each, and some of the classes."""
    crop: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Smallest share of the image area in a random crop; 1 uses the whole image."""
    flip: bool = True
    """Mirror half of the images; switch off for digits, letters or signs."""
    stored: Count = 6
    """Stored views per image with `--finetune last`: those of `--views`, then random ones."""
    colour: Share = 0.4
    """Largest change of brightness, contrast and saturation in stored views; 0: no grey either."""
    stages: str = ""
    """With `--finetune all`, modules to train, by how their names begin (a,b); all if empty."""

    @property
    def views(self) -> int:
        """How many views of an image are averaged, if mirrored and grey ones may be."""
        return 4 if self.flip and self.colour else 1

    @classmethod
    def of(cls, changes: Mapping[str, Any]) -> Self:
        """Return the defaults with changes by name; values may be text of a command line."""
        return checked_settings(cls, changes, PREFIX)


OF_ROUNDS = ("rounds", "iterations", "rate", "labelled", "per_class", "batch_size")
