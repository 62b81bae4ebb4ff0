"""Training in the processes of ``accelerate launch``; in a single one nothing here does anything.

Each process draws batches of its own, gradients are averaged, and so all have the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, reduce
from torch import Tensor, nn

T = TypeVar("T")


def this_process() -> PartialState:
    """Return accelerate's record of this process and its device."""
    # Without a GPU it must be told, or it takes each of several processes for the only one.
    return PartialState(cpu=not torch.accelerator.is_available())


def own_seed(*seed: int) -> list[int]:
    """Return the seed of this process's draws; that of the first process is `seed`."""
    index = this_process().process_index
    return [*seed, index] if index else [*seed]


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace gradients by their mean over the processes."""
    if this_process().num_processes > 1:
        for parameter in parameters:
            if parameter.requires_grad:
                # A process whose batch left a part out has to take part all the same.
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = reduce(own, "mean")


def average_buffers(module: nn.Module) -> None:
    """Replace running statistics by their mean over the processes."""
    for buffer in module.buffers() if this_process().num_processes > 1 else ():
        if buffer.is_floating_point():
            buffer.copy_(reduce(buffer, "mean"))


def from_main(value: T) -> T:
    """Return the value that the first process has."""
    values: list[T] = broadcast_object_list([value])
    return values[0]


def in_shares(n: int, compute: Callable[[int, int], Tensor]) -> Tensor:
    """Return rows 0 to n, of which each process computes a share, `compute(start, stop)`."""
    state = this_process()
    if state.num_processes == 1:
        return compute(0, n)
    size = -(-n // state.num_processes)
    own = compute(min(n, size * state.process_index), min(n, size * (state.process_index + 1)))
    return torch.cat(gather_object([own.cpu()])).to(state.device)
