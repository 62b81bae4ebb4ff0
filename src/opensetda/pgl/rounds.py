"""Several graphs an update, dealt out to the processes of a team.

Graph g of every update draws from random numbers of its own, and gradients are added up in the
order of the graphs. So it does not matter which process works on a graph, nor how many processes
there are: the weights move by the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from opensetda.errors import InputError
from opensetda.system.team import Team


@dataclass
class Stream:
    """The random numbers of one graph of every update.

    Attributes
    ----------
    rng : numpy Generator
        Draws episodes and augmentations.
    torch_state : Tensor or None
        Draws dropout; None is the first stream's, which uses torch's own generator.
    """

    rng: np.random.Generator
    torch_state: Tensor | None

    @contextmanager
    def drawing(self) -> Iterator[np.random.Generator]:
        """Have torch draw from this stream, too."""
        if self.torch_state is None:
            yield self.rng
            return
        outer = torch.get_rng_state()
        torch.set_rng_state(self.torch_state)
        try:
            yield self.rng
        finally:
            self.torch_state = torch.get_rng_state()
            torch.set_rng_state(outer)

    def state(self) -> dict[str, Any]:
        """Return where the stream is, as JSON can hold it."""
        bits = torch.get_rng_state() if self.torch_state is None else self.torch_state
        return {"numpy": self.rng.bit_generator.state, "torch": bits.numpy().tobytes().hex()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to where `state` was."""
        self.rng.bit_generator.state = state["numpy"]
        bits = torch.frombuffer(bytearray.fromhex(state["torch"]), dtype=torch.uint8)
        if self.torch_state is None:
            torch.set_rng_state(bits)
        else:
            self.torch_state = bits


