"""One step of training: draw episodes, pass the graph through, move the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from opensetda.errors import InputError
from opensetda.nn.inputs import TrainingInputs
from opensetda.nn.parts import make_accelerator, make_optimiser, reversal_strength
from opensetda.nn.settings import OptimiserSettings
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.losses import class_mean_loss, graph_losses
from opensetda.pgl.network import PGLNetwork, class_sums
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.spread import whitening_within_classes
from opensetda.progress import ProgressEvent, ProgressListener


@dataclass(frozen=True)
class LabelledSamples:
    """Both domains, aligned, with the labels they have at some step."""

    source: Tensor
    """(n_s, d)."""
    source_labels: Tensor
    target: Tensor
    """(n_t, d)."""
    pseudo_labels: Tensor
    """(n_t,): class, C for unknown, -1 for none."""
    progress: float
    """m * alpha, the share of targets that have a pseudo-label."""


@dataclass
class Position:
    """How far a training has come: the step (from 0), its iterations, their losses' sums."""

    step: int = 0
    iteration: int = 0
    sums: dict[str, float] = field(default_factory=dict)


class Trained(NamedTuple):
    """Iterations of a step, mean losses by name, total loss of this call's last iteration."""

    iterations: int
    losses: dict[str, float] | None
    last_loss: float | None


