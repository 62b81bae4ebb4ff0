"""Device, precision and optimiser."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from opensetda.nn.settings import OptimiserSettings


def make_accelerator(precision: str) -> Accelerator:
    """Return accelerate's choice of device, with the precision asked for."""
    state = AcceleratorState._shared_state
    if state and state.get("_mixed_precision", precision) != precision:
        # It refuses a second precision in one process, and has no public way to start over.
        AcceleratorState._reset_state()
    return Accelerator(mixed_precision=precision)


def make_optimiser(
    network: torch.nn.Module,
    settings: OptimiserSettings,
    backbone: list[torch.nn.Parameter] | None = None,
) -> torch.optim.Adam:
    """Adam with the paper's two groups: the backbone learns more slowly than the rest.

    `backbone` are the parameters of an image backbone; feature rows have the adapter only, which
    the network calls `backbone`.
    """
    adapter = list(network.get_submodule("backbone").parameters())
    theirs = {id(parameter) for parameter in adapter}
    rest = [p for p in network.parameters() if id(p) not in theirs]
    return torch.optim.Adam(
        [
            {
                "params": [*adapter, *(backbone or [])],
                "lr": settings.backbone_rate,
                "name": "backbone",
            },
            {"params": rest, "lr": settings.graph_rate, "name": "graph"},
        ],
        weight_decay=settings.weight_decay,
    )
