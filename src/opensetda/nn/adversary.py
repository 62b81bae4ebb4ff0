"""The domain discriminator and the gradient reversal before it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class _Reverse(torch.autograd.Function):
    """Identity forward; the gradient times -strength backward."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return v.view_as(v)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return -ctx.strength * grads[0], None


def reverse_gradient(v: Tensor, strength: float) -> Tensor:
    """Return `v` unchanged; its gradient is multiplied by ``-strength``."""
    reverse: Any = _Reverse.apply
    reversed_: Tensor = reverse(v, strength)
    return reversed_


class Discriminator(nn.Module):
    r"""D of Eq. 9: tells source from target, while the backbone learns to prevent it.

    One backward pass serves both players: the discriminator descends the loss, the
    backbone, behind a reversed gradient, ascends it.

    Shapes: v (N, D) -> logits (N,), positive for target.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = min(width, 256)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1))

    def forward(self, v: Tensor, strength: float) -> Tensor:
        """Score the nodes; `strength` scales the reversed gradient."""
        logits: Tensor = self.layers(reverse_gradient(v, strength)).squeeze(-1)
        return logits


def reversal_strength(progress: float) -> float:
    r"""Ramp from 0 to 1 over the training, :math:`2 / (1 + e^{-10 p}) - 1` (DANN)."""
    return 2 / (1 + math.exp(-10 * progress)) - 1
