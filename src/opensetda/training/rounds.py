"""Train a backbone with any method as its teacher: label, train on the surest labels, again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.base import clone
from torch import Tensor

from opensetda.context import FitContext, Record
from opensetda.features.alignment import Alignment, unit
from opensetda.features.scaling import STANDARD
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.daod import DAOD
from opensetda.methods.inputs import TunedImages
from opensetda.methods.means.estimator import class_means
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.methods.rankers import choose_views, labels_by
from opensetda.methods.saving import part
from opensetda.progress import ProgressEvent, ProgressListener, finish_step
from opensetda.rows import Domains, IntArray
from opensetda.system.processes import average_gradients, from_main, own_seed, this_process
from opensetda.training.settings import FineTuneSettings

WEIGHT_DECAY = 5e-5
# Of the pseudo-labels: 0 ranks the confidence of targets over all classes, 1 within each.
CLASS_BALANCE = 0.5
# The largest share of a class in a batch that is pseudo-labelled targets.
MIXED = 0.5
# s of `class_mean_loss`.
MEAN_SCALE = 10.0
# How many more of the trained labels a second method has to share; fewer may be chance.
CLEAR = 0.01
UNDONE = "training the backbone was undone: a second method did not agree more with its labels"


@dataclass(frozen=True)
class FittedInRounds:
    """A method that was fitted to the last features, and what its rounds were."""

    classifier: OpenSetClassifier
    history: list[dict[str, Any]]
    """One entry per labelling."""
    step_labels: IntArray
    """The labels of the targets at each labelling, in the order of their row numbers."""
    was_undone: bool


def fit_in_rounds(
    method: OpenSetClassifier, domains: Domains, context: FitContext, seed: int
) -> FittedInRounds:
    r"""Fit a method that trains nothing to features of a backbone that is trained for it.

    The method labels the targets by frozen features: those of the rows, averaged over views. In
    each of M rounds the backbone is trained on the source and the surest
    :math:`\lambda m / (M + 1)` of the targets (`class_mean_loss`; :math:`\lambda` is the setting
    `labelled`), all features are computed anew, and the method labels all targets anew. `method`
    stays as it is: a copy is fitted to each round's features. The share of unknowns is that of the
    first labels.

    Nothing here knows whether labels are right, but those that another method shares are safer.
    So the first labels are those of averaged views or of one view, by their `agreement`; and unless
    `DAOD`, fitted to the features as given and to the trained ones, agrees clearly more with the
    last labels than with those of a run without training, that run is the result, with a warning.
    """
    assert context.images is not None, "what is trained"
    settings = context.images.settings
    steps = settings.rounds + 1
    domains = domains.joined()
    inputs = TunedImages(domains, None, context.images)
    inputs.to(this_process().device)
    given = FitContext(checked=context.checked)
    choose_views(inputs, method, domains, given)
    inputs.align(Alignment.fit(inputs.domains.source, inputs.domains.target))
    log = RoundLog(inputs, steps, context)
    fitted = clone(method).fit_domains(inputs.domains.reordered(), given)
    same_share = given._replace(studied=fitted.openness_report_)
    pseudo_labels = surest_labels(fitted, domains, settings.labelled / steps)
    log.finish(1, fitted, pseudo_labels, loss=None)
    for step in range(max(2, log.done), steps + 1):
        loss = None
        if step == log.done:
            log.restore_backbone()
        else:
            labelled = Labelled(domains.y, pseudo_labels, domains.n_classes)
            loss = {"means": _train(inputs, labelled, seed, (step, steps), context.progress)}
        inputs.refresh()
        fitted = clone(method).fit_domains(inputs.domains.reordered(), same_share)
        pseudo_labels = surest_labels(fitted, domains, settings.labelled * step / steps)
        log.finish(step, fitted, pseudo_labels, loss)
    if steps == 1:
        return FittedInRounds(fitted, log.history, np.stack(log.labels), was_undone=False)
    frozen = clone(method).fit_domains(domains, given)
    was_undone = not _is_clearly_better(fitted, frozen, domains, inputs.domains)
    if was_undone:
        inputs.start_anew()
        context.images.averaged = 1
        fitted = frozen
        log.labels[-1] = label_indices(frozen)
    return FittedInRounds(fitted, log.history, np.stack(log.labels), was_undone)


class RoundLog:
    """History and labels of the rounds; each is saved as a checkpoint, from which one goes on.

    `done` rounds were in the checkpoint that was found.
    """

    def __init__(self, inputs: TunedImages, steps: int, context: FitContext) -> None:
        self.inputs = inputs
        self.steps = steps
        self.progress = context.progress
        self.checkpoints = context.checkpoints
        found = from_main(None if self.checkpoints is None else self.checkpoints.read())
        self.found = found or Record({"history": []})
        self.history: list[dict[str, Any]] = self.found.values["history"]
        self.labels: list[IntArray] = [*self.found.arrays.get("labels", ())]
        self.done = len(self.history)
        self.started = time.perf_counter()

    def restore_backbone(self) -> None:
        """Load the weights of the last round that was saved."""
        weights = part(self.found.arrays, "backbone.").items()
        self.inputs.learned.load_state_dict({name: torch.from_numpy(w) for name, w in weights})

    def finish(
        self,
        step: int,
        fitted: OpenSetClassifier,
        pseudo_labels: IntArray,
        loss: dict[str, float] | None,
    ) -> None:
        """Add a labelling, report and save it, unless the checkpoint had it."""
        if step <= self.done:
            return
        n_classes = len(fitted.classes_)
        self.labels.append(label_indices(fitted))
        changed = float((self.labels[-1] != self.labels[-2]).mean()) if step > 1 else None
        entry = {
            "step": step,
            "n_known": int(((pseudo_labels >= 0) & (pseudo_labels < n_classes)).sum()),
            "n_unknown": int((pseudo_labels == n_classes).sum()),
            "loss": loss,
            "mean_score": float(fitted.transduction_scores_.mean()),
            "changed": changed,
            "seconds": time.perf_counter() - self.started,
        }
        self.started = time.perf_counter()
        finish_step(self.history, self.progress, entry, self.steps)
        if self.checkpoints is not None:
            weights = self.inputs.learned.state_dict().items()
            arrays = {f"backbone.{name}": w.detach().cpu().numpy() for name, w in weights}
            arrays["labels"] = np.stack(self.labels)
            self.checkpoints.write(Record({"history": self.history}, arrays))


def surest_labels(fitted: OpenSetClassifier, domains: Domains, progress: float) -> IntArray:
    """Return the pseudo-labels of the surest targets, in the order of the domains."""
    place = np.argsort(np.argsort(domains.target.index))
    nearest = np.searchsorted(fitted.classes_, fitted.transduction_nearest_)
    return rank_pseudo_labels(
        fitted.transduction_scores_[place],
        nearest[place],
        openness=fitted.openness_,
        progress=progress,
        n_classes=domains.n_classes,
        class_balance=CLASS_BALANCE,
    )


def label_indices(fitted: OpenSetClassifier) -> IntArray:
    """Return the labels of the targets as indices into the classes, C for unknown."""
    n_classes = len(fitted.classes_)
    is_unknown = fitted.transduction_ == fitted.unknown_label
    nearest = np.searchsorted(fitted.classes_, fitted.transduction_nearest_)
    return np.where(is_unknown, n_classes, nearest)


def _is_clearly_better(
    trained: OpenSetClassifier,
    frozen: OpenSetClassifier,
    given: Domains,
    learned: Domains,
) -> bool:
    """Return whether another method shares clearly more labels of the trained run."""
    gains = []
    for domains in (given, learned):
        opinion = labels_by(DAOD(trained.openness_, scaling=STANDARD), domains, trained)
        gains.append(
            (opinion == trained.transduction_).mean() - (opinion == frozen.transduction_).mean()
        )
    return bool(np.mean(gains) >= CLEAR)


class Labelled(NamedTuple):
    """Classes of the sources, pseudo-labels of the targets, number of classes."""

    source: IntArray
    target: IntArray
    n_classes: int


def _train(
    inputs: TunedImages,
    labelled: Labelled,
    seed: int,
    place: tuple[int, int],
    progress: ProgressListener | None,
) -> float:
    """Train the backbone for one round, with new moments of Adam; returns the mean loss."""
    settings = inputs.images.settings
    step, steps = place
    rng = np.random.default_rng(own_seed(seed, step))
    mixed = MIXED * (step - 1) / steps
    adam = torch.optim.Adam(inputs.parameters(), settings.rate, weight_decay=WEIGHT_DECAY)
    of_source, _ = class_means(
        inputs.source, torch.from_numpy(labelled.source).to(inputs.device), labelled.n_classes
    )
    of_target, _ = class_means(
        inputs.target, torch.from_numpy(labelled.target).to(inputs.device), labelled.n_classes
    )
    means = unit(of_source + of_target)
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        for iteration in range(1, settings.iterations + 1):
            batch = draw_batch(labelled, mixed, settings, rng)
            index = torch.from_numpy(batch.rows).to(inputs.device)
            is_target = torch.from_numpy(batch.is_target).to(inputs.device)
            own = torch.from_numpy(batch.labels).to(inputs.device)
            loss = class_mean_loss(inputs.of_graph(index, is_target, rng), own, means)
            loss.backward()  # type: ignore[no-untyped-call]
            average_gradients(adam.param_groups[0]["params"])
            adam.step()
            adam.zero_grad()
            losses.append(float(loss.detach()))
            if progress is not None:
                event = ProgressEvent(step, steps, iteration, settings.iterations + 1, losses[-1])
                progress(event)
    return float(np.mean(losses))


class DrawnBatch(NamedTuple):
    """The images of a batch, by their numbers in their domain, and their labels: (N,) each."""

    rows: IntArray
    is_target: npt.NDArray[np.bool_]
    labels: IntArray


def draw_batch(
    labelled: Labelled, mixed: float, settings: FineTuneSettings, rng: np.random.Generator
) -> DrawnBatch:
    """Draw labelled images: equally many of each class, and targets as they come.

    An image of a class is of the source or, with probability `mixed`, a target with that
    pseudo-label. As many targets again are drawn from all; those without a label are left out.
    """
    classes = min(labelled.n_classes, settings.batch_size // 4)
    slots = min(settings.per_class, settings.batch_size // (2 * classes))
    sources: list[IntArray] = []
    targets: list[IntArray] = []
    for label in rng.choice(labelled.n_classes, classes, replace=False):
        own = rng.permutation(np.flatnonzero(labelled.source == label))
        theirs = rng.permutation(np.flatnonzero(labelled.target == label))
        sources.append(own[: slots - min(rng.binomial(slots, mixed), len(theirs))])
        if mixed:
            # Targets fill the places that a small class of the source leaves.
            targets.append(theirs[: slots - len(sources[-1])])
    others = rng.permutation(len(labelled.target))[: slots * classes]
    targets.append(others[labelled.target[others] != UNLABELLED])
    of_source = np.concatenate(sources)
    of_target = np.unique(np.concatenate(targets))
    return DrawnBatch(
        rows=np.concatenate([of_source, of_target]),
        is_target=np.repeat([False, True], [len(of_source), len(of_target)]),
        labels=np.concatenate([labelled.source[of_source], labelled.target[of_target]]),
    )


def class_mean_loss(x: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    r"""Draw labelled samples to the mean of their class, push unknown ones from all.

    .. math::
        L = \mathbb{E}_{y \le C} [-\log \operatorname{softmax}_y (s\, x M^\top)]
            + \frac{s}{2}\, \mathbb{E}_{y = C + 1} \sum_c \max(0, x M_c^\top)^2

    Shapes: x (N, d) and means M (C, d), both of unit length, labels (N,) -> scalar.
    """
    cosines = x @ means.t()
    known = labels < len(means)
    loss = F.cross_entropy(MEAN_SCALE * cosines[known], labels[known])
    if not known.all():
        loss = loss + MEAN_SCALE / 2 * F.relu(cosines[~known]).square().sum(dim=1).mean()
    return loss
