"""A training of PGL that keeps the network, labels and embeddings of every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from opensetda.analyses.contract import PGLRun
from opensetda.context import Arrays, FitContext, Record
from opensetda.data.benchmarks.protocols import OpenSetTask
from opensetda.errors import InputError
from opensetda.nn.inputs import FixedRows
from opensetda.pgl.checkpoints import LATEST, step_name
from opensetda.pgl.estimator import PGLClassifier
from opensetda.pgl.inference import ClassMeans, mix_of
from opensetda.pgl.network import GraphOutput, PGLNetwork
from opensetda.pgl.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.pgl.trainer import LabelledSamples
from opensetda.pgl.view import graphs_of_both
from opensetda.rows import IntArray, Rows

Matrix = npt.NDArray[np.float64]

_NETWORK = "network."


class StepMemory:
    """A `CheckpointStore` that keeps every step of one training in memory.

    Of the latest record after each step only the weights are kept: it cannot be resumed.
    """

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.weights: list[Arrays] = []

    def due(self) -> bool:
        """Return False: nothing is written within a step."""
        return False

    def write(self, name: str, record: Record) -> None:
        """Keep a step's record, or the weights of the latest."""
        if name == LATEST:
            weights = {key: value for key, value in record.arrays.items() if _NETWORK in key}
            self.weights.append({key.removeprefix(_NETWORK): w for key, w in weights.items()})
        else:
            self.records[name] = record

    def read(self, name: str, is_needed: bool = False) -> Record | None:
        """Return the record of a step, but never a latest one to resume from."""
        return self.records.get(name)


@dataclass(frozen=True)
class StepView:
    """Step m = `number`, from 1, of a training, as it was at its end.

    `samples` have the labels that step m was trained on; `labels` (C is unknown) and
    `pseudo_labels`, h_b^(m), are those of the targets after it.
    """

    number: int
    network: PGLNetwork
    samples: LabelledSamples
    labels: IntArray
    pseudo_labels: IntArray


@dataclass(frozen=True)
class Embedded:
    """Node embeddings v^(L) of all samples, and argmax_c p(c|x) of the source."""

    source: Matrix
    target: Matrix
    source_classes: IntArray


