"""Train a backbone with any method as its teacher: label, train on the surest labels, again."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.base import clone
from torch import Tensor

from opensetda.context import FitContext, Record
from opensetda.features.alignment import Alignment, unit
from opensetda.features.scaling import AUTO, RANKS, STANDARD
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.daod import DAOD
from opensetda.methods.inputs import TunedImages
from opensetda.methods.means.estimator import SmoothedMeans, class_means
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.methods.saving import part
from opensetda.progress import ProgressEvent, ProgressListener, finish_step
from opensetda.rows import IntArray, Rows, canonical_source, split_domains
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

Labelled = tuple[IntArray, IntArray, int]
"""Classes of the sources, pseudo-labels of the targets, number of classes."""


def fit_in_rounds(
    classifier: OpenSetClassifier,
    X: Any,
    y: npt.NDArray[Any],
    sample_domain: npt.NDArray[Any],
    context: FitContext,
    seed: int,
) -> None:
    r"""Fit a method that trains nothing to features of a backbone that is trained for it.

    The method labels the targets by frozen features: those of X, averaged over views. In each of
    M rounds the backbone is trained on the source and the surest :math:`\lambda m / (M + 1)` of
    the targets (`class_mean_loss`; :math:`\lambda` is the setting `labelled`), all features are
    computed anew, and the method labels all targets anew.

    The share of unknowns is that of the frozen features. The classifier ends as fitted to the
    last features; a step of its history is a labelling. The arguments are those of `fit`.

    Nothing here knows whether labels are right, but those that another method shares are safer.
    So the first labels are those of averaged views or of one view, by their `agreement`; and unless
    `DAOD`, fitted to the features as given and to the trained ones, agrees clearly more with the
    last labels than with those of a run without training, that run is the result, with a warning.
    """
    assert context.images is not None, "what is trained"
    settings, steps = context.images.settings, context.images.settings.rounds + 1
    rows = split_domains(sample_domain, len(X))
    names, encoded = np.unique(y[rows[0]], return_inverse=True)
    source, source_labels = canonical_source(Rows(X, rows[0]), encoded.astype(np.intp))
    target, n_classes = Rows(X, rows[1]).in_canonical_order(), len(names)
    # From the order of the caller's targets to the canonical one.
    order = np.argsort(np.argsort(target.index))
    inputs = TunedImages(context.images, source, target, None)
    inputs.to(this_process().device)
    how, scaling = (y, sample_domain, FitContext(checked=context.checked)), classifier.scaling
    if scaling == AUTO:
        # One for all rounds, whose labels are compared.
        classifier.set_params(scaling=RANKS)
    choose_views(inputs, classifier, X, inputs.features, *how)
    inputs.align(Alignment.fit(*inputs.rows))
    store, openness, report = context.checkpoints, classifier.openness, None
    record = from_main(store and store.read()) or Record({"history": []})
    history, labels = record.values["history"], [*record.arrays.get("labels", ())]
    done, pseudo_labels = len(history), np.full(len(target), UNLABELLED)
    for step in range(1, steps + 1):
        if 1 < step < done:
            continue
        started, loss = time.perf_counter(), None
        if step == done > 1:
            weights = part(record.arrays, "backbone.").items()
            inputs.learned.load_state_dict({name: torch.from_numpy(w) for name, w in weights})
            inputs.refresh()
        elif step > 1:
            labelled = source_labels, pseudo_labels, n_classes
            loss = {"means": _train(inputs, labelled, seed, (step, steps), context.progress)}
            inputs.refresh()
        classifier.fit(inputs.features, *how)
        if report is None:
            report = classifier.openness_report_
            # All may be beyond a boundary of the method's own.
            classifier.set_params(openness=min(report.share, 1 - 1 / (len(target) + 1)))
        known = classifier.transduction_scores_
        nearest = np.searchsorted(names, classifier.transduction_nearest_)
        ranked = known[order], nearest[order], classifier.openness_
        labelled_share = settings.labelled * step / steps
        pseudo_labels = rank_pseudo_labels(*ranked, labelled_share, n_classes, CLASS_BALANCE)
        if step <= done:
            continue
        labels.append(classifier.rejection.labels(known, nearest, n_classes))
        entry = {
            "step": step,
            "n_known": int(((pseudo_labels >= 0) & (pseudo_labels < n_classes)).sum()),
            "n_unknown": int((pseudo_labels == n_classes).sum()),
            "loss": loss,
            "mean_score": float(known.mean()),
            "changed": float((labels[-1] != labels[-2]).mean()) if step > 1 else None,
            "seconds": time.perf_counter() - started,
        }
        finish_step(history, context.progress, entry, steps)
        if store is not None:
            state = inputs.learned.state_dict().items()
            arrays = {f"backbone.{name}": w.detach().cpu().numpy() for name, w in state}
            store.write(Record({"history": history}, arrays | {"labels": np.stack(labels)}))
    assert report is not None, "there is at least one step"
    label, share, tuned = classifier.unknown_label, classifier.openness, classifier.transduction_
    classifier.set_params(openness=openness, scaling=scaling)
    if steps > 1:
        frozen = clone(classifier).fit(X, *how).transduction_
        judge = DAOD(share, scaling=STANDARD, unknown_label=label)
        opinions = [judge.fit(rows, *how).transduction_ for rows in (X, inputs.features)]
        if np.mean([(own == tuned).mean() - (own == frozen).mean() for own in opinions]) < CLEAR:
            inputs.start_anew()
            context.images.averaged = 1
            report = classifier.fit(X, *how).openness_report_
            report = replace(report, warnings=(*report.warnings, UNDONE))
            nearest = np.searchsorted(names, classifier.transduction_nearest_)
            labels[-1] = np.where(frozen == label, n_classes, nearest)
    classifier.openness_report_, classifier.history_ = report, history
    classifier.step_labels_ = np.stack(labels)


def choose_views(
    inputs: TunedImages, classifier: OpenSetClassifier, of_one: Any, of_all: Any, *how: Any
) -> None:
    """Take one view of each image from now on, if there is more `agreement` on its features."""
    if inputs.images.averaged > 1 and (
        agreement(classifier, of_one, *how) > agreement(classifier, of_all, *how)
    ):
        inputs.images.averaged = 1
        inputs.refresh()


def agreement(
    classifier: OpenSetClassifier,
    X: Any,
    y: npt.NDArray[Any],
    sample_domain: npt.NDArray[Any],
    context: FitContext,
) -> float:
    """Fit to these features, and return the share of targets that `SmoothedMeans` labels alike."""
    classifier.fit(X, y, sample_domain, context)
    share = min(classifier.openness_, 1 - 1 / (len(classifier.transduction_) + 1))
    label = classifier.unknown_label
    opinion = SmoothedMeans(share, scaling=classifier.scaler_.name, unknown_label=label)
    opinion.fit(X, y, sample_domain, FitContext())
    return float(np.mean(opinion.transduction_ == classifier.transduction_))


def _train(
    inputs: TunedImages,
    labelled: Labelled,
    seed: int,
    place: tuple[int, int],
    progress: ProgressListener | None,
) -> float:
    """Train the backbone for one round, with new moments of Adam; returns the mean loss."""
    settings, (step, steps) = inputs.images.settings, place
    rng, mixed = np.random.default_rng(own_seed(seed, step)), MIXED * (step - 1) / steps
    adam = torch.optim.Adam(inputs.parameters(), settings.rate, weight_decay=WEIGHT_DECAY)
    labels = [torch.from_numpy(values).to(inputs.device) for values in labelled[:2]]
    of_source, _ = class_means(inputs.source, labels[0], labelled[2])
    of_target, _ = class_means(inputs.target, labels[1], labelled[2])
    means, losses = unit(of_source + of_target), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        for iteration in range(1, settings.iterations + 1):
            batch = draw_batch(*labelled, mixed, settings, rng)
            index, is_target, own = (torch.from_numpy(part).to(inputs.device) for part in batch)
            loss = class_mean_loss(inputs.of_graph(index, is_target, rng), own, means)
            loss.backward()  # type: ignore[no-untyped-call]
            average_gradients(adam.param_groups[0]["params"])
            adam.step()
            adam.zero_grad()
            losses.append(float(loss.detach()))
            if progress is not None:
                progress(ProgressEvent(*place, iteration, settings.iterations + 1, losses[-1]))
    return float(np.mean(losses))


def draw_batch(
    source: IntArray,
    target: IntArray,
    n_classes: int,
    mixed: float,
    settings: FineTuneSettings,
    rng: np.random.Generator,
) -> tuple[IntArray, npt.NDArray[np.bool_], IntArray]:
    """Draw labelled images: equally many of each class, and targets as they come.

    An image of a class is of the source or, with probability `mixed`, a target with that
    pseudo-label. As many targets again are drawn from all; those without a label are left out.

    Takes the labels of both domains, and returns the images' numbers in their domain, whether they
    are targets, and their labels: (N,) each.
    """
    classes = min(n_classes, settings.batch_size // 4)
    slots = min(settings.per_class, settings.batch_size // (2 * classes))
    sources, targets = [], []
    for label in rng.choice(n_classes, classes, replace=False):
        own, theirs = (rng.permutation(np.flatnonzero(of == label)) for of in (source, target))
        sources.append(own[: slots - min(rng.binomial(slots, mixed), len(theirs))])
        if mixed:
            # Targets fill the places that a small class of the source leaves.
            targets.append(theirs[: slots - len(sources[-1])])
    others = rng.permutation(len(target))[: slots * classes]
    targets.append(others[target[others] != UNLABELLED])
    of_source, of_target = np.concatenate(sources), np.unique(np.concatenate(targets))
    is_target = np.repeat([False, True], [len(of_source), len(of_target)])
    labels = np.concatenate([source[of_source], target[of_target]])
    return np.concatenate([of_source, of_target]), is_target, labels


def class_mean_loss(x: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    r"""Draw labelled samples to the mean of their class, push unknown ones from all.

    .. math::
        L = \mathbb{E}_{y \le C} [-\log \operatorname{softmax}_y (s\, x M^\top)]
            + \frac{s}{2}\, \mathbb{E}_{y = C + 1} \sum_c \max(0, x M_c^\top)^2

    Shapes: x (N, d) and means M (C, d), both of unit length, labels (N,) -> scalar.
    """
    cosines, known = x @ means.t(), labels < len(means)
    loss = F.cross_entropy(MEAN_SCALE * cosines[known], labels[known])
    if not known.all():
        loss = loss + MEAN_SCALE / 2 * F.relu(cosines[~known]).square().sum(dim=1).mean()
    return loss
