"""The network with its optimiser, and one step of training them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from opensetda.errors import InputError
from opensetda.nn.adversary import reversal_strength
from opensetda.nn.inputs import TrainingInputs
from opensetda.nn.optimiser import make_accelerator, make_optimiser
from opensetda.nn.settings import OptimiserSettings
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.inference import LabelledSamples
from opensetda.pgl.losses import graph_losses
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.rounds import GraphAverage, Streams
from opensetda.pgl.settings import PGLSettings
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.system.team import ALONE, Team


@dataclass
class Position:
    """How far a training has come.

    Attributes
    ----------
    step : int
        The step under way, from 0.
    iteration : int
        Its graphs that are done.
    sums : dict
        Their losses, added up.
    """

    step: int = 0
    iteration: int = 0
    sums: dict[str, float] = field(default_factory=dict)


class Trainer:
    """The network with its optimiser, and one step of training them.

    Parameters
    ----------
    inputs : TrainingInputs
        The rows, or the images with their backbone.
    n_classes : int
        C.
    rng : numpy Generator
        Draws the episodes.
    team : Team
        The processes that the graphs of an update are dealt out to.
    """

    def __init__(
        self,
        inputs: TrainingInputs,
        n_classes: int,
        settings: PGLSettings,
        rng: np.random.Generator,
        team: Team = ALONE,
    ) -> None:
        self.inputs, self.n_classes = inputs, n_classes
        self.settings, self.rng = settings, rng
        self.team, self.graphs = team, settings.optimiser.graphs or team.size
        self.streams = Streams(rng, self.graphs, team)
        self._names: list[str] = []
        """Of the losses."""
        self.accelerator = make_accelerator(settings.finetune.precision if inputs.learned else "no")
        self.device = self.accelerator.device
        if self.accelerator.mixed_precision == "fp16" and self.device.type == "cpu":
            raise InputError("setting finetune.precision=fp16: needs a GPU; use bf16 or no")
        inputs.to(self.device)
        self.use_network(self._new_network())

    def _new_network(self) -> PGLNetwork:
        width = self.inputs.source.shape[1]
        return PGLNetwork(width, self.n_classes, self.settings.graph, self.inputs.learned is None)

    def use_network(self, network: PGLNetwork) -> None:
        """Train this network from now on, with a fresh optimiser."""
        self.network = network.to(self.device)
        optimiser = make_optimiser(network, self.settings.optimiser, self.inputs.parameters())
        # Not the network: it is small, sensitive, and would be cast to the mixed precision, too.
        self.optimiser: torch.optim.Optimizer = self.accelerator.prepare(optimiser)
        learned = self.inputs.learned
        self.average = GraphAverage(
            [parameter for group in optimiser.param_groups for parameter in group["params"]],
            [network] if learned is None else [network, learned],
            self.graphs,
            self.team,
        )

    def train_step(
        self,
        samples: LabelledSamples,
        steps: int,
        position: Position,
        report: Reporter,
        saver: Saver | None = None,
    ) -> dict[str, float] | None:
        """Train on fresh episodes, from `position` on.

        Returns the mean of each loss, None without training. Whenever the weights have moved,
        `saver` is asked whether to keep them.
        """
        schedule, step = self.settings.optimiser, position.step
        if step and not schedule.warm_start and not position.iteration:
            self.streams.share()
            self.accelerator.free_memory()
            self.inputs.start_anew()
            self.use_network(self._new_network())
        sampler = EpisodeSampler(
            samples.source_labels.cpu().numpy(),
            samples.pseudo_labels.cpu().numpy(),
            self.n_classes,
            samples.progress,
            self.settings.episodes,
        )
        queries = sampler.n_drawn * sampler.episodes
        per_epoch = schedule.iterations_per_epoch or max(1, -(-len(samples.target) // queries))
        total = per_epoch * (schedule.epochs_per_step if step else schedule.first_step_epochs)
        # Every update has all of its graphs.
        total = -(-total // self.graphs) * self.graphs
        if not any_loss(self.settings):
            total = 0
        report.iterations = total
        # Of the same length every time: what is left of a run that was cut counts on.
        earlier = schedule.first_step_epochs + (step - 1) * schedule.epochs_per_step if step else 0
        report.earlier = per_epoch * earlier if total else 0
        accumulate = self.settings.finetune.accumulate if self.inputs.learned else 1
        for iteration in range(position.iteration, total, self.graphs):
            epoch = epochs_before(step, schedule) + iteration // per_epoch
            set_rates(self.optimiser, schedule, epoch)
            strength = reversal_strength((step + iteration / total) / steps)
            losses = self.iterate(sampler, strength, accumulate)
            done = iteration + self.graphs
            report.trained(done, sum(losses.values()))
            # Gradients of a step's last graphs do not wait for the next step's.
            if (done // self.graphs) % accumulate == 0 or done == total:
                due = self.update(position, saver is not None and saver.is_due())
                position.iteration = done
                if saver is not None and due:
                    self.streams.share()
                    saver.save(position)
        # Whoever labels the targets draws from the first stream.
        self.streams.share()
        return {name: value / total for name, value in position.sums.items()} if total else None

    def iterate(
        self, sampler: EpisodeSampler, strength: float, accumulate: int = 1
    ) -> dict[str, float]:
        """Forward and backward pass of this process's graphs of one update.

        Returns the mean losses of these graphs by name.
        """
        means: dict[str, float] = {}
        own = self.streams.own()
        for graph, stream in own:
            self.average.begin(graph)
            with stream.drawing() as rng:
                losses = self._losses(sampler, strength, rng)
                total = torch.stack(list(losses.values())).sum()
                self.accelerator.backward(total / (accumulate * self.graphs))
            values = {name: float(value.detach()) for name, value in losses.items()}
            self.average.take(graph, list(values.values()))
            self._names = list(values)
            for name, value in values.items():
                means[name] = means.get(name, 0.0) + value / len(own)
        return means

    def update(self, position: Position, flag: bool = False) -> bool:
        """Move the weights by the gradients of all graphs since the last time.

        Adds their losses to those of `position`. `flag` is the first process's, which all get.
        """
        all_losses, flag = self.average.finish(flag)
        for losses in all_losses:
            for name, value in zip(self._names, losses, strict=True):
                position.sums[name] = position.sums.get(name, 0.0) + value
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return flag

    def _losses(
        self, sampler: EpisodeSampler, strength: float, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """Draw one graph, pass it through the network and return the losses by name."""
        batch = sampler.draw(rng)
        index = torch.from_numpy(batch.index).to(self.device)
        is_target = torch.from_numpy(batch.is_target).to(self.device)
        labels = torch.from_numpy(batch.labels).to(self.device)
        self.network.train()
        with self.accelerator.autocast():
            x = self.inputs.of_graph(index, is_target, rng)
        return graph_losses(
            self.network(x.float(), labels),
            labels,
            is_target,
            ~torch.from_numpy(batch.pseudo_unknown).to(self.device),
            self.network.discriminator,
            strength,
            self.settings.losses,
        )


class Saver(Protocol):
    """Keeps the weights from time to time."""

    def is_due(self) -> bool:
        """Whether it is time; the first process decides."""
        ...

    def save(self, position: Position) -> None:
        """Keep what moves in training."""
        ...


class Reporter:
    """Tells a listener how far a step is; labelling all targets counts as one iteration."""

    def __init__(self, listener: ProgressListener | None, step: int, steps: int) -> None:
        self.listener, self.step, self.steps = listener, step, steps
        self.iterations = 0
        self.earlier = 0
        """Training iterations of the steps before."""
        self.loss: float | None = None

    def trained(self, iteration: int, loss: float) -> None:
        """Tell that a training iteration is done."""
        self.loss = loss
        message = "labelling" if iteration == self.iterations else ""
        self._tell(iteration, message, updates=self.earlier + iteration)

    def finished(self, entry: Mapping[str, Any]) -> None:
        """Tell that all targets have been scored and ranked, and what is said of the step."""
        self._tell(self.iterations + 1, "", entry=entry)

    def _tell(
        self,
        iteration: int,
        message: str,
        updates: int | None = None,
        entry: Mapping[str, Any] | None = None,
    ) -> None:
        if self.listener is not None:
            place = self.step, self.steps, iteration, self.iterations + 1
            self.listener(ProgressEvent(*place, self.loss, message, updates, entry))


def any_loss(settings: PGLSettings) -> bool:
    """Whether there is anything to learn from."""
    losses = settings.losses
    return bool(losses.node or losses.adversary or (losses.edge and settings.graph.enabled))


def epochs_before(step: int, settings: OptimiserSettings) -> int:
    """Count the epochs that lie behind a network at the start of a step, counted from 0."""
    if not step or not settings.warm_start:
        return 0
    return settings.first_step_epochs + (step - 1) * settings.epochs_per_step


def set_rates(optimiser: torch.optim.Optimizer, settings: OptimiserSettings, epoch: int) -> None:
    """Decay both learning rates by `decay` every `decay_every` epochs."""
    factor = settings.decay ** (epoch // settings.decay_every)
    for group in optimiser.param_groups:
        rate = settings.backbone_rate if group["name"] == "backbone" else settings.graph_rate
        group["lr"] = rate * factor