class ObservedTraining:
    """A fitted PGL classifier and its steps; rows are in the canonical order of the method.

    The truth of the task is kept for evaluation and never reaches the training: `target_truth` are
    class indices, C for unknown, `target_names` the names, also of unknowns. `source_order` and
    `target_order` are the rows of the task.
    """

    def __init__(
        self,
        task: OpenSetTask,
        openness: float | str,
        preset: str = "default",
        changes: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.memory = StepMemory()
        settings = dict(changes or {}) or None
        self.classifier = PGLClassifier(
            openness=openness, preset=preset, settings=settings, random_state=seed
        )
        X = np.concatenate([task.source_features, task.target_features])
        n_source = len(task.source_features)
        y = np.concatenate([task.source_labels, np.full(len(X) - n_source, task.source_labels[0])])
        domain = np.repeat([0, -1], [n_source, len(X) - n_source])
        self.classifier.fit(X, y, domain, FitContext(checkpoints=self.memory))
        source = Rows(X, np.arange(n_source)).in_canonical_order()
        target = Rows(X, np.arange(n_source, len(X))).in_canonical_order()
        self.settings, kept = self.classifier.settings_, self.classifier.kept_step_
        assert kept is not None, "PGL always keeps a step"
        self.kept_step, self.n_steps = kept.step, len(self.memory.weights)
        scaled = self.classifier.scaler_.domains(source, target)
        self.inputs = FixedRows(*scaled, self.settings.alignment)
        self.source_order, self.target_order = source.index, target.index - n_source
        classes = self.classifier.classes_
        self.n_classes = len(classes)
        self.source_labels = np.searchsorted(classes, task.source_labels[self.source_order])
        self.target_names = task.target_truth[self.target_order]
        self.target_truth = true_classes(self.target_names, classes)

    def steps(self) -> Iterator[StepView]:
        """Return the steps in their order."""
        return map(self.step, range(1, self.n_steps + 1))

    def step(self, number: int) -> StepView:
        """Return a step by its number, from 1."""
        if not 1 <= number <= self.n_steps:
            raise InputError(f"step {number}: there are the steps 1 to {self.n_steps}")
        total = self.settings.steps
        network = PGLNetwork(self.inputs.source.shape[1], self.n_classes, self.settings.graph)
        weights = self.memory.weights[number - 1]
        network.load_state_dict({k: torch.from_numpy(np.array(w)) for k, w in weights.items()})
        before = np.full(len(self.target_order), UNLABELLED, dtype=np.intp)
        if number > 1:
            before = self._ranked(number - 1, (number - 1) / total)
        source = self.inputs.source.cpu(), torch.from_numpy(self.source_labels)
        target = self.inputs.target.cpu(), torch.from_numpy(before)
        samples = LabelledSamples(*source, *target, progress=(number - 1) / total)
        labels, pseudo_labels = self._ranked(number, 1.0), self._ranked(number, number / total)
        return StepView(number, network.eval(), samples, labels, pseudo_labels)

    def _ranked(self, number: int, progress: float) -> IntArray:
        """Return the pseudo-labels (Eq. 6) again, from the saved scores of the step."""
        record = self.memory.records[step_name(number - 1)]
        return rank_pseudo_labels(
            record.arrays["known"],
            record.arrays["nearest"].astype(np.intp),
            record.values["openness"],
            progress,
            self.n_classes,
            self.settings.ranking.class_balance,
        )

    @torch.no_grad()
    def embed(self, step: StepView, seed: int = 0) -> Embedded:
        """Pass every sample once through the network of a step, in graphs of both domains."""
        n_source, n_targets = len(self.source_labels), len(self.target_order)
        everyone = np.arange(n_source), np.arange(n_targets)
        parts: list[tuple[IntArray, IntArray, Matrix, IntArray]] = []
        graphs = graphs_of_both(step.network, step.samples, self.settings, *everyone, seed)
        for source, target, x, labels in graphs:
            output = step.network(x, labels)
            logits = self._class_scores(step, output, labels, len(source))
            nodes = output.nodes[-1].double().numpy()
            parts.append((source, target, nodes, logits[: len(source)].argmax(dim=1).numpy()))
        width = parts[0][2].shape[1]
        empty = np.empty((n_source, width)), np.empty((n_targets, width))
        embedded = Embedded(*empty, np.empty(n_source, dtype=np.intp))
        for source, target, nodes, classes in parts:
            embedded.source[source], embedded.target[target] = np.split(nodes, [len(source)])
            embedded.source_classes[source] = classes
        return embedded

    def _class_scores(
        self, step: StepView, output: GraphOutput, labels: torch.Tensor, n_source: int
    ) -> torch.Tensor:
        """Score all nodes of a graph by the classifier that labels the targets: (N, C)."""
        if self.settings.graph.form == "paper":
            return output.class_logits[-1]
        v, samples = output.nodes[-1], step.samples
        is_target = torch.arange(len(v)) >= n_source
        mix = mix_of(samples.progress, self.settings)
        means = ClassMeans.of(v, labels, is_target, self.n_classes, mix).mixed()
        return v @ means.t()


def observe(run: PGLRun, task: OpenSetTask) -> ObservedTraining:
    """Train PGL on the task of a run."""
    settings = run.openness_of(task), run.preset, dict(run.changes), run.seed
    return ObservedTraining(task, *settings)


def true_classes(truth: npt.NDArray[Any], classes: npt.NDArray[Any]) -> IntArray:
    """Return class indices of true labels, C for all unknown classes."""
    place = np.minimum(np.searchsorted(classes, truth), len(classes) - 1)
    return np.asarray(np.where(classes[place] == truth, place, len(classes)), dtype=np.intp)
