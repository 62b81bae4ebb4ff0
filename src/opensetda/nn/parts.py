"""Parts that PGL and its rivals share: adapter, domain discriminator, optimiser, device."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from opensetda.nn.settings import OptimiserSettings
from opensetda.system.memory import check_free

# Bytes per weight of an adapter: weight, gradient, two moments of Adam, and in double precision.
_PER_WEIGHT = 24.0
# Up to this width there is always memory for it.
WIDEST = 4096


def zero_linear(width_in: int, width_out: int) -> nn.Linear:
    """Return a linear map that starts as zero, so that what it is added to is unchanged."""
    linear = nn.Linear(width_in, width_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Adapter(nn.Module):
    r"""Replaces the backbone where samples are feature rows.

    .. math:: v^{(0)} = x + W x + b, \quad W = 0, b = 0 \text{ at the start}

    If an image backbone is trained (`learns` is False), W and b are left out.

    Shapes: x (N, D) -> (N, D), of unit length if `unit` is set.
    """

    def __init__(self, width: int, unit: bool, learns: bool = True) -> None:
        super().__init__()
        if learns and width > WIDEST:
            advice = "take fewer columns, or --set alignment.components=64"
            check_free(_PER_WEIGHT * width**2, f"a network for {width} columns", advice)
        self.change = zero_linear(width, width) if learns else None
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Adapt rows."""
        adapted: Tensor = x if self.change is None else x + self.change(x)
        return F.normalize(adapted, dim=1) if self.unit else adapted


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
    r"""The domain classifier D: tells source from target, against the backbone (DANN).

    One backward pass trains both sides of Eq. 11: the discriminator minimises the loss, and
    the backbone, behind the reversed gradient, maximises it.

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


def make_accelerator(precision: str) -> Accelerator:
    """Return accelerate's choice of device, with this mixed precision."""
    state = AcceleratorState._shared_state
    if state and state.get("_mixed_precision", precision) != precision:
        # It refuses a second precision in one process, and has no public way to start over.
        AcceleratorState._reset_state()
    return Accelerator(mixed_precision=precision)


def make_optimiser(
    network: nn.Module,
    settings: OptimiserSettings,
    backbone: list[nn.Parameter] | None = None,
    fused: bool = False,
) -> torch.optim.Adam:
    """Adam with the paper's two groups: the backbone has a smaller learning rate than the rest.

    `backbone` are the trained parameters of an image backbone. Feature rows have an adapter
    instead, the module `backbone` of the network. `fused` updates all weights in one pass: many
    of them are updated faster, equal up to rounding.
    """
    adapter = list(network.get_submodule("backbone").parameters())
    theirs = {id(parameter) for parameter in adapter}
    rest = [p for p in network.parameters() if id(p) not in theirs]
    slow = {"params": [*adapter, *(backbone or [])], "lr": settings.backbone_rate}
    fast = {"params": rest, "lr": settings.graph_rate}
    groups: Any = [slow | {"name": "backbone"}, fast | {"name": "graph"}]
    return torch.optim.Adam(groups, weight_decay=settings.weight_decay, fused=fused or None)
