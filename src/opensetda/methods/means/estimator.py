"""MovingMeans: class means that move to the target, step by step; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from opensetda.context import FitContext
from opensetda.features.alignment import Aligned, Alignment, aligned, parts_of, unit
from opensetda.features.scaling import NONE, RANKS
from opensetda.features.transformer import DomainTransformer
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.means.scorer import LabelledRows, MeansScorer, whitening_within_classes
from opensetda.methods.parameters import COUNT, POSITIVE, SHARE, checked
from opensetda.methods.pseudo_labels import UNLABELLED, rank_pseudo_labels
from opensetda.rows import Domains, IntArray

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
    scaling : {"none", "standard", "ranks"}, default="ranks"
        How columns are scaled, see `opensetda.features.scaling`.

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

    joins_marks = False

    steps: int = checked(10, COUNT)
    components: int | None = checked(64, COUNT, None)
    whitening: float = checked(0.5, SHARE)
    neighbours: int = checked(10, COUNT)
    message: float = checked(0.5, SHARE)
    ridge: float | None = checked(0.3, POSITIVE, None)
    move: float = checked(0.5, SHARE)
    class_balance: float = checked(0.5, SHARE)
    evidence: float = checked(0.5, SHARE)
    scaling: str = RANKS

    @torch.no_grad()
    def _learn(self, domains: Domains, share: float, context: FitContext) -> None:
        n_classes = domains.n_classes
        sample = domains.sample(GRAPH_ROWS)
        alignment, sources, of_target = self._aligned(domains, sample)
        source = LabelledRows(torch.from_numpy(sources), torch.from_numpy(sample.y))
        targets = torch.from_numpy(of_target)
        labels = np.full(len(targets), UNLABELLED, dtype=np.intp)
        step_labels: list[IntArray] = []
        for step in range(self.steps if domains.has_target else 1):
            target = LabelledRows(targets, torch.from_numpy(labels))
            self.scorer_, z = self._step(alignment, source, target, n_classes, step / self.steps)
            if not domains.has_target:
                return
            scored = [self.scorer_.score(part) for part in parts_of(z, self.scorer_.rows)]
            nearest = torch.cat([logits for logits, _ in scored]).argmax(dim=1).numpy()
            known = torch.cat([score for _, score in scored]).double().numpy()
            step_labels.append(rank_pseudo_labels(known, nearest, share, 1.0, n_classes))
            labels = rank_pseudo_labels(
                known,
                nearest,
                openness=share,
                progress=(step + 1) / self.steps,
                n_classes=n_classes,
                class_balance=self.class_balance,
            )
            changed = float((step_labels[-1] != step_labels[-2]).mean()) if step else None
            self._finish_step(
                known,
                context,
                self.steps,
                n_known=int(((labels >= 0) & (labels < n_classes)).sum()),
                n_unknown=int((labels == n_classes).sum()),
                changed=changed,
            )
        if len(domains.target) <= GRAPH_ROWS:
            self.step_labels_ = np.stack(step_labels)

    def _aligned(self, domains: Domains, sample: Domains) -> Aligned:
        """Align the rows of a sample, by means and components of all rows."""
        if sample is domains:
            return aligned(domains, self.components, self.whitening)
        alignment = Alignment.fit(domains.source, domains.target, self.components, self.whitening)
        return Aligned(alignment, alignment.source(sample.source), alignment.target(sample.target))

    def _step(
        self,
        alignment: Alignment,
        source: LabelledRows,
        target: LabelledRows,
        n_classes: int,
        progress: float,
    ) -> tuple[MeansScorer, Tensor]:
        """Return the scorer of a step, and the targets, smoothed."""
        metric = None
        if self.ridge is not None:
            whitening = whitening_within_classes([source, target], n_classes, self.ridge)
            identity = torch.eye(source.rows.shape[1], dtype=torch.float64)
            metric = identity + progress * (whitening - identity)
        scorer = MeansScorer(
            alignment,
            metric=metric,
            neighbours=self.neighbours,
            message=self.message,
            evidence=self.evidence * progress,
        )
        rows = scorer.whiten(torch.cat([source.rows, target.rows]))
        scorer.rows = _even(rows) if self.message else rows[:0]
        z = torch.cat([scorer.smooth(part) for part in parts_of(rows, rows)])
        of_source = z[: len(source.rows)]
        of_target = z[len(source.rows) :]
        means, _ = class_means(of_source, source.labels, n_classes)
        moved, has_target = class_means(of_target, target.labels, n_classes)
        reach = self.move * progress * has_target
        scorer.means = unit((1 - reach) * means + reach * moved)
        scorer.known = z[:0]
        scorer.unknown = z[:0]
        if scorer.evidence > 0:
            is_known = (target.labels >= 0) & (target.labels < n_classes)
            scorer.known = _even(torch.cat([of_source, of_target[is_known]]))
            scorer.unknown = _even(of_target[target.labels == n_classes])
        return scorer, of_target

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> MeansScorer:
        scorer = MeansScorer(
            Alignment.of_state(arrays, is_projected=self.components is not None),
            metric=arrays["metric"] if self.ridge is not None else None,
            neighbours=self.neighbours,
            message=self.message,
            evidence=self.evidence,
        )
        for name in ("rows", "means", "known", "unknown"):
            setattr(scorer, name, arrays[name])
        return scorer


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


@dataclass(eq=False, repr=False, kw_only=True)
class ClassMeans(SmoothedMeans):
    """Class means alone: rows are centred, and the means move all the way to the targets."""

    components: int | None = None
    message: float = 0.0
    move: float = 1.0
    class_balance: float = 0.0
