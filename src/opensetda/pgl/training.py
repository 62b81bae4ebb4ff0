"""Progressive training: train, label all targets, rank them, train again."""

from __future__ import annotations

import copy
import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from opensetda.base import Scores
from opensetda.openness import OpennessTracker
from opensetda.pgl.adversary import reversal_strength
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.inference import LabelledSamples, transduce
from opensetda.pgl.losses import graph_losses
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.settings import OptimiserSettings, PGLSettings
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.rows import IntArray
from opensetda.stopping import KeptStep, StableStepRule


@dataclass(frozen=True)
class TrainingResult:
    """What a training leaves behind."""

    network: PGLNetwork
    """As it was at the step that is kept."""
    scores: Scores
    """Of all targets, by that network."""
    samples: LabelledSamples
    """Both domains with the labels that it was trained on."""
    history: list[dict[str, Any]]
    """An entry a step."""
    step_labels: list[IntArray]
    """The label of every target at every step; C is unknown."""
    kept: KeptStep
    """The step that is kept."""


def train(
    source: np.ndarray[Any, np.dtype[np.float32]],
    source_labels: IntArray,
    target: np.ndarray[Any, np.dtype[np.float32]],
    n_classes: int,
    openness: OpennessTracker,
    settings: PGLSettings,
    seed: int,
    progress: ProgressListener | None = None,
) -> TrainingResult:
    """Run the steps and go back to the one that is kept.

    Step m trains on episodes whose support holds pseudo-labelled targets with
    probability (m - 1) alpha, scores all targets with the network frozen, asks how many
    of them are unknown, and gives the surest and the least sure m alpha n_t their
    pseudo-labels for step m + 1 (Eq. 6). At m = M all targets have theirs.
    """
    n_targets = len(target)
    steps = settings.steps if n_targets else 1
    pseudo_labels: IntArray = np.full(n_targets, UNLABELLED, dtype=np.intp)
    rng = np.random.default_rng(seed)
    rule = StableStepRule(settings.stopping.band, settings.stopping.early)
    history: list[dict[str, Any]] = []
    step_labels: list[IntArray] = []
    snapshots: list[_Snapshot] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trainer = Trainer(source.shape[1], n_classes, settings, rng)
        unlabelled = LabelledSamples(
            torch.from_numpy(source).to(trainer.device),
            torch.from_numpy(source_labels).to(trainer.device),
            torch.from_numpy(target).to(trainer.device),
            torch.from_numpy(pseudo_labels).to(trainer.device),
            progress=0.0,
        )
        for step in range(steps):
            started = time.perf_counter()
            report = _Reporter(progress, step + 1, steps)
            snapshots.append(_Snapshot(pseudo_labels, step / steps))
            samples = snapshots[-1].samples(unlabelled)
            losses = trainer.train_step(samples, step, steps, report)
            if settings.stopping.band < 1:
                snapshots[-1].weights = copy.deepcopy(trainer.network.state_dict())
            # All steps are ranked by one draw; the one that is kept, by more of them.
            scores = transduce(trainer.network, samples, settings, rng, draws=1)
            report.labelled()
            share = openness.update(scores.known, scores.held_out, scores.nearest)
            rule.add(openness.estimates[-1])
            ranked = (scores.known, scores.nearest, share)
            step_labels.append(rank_pseudo_labels(*ranked, 1.0, n_classes))
            pseudo_labels = rank_pseudo_labels(
                *ranked, (step + 1) / steps, n_classes, settings.ranking.class_balance
            )
            history.append(
                {
                    "step": step + 1,
                    "steps": steps,
                    "progress": (step + 1) / steps,
                    "n_known": int(((pseudo_labels >= 0) & (pseudo_labels < n_classes)).sum()),
                    "n_unknown": int((pseudo_labels == n_classes).sum()),
                    "openness": share,
                    "openness_estimate": openness.estimates[-1],
                    "loss": losses,
                    "mean_score": float(scores.known.mean()) if n_targets else None,
                    "changed": float((step_labels[-1] != step_labels[-2]).mean()) if step else None,
                    "seconds": time.perf_counter() - started,
                }
            )
            if rule.should_stop:
                break
        kept = rule.kept()
        openness.keep(kept.step)
        snapshot = snapshots[kept.step - 1]
        if kept.step < kept.steps:
            trainer.network.load_state_dict(snapshot.weights)
        samples = snapshot.samples(unlabelled)
        scores = transduce(trainer.network, samples, settings, rng, settings.ranking.draws)
    return TrainingResult(trainer.network, scores, samples, history, step_labels, kept)


@dataclass
class _Snapshot:
    """What it takes to go back to a step."""

    pseudo_labels: IntArray
    progress: float
    weights: dict[str, Any] = field(default_factory=dict)

    def samples(self, unlabelled: LabelledSamples) -> LabelledSamples:
        return dataclasses.replace(
            unlabelled,
            pseudo_labels=torch.from_numpy(self.pseudo_labels).to(unlabelled.target.device),
            progress=self.progress,
        )


