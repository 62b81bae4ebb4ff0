"""Progressive training: train, label all targets, rank them, train again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from opensetda.base import Scores
from opensetda.pgl.adversary import reversal_strength
from opensetda.pgl.episodes import EpisodeSampler
from opensetda.pgl.inference import LabelledSamples, transduce
from opensetda.pgl.losses import graph_losses
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.settings import OptimiserSettings, PGLSettings
from opensetda.progress import ProgressEvent, ProgressListener
from opensetda.rows import IntArray


@dataclass
class TrainingResult:
    """What a training leaves behind."""

    network: PGLNetwork
    scores: Scores
    """Of all targets, by the last network."""
    samples: LabelledSamples
    """Both domains with the labels that the last network was trained on."""
    history: list[dict[str, Any]] = field(default_factory=list)
    step_labels: list[IntArray] = field(default_factory=list)
    """The label of every target at every step; C is unknown."""


def train(
    source: np.ndarray[Any, np.dtype[np.float32]],
    source_labels: IntArray,
    target: np.ndarray[Any, np.dtype[np.float32]],
    n_classes: int,
    openness: float,
    settings: PGLSettings,
    seed: int,
    progress: ProgressListener | None = None,
) -> TrainingResult:
    """Run all steps.

    Step m trains on episodes whose support holds pseudo-labelled targets with
    probability (m - 1) alpha, scores all targets with the network frozen, and
    gives the surest and the least sure m alpha n_t of them their pseudo-labels for
    step m + 1 (Eq. 6). At m = M all targets have theirs.
    """
    accelerator = Accelerator()
    device = accelerator.device
    rng = np.random.default_rng(seed)
    n_targets = len(target)
    pseudo_labels: IntArray = np.full(n_targets, UNLABELLED, dtype=np.intp)
    source_x = torch.from_numpy(source).to(device)
    target_x = torch.from_numpy(target).to(device)
    source_y = torch.from_numpy(source_labels).to(device)
    steps = settings.steps if n_targets else 1
    result: TrainingResult | None = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, optimiser = _new_network(source.shape[1], n_classes, settings, accelerator)
        before = None
        for step in range(steps):
            started = time.perf_counter()
            if step and not settings.optimiser.warm_start:
                network, optimiser = _new_network(source.shape[1], n_classes, settings, accelerator)
            samples = LabelledSamples(
                source_x,
                source_y,
                target_x,
                torch.from_numpy(pseudo_labels).to(device),
                progress=step / steps,
            )
            report = _reporter(progress, step, steps)
            losses = _train_step(
                network, optimiser, samples, settings, rng, accelerator, step, steps, report
            )
            if not n_targets:
                return TrainingResult(network, _no_scores(n_classes), samples)
            # Steps before the last are ranked anew in any case: one draw is enough for them.
            draws = settings.ranking.draws if step + 1 == steps else 1
            scores = transduce(network, samples, settings, rng, draws)
            nearest = scores.classes.argmax(axis=1)
            labels = rank_pseudo_labels(scores.known, nearest, openness, 1.0, n_classes)
            pseudo_labels = rank_pseudo_labels(
                scores.known,
                nearest,
                openness,
                (step + 1) / steps,
                n_classes,
                settings.ranking.class_balance,
            )
            if result is None:
                result = TrainingResult(network, scores, samples)
            result.network, result.scores, result.samples = network, scores, samples
            result.step_labels.append(labels)
            result.history.append(
                {
                    "step": step + 1,
                    "steps": steps,
                    "progress": (step + 1) / steps,
                    "n_known": int(((pseudo_labels >= 0) & (pseudo_labels < n_classes)).sum()),
                    "n_unknown": int((pseudo_labels == n_classes).sum()),
                    "loss": losses,
                    "mean_score": float(scores.known.mean()),
                    "changed": None if before is None else float((labels != before).mean()),
                    "seconds": time.perf_counter() - started,
                }
            )
            before = labels
    assert result is not None
    return result


def _new_network(
    width: int, n_classes: int, settings: PGLSettings, accelerator: Accelerator
) -> tuple[PGLNetwork, torch.optim.Optimizer]:
    network = PGLNetwork(width, n_classes, settings.graph)
    optimiser = make_optimiser(network, settings.optimiser)
    network, optimiser = accelerator.prepare(network, optimiser)
    return network, optimiser


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


def _train_step(
    network: PGLNetwork,
    optimiser: torch.optim.Optimizer,
    samples: LabelledSamples,
    settings: PGLSettings,
    rng: np.random.Generator,
    accelerator: Accelerator,
    step: int,
    steps: int,
    report: Callable[[int, int, float | None], None],
) -> dict[str, float] | None:
    """Train on fresh episodes; returns the mean of each loss."""
    schedule = settings.optimiser
    sampler = EpisodeSampler(
        samples.source_labels.cpu().numpy(),
        samples.pseudo_labels.cpu().numpy(),
        network.n_classes,
        samples.progress,
        settings.episodes,
    )
    graph_size = network.n_classes * sampler.episodes
    per_epoch = schedule.iterations_per_epoch or max(1, -(-len(samples.target) // graph_size))
    total = per_epoch * (schedule.epochs_per_step if step else schedule.first_step_epochs)
    if not total:
        report(0, 0, None)
        return None
    sums: dict[str, float] = {}
    network.train()
    for iteration in range(total):
        epoch = epochs_before(step, schedule) + iteration // per_epoch
        set_rates(optimiser, schedule, epoch)
        strength = reversal_strength((step + iteration / total) / steps)
        losses = training_iteration(
            network, optimiser, sampler, samples, settings, rng, accelerator, strength
        )
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) + value
        report(iteration + 1, total, sum(losses.values()))
    return {name: value / total for name, value in sums.items()}


def epochs_before(step: int, settings: OptimiserSettings) -> int:
    """Count the epochs that lie behind a step, counted from 0."""
    return 0 if not step else settings.first_step_epochs + (step - 1) * settings.epochs_per_step


def set_rates(optimiser: torch.optim.Optimizer, settings: OptimiserSettings, epoch: int) -> None:
    """Decay both learning rates by `decay` every `decay_every` epochs."""
    factor = settings.decay ** (epoch // settings.decay_every)
    for group in optimiser.param_groups:
        rate = settings.backbone_rate if group["name"] == "backbone" else settings.graph_rate
        group["lr"] = rate * factor


def training_iteration(
    network: PGLNetwork,
    optimiser: torch.optim.Optimizer,
    sampler: EpisodeSampler,
    samples: LabelledSamples,
    settings: PGLSettings,
    rng: np.random.Generator,
    accelerator: Accelerator,
    strength: float,
) -> dict[str, float]:
    """One graph: forward, backward, optimiser. Returns the losses by name."""
    batch = sampler.draw(rng)
    device = samples.source.device
    index = torch.from_numpy(batch.index).to(device)
    is_target = torch.from_numpy(batch.is_target).to(device)
    labels = torch.from_numpy(batch.labels).to(device)
    x = torch.empty(len(index), samples.source.shape[1], device=device)
    x[~is_target] = samples.source[index[~is_target]]
    x[is_target] = samples.target[index[is_target]]
    output = network(x, labels)
    losses = graph_losses(
        output, labels, is_target, network.discriminator, strength, settings.losses
    )
    optimiser.zero_grad(set_to_none=True)
    if losses:
        total: Tensor = torch.stack(list(losses.values())).sum()
        accelerator.backward(total)
        optimiser.step()
    return {name: float(value.detach()) for name, value in losses.items()}


def _reporter(
    progress: ProgressListener | None, step: int, steps: int
) -> Callable[[int, int, float | None], None]:
    def report(iteration: int, iterations: int, loss: float | None) -> None:
        if progress is not None:
            progress(ProgressEvent(step + 1, steps, iteration, iterations, loss))

    return report


def _no_scores(n_classes: int) -> Scores:
    return Scores(np.zeros((0, n_classes)), np.zeros(0))
