"""Progressive training: train on episodes, label all targets, mix them in, train again."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor, nn

from opensetda.context import FitContext, Record
from opensetda.errors import InputError, one_line
from opensetda.features.scaling import NONE
from opensetda.methods.inputs import TrainingInputs, TunedImages
from opensetda.methods.means.estimator import MovingMeans
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.episodes import Episodes, EpisodeSampler
from opensetda.pgl.losses import graph_losses
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.scoring import SupportGraph
from opensetda.pgl.settings import PGLSettings
from opensetda.progress import ProgressEvent, finish_step
from opensetda.rows import Domains, IntArray, Rows
from opensetda.system.processes import (
    average_buffers,
    average_gradients,
    from_main,
    in_shares,
    own_seed,
    this_process,
)
from opensetda.training.rounds import choose_views

# Targets that are scored at a time.
SCORED_ROWS = 64
# Graphs per epoch: with fewer, a small source is not learned; the most is that of the authors.
SHORTEST_EPOCH, LONGEST_EPOCH = 25, 150


@dataclass
class ProgressiveTraining:
    """The steps of one training, from labelled source rows and unlabelled targets.

    Step m trains on episodes whose support holds pseudo-labelled targets with probability
    (m - 1) alpha (Eq. 13), scores all targets with the network fixed, and gives the m alpha n_t
    surest and least sure targets their pseudo-labels for step m + 1 (Eq. 6, Eq. 12). With the
    setting `taught`, `MovingMeans` ranks the targets instead, and there is no step 1. The random
    numbers of a step follow from `seed` and its number, and its optimiser is new: weights and
    pseudo-labels are all that a later run needs to go on.

    `share` is beta. After `run`, `scorer` is that of the last step, and `history` and
    `step_labels` have an entry and the labels of all targets for each step.
    """

    inputs: TrainingInputs
    source_labels: IntArray
    n_classes: int
    share: float
    settings: PGLSettings
    seed: int
    context: FitContext

    network: PGLNetwork = field(init=False)
    scorer: SupportGraph = field(init=False)
    history: list[dict[str, Any]] = field(init=False, default_factory=list)
    step_labels: list[IntArray] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Move to the device, and start without pseudo-labels."""
        self.device = this_process().device
        self.inputs.to(self.device)
        self.n_targets = len(self.inputs.target)
        self.pseudo_labels = np.full(self.n_targets, UNLABELLED, dtype=np.intp)
        self.episodes = self.settings.episodes_of(self.n_classes)
        self.taught = self.settings.taught and self.n_targets > 0
        self.first_step = 2 if self.taught else 1
        last_step = self.settings.last_step if self.n_targets else 1
        self.last_step = max(last_step, self.first_step)

    def run(self) -> None:
        """Run all steps, or those after the latest checkpoint."""
        with torch.random.fork_rng(devices=[]):
            if self.taught:
                if isinstance(self.inputs, TunedImages):
                    choose_views(self.inputs, self._teacher(), self.inputs.given, FitContext())
                self.pseudo_labels = self._taught_pseudo_labels(1 / self.settings.steps)
            self._continue()
            for step in range(self.first_step + len(self.history), self.last_step + 1):
                self._run_step(step)
                if step < self.last_step:
                    self._save()

    def _run_step(self, step: int) -> None:
        settings, started = self.settings, time.perf_counter()
        rng = default_rng([self.seed, step])
        torch.manual_seed(int(rng.integers(2**63)))
        if step == self.first_step or settings.fresh_start:
            self.inputs.start_anew()
            self.network = self._new_network()
        replacement = (step - 1) / settings.steps if settings.mix_up else 0.0
        sampler = EpisodeSampler(
            *(self.source_labels, self.pseudo_labels, self.n_classes, self.episodes),
            *(replacement, settings.query_labels),
        )
        if this_process().process_index:
            rng = default_rng(own_seed(self.seed, step))
            torch.manual_seed(int(rng.integers(2**63)))
        losses, iterations = self._train(step, sampler, rng)
        self.inputs.refresh()
        supports = from_main([sampler.draw_support(rng) for _ in range(settings.draws)])
        rows = torch.stack([self._rows_of(support) for support in supports])
        self.scorer = SupportGraph.of(self.network, rows)
        entry: dict[str, Any] = {"step": step, "steps": self.last_step, "loss": losses}
        if self.n_targets:
            entry |= self._label_targets(step)
        entry["seconds"] = time.perf_counter() - started
        finish_step(self.history, self.context.progress, entry, self.last_step, iterations)

    def _taught_pseudo_labels(self, progress: float) -> IntArray:
        """Return the pseudo-labels that `MovingMeans` gives by the features so far."""
        teacher = self._teacher().fit_domains(self._lesson())
        known = teacher.transduction_scores_
        nearest = teacher.transduction_nearest_
        return rank_pseudo_labels(known, nearest, self.share, progress, self.n_classes)

    def _teacher(self) -> MovingMeans:
        return MovingMeans(self.share, scaling=NONE)

    def _lesson(self) -> Domains:
        """Return what the teacher is fitted to: rows as PGL sees them."""
        n_sources = len(self.inputs.source)
        rows = torch.cat([self.inputs.source, self.inputs.target]).cpu().numpy()
        return Domains(
            source=Rows(rows, np.arange(n_sources)),
            y=self.source_labels,
            target=Rows(rows, np.arange(n_sources, len(rows))),
            classes=np.arange(self.n_classes),
        ).reordered()

    def _new_network(self) -> PGLNetwork:
        width, adapts = int(self.inputs.source.shape[1]), self.inputs.learned is None
        return PGLNetwork(width, self.n_classes, self.settings, adapts).to(self.device)

    def _train(
        self, step: int, sampler: EpisodeSampler, rng: Generator
    ) -> tuple[dict[str, float], int]:
        """Train for the epochs of a step; returns the mean of each loss, and the iterations."""
        settings, optimiser = self.settings, self._new_optimiser()
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, settings.decay_every, settings.decay)
        smaller = min(len(rows) for rows in (self.inputs.source, self.inputs.target) if len(rows))
        once = -(-smaller // (self.n_classes * self.episodes))
        per_epoch = min(max(once, SHORTEST_EPOCH), LONGEST_EPOCH)
        total = per_epoch * settings.epochs
        sums: dict[str, float] = {}
        self.network.train()
        for iteration in range(1, total + 1):
            tensors = (torch.from_numpy(array).to(self.device) for array in sampler.draw(rng))
            rows, is_target, labels, is_unknown = tensors
            output = self.network(self.inputs.of_graph(rows, is_target, rng))
            nodes = labels, is_target, is_unknown
            losses = graph_losses(self.network, output, *nodes, settings)
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
                place = step, self.last_step, iteration, total
                self.context.progress(ProgressEvent(*place, float(whole.detach())))
        average_buffers(self.network)
        return {name: value / total for name, value in sums.items()}, total

    def _new_optimiser(self) -> torch.optim.Adam:
        """Return Adam with two groups: the backbone has a smaller learning rate than the rest."""
        slow = [*self.network.backbone.parameters(), *self.inputs.parameters()]
        theirs = {id(parameter) for parameter in slow}
        fast = [p for p in self.network.parameters() if id(p) not in theirs]
        rates = self.settings.backbone_rate, self.settings.graph_rate
        groups = [{"params": p, "lr": rate} for p, rate in zip((slow, fast), rates, strict=True)]
        return torch.optim.Adam(groups, weight_decay=self.settings.weight_decay, fused=True)

    def _rows_of(self, support: Episodes) -> Tensor:
        """Return the features of support nodes, without augmentation, sources first: (S, D)."""
        sources, targets = support.rows[~support.is_target], support.rows[support.is_target]
        return torch.cat([self.inputs.source[sources], self.inputs.target[targets]])

    @torch.no_grad()
    def _label_targets(self, step: int) -> dict[str, Any]:
        """Score and rank all targets: their labels, and pseudo-labels for the next step."""
        # float32 holds the number of a class.
        scored = in_shares(self.n_targets, self._score).double().cpu().numpy()
        ranked = scored[:, 0], scored[:, 1].astype(np.intp), self.share
        self.step_labels.append(rank_pseudo_labels(*ranked, 1.0, self.n_classes))
        progress = min(1.0, step / self.settings.steps)
        if self.taught and step < self.last_step:
            self.pseudo_labels = labels = self._taught_pseudo_labels(progress)
        else:
            self.pseudo_labels = labels = rank_pseudo_labels(*ranked, progress, self.n_classes)
        n_unknown = int((labels == self.n_classes).sum())
        n_known = int((labels != UNLABELLED).sum()) - n_unknown
        entry = {
            "n_known": n_known,
            "n_unknown": n_unknown,
            "mean_score": float(scored[:, 0].mean()),
        }
        changed = [float((a != b).mean()) for a, b in pairwise(self.step_labels[-2:])]
        return {**entry, "changed": changed[0] if changed else None}

    def _score(self, start: int, stop: int) -> Tensor:
        """Return the known scores of some targets, and their nearest classes: (n, 2)."""
        parts = [
            self.scorer(rows) for rows in torch.split(self.inputs.target[start:stop], SCORED_ROWS)
        ]
        columns = [torch.stack([score, logits.argmax(dim=1)], dim=1) for logits, score in parts]
        return torch.cat([self.inputs.target.new_empty(0, 2), *columns])

    def _save(self) -> None:
        """Keep the end of a step."""
        if self.context.checkpoints is None:
            return
        arrays = {name: _array(weights) for name, weights in self._trained().state_dict().items()}
        arrays["pseudo_labels"] = self.pseudo_labels.astype(np.int64)
        arrays["step_labels"] = np.stack(self.step_labels).astype(np.int64)
        values = {"fingerprint": self._fingerprint(), "history": self.history}
        self.context.checkpoints.write(Record(values, arrays))

    def _continue(self) -> None:
        """Go back to the latest checkpoint, if there is one."""
        store = self.context.checkpoints
        record = from_main(None if store is None else store.read())
        if record is None:
            return
        if record.values.get("fingerprint") != self._fingerprint():
            other = "of a training with other data or settings; remove it to start anew"
            raise InputError(f"checkpoint: {other}")
        try:
            self.network = self._new_network()
            arrays = dict(record.arrays)
            self.pseudo_labels = arrays.pop("pseudo_labels").astype(np.intp)
            self.step_labels = list(arrays.pop("step_labels").astype(np.intp))
            self.history = list(record.values["history"])
            weights = {name: torch.tensor(array) for name, array in arrays.items()}
            self._trained().load_state_dict(weights)
        except (KeyError, RuntimeError) as error:
            reason = f"damaged ({one_line(error, 120)})"
            advice = "start anew with 'osda fit ... --overwrite'"
            raise InputError(f"checkpoint: {reason}; {advice}") from None

    def _trained(self) -> nn.ModuleDict:
        backbone = {} if self.inputs.learned is None else {"backbone": self.inputs.learned}
        return nn.ModuleDict({"network": self.network, **backbone})

    def _fingerprint(self) -> str:
        """Return a hash of what defines a training: settings, seed, share, labels and rows."""
        defining = [self.settings.to_dict(), self.seed, self.share, self.n_classes]
        defining += [self.n_targets, *self.inputs.source.shape]
        digest = hashlib.sha256(json.dumps(defining, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(self.source_labels).data)
        if self.inputs.learned is None:  # Features of images change in training.
            for rows in (self.inputs.source, self.inputs.target):
                digest.update(_array(rows).data)
        return digest.hexdigest()


def _array(tensor: Tensor) -> Any:
    return np.array(tensor.detach().cpu().numpy(), order="C")
