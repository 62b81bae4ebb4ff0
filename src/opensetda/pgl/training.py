"""Progressive training: train, label all targets, rank them, train again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from opensetda.base import Scores
from opensetda.context import Arrays, FitContext, Record
from opensetda.errors import InputError
from opensetda.nn.inputs import TrainingInputs
from opensetda.openness.calibration import rejection_cut
from opensetda.openness.stopping import KeptStep, StableStepRule
from opensetda.openness.tracker import OpennessTracker
from opensetda.pgl.checkpoints import (
    LATEST,
    TeamStore,
    fingerprint,
    go_back,
    latest_record,
    load_weights,
    step_name,
    weights_of,
)
from opensetda.pgl.inference import LabelledSamples, StepScores, transduce, transduce_once
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import Position, Reporter, Saver, Trainer
from opensetda.pgl.view import Embeddings, TrainingView, Viewer
from opensetda.rows import IntArray

# In a step's record.
_VIEW = "view"


@dataclass(frozen=True)
class TrainingResult:
    """What a training leaves behind; the inputs are left as they were at the kept step, too."""

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
    view: TrainingView | None = None
    """How the network saw the samples, if that was asked for; rows in the order they have here."""


def train(
    inputs: TrainingInputs,
    source_labels: IntArray,
    n_classes: int,
    openness: OpennessTracker,
    settings: PGLSettings,
    seed: int,
    context: FitContext | None = None,
) -> TrainingResult:
    """Run the steps and go back to the one that is kept.

    Step m trains on episodes whose support holds pseudo-labelled targets with
    probability (m - 1) alpha, scores all targets with the network frozen, asks how many
    of them are unknown, and gives the surest and the least sure m alpha n_t their
    pseudo-labels for step m + 1 (Eq. 6). At m = M all targets have theirs.

    `context` may have checkpoints to continue from, and processes to work together with.
    """
    context = context or FitContext()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trainer = Trainer(inputs, n_classes, settings, np.random.default_rng(seed), context.team)
        checkpoints = context.checkpoints
        store = None if checkpoints is None else TeamStore(checkpoints, context.team)
        steps = _Steps(trainer, source_labels, openness, store, seed, context.view)
        step = steps.go_on()
        while step < steps.total and not steps.rule.should_stop:
            steps.run(step, Reporter(context.progress, step + 1, steps.total))
            step += 1
        return steps.finish()


def _threshold(known: npt.NDArray[np.float64], share: float) -> float | None:
    """Return the score below which a target was unknown at a step; None if none was."""
    cut = rejection_cut(known, share) if len(known) else -np.inf
    return float(cut) if np.isfinite(cut) else None


class _Steps:
    """The steps so far, and what the next one starts from."""

    def __init__(
        self,
        trainer: Trainer,
        source_labels: IntArray,
        openness: OpennessTracker,
        store: TeamStore | None,
        seed: int,
        view: bool,
    ) -> None:
        self.trainer, self.openness, self.store = trainer, openness, store
        self.settings, self.n_classes = trainer.settings, trainer.n_classes
        self.n_targets = len(trainer.inputs.target)
        self.total = self.settings.steps if self.n_targets else 1
        self.source_labels = torch.from_numpy(source_labels).to(trainer.device)
        self.rule = StableStepRule(self.settings.stopping.band, self.settings.stopping.early)
        # The labels that each step is trained on, and those of the next one.
        self.pseudo_labels: list[IntArray] = [np.full(self.n_targets, UNLABELLED, dtype=np.intp)]
        self.labels: list[IntArray] = []
        self.history: list[dict[str, Any]] = []
        self.weights: list[Arrays] = []
        self.viewer: Viewer | None = None
        if view and self.n_targets:
            self.viewer = Viewer(self.settings, len(source_labels), self.n_targets)
        self.views: list[Embeddings] = []
        self.position = Position()
        self.fingerprint = fingerprint(trainer, source_labels, seed)

    def go_on(self) -> int:
        """Take up the latest checkpoint, if there is one; returns the step to go on with."""
        latest = None if self.store is None else self.store.read(LATEST)
        if self.store is None or latest is None:
            return 0
        if latest.values["fingerprint"] != self.fingerprint:
            raise InputError(
                "checkpoints: of a training with other data or settings; remove them to start anew"
            )
        self.position = go_back(self.trainer, latest)
        for step in range(self.position.step):
            record = self.store.read(step_name(step))
            assert record is not None, "a step's record is written before the latest"
            known, held_out = record.arrays["known"], record.arrays["held_out"]
            self._rank(step, known, held_out, record.arrays["nearest"].astype(np.intp))
            self.history.append(record.values)
            if self.viewer is not None:
                self.views.append(record.arrays[_VIEW])
        trained = any(entry["loss"] is not None for entry in self.history)
        if self.position.iteration == 0 and trained:
            # Within a step nobody asks for the rows of all samples; at its end they are refreshed.
            self.trainer.inputs.refresh(self.trainer.team)
        return self.position.step

    def run(self, step: int, report: Reporter) -> None:
        """Train for one step, score all targets, and give them new pseudo-labels."""
        trainer, started = self.trainer, time.perf_counter()
        losses = trainer.train_step(
            self._samples(step), self.total, self.position, report, self._saver()
        )
        if losses is not None:
            trainer.inputs.refresh(trainer.team)
        # All steps are ranked by one draw; the one that is kept, by more of them.
        scores = transduce_once(
            trainer.network, self._samples(step), self.settings, trainer.rng, trainer.team
        )
        share = self._rank(step, scores.known, scores.held_out, scores.nearest)
        pseudo_labels = self.pseudo_labels[-1]
        known = (pseudo_labels >= 0) & (pseudo_labels < self.n_classes)
        changed = float((self.labels[-1] != self.labels[-2]).mean()) if step else None
        self.history.append(
            {
                "step": step + 1,
                "steps": self.total,
                "progress": (step + 1) / self.total,
                "n_known": int(known.sum()),
                "n_unknown": int((pseudo_labels == self.n_classes).sum()),
                "openness": share,
                "openness_estimate": self.openness.estimates[-1],
                "threshold": _threshold(scores.known, share),
                "loss": losses,
                "mean_score": float(scores.known.mean()) if self.n_targets else None,
                "changed": changed,
                "seconds": time.perf_counter() - started,
            }
        )
        if self.viewer is not None:
            self.views.append(self.viewer.look(trainer.network, self._samples(step)))
        # Before it is kept: who dies in between does the step again, and nobody misses it.
        report.finished(self.history[-1])
        self.position = Position(step + 1)
        self._keep(step, scores)

    def _rank(
        self,
        step: int,
        known: npt.NDArray[np.float64],
        held_out: npt.NDArray[np.float64],
        nearest: IntArray,
    ) -> float:
        """Ask how many are unknown, and rank the targets; returns the share of unknowns."""
        share = self.openness.update(known, held_out, nearest)
        self.rule.add(self.openness.estimates[-1])
        ranked = (known, nearest, share)
        self.labels.append(rank_pseudo_labels(*ranked, 1.0, self.n_classes))
        self.pseudo_labels.append(
            rank_pseudo_labels(
                *ranked,
                (step + 1) / self.total,
                self.n_classes,
                self.settings.ranking.class_balance,
            )
        )
        return share

    def _saver(self) -> Saver | None:
        return None if self.store is None else self

    def is_due(self) -> bool:
        """Whether it is time to keep the weights."""
        return self.store is not None and self.store.due()

    def save(self, position: Position) -> None:
        """Keep what moves within a step."""
        assert self.store is not None, "nobody else is asked to"
        self.store.write(LATEST, latest_record(self.trainer, position, self.fingerprint))

    def _keep(self, step: int, scores: StepScores) -> None:
        """Keep what it takes to come back to the end of this step."""
        # Where the last step is kept whatever happens, nobody comes back to the others.
        weights = weights_of(self.trainer) if self.settings.stopping.band < 1 else {}
        if self.store is None:
            self.weights.append(weights)
            return
        arrays: Arrays = {
            "known": scores.known,
            "held_out": scores.held_out,
            "nearest": scores.nearest.astype(np.int64),
        }
        if self.viewer is not None:
            arrays[_VIEW] = self.views[-1]
        self.store.write(step_name(step), Record(self.history[-1], arrays | weights))
        self.save(self.position)

    def finish(self) -> TrainingResult:
        """Go back to the step that is kept, and score the targets with more care."""
        kept = self.rule.kept()
        self.openness.keep(kept.step)
        if kept.step < kept.steps:
            load_weights(self.trainer, self._weights(kept.step - 1))
            self.trainer.inputs.refresh(self.trainer.team)
        samples = self._samples(kept.step - 1)
        network, settings, team = self.trainer.network, self.settings, self.trainer.team
        draws = settings.ranking.draws
        scores = transduce(network, samples, settings, self.trainer.rng, draws, team)
        view = self._view(samples, kept.step)
        return TrainingResult(network, scores, samples, self.history, self.labels, kept, view)

    def _view(self, samples: LabelledSamples, kept: int) -> TrainingView | None:
        if self.viewer is None:
            return None
        labels = self.labels[kept - 1]
        nodes, affinity = self.viewer.look_at_pairs(self.trainer.network, samples, labels)
        rows = self.viewer.source, self.viewer.target
        return TrainingView(*rows, tuple(self.views), nodes, affinity)

    def _weights(self, step: int) -> Arrays:
        if self.store is None:
            return self.weights[step]
        record = self.store.read(step_name(step))
        assert record is not None, "every step before the last has its record"
        return record.arrays

    def _samples(self, step: int) -> LabelledSamples:
        inputs = self.trainer.inputs
        return LabelledSamples(
            inputs.source,
            self.source_labels,
            inputs.target,
            torch.from_numpy(self.pseudo_labels[step]).to(self.trainer.device),
            progress=step / self.total,
        )