def any_loss(settings: PGLSettings) -> bool:
    """Whether there is anything to learn from."""
    losses = settings.losses
    return bool(losses.node or losses.adversary or (losses.edge and settings.graph.enabled))


class Trainer:
    """The network with its optimiser, and one step of training them.

    Parameters
    ----------
    width : int
        Features of a row.
    n_classes : int
        C.
    rng : numpy Generator
        Draws the episodes.
    """

    def __init__(
        self, width: int, n_classes: int, settings: PGLSettings, rng: np.random.Generator
    ) -> None:
        self.width, self.n_classes = width, n_classes
        self.settings, self.rng = settings, rng
        self.accelerator = Accelerator()
        self.device = self.accelerator.device
        self.use_network(self._new_network())

    def _new_network(self) -> PGLNetwork:
        return PGLNetwork(self.width, self.n_classes, self.settings.graph)

    def use_network(self, network: PGLNetwork) -> None:
        """Train this network from now on, with a fresh optimiser."""
        optimiser = make_optimiser(network, self.settings.optimiser)
        self.network: PGLNetwork
        self.optimiser: torch.optim.Optimizer
        self.network, self.optimiser = self.accelerator.prepare(network, optimiser)

    def train_step(
        self, samples: LabelledSamples, step: int, steps: int, report: _Reporter
    ) -> dict[str, float] | None:
        """Train on fresh episodes; returns the mean of each loss, None without training."""
        schedule = self.settings.optimiser
        if step and not schedule.warm_start:
            self.accelerator.free_memory()
            self.use_network(self._new_network())
        sampler = EpisodeSampler(
            samples.source_labels.cpu().numpy(),
            samples.pseudo_labels.cpu().numpy(),
            self.n_classes,
            samples.progress,
            self.settings.episodes,
        )
        queries = self.n_classes * sampler.episodes
        per_epoch = schedule.iterations_per_epoch or max(1, -(-len(samples.target) // queries))
        total = per_epoch * (schedule.epochs_per_step if step else schedule.first_step_epochs)
        if not any_loss(self.settings):
            total = 0
        report.iterations = total
        sums: dict[str, float] = {}
        for iteration in range(total):
            epoch = epochs_before(step, schedule) + iteration // per_epoch
            set_rates(self.optimiser, schedule, epoch)
            strength = reversal_strength((step + iteration / total) / steps)
            losses = self.iterate(sampler, samples, strength)
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + value
            report.trained(iteration + 1, sum(losses.values()))
        return {name: value / total for name, value in sums.items()} if total else None

    def iterate(
        self, sampler: EpisodeSampler, samples: LabelledSamples, strength: float
    ) -> dict[str, float]:
        """One graph: forward, backward, optimiser. Returns the losses by name."""
        batch = sampler.draw(self.rng)
        index = torch.from_numpy(batch.index).to(self.device)
        is_target = torch.from_numpy(batch.is_target).to(self.device)
        labels = torch.from_numpy(batch.labels).to(self.device)
        x = samples.source.new_empty(len(index), self.width)
        x[~is_target] = samples.source[index[~is_target]]
        x[is_target] = samples.target[index[is_target]]
        self.network.train()
        losses = graph_losses(
            self.network(x, labels),
            labels,
            is_target,
            ~torch.from_numpy(batch.pseudo_unknown).to(self.device),
            self.network.discriminator,
            strength,
            self.settings.losses,
        )
        self.optimiser.zero_grad(set_to_none=True)
        self.accelerator.backward(torch.stack(list(losses.values())).sum())
        self.optimiser.step()
        return {name: float(value.detach()) for name, value in losses.items()}


def make_optimiser(network: PGLNetwork, settings: OptimiserSettings) -> torch.optim.Adam:
    """Adam with the paper's two groups: the backbone learns more slowly than the rest."""
    backbone = list(network.backbone.parameters())
    theirs = {id(parameter) for parameter in backbone}
    rest = [p for p in network.parameters() if id(p) not in theirs]
    return torch.optim.Adam(
        [
            {"params": backbone, "lr": settings.backbone_rate, "name": "backbone"},
            {"params": rest, "lr": settings.graph_rate, "name": "graph"},
        ],
        weight_decay=settings.weight_decay,
    )


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


class _Reporter:
    """Tells a listener how far a step is; labelling all targets counts as one iteration."""

    def __init__(self, listener: ProgressListener | None, step: int, steps: int) -> None:
        self.listener, self.step, self.steps = listener, step, steps
        self.iterations = 0
        self.loss: float | None = None

    def trained(self, iteration: int, loss: float) -> None:
        self.loss = loss
        self._tell(iteration, "labelling" if iteration == self.iterations else "")

    def labelled(self) -> None:
        self._tell(self.iterations + 1, "")

    def _tell(self, iteration: int, message: str) -> None:
        if self.listener is not None:
            self.listener(
                ProgressEvent(
                    self.step, self.steps, iteration, self.iterations + 1, self.loss, message
                )
            )
