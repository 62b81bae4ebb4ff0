"""The contract of every rejector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from opensetda.openness.decision import Scores
from opensetda.rows import IntArray


class Rejector(nn.Module, ABC):
    """Scores how likely samples are of a known class, and may have a boundary of its own."""

    needs_logits: ClassVar[bool] = True
    """Whether `forward` uses the logits of a classifier. If not, none needs to be trained."""
    kept: ClassVar[tuple[str, ...]] = ()
    """The buffers that `forward` needs."""

    @abstractmethod
    def fit(self, features: Tensor, y: IntArray, n_classes: int) -> None:
        """Learn from adapted source rows (n, d) in canonical order and their class indices."""

    @abstractmethod
    def forward(self, features: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score adapted rows (m, d), each on its own, with a classifier's logits (m, C).

        Returns class logits (m, C), its own if the rejector is a classifier itself, and known
        scores (m,).
        """

    def own_cut(self, scores: Scores) -> float | None:
        """Return the known score below which a sample is unknown, given the targets' scores.

        None if there is no boundary: then the share of unknowns decides.
        """
        return None

    def keep(self, values: Mapping[str, Any]) -> None:
        """Register what `forward` needs, learned or saved; a missing name is a `KeyError`."""
        for name in self.kept:
            self.register_buffer(name, torch.as_tensor(values[name]).contiguous())