class Trainer:
    """The network with its optimiser; `rng` draws the episodes."""

    def __init__(
        self, inputs: TrainingInputs, n_classes: int, settings: PGLSettings, rng: Generator
    ) -> None:
        self.inputs, self.n_classes, self.settings, self.rng = inputs, n_classes, settings, rng
        self.accelerator = make_accelerator(settings.finetune.precision if inputs.learned else "no")
        self.device = self.accelerator.device
        if self.accelerator.mixed_precision == "fp16" and self.device.type == "cpu":
            raise InputError("setting finetune.precision=fp16: needs a GPU; use bf16 or no")
        inputs.to(self.device)
        self.class_means = torch.zeros(n_classes, inputs.source.shape[1], device=self.device)
        self.use_network(self._new_network())

    def _new_network(self) -> PGLNetwork:
        width, graph = self.inputs.source.shape[1], self.settings.graph
        adapts = self.inputs.learned is None or graph.scatter_ridge is not None
        return PGLNetwork(width, self.n_classes, graph, adapts)

    def use_network(self, network: PGLNetwork) -> None:
        """Train this network from now on, with a new optimiser."""
        self.network = network.to(self.device)
        rates, fused = self.settings.optimiser, self.settings.graph.form == "paper"
        optimiser = make_optimiser(network, rates, self.inputs.parameters(), fused)
        # Not the network: it is small, sensitive, and would be cast to the mixed precision, too.
        self.optimiser: torch.optim.Optimizer = self.accelerator.prepare(optimiser)

    def train_step(
        self,
        samples: LabelledSamples,
        steps: int,
        position: Position,
        progress: ProgressListener | None = None,
        save: Callable[[Position], None] | None = None,
    ) -> Trained:
        """Train on new episodes, from `position` on; `save` is called after every update."""
        schedule, step = self.settings.optimiser, position.step
        if step and not schedule.warm_start and not position.iteration:
            self.accelerator.free_memory()
            self.inputs.start_anew()
            self.use_network(self._new_network())
        if step and not position.iteration:
            self.whiten(samples)
        if not position.iteration:
            # Later the rows are those of a backbone that is no more.
            self.class_means = mean_directions(samples, self.n_classes)
        labels = samples.source_labels.cpu().numpy(), samples.pseudo_labels.cpu().numpy()
        episodes = self.settings.episodes
        sampler = EpisodeSampler(*labels, self.n_classes, samples.progress, episodes)
        queries = sampler.n_drawn * sampler.episodes
        per_epoch = schedule.iterations_per_epoch or max(1, -(-len(samples.target) // queries))
        epochs = schedule.epochs_per_step if step else schedule.first_step_epochs
        earlier = schedule.first_step_epochs + (step - 1) * schedule.epochs_per_step if step else 0
        total = (
            per_epoch * epochs if any_loss(self.settings, self.inputs.learned is not None) else 0
        )
        accumulate = self.settings.finetune.accumulate if self.inputs.learned else 1
        loss: float | None = None
        for iteration in range(position.iteration, total):
            # A network that is new at every step has a new schedule, too.
            epoch = iteration // per_epoch + (earlier if schedule.warm_start else 0)
            set_rates(self.optimiser, schedule, epoch)
            strength = reversal_strength((step + iteration / total) / steps)
            losses = self.backward(sampler, strength, accumulate)
            for name, value in losses.items():
                position.sums[name] = position.sums.get(name, 0.0) + value
            done, loss = iteration + 1, sum(losses.values())
            if progress is not None:
                place = step + 1, steps, done, total + 1
                message = "labelling" if done == total else ""
                ends = self.inputs.refresh_seconds
                progress(
                    ProgressEvent(*place, loss, message, per_epoch * earlier + done, ending=ends)
                )
            # The last gradients of a step do not wait for the next step.
            if done % accumulate == 0 or done == total:
                if self.inputs.learned is not None:
                    self.inputs.share_gradients()
                self.optimiser.step()
                self.optimiser.zero_grad(set_to_none=True)
                position.iteration = done
                if save is not None:
                    save(position)
        means = {name: value / total for name, value in position.sums.items()} if total else None
        return Trained(total, means, loss)

    def whiten(self, samples: LabelledSamples) -> None:
        """Set the adapter by the spread within classes, the more so the more targets have a label.

        The losses then train it further.
        """
        change, graph = self.network.backbone.change, self.settings.graph
        if change is None or graph.scatter_ridge is None or graph.form == "paper":
            return
        source = samples.source, samples.source_labels
        domains = [source, (samples.target, samples.pseudo_labels)]
        whitening = whitening_within_classes(domains, self.n_classes, graph.scatter_ridge)
        if whitening is not None:
            with torch.no_grad():
                identity = torch.eye(len(whitening), device=whitening.device)
                change.weight.copy_(samples.progress * (whitening - identity))

    def backward(
        self, sampler: EpisodeSampler, strength: float, accumulate: int = 1
    ) -> dict[str, float]:
        """Draw one graph, add the gradients of its losses (Eq. 11), and return these by name."""
        batch = sampler.draw(self.rng)
        arrays = batch.index, batch.is_target, batch.labels, ~batch.pseudo_unknown
        index, is_target, labels, aligned = (torch.from_numpy(a).to(self.device) for a in arrays)
        self.network.train()
        with self.accelerator.autocast():
            x = self._rows(index, is_target)
        output, adversary = self.network(x.float(), labels), self.network.discriminator
        nodes, weights = (labels, is_target, aligned), self.settings.losses
        losses = graph_losses(output, *nodes, adversary, strength, weights)
        if weights.means and self.inputs.learned is not None:
            losses["means"] = weights.means * class_mean_loss(x.float(), labels, self.class_means)
        self.accelerator.backward(torch.stack(list(losses.values())).sum() / accumulate)
        return {name: float(value.detach()) for name, value in losses.items()}

    def _rows(self, index: Tensor, is_target: Tensor) -> Tensor:
        """Return the rows of a graph: looked up, or from the images by the backbone that learns."""
        if self.inputs.learned is not None:
            return self.inputs.of_graph(index, is_target, self.rng)
        x = self.inputs.source.new_empty(len(index), self.inputs.source.shape[1])
        x[~is_target] = self.inputs.source[index[~is_target]]
        x[is_target] = self.inputs.target[index[is_target]]
        return x


def any_loss(settings: PGLSettings, has_images: bool) -> bool:
    """Whether any loss is switched on."""
    losses, edge = settings.losses, settings.losses.edge and settings.graph.enabled
    return bool(losses.node or losses.adversary or edge or (losses.means and has_images))


def set_rates(optimiser: torch.optim.Optimizer, settings: OptimiserSettings, epoch: int) -> None:
    """Decay both learning rates by `decay` every `decay_every` epochs."""
    factor = settings.decay ** (epoch // settings.decay_every)
    for group in optimiser.param_groups:
        rate = settings.backbone_rate if group["name"] == "backbone" else settings.graph_rate
        group["lr"] = rate * factor


def mean_directions(samples: LabelledSamples, n_classes: int) -> Tensor:
    """Return the mean direction of each class, of source and labelled targets alike: (C, d)."""
    means = torch.zeros(n_classes, samples.source.shape[1], device=samples.source.device)
    source = samples.source, samples.source_labels
    for rows, labels in (source, (samples.target, samples.pseudo_labels)):
        means += F.normalize(class_sums(rows, labels, n_classes)[0], dim=1)
    return F.normalize(means, dim=1)
