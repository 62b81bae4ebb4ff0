"""The small trainable layer in the backbone's place where samples are feature rows."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def zero_linear(width_in: int, width_out: int) -> nn.Linear:
    """Return a linear map that starts as zero, so that what it is added to is unchanged."""
    linear = nn.Linear(width_in, width_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Adapter(nn.Module):
    r"""Stands in the backbone's place when samples are feature rows.

    .. math:: v^{(0)} = x + W x + b, \quad W = 0, b = 0 \text{ at the start}

    Where a backbone learns, there is nothing left to adapt, and W and b are left out.

    Shapes: x (N, D) -> (N, D), of unit length where `unit` is set.
    """

    def __init__(self, width: int, unit: bool, learns: bool = True) -> None:
        super().__init__()
        self.change = zero_linear(width, width) if learns else None
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Adapt rows."""
        adapted: Tensor = x if self.change is None else x + self.change(x)
        return F.normalize(adapted, dim=1) if self.unit else adapted
