"""What the tests of the rivals with a network share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opensetda.methods.network import Batch

NAMES = np.array(["ant", "bee", "cat", "dog"])


@dataclass(frozen=True)
class ShiftedTask:
    """Three known classes far apart, one unknown, and a target that lies elsewhere."""

    X: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    domain: np.ndarray[Any, Any]
    truth: np.ndarray[Any, Any]
    openness: float = 0.25

    @property
    def source(self) -> np.ndarray[Any, Any]:
        return self.X[self.domain >= 0]

    @property
    def target(self) -> np.ndarray[Any, Any]:
        return self.X[self.domain < 0]


def shifted_task(per_class: int = 20, width: int = 12, seed: int = 0) -> ShiftedTask:
    rng = np.random.default_rng(seed)
    centres = 6 * np.eye(4, width)
    source_class = np.repeat(np.arange(3), per_class)
    target_class = rng.permutation(np.repeat(np.arange(4), per_class))
    source = centres[source_class] + rng.normal(size=(len(source_class), width))
    shift = np.zeros(width)
    shift[-1] = 2.0
    target = centres[target_class] + shift + rng.normal(size=(len(target_class), width))
    return ShiftedTask(
        np.concatenate([source, target]).astype(np.float32),
        np.concatenate([NAMES[source_class], np.full(len(target), "")]),
        np.repeat([0, -1], [len(source), len(target)]),
        np.where(target_class < 3, NAMES[target_class], "unknown"),
    )


def tensor(rows: np.ndarray[Any, Any]) -> torch.Tensor:
    """Rows as a scorer takes them."""
    return torch.from_numpy(rows.astype(np.float64))


def random_batch(width: int, n_classes: int, rows: int = 8, progress: float = 0.5) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(
        torch.randn(rows, width, generator=generator),
        torch.arange(rows) % n_classes,
        torch.randn(rows, width, generator=generator) + 1,
        torch.arange(rows),
        progress,
    )
