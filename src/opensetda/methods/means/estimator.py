"""MovingMeans: class means that move to the target, step by step; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import clone
from torch import Tensor

from opensetda.context import FitContext
from opensetda.features.alignment import Alignment, parts_of, unit
from opensetda.features.scaling import AUTO, NONE, RANKS, SENTENCES, STANDARD
from opensetda.features.transformer import DomainTransformer
from opensetda.methods.base import COUNT, POSITIVE, SHARE, OpenSetClassifier, checked
from opensetda.methods.daod import DAOD
from opensetda.methods.means.scorer import MeansScorer, whitening_within_classes
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.rows import IntArray, Rows, first_of_every_class

JUDGED_ROWS = 800  # of each domain, by which a scaling is chosen
GRAPH_ROWS = 4096
"""Rows of each domain in the graph; targets beyond are attached to it, as later samples are."""


@dataclass(eq=False, repr=False, kw_only=True)
class MovingMeans(DomainTransformer, OpenSetClassifier):
    r"""Class means of smoothed rows that move from the source to the surest targets.

    A closed form: nothing is trained, nothing is drawn at random. Rows of both domains are
    aligned (`opensetda.features.alignment`). At step m of M, with :math:`p = (m - 1) / M`:

    1. *Whiten*: the metric is :math:`(1 - p) I + p W`, with W the whitening within classes of
       source and pseudo-labelled targets (`whitening_within_classes`).
    2. *Smooth*: every row moves towards the mean of its nearest rows of both domains.
    3. *Score*: the cosine to the nearest class mean

       .. math:: \mu_c = \operatorname{unit}((1 - v p)\, \mu_c^s + v p\, \mu_c^t)

       between the source's mean and that of the targets with the pseudo-label c, plus
       :math:`e p` times how much nearer the known rows are than the pseudo-unknowns
       (`MeansScorer`).
    4. *Label* the surest :math:`(1 - \beta)\, m/M` of the targets with their class and the least
       sure :math:`\beta\, m/M` as unknown, :math:`\beta` the share of unknowns
       (`rank_pseudo_labels`).

    Later samples are scored by the rows and means of the last step, and so are the targets of
    `fit`: `predict` agrees with `transduction_`.

    The parameters `openness` and `unknown_label` are those of `OpenSetClassifier`.

    Parameters
    ----------
    steps : int, default=10
        M.
    components : int or None, default=64
        Principal components of both domains to keep; None keeps all columns.
    whitening : float, default=0.5
        Divide each component by its standard deviation to this power.
    neighbours : int, default=10
        The number of nearest rows that a row moves to.
    message : float, default=0.5
        How far a row moves towards the mean of its neighbours; 0 does not smooth.
    ridge : float or None, default=0.3
        Ridge of the whitening within classes; None does not whiten.
    move : float, default=0.5
        v, how far class means move towards the targets.
    class_balance : float, default=0.5
        0 ranks the confidence of targets over all classes, 1 within each class.
    evidence : float, default=0.5
        e, the weight of the nearest known rows and the nearest pseudo-unknowns.
    scaling : {"none", "standard", "ranks", "auto"}, default="auto"
        How columns are scaled, see `opensetda.features.scaling`. "auto" takes ranks, or the
        columns as given if another method (`DAOD`, on standardised columns) then agrees with more
        of the labels: on a sample, without labels of the target. With more than 1,000 classes it
        takes ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from opensetda import MovingMeans
    >>> rng = np.random.default_rng(0)
    >>> centres = 4 * np.eye(3, 8)
    >>> X = np.concatenate([centres[i] + rng.normal(size=(20, 8)) for i in (0, 1, 0, 1, 2)])
    >>> y = np.repeat(["cat", "dog", "", "", ""], 20)
    >>> domain = np.repeat([1, 1, -1, -1, -1], 20)
    >>> clf = MovingMeans().fit(X, y, sample_domain=domain)
    >>> clf.predict(centres).tolist()
    ['cat', 'dog', 'unknown']
    """

    steps: int = checked(10, COUNT)
    components: int | None = checked(64, COUNT, None)
    whitening: float = checked(0.5, SHARE)
    neighbours: int = checked(10, COUNT)
    message: float = checked(0.5, SHARE)
    ridge: float | None = checked(0.3, POSITIVE, None)
    move: float = checked(0.5, SHARE)
    class_balance: float = checked(0.5, SHARE)
    evidence: float = checked(0.5, SHARE)
    scaling: str = AUTO

    scalings = (AUTO, *SENTENCES)

    def _chosen_scaling(self, source: Rows, y: IntArray, target: Rows, share: float) -> str:
        unknown = len(self.classes_)
        if unknown > DAOD.most_classes:
            return RANKS
        places = first_of_every_class(y, unknown, JUDGED_ROWS)
        some = source.take(places), target.first(JUDGED_ROWS)
        X = np.concatenate([chunk for rows in some for _, chunk in rows.chunks()])
        domain = np.repeat([0, -1], [len(places), len(X) - len(places)])
        labels = np.concatenate([y[places], np.zeros(len(X) - len(places), dtype=np.intp)])
        openness = min(share, 1 - 1 / (len(X) + 1))

        def labelled(method: OpenSetClassifier, scaling: str) -> npt.NDArray[Any]:
            method.set_params(openness=openness, scaling=scaling, unknown_label=unknown)
            return np.asarray(method.fit(X, labels, domain, FitContext()).transduction_)

        judge = labelled(DAOD(), STANDARD)
        agreed = {name: (labelled(clone(self), name) == judge).mean() for name in (RANKS, NONE)}
        return max(agreed, key=lambda name: agreed[name])

    @torch.no_grad()
    def _fit_domains(
        self, source: Rows, y: IntArray, target: Rows, share: float, context: FitContext
    ) -> None:
        n_classes = len(self.classes_)
        alignment = Alignment.fit(source, target, self.components, self.whitening)
        # In canonical order the first rows are a random sample.
        places = first_of_every_class(y, n_classes, GRAPH_ROWS)
        sources = torch.from_numpy(alignment.source(source.take(places)))
        targets = torch.from_numpy(alignment.target(target.first(GRAPH_ROWS)))
        labels = np.full(len(targets), UNLABELLED, dtype=np.intp)
        step_labels = []
        for step in range(self.steps if len(target) else 1):
            domains = (sources, torch.from_numpy(y[places])), (targets, torch.from_numpy(labels))
            self.scorer_, z = self._step(alignment, *domains, step / self.steps)
            if not len(target):
                return
            scored = [self.scorer_.score(part) for part in parts_of(z, self.scorer_.rows)]
            nearest = torch.cat([logits for logits, _ in scored]).argmax(dim=1).numpy()
            known = torch.cat([score for _, score in scored]).double().numpy()
            ranked = known, nearest, share
            step_labels.append(rank_pseudo_labels(*ranked, 1.0, n_classes))
            progress = (step + 1) / self.steps
            labels = rank_pseudo_labels(*ranked, progress, n_classes, self.class_balance)
            counts = {"n_known": int(((labels >= 0) & (labels < n_classes)).sum())}
            counts["n_unknown"] = int((labels == n_classes).sum())
            changed = float((step_labels[-1] != step_labels[-2]).mean()) if step else None
            self._finish_step(known, context, self.steps, **counts, changed=changed)
        if len(target) <= GRAPH_ROWS:
            self.step_labels_ = np.stack(step_labels)

    def _step(
        self,
        alignment: Alignment,
        source: tuple[Tensor, Tensor],
        target: tuple[Tensor, Tensor],
        progress: float,
    ) -> tuple[MeansScorer, Tensor]:
        """Return the scorer of a step, and the targets, smoothed; rows come with their labels."""
        (sources, y), (targets, labels) = source, target
        n_classes, arrays = len(self.classes_), {}
        if self.ridge is not None:
            metric = whitening_within_classes([source, target], n_classes, self.ridge)
            identity = torch.eye(sources.shape[1], dtype=torch.float64)
            arrays["metric"] = identity + progress * (metric - identity)
        none = sources[:0]
        arrays |= {"rows": none, "means": none, "known": none, "unknown": none}
        parts = self.neighbours, self.message, self.evidence * progress
        scorer = MeansScorer(alignment, arrays, *parts)
        rows = scorer.whiten(torch.cat([sources, targets]))
        if self.message:
            scorer.rows = _even(rows)
        z = torch.cat([scorer.smooth(part) for part in parts_of(rows, rows)])
        of_source, of_target = z[: len(y)], z[len(y) :]
        means, _ = class_means(of_source, y, n_classes)
        moved, has_target = class_means(of_target, labels, n_classes)
        reach = self.move * progress * has_target
        scorer.means = unit((1 - reach) * means + reach * moved)
        if scorer.evidence > 0:
            is_known = (labels >= 0) & (labels < n_classes)
            scorer.known = _even(torch.cat([of_source, of_target[is_known]]))
            scorer.unknown = _even(of_target[labels == n_classes])
        return scorer, of_target

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> MeansScorer:
        alignment = Alignment.of_state(arrays, is_projected=self.components is not None)
        names = ["rows", "means", "known", "unknown", *(["metric"] if self.ridge else [])]
        parts = self.neighbours, self.message, self.evidence
        return MeansScorer(alignment, {name: arrays[name] for name in names}, *parts)


def _even(rows: Tensor) -> Tensor:
    """Leave the last of an odd number of rows out: twice as fast, see `_score_scaled`."""
    return rows[: len(rows) - len(rows) % 2] if len(rows) > 1 else rows


def class_means(z: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return unit means of the rows of each class (C, d), and 1 or 0 for classes without (C, 1)."""
    known = (labels >= 0) & (labels < n_classes)
    sums = z.new_zeros(n_classes, z.shape[1]).index_add(0, labels[known], z[known])
    counts = torch.bincount(labels[known], minlength=n_classes)
    return unit(sums), (counts > 0).to(z.dtype)[:, None]


@dataclass(eq=False, repr=False, kw_only=True)
class SmoothedMeans(MovingMeans):
    """`MovingMeans` without whitening within classes, evidence of neighbours, and ranks."""

    ridge: float | None = None
    evidence: float = 0.0
    scaling: str = NONE

    scalings = tuple(SENTENCES)


@dataclass(eq=False, repr=False, kw_only=True)
class ClassMeans(SmoothedMeans):
    """Class means alone: rows are centred, and the means move all the way to the targets."""

    components: int | None = None
    message: float = 0.0
    move: float = 1.0
    class_balance: float = 0.0
