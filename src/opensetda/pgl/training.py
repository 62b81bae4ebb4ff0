"""Progressive training: train on episodes, label all targets, mix them in, train again."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor, nn

from opensetda.context import FitContext
from opensetda.methods.inputs import TrainingInputs
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.checkpoints import StepCheckpoints, load_step
from opensetda.pgl.episodes import Episodes, EpisodeSampler
from opensetda.pgl.losses import graph_losses
from opensetda.pgl.network import GraphOutput, PGLNetwork
from opensetda.pgl.scoring import SupportGraph
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.taught import TaughtGraph, Teacher
from opensetda.progress import ProgressEvent, finish_step
from opensetda.rows import IntArray
from opensetda.share.decision import Vector
from opensetda.system.processes import (
    average_buffers,
    average_gradients,
    from_main,
    in_shares,
    own_seed,
    this_process,
)

# Targets that are scored at a time.
SCORED_ROWS = 64
# Graphs per epoch: with fewer, a small source is not learned; the most is that of the authors.
SHORTEST_EPOCH = 25
LONGEST_EPOCH = 150


@dataclass
class ProgressiveTraining:
    """The steps of one training, from labelled source rows and unlabelled targets.

    Step m trains on episodes whose support holds pseudo-labelled targets with probability
    (m - 1) alpha (Eq. 13), scores all targets with the network fixed, and gives the m alpha n_t
    surest and least sure targets their pseudo-labels for step m + 1 (Eq. 6, Eq. 12). With a
    `teacher`, that ranks the targets instead, and does the first step alone (ours). The random
    numbers of a step follow from `seed` and its number, and its optimiser is new: weights and
    pseudo-labels are all that a later run needs to go on.

    `share` is beta. After `run`, `graph` is that of the last step, which scores later samples, and
    `history` and `step_labels` have an entry and the labels of all targets for each step.
    """

    inputs: TrainingInputs
    source_labels: IntArray
    n_classes: int
    share: float
    settings: PGLSettings
    seed: int
    context: FitContext
    teacher: Teacher | None = None

    network: PGLNetwork = field(init=False)
    graph: TaughtGraph = field(init=False)
    history: list[dict[str, Any]] = field(init=False, default_factory=list)
    step_labels: list[IntArray] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Move to the device, and start without pseudo-labels."""
        self.device = this_process().device
        self.inputs.to(self.device)
        self.n_targets = len(self.inputs.target)
        self.pseudo_labels = np.full(self.n_targets, UNLABELLED, dtype=np.intp)
        self.episodes = self.settings.episodes_of(self.n_classes)
        self.first_step = 2 if self.teacher is not None else 1
        last_step = self.settings.last_step if self.n_targets else 1
        self.last_step = max(last_step, self.first_step)
        values = [self.settings.to_dict(), self.seed, self.share, self.n_classes]
        values += [self.n_targets, *self.inputs.source.shape]
        self.checkpoints = StepCheckpoints(
            self.context.checkpoints, values, self.source_labels, self.inputs
        )

    def run(self) -> None:
        """Run all steps, or those after the latest checkpoint."""
        with torch.random.fork_rng(devices=[]):
            self._continue()
            if self.first_step == 2 and not self.history:
                self._run_untrained_step()
            for step in range(len(self.history) + 1, self.last_step + 1):
                self._run_step(step)
                if step < self.last_step:
                    self.checkpoints.write(
                        self._trained(), self.pseudo_labels, self.step_labels, self.history
                    )

    def _run_untrained_step(self) -> None:
        """Label all targets before anything is trained."""
        started = time.perf_counter()
        known, nearest = self._rank_untrained()
        entry = self._label_targets(1, known, nearest)
        entry |= {"step": 1, "steps": self.last_step, "loss": None}
        entry["seconds"] = time.perf_counter() - started
        finish_step(self.history, self.context.progress, entry, self.last_step)

    def _rank_untrained(self) -> tuple[Vector, IntArray]:
        """Return known scores and nearest classes of the targets, as the teacher sees them."""
        assert self.teacher is not None
        return self.teacher.rank(self.inputs)

    def _run_step(self, step: int) -> None:
        settings = self.settings
        started = time.perf_counter()
        rng = default_rng([self.seed, step])
        torch.manual_seed(int(rng.integers(2**63)))
        if step == self.first_step or settings.fresh_start:
            self.inputs.start_anew()
            self.network = self._new_network()
        replacement = (step - 1) / settings.steps if settings.mix_up else 0.0
        sampler = EpisodeSampler(
            source_labels=self.source_labels,
            pseudo_labels=self.pseudo_labels,
            n_classes=self.n_classes,
            episodes=self.episodes,
            replacement=replacement,
            query_labels=settings.query_labels,
        )
        if this_process().process_index:
            rng = default_rng(own_seed(self.seed, step))
            torch.manual_seed(int(rng.integers(2**63)))
        losses, iterations = self._train(step, sampler, rng)
        self.inputs.refresh()
        supports = from_main([sampler.draw_support(rng) for _ in range(settings.draws)])
        rows = torch.stack([self._rows_of(support) for support in supports])
        self.graph = TaughtGraph(
            SupportGraph.of(self.network, rows), self.inputs.alignment, settings.embedding_weight
        )
        entry: dict[str, Any] = {"step": step, "steps": self.last_step, "loss": losses}
        if self.n_targets:
            entry |= self._score_targets(step)
        entry["seconds"] = time.perf_counter() - started
        finish_step(self.history, self.context.progress, entry, self.last_step, iterations)

    def _new_network(self) -> PGLNetwork:
        width = int(self.inputs.source.shape[1])
        adapts = self.inputs.learned is None
        return PGLNetwork(width, self.n_classes, self.settings, adapts).to(self.device)

    def _train(
        self, step: int, sampler: EpisodeSampler, rng: Generator
    ) -> tuple[dict[str, float], int]:
        """Train for the epochs of a step; returns the mean of each loss, and the iterations."""
        settings = self.settings
        optimiser = self._new_optimiser()
        schedule = torch.optim.lr_scheduler.StepLR(
            optimiser, step_size=settings.decay_every_of(step), gamma=settings.decay
        )
        smaller = min(len(rows) for rows in (self.inputs.source, self.inputs.target) if len(rows))
        once = -(-smaller // (self.n_classes * self.episodes))
        per_epoch = min(max(once, SHORTEST_EPOCH), LONGEST_EPOCH)
        total = per_epoch * settings.epochs_of(step)
        sums: dict[str, float] = {}
        self.network.train()
        for iteration in range(1, total + 1):
            rows, is_target, labels, is_unknown = (
                torch.from_numpy(array).to(self.device) for array in sampler.draw(rng)
            )
            output = self.network(self.inputs.of_graph(rows, is_target, rng))
            losses = self._losses(output, labels, is_target, is_unknown)
            whole = torch.stack(list(losses.values())).sum()
            whole.backward()  # type: ignore[no-untyped-call]
            average_gradients(p for group in optimiser.param_groups for p in group["params"])
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            if iteration % per_epoch == 0:
                schedule.step()
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach())
            if self.context.progress is not None:
                event = ProgressEvent(step, self.last_step, iteration, total, float(whole.detach()))
                self.context.progress(event)
        average_buffers(self._trained())
        return {name: value / total for name, value in sums.items()}, total

    def _losses(
        self, output: GraphOutput, labels: Tensor, is_target: Tensor, is_unknown: Tensor
    ) -> dict[str, Tensor]:
        return graph_losses(self.network, output, labels, is_target, is_unknown, self.settings)

    def _new_optimiser(self) -> torch.optim.Adam:
        """Return Adam with two groups: the backbone has a smaller learning rate than the rest."""
        slow = [*self.network.backbone.parameters(), *self.inputs.parameters()]
        theirs = {id(parameter) for parameter in slow}
        fast = [p for p in self.network.parameters() if id(p) not in theirs]
        groups = [
            {"params": slow, "lr": self.settings.backbone_rate},
            {"params": fast, "lr": self.settings.graph_rate},
        ]
        return torch.optim.Adam(groups, weight_decay=self.settings.weight_decay, fused=True)

    def _rows_of(self, support: Episodes) -> Tensor:
        """Return the features of support nodes, without augmentation, sources first: (S, D)."""
        sources = support.rows[~support.is_target]
        targets = support.rows[support.is_target]
        return torch.cat([self.inputs.source[sources], self.inputs.target[targets]])

    @torch.no_grad()
    def _score_targets(self, step: int) -> dict[str, Any]:
        """Score all targets after a step, and label them."""
        ranking = self.settings.ranking
        if self.teacher is not None and ranking == "embedding":
            # A copy: later samples are scored in double precision, the network goes on in single.
            self.graph = deepcopy(self.graph).cpu().double()
            known, nearest = self.teacher.rank(self.inputs, self.graph)
            return self._label_targets(step, known, nearest)
        scored = in_shares(self.n_targets, self._score).double().cpu().numpy()
        known = scored[:, 0]
        nearest = scored[:, 1].astype(np.intp)
        taught = None
        if self.teacher is not None and step < self.last_step:
            taught = self.teacher.rank(self.inputs)
        return self._label_targets(step, known, nearest, taught)

    def _label_targets(
        self,
        step: int,
        known: Vector,
        nearest: IntArray,
        taught: tuple[Vector, IntArray] | None = None,
    ) -> dict[str, Any]:
        """Label all targets by their scores; what a teacher says gives the pseudo-labels."""
        settings = self.settings
        mean_score = float(known.mean())
        rejected = settings.progress(step) if settings.reject == "stop-step" else 1.0
        self.step_labels.append(
            rank_pseudo_labels(known, nearest, self.share * rejected, 1.0, self.n_classes)
        )
        if taught is not None:
            known, nearest = taught
        self.pseudo_labels = labels = self._choose(step, known, nearest)
        n_unknown = int((labels == self.n_classes).sum())
        changed = [float((a != b).mean()) for a, b in pairwise(self.step_labels[-2:])]
        return {
            "n_known": int((labels != UNLABELLED).sum()) - n_unknown,
            "n_unknown": n_unknown,
            "mean_score": mean_score,
            "changed": changed[0] if changed else None,
        }

    def _choose(self, step: int, known: Vector, nearest: IntArray) -> IntArray:
        """Return the pseudo-labels after a step (Eq. 6)."""
        progress = self.settings.progress(step)
        return rank_pseudo_labels(known, nearest, self.share, progress, self.n_classes)

    def _score(self, start: int, stop: int) -> Tensor:
        """Return the known scores of some targets, and their nearest classes: (n, 2)."""
        targets = self.inputs.target[start:stop]
        found = [targets.new_empty(0, 2)]
        for rows in torch.split(targets, SCORED_ROWS):
            logits, known = self.graph.support(rows)
            # float32 holds the number of a class.
            found.append(torch.stack([known, logits.argmax(dim=1)], dim=1))
        return torch.cat(found)

    def _continue(self) -> None:
        """Go back to the latest checkpoint, if there is one."""
        record = self.checkpoints.read()
        if record is None:
            return
        self.network = self._new_network()
        self.pseudo_labels, self.step_labels = load_step(record, self._trained())
        self.history = list(record.values["history"])
        if self.inputs.alignment is not None:
            self.inputs.refresh()  # The means of the domains follow the features.

    def _trained(self) -> nn.ModuleDict:
        backbone = {} if self.inputs.learned is None else {"backbone": self.inputs.learned}
        return nn.ModuleDict({"network": self.network, **backbone})
