"""Progressive training: train, label all targets, rank them, train again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opensetda.base import Scores
from opensetda.context import Arrays, FitContext, Record
from opensetda.errors import InputError
from opensetda.nn.inputs import TrainingInputs
from opensetda.openness.mixtures import rejection_cut
from opensetda.openness.tracker import KeptStep, OpennessTracker, StableStepRule
from opensetda.pgl import checkpoints
from opensetda.pgl.inference import StepScores, transduce, transduce_once
from opensetda.pgl.network import PGLNetwork
from opensetda.pgl.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.settings import PGLSettings
from opensetda.pgl.trainer import LabelledSamples, Position, Trainer
from opensetda.pgl.view import Embeddings, TrainingView, Viewer
from opensetda.progress import ProgressEvent
from opensetda.rows import IntArray

# Names of embeddings and labels in a step's record.
_VIEW, _SCORED_LABELS = "view", "scored_labels"


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training; network, scores, samples and inputs are of the kept step."""

    network: PGLNetwork
    scores: Scores
    samples: LabelledSamples
    history: list[dict[str, Any]]
    step_labels: list[IntArray]
    """The label of every target at every step; C is unknown."""
    kept: KeptStep
    view: TrainingView | None = None
    """Embeddings for a map, with `FitContext.view`; rows in canonical order."""


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
    probability (m - 1) alpha (Eq. 13), scores all targets with the network frozen, estimates
    how many of them are unknown, and gives the m alpha n_t most and least confident targets
    their pseudo-labels for step m + 1 (Eq. 6, Eq. 12). At m = M all targets have one.

    Several processes (`context.team`) all do this, with the same draws. They share the images,
    where a backbone is trained, and wait for each other at the end.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trainer = Trainer(inputs, n_classes, settings, np.random.default_rng(seed))
        steps = _Steps(trainer, source_labels, openness, seed, context or FitContext())
        steps.continue_from_checkpoint()
        while steps.position.step < steps.total and not steps.rule.should_stop:
            steps.run()
        result = steps.finish()
        # If a process is gone, the others stop here, before they write a result without it.
        steps.team.wait()
        return result


