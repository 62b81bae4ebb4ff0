"""Parts of learned methods: adapter, domain discriminator, optimiser."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opensetda.errors import InputError
from opensetda.system.memory import check_free

# Rows of the rivals are turned onto this many principal components, and not whitened.
COMPONENTS = 256
WHITENING = 0.0
WIDEST = 4096  # up to this width there is always memory for an adapter
# Bytes per weight of an adapter: weight, gradient, two moments of Adam, and in double precision.
_PER_WEIGHT = 24.0
WEIGHT_DECAY = 5e-4


def zero_linear(width_in: int, width_out: int) -> nn.Linear:
    """Return a linear map that starts as zero, so that what it is added to is unchanged."""
    linear = nn.Linear(width_in, width_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Leak(nn.Module):
    """Leaky ReLU; torch's own is exported with a slope in single precision: (N, d) -> (N, d)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x where it is positive, and a tenth of it elsewhere."""
        return torch.maximum(x, 0.1 * x)


class Adapter(nn.Module):
    """Replaces the backbone where samples are feature rows: x + W x + b, zeros at the start.

    If an image backbone is trained (`learns` is False), W and b are left out. Shapes: x (N, D) ->
    (N, D), of unit length if `unit` is set.
    """

    def __init__(self, width: int, unit: bool, learns: bool = True) -> None:
        super().__init__()
        if learns and width > WIDEST:
            what = f"a network for {width} columns"
            check_free(_PER_WEIGHT * width**2, what, "take fewer columns")
        self.change = zero_linear(width, width) if learns else None
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Adapt rows."""
        adapted: Tensor = x if self.change is None else x + self.change(x)
        return F.normalize(adapted, dim=1) if self.unit else adapted


def reverse_gradient(v: Tensor, strength: float) -> Tensor:
    """Return `v` unchanged; its gradient is multiplied by ``-strength``."""
    same = v.view_as(v)
    if same.requires_grad:
        hook: Any = same.register_hook
        hook(lambda gradient: -strength * gradient)
    return same


class Discriminator(nn.Module):
    """The domain classifier D (DANN): v (N, D) -> logits (N,), positive for target.

    One backward pass trains both sides of Eq. 11: D minimises the loss, and the backbone, behind
    the reversed gradient, maximises it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = min(width, 256)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1))

    def forward(self, v: Tensor, strength: float) -> Tensor:
        """Score the nodes; `strength` scales the reversed gradient."""
        return torch.squeeze(self.layers(reverse_gradient(v, strength)), -1)


def reversal_strength(progress: float) -> float:
    r"""Ramp from 0 to 1 over the training, :math:`2 / (1 + e^{-10 p}) - 1` (DANN)."""
    return 2 / (1 + math.exp(-10 * progress)) - 1


def given_module(given: Any, width: int) -> tuple[nn.Module, int]:
    """Return the module of a user for rows of this width, and the width of what it returns."""
    module = copy.deepcopy(given) if isinstance(given, nn.Module) else given(width)
    if not isinstance(module, nn.Module):
        raise InputError(f"module: {given!r} makes {type(module).__name__}; return an nn.Module")
    module.eval()
    with torch.no_grad():
        found = module(torch.zeros(2, width))
    if found.ndim != 2 or len(found) != 2:
        shape = tuple(found.shape)
        raise InputError(f"module: returns {shape} for two rows of {width} columns; return (2, h)")
    return module.train(), int(found.shape[1])


def make_optimiser(
    network: nn.Module,
    rate: float,
    backbone: list[nn.Parameter],
    momentum: bool = False,
    given: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """Adam, SGD with Nesterov momentum, or that of `given`; adapter and image backbone are slower.

    They have a tenth of the rate.

    Adam gives every principal component of the rows the same weight. That is a whitening, and
    costs heads that see the rows themselves about two points of HOS (OVANet, Office-31).
    """
    adapter = list(network.get_submodule("backbone").parameters())
    rest = [p for name, p in network.named_parameters() if not name.startswith("backbone.")]
    slow: dict[str, Any] = {"params": [*adapter, *backbone], "lr": rate / 10}
    groups = [slow, {"params": rest, "lr": rate}]
    if given is not None:
        return given(groups)
    if momentum:
        return torch.optim.SGD(groups, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)
    return torch.optim.Adam(groups, weight_decay=WEIGHT_DECAY)