class Streams:
    """The streams of all graphs of an update; those of this process move on, the others wait.

    Parameters
    ----------
    rng : numpy Generator
        The first stream; the others are its children, which it does not notice.
    graphs : int
        How many.
    """

    def __init__(self, rng: np.random.Generator, graphs: int, team: Team) -> None:
        if graphs % team.size:
            raise InputError(
                f"setting optimiser.graphs={graphs}: cannot be dealt out to {team.size} processes; "
                f"give a multiple of {team.size}, or start another number of processes"
            )
        self.team = team
        self.all = [Stream(rng, None)]
        for child in rng.spawn(graphs - 1) if graphs > 1 else []:
            generator = torch.Generator().manual_seed(int(child.integers(2**63 - 1)))
            self.all.append(Stream(child, generator.get_state()))

    def own(self) -> list[tuple[int, Stream]]:
        """Return the graphs of this process with their streams."""
        return list(enumerate(self.all))[self.team.rank :: self.team.size]

    def share(self) -> None:
        """Let every process know where all streams are."""
        if self.team.size == 1:
            return
        mine = {str(number): stream.state() for number, stream in self.own()}
        for states in self.team.gather_bytes(json.dumps(mine).encode()):
            for number, state in json.loads(states).items():
                self.all[int(number)].load_state(state)

    def states(self) -> list[dict[str, Any]]:
        """Return where all streams are; `share` first."""
        return [stream.state() for stream in self.all]

    def load_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Go to where `states` were."""
        for stream, state in zip(self.all, states, strict=True):
            stream.load_state(state)


class GraphAverage:
    """Averages gradients, buffers and losses of the graphs of one update.

    A single graph leaves its gradients where they are. Of several, each begins with the same
    buffers (those of batch normalisation), and their mean stays.

    Parameters
    ----------
    parameters : list of Parameter
        What is learned.
    modules : list of Module
        Whose buffers may move in training.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        modules: Sequence[nn.Module],
        graphs: int,
        team: Team,
    ) -> None:
        self.parameters, self.graphs, self.team = parameters, graphs, team
        every = [buffer for module in modules for buffer in module.buffers()]
        self.buffers = [buffer for buffer in every if torch.is_floating_point(buffer)]
        # How many batches batch normalisation has seen: each graph counts on from the start.
        self.counters = [buffer for buffer in every if not torch.is_floating_point(buffer)]
        self._counted = [counter.clone() for counter in self.counters]
        self._learning: set[int] = set()
        self._moved: dict[int, Tensor] = {}
        self._losses: dict[int, list[list[float]]] = {}
        self._start = self._flat_buffers()

    def begin(self, graph: int) -> None:
        """Put the buffers as this graph has them."""
        if self.graphs > 1 and self.buffers:
            if not self._moved:
                self._start = self._flat_buffers()
                self._counted = [counter.clone() for counter in self.counters]
            for counter, start in zip(self.counters, self._counted, strict=True):
                counter.copy_(start + len(self._losses.get(graph, [])))
            held = self._moved.get(graph)
            self._put_buffers(self._start if held is None else held[-len(self._start) :])

    def take(self, graph: int, losses: list[float]) -> None:
        """Take in what the backward pass of a graph has left, and its losses."""
        self._losses.setdefault(graph, []).append(losses)
        if self.graphs == 1:
            return
        gradients = _flat([_gradient(parameter) for parameter in self.parameters])
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self._learning.add(number)
            parameter.grad = None
        if graph in self._moved:
            gradients += self._moved[graph][: len(gradients)]
        self._moved[graph] = torch.cat([gradients, self._flat_buffers()])

    @torch.no_grad()
    def finish(self, flag: bool) -> tuple[list[list[float]], bool]:
        """Put the averages in place; returns all losses by graph, and the first process's flag."""
        rounds = len(next(iter(self._losses.values())))
        losses = [losses for graph in sorted(self._losses) for losses in self._losses[graph]]
        if self.graphs > 1:
            own = [self._moved[graph] for graph in sorted(self._moved)]
            numbers = torch.tensor([*np.ravel(losses), float(flag)], dtype=torch.float64)
            # One message: the bits of the losses travel with the gradients.
            message = torch.cat([*own, numbers.view(torch.float32).to(own[0].device)])
            parts = self.team.gather_tensor(message)
            length = len(own[0])
            by_process = [part[: len(own) * length].view(len(own), length) for part in parts]
            moved = torch.stack(by_process, dim=1).view(self.graphs, length)
            self._put(moved)
            tails = [part[len(own) * length :].cpu().clone().view(torch.float64) for part in parts]
            flag = bool(tails[0][-1])
            in_order = torch.stack([tail[:-1].view(len(own), -1) for tail in tails], dim=1)
            losses = in_order.reshape(self.graphs * rounds, -1).tolist()
        self._moved.clear()
        self._losses.clear()
        self._learning.clear()
        # As they were drawn: round by round, graph by graph.
        order = np.arange(len(losses)).reshape(-1, rounds).T.ravel()
        return [losses[place] for place in order], flag

    def _put(self, moved: Tensor) -> None:
        """Set gradients to the sum and buffers to the mean over graphs: (G, numbers)."""
        total = moved[0].clone()
        for graph in moved[1:]:
            # One after the other: a sum in another order has other bits.
            total += graph
        place = 0
        for number, parameter in enumerate(self.parameters):
            size = parameter.numel()
            # Without a gradient nothing pulls at a parameter, not even the weight decay.
            if number in self._learning:
                parameter.grad = total[place : place + size].view_as(parameter).clone()
            place += size
        if self.buffers:
            self._put_buffers(total[place:] / self.graphs)

    def _flat_buffers(self) -> Tensor:
        if not self.buffers:
            return torch.empty(0, device=self.parameters[0].device if self.parameters else None)
        return _flat([buffer.detach() for buffer in self.buffers])

    @torch.no_grad()
    def _put_buffers(self, values: Tensor) -> None:
        place = 0
        for buffer in self.buffers:
            buffer.copy_(values[place : place + buffer.numel()].view_as(buffer))
            place += buffer.numel()


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors])


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