class _Steps:
    """The steps so far, and what the next one starts from."""

    def __init__(
        self,
        trainer: Trainer,
        source_labels: IntArray,
        openness: OpennessTracker,
        seed: int,
        context: FitContext,
    ) -> None:
        self.trainer, self.openness, self.position = trainer, openness, Position()
        self.store, self.team, self.progress = context.checkpoints, context.team, context.progress
        self.settings, self.n_classes = trainer.settings, trainer.n_classes
        self.n_targets = len(trainer.inputs.target)
        self.total = self.settings.steps if self.n_targets else 1
        self.passes = self.settings.ranking.passes if self.n_targets else 1
        self.source_labels = torch.from_numpy(source_labels).to(trainer.device)
        self.rule = StableStepRule(self.settings.stopping.band, self.settings.stopping.early)
        # The labels that each step is trained on, and those of the next one.
        self.pseudo_labels: list[IntArray] = [np.full(self.n_targets, UNLABELLED, dtype=np.intp)]
        # The labels that the targets of each step were scored with.
        self.scored_labels: list[IntArray] = []
        self.labels: list[IntArray] = []
        self.history: list[dict[str, Any]] = []
        self.weights: list[Arrays] = []
        self.viewer: Viewer | None = None
        if context.view and self.n_targets:
            self.viewer = Viewer(self.settings, len(source_labels), self.n_targets)
        self.views: list[Embeddings] = []
        self.fingerprint = checkpoints.fingerprint(trainer, source_labels, seed)

    def continue_from_checkpoint(self) -> None:
        """Continue from the latest checkpoint, if there is one."""
        latest = self._read(checkpoints.LATEST) if self.store is not None else None
        if latest is None:
            return
        if latest.values["fingerprint"] != self.fingerprint:
            other = "of a training with other data or settings; remove them to start anew"
            raise InputError(f"checkpoints: {other}")
        with checkpoints.fitting(checkpoints.LATEST):
            self.position = checkpoints.go_back(self.trainer, latest)
        for step in range(self.position.step):
            with checkpoints.fitting(checkpoints.step_name(step)):
                self._repeat(step, self._step_record(step))
        trained = any(entry["loss"] is not None for entry in self.history)
        if self.position.iteration == 0 and trained:
            # Only the start of a step needs the rows of all samples; its end refreshes them.
            self.trainer.inputs.refresh()

    def _repeat(self, step: int, record: Record) -> None:
        """Do again what followed from the scores of a step."""
        arrays = record.arrays
        if not len(arrays["known"]) == len(arrays["held_out"]) == len(arrays["nearest"]):
            raise ValueError("scores of another target")
        nearest = arrays["nearest"].astype(np.intp)
        self._rank(step, StepScores(arrays["known"], arrays["held_out"], nearest))
        own = self.pseudo_labels[step] if self.passes == 1 else arrays[_SCORED_LABELS]
        self.scored_labels.append(own.astype(np.intp))
        self.history.append(record.values)
        if self.viewer is not None:
            self.views.append(arrays[_VIEW])

    def run(self) -> None:
        """Train for one step, score all targets, and give them new pseudo-labels."""
        trainer, step, started = self.trainer, self.position.step, time.perf_counter()
        save = None if self.store is None else self._save
        iterations, losses, last_loss = trainer.train_step(
            self._samples(self.pseudo_labels[step], step / self.total),
            self.total,
            self.position,
            self.progress,
            save,
        )
        if losses is not None and trainer.inputs.learned is not None:
            checkpoints.share_weights(trainer, self.team)
            trainer.inputs.refresh()
        # The steps are ranked by one draw of support and graphs, the kept one by several.
        scores = self._score(step)
        share = self._rank(step, scores)
        pseudo_labels = self.pseudo_labels[-1]
        known = (pseudo_labels >= 0) & (pseudo_labels < self.n_classes)
        cut = rejection_cut(scores.known, share) if self.n_targets else -np.inf
        self.history.append(
            {
                "step": step + 1,
                "steps": self.total,
                "progress": (step + 1) / self.total,
                "n_known": int(known.sum()),
                "n_unknown": int((pseudo_labels == self.n_classes).sum()),
                "openness": share,
                "openness_estimate": self.openness.estimates[-1],
                "threshold": cut if np.isfinite(cut) else None,
                "loss": losses,
                "mean_score": float(scores.known.mean()) if self.n_targets else None,
                "changed": float((self.labels[-1] != self.labels[-2]).mean()) if step else None,
                "seconds": time.perf_counter() - started,
            }
        )
        if self.viewer is not None:
            self.views.append(self.viewer.look(trainer.network, self._scored_samples(step)))
        # Reported before it is saved: after a crash in between, the step runs and reports again.
        if self.progress is not None:
            place = step + 1, self.total, iterations + 1, iterations + 1
            self.progress(ProgressEvent(*place, last_loss, entry=self.history[-1]))
        self.position = Position(step + 1)
        self._keep(step, scores)

    def _score(self, step: int) -> StepScores:
        """Score all targets: once, or in passes, each with more labels by the scores before it."""
        labels, progress = self.pseudo_labels[step], step / self.total
        if self.passes > 1:
            # Anew: what was labelled before the backbone changed does not count.
            labels, progress = self.pseudo_labels[0], 0.0
            self.trainer.whiten(self._samples(labels, progress))
        network, settings, rng = self.trainer.network, self.settings, self.trainer.rng
        scores = transduce_once(network, self._samples(labels, progress), settings, rng)
        for done in range(1, self.passes):
            progress = done / self.passes
            labels = self._ranked(scores, self.openness.step_share, progress)
            samples = self._samples(labels, progress)
            self.trainer.whiten(samples)
            scores = transduce_once(network, samples, settings, rng)
        self.scored_labels.append(labels)
        return scores

    def _ranked(self, scores: StepScores, share: float, progress: float) -> IntArray:
        """Give a part (`progress`) of the targets their pseudo-labels, the surest ones."""
        balance = self.settings.ranking.class_balance
        ranked = scores.known, scores.nearest, share, progress
        return rank_pseudo_labels(*ranked, self.n_classes, balance)

    def _rank(self, step: int, scores: StepScores) -> float:
        """Estimate how many targets are unknown, and rank them; returns that share."""
        share = self.openness.update(scores.known, scores.held_out)
        self.rule.add(self.openness.estimates[-1])
        ranked = scores.known, scores.nearest, share
        self.labels.append(rank_pseudo_labels(*ranked, 1.0, self.n_classes))
        progress = self.settings.ranking.labelled * (step + 1) / self.total
        self.pseudo_labels.append(self._ranked(scores, share, progress))
        return share

    def _keep(self, step: int, scores: StepScores) -> None:
        """Keep what is needed to come back to the end of this step."""
        # If the last step is kept in any case, the weights of the others are not needed.
        all_kept = self.settings.stopping.band < 1
        weights = checkpoints.weights_of(self.trainer) if all_kept else Arrays()
        if self.store is None:
            self.weights.append(weights)
            return
        arrays = scores._asdict() | {"nearest": scores.nearest.astype(np.int64)}
        if self.passes > 1:
            arrays[_SCORED_LABELS] = self.scored_labels[-1].astype(np.int64)
        if self.viewer is not None:
            arrays[_VIEW] = self.views[-1]
        if self.team.is_first:
            record = Record(self.history[-1], arrays | weights)
            self.store.write(checkpoints.step_name(step), record)
            self._save(self.position, due=True)

    def _save(self, position: Position, due: bool = False) -> None:
        """Save everything that changes within a step, if it is due."""
        if self.team.is_first and self.store is not None and (due or self.store.due()):
            record = checkpoints.latest_record(self.trainer, position, self.fingerprint)
            self.store.write(checkpoints.LATEST, record)

    def _read(self, name: str, is_needed: bool = False) -> Record | None:
        assert self.store is not None
        return checkpoints.read_record(self.store, name, self.team, is_needed)

    def finish(self) -> TrainingResult:
        """Go back to the kept step, and score the targets by several draws."""
        kept = self.rule.kept()
        self.openness.keep(kept.step)
        if kept.step < kept.steps:
            checkpoints.load_weights(self.trainer, self._weights(kept.step - 1))
            self.trainer.inputs.refresh()
        samples = self._scored_samples(kept.step - 1)
        network, settings, rng = self.trainer.network, self.settings, self.trainer.rng
        scores = transduce(network, samples, settings, rng, settings.ranking.draws)
        view = None
        if self.viewer is not None:
            nodes = self.viewer.look_at_pairs(network, samples, self.labels[kept.step - 1])
            view = TrainingView(self.viewer.source, self.viewer.target, tuple(self.views), *nodes)
        return TrainingResult(network, scores, samples, self.history, self.labels, kept, view)

    def _weights(self, step: int) -> Arrays:
        if self.store is None:
            return self.weights[step]
        return self._step_record(step).arrays

    def _step_record(self, step: int) -> Record:
        record = self._read(checkpoints.step_name(step), is_needed=True)
        assert record is not None, "it is needed"
        return record

    def _scored_samples(self, step: int) -> LabelledSamples:
        """Return the samples with the labels they were scored with at a step."""
        progress = step / self.total if self.passes == 1 else 1 - 1 / self.passes
        return self._samples(self.scored_labels[step], progress)

    def _samples(self, pseudo_labels: IntArray, progress: float) -> LabelledSamples:
        inputs = self.trainer.inputs
        labels = torch.from_numpy(pseudo_labels).to(self.trainer.device)
        return LabelledSamples(inputs.source, self.source_labels, inputs.target, labels, progress)
