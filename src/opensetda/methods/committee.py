"""Committee: quick methods that see the same rows in different ways, and vote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from opensetda.context import FitContext
from opensetda.features.alignment import COMPONENTS, WHITENING, aligned
from opensetda.features.doubts import find_doubts
from opensetda.features.scaling import NONE, RANKS, SENTENCES, STANDARD, Scaling
from opensetda.features.separation import Separation, held_out_accuracy, mixing
from opensetda.features.transformer import DomainTransformer
from opensetda.methods.base import OpenSetClassifier
from opensetda.methods.daod import DAOD
from opensetda.methods.fitted import in_blocks
from opensetda.methods.means.estimator import MovingMeans, SmoothedMeans
from opensetda.methods.saving import part
from opensetda.methods.texts import TextMember
from opensetda.methods.votes import (
    Opinions,
    VoteTable,
    member_weights,
    share_of_votes,
    sharpness_of,
)
from opensetda.progress import finish_step
from opensetda.rows import Domains, Rows
from opensetda.share.confidence import alarm_warnings, class_alarms, doubt
from opensetda.share.decision import (
    Decision,
    MostVotes,
    NothingUnknown,
    Scores,
    Vector,
)
from opensetda.share.evidence import estimate_share, gather_evidence
from opensetda.share.report import ESTIMATE, OpennessReport, check_openness, study_openness

MEMBER_ROWS = 800
"""Rows of each domain that the members are fitted to; they vote on all targets."""
TEXTS = "names as texts"
"""The member that compares rows of images with those of the names of classes (`TextMember`)."""
DISPUTED = 0.2  # warn if members disagree with so many labels, on average


class Seat(NamedTuple):
    """A member: a method and the scaling of its columns."""

    method: type[OpenSetClassifier]
    scaling: str

    @property
    def name(self) -> str:
        """Method and scaling in words."""
        return f"{self.method.__name__} ({SENTENCES[self.scaling]})"


# They differ as much as possible from each other, and none takes long.
SEATS = (
    Seat(MovingMeans, RANKS),
    Seat(MovingMeans, NONE),
    Seat(DAOD, STANDARD),
    Seat(DAOD, NONE),
    Seat(SmoothedMeans, RANKS),
)


def seats_for(n_classes: int) -> tuple[Seat, ...]:
    """Return the members that are able to learn so many classes in a short time."""
    return tuple(
        seat for seat in SEATS if seat.method is not DAOD or n_classes <= DAOD.most_classes
    )


class CommitteeScorer(nn.Module):
    r"""The weighted mean of the members' votes.

    .. math:: p(x) = \sum_m w_m \big(u_m(x)\, e_{C+1} + (1 - u_m(x))\, e_{c_m(x)}\big)

    with the nearest class :math:`c_m` of member m and its vote for unknown :math:`u_m`, which
    follows from the rank of its known score among those of the targets (`VoteTable`). The
    probabilities are proportional to :math:`p^\gamma`: where members agree with most labels, labels
    are right more often than their votes say, and less often where they do not (`sharpness_of`).
    Where members see few classes, all columns get a part (`opensetda.share.confidence`).

    Shapes: x (n, D) -> votes for the classes (n, C), and the largest less that for unknown (n,).
    """

    weights: Tensor
    sharpness: Tensor
    doubt: Tensor

    def __init__(
        self,
        scalings: Mapping[str, Scaling],
        names: Sequence[str],
        scorers: Sequence[nn.Module],
        n_classes: int,
    ) -> None:
        super().__init__()
        self.scalings = nn.ModuleDict(dict(scalings))
        self.names = list(names)
        self.scorers = nn.ModuleList(scorers)
        self.n_classes = n_classes

    def let_vote(self, tables: Sequence[VoteTable], weights: Vector) -> None:
        """Set how the scores of each member become votes, and the weights of the votes."""
        self.tables = nn.ModuleList(tables)
        self.register_buffer("weights", torch.from_numpy(weights))
        self.register_buffer("sharpness", torch.tensor(1.0, dtype=torch.float64))
        self.register_buffer("doubt", torch.tensor(0.0, dtype=torch.float64))

    def sharpen(self, sharpness: float, doubt: float = 0.0) -> None:
        """Set the exponent of the mean votes, and how much of them all columns share then."""
        self.sharpness.fill_(sharpness)
        self.doubt.fill_(doubt)

    def opinions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return known scores and nearest classes by each member: (n, D) -> (n, M), (n, M)."""
        scaled = {name: scaling(x) for name, scaling in self.scalings.items()}
        logits: list[Tensor] = []
        known: list[Tensor] = []
        for name, scorer in zip(self.names, self.scorers, strict=True):
            of_classes, score = scorer(scaled[name])
            logits.append(of_classes)
            known.append(score)
        nearest = [of_classes.argmax(dim=1) for of_classes in logits]
        return torch.stack(known, dim=1), torch.stack(nearest, dim=1)

    def vote(self, known: Tensor, nearest: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sharpened mean of the votes: (n, M), (n, M) -> (n, C), (n,)."""
        classes = torch.arange(self.n_classes)
        total = torch.zeros(known.shape[0], self.n_classes, dtype=known.dtype)
        for member, table in enumerate(self.tables):
            for_class = self.weights[member] * (1 - table(known[:, member]))
            chosen = nearest[:, member, None] == classes
            total = total + for_class[:, None] * chosen.to(known.dtype)
        rest = (1 - total.sum(dim=1)).clamp(min=0)
        powers = torch.cat([total, rest[:, None]], dim=1) ** self.sharpness
        probabilities = powers / powers.sum(dim=1, keepdim=True)
        probabilities = (1 - self.doubt) * probabilities + self.doubt / (self.n_classes + 1)
        of_classes = probabilities[:, : self.n_classes]
        return of_classes, of_classes.amax(dim=1) - probabilities[:, self.n_classes]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Vote on rows, each on its own."""
        known, nearest = self.opinions(x)
        return self.vote(known, nearest)

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Return rows as the first member represents them: (n, D) -> (n, d)."""
        scaled = self.scalings[self.names[0]](x, of_source)
        embedded: Tensor = self.scorers[0].embed(scaled, of_source)  # type: ignore[operator]
        return embedded


@dataclass(eq=False, repr=False, kw_only=True)
class Committee(DomainTransformer, OpenSetClassifier):
    """Five quick methods vote on every sample; the label is the most probable column.

    The members are `MovingMeans` and `SmoothedMeans` on ranks, `MovingMeans` and `DAOD` on the
    columns as given, and `DAOD` on standardised columns. Each is fitted once, to the same sample of
    rows. A member votes for its nearest class or for unknown: the farther the rank of its known
    score lies below the share of unknowns, the more for unknown, and the less, the less certain
    that share is. The probabilities are the mean of the votes, in which members that agree with the
    others have more weight (`member_weights`). Where the members agree, labels are right more
    often. Where the names of the classes are rows, too (`Domains.texts`), a further member compares
    rows with them (`opensetda.methods.texts`).

    The parameters `openness` and `unknown_label` are those of `OpenSetClassifier`. A share that is
    given or audited guides the votes; about as many targets are labelled unknown.

    Attributes
    ----------
    members_ : list of str
        The members' names: method and scaling.
    agreement_ : array of shape (n_targets,)
        The share of the members that give a target of `fit` the label that all voted for.
    alarms_ : list of dict
        Classes whose labels are probably wrong or missing, the worst first: name, count, expected
        count, confidence. See `opensetda.share.confidence`.
    separation_ : dict
        Whether the columns tell the classes apart in both domains, see
        `opensetda.features.separation`.

    Examples
    --------
    >>> import numpy as np
    >>> from opensetda import Committee
    >>> rng = np.random.default_rng(0)
    >>> centres = 4 * np.eye(3, 8)
    >>> X = np.concatenate([centres[i] + rng.normal(size=(20, 8)) for i in (0, 1, 0, 1, 2)])
    >>> y = np.repeat(["cat", "dog", "", "", ""], 20)
    >>> domain = np.repeat([1, 1, -1, -1, -1], 20)
    >>> clf = Committee(openness=1 / 3).fit(X, y, sample_domain=domain)
    >>> clf.predict(centres).tolist()
    ['cat', 'dog', 'unknown']
    """

    scalings = (NONE,)
    joins_marks = False

    def _study_openness(self, scaled: Domains, context: FitContext) -> OpennessReport:
        sample = scaled.sample(MEMBER_ROWS)
        _, ranked = Scaling.applied(RANKS, sample)
        found = aligned(ranked, COMPONENTS, WHITENING)
        rows = found.source, ranked.y, found.target
        given = check_openness(self.openness) is not None
        doubts = find_doubts(scaled.source, scaled.target, rows, RANKS, given)
        report = study_openness(self.openness, context.checked, rows, len(scaled.target), doubts)
        estimate = report.estimates.get(ESTIMATE)
        if estimate is None and report.share > 0:
            # The given one guides the votes; the members are fitted with this one, see `_learn`.
            estimate = estimate_share(gather_evidence(*rows), len(scaled.target))
        self._likely_share = report.share if estimate is None else estimate.share
        return report

    def _learn(self, domains: Domains, share: float, context: FitContext) -> None:
        sample = domains.sample(MEMBER_ROWS)
        seats = seats_for(domains.n_classes)
        self._of_source = np.bincount(domains.y, minlength=domains.n_classes) / len(domains.y)
        if domains.has_target:
            _, ranked = Scaling.applied(RANKS, sample)
            found = aligned(ranked, COMPONENTS, WHITENING)
            accuracy = held_out_accuracy(found.source, ranked.y) or 0.0
            self._separation = Separation(accuracy, mixing(found.source, found.target), 0.0)
        # What the data look like leads members astray less often than the true share.
        openness = share if context.studied is not None or share == 0 else self._likely_share
        openness = min(openness, 1 - 1 / (len(domains.target) + 1))
        scalings: dict[str, Scaling] = {}
        scorers: list[nn.Module] = []
        self.members_ = [seat.name for seat in seats]
        names = [seat.scaling for seat in seats]
        if domains.texts is not None:
            self.members_.append(TEXTS)
            names.append(NONE)
        n_members = len(self.members_)
        for number, seat in enumerate(seats, start=1):
            scaling, scaled = Scaling.applied(seat.scaling, sample)
            scalings[seat.scaling] = scaling.of_ordinary
            member = seat.method(openness, scaling=seat.scaling)
            scorers.append(member.learn_scorer(scaled, openness))
            if domains.has_target:
                entry = {"step": number, "member": seat.name}
                finish_step(self.history_, context.progress, entry, n_members)
        if domains.texts is not None:
            scorers.append(TextMember.of(domains.texts, domains.source.width))
            if domains.has_target:
                entry = {"step": n_members, "member": TEXTS}
                finish_step(self.history_, context.progress, entry, n_members)
        self.scorer_ = CommitteeScorer(scalings, names, scorers, domains.n_classes)
        if not domains.has_target:
            equal = np.full(n_members, 1 / n_members)
            self.scorer_.let_vote([VoteTable.of_nothing() for _ in names], equal)

    def _label_targets(
        self, target: Rows, scores: Scores | None, report: OpennessReport, is_share_fixed: bool
    ) -> None:
        opinions = self._opinions_of(target)
        n_classes = len(self.classes_)
        share = report.share_of(opinions.known[:, 0])
        own_labels = opinions.labels(share, report.spread, n_classes)
        weights = member_weights(own_labels)
        if report.is_vouched:
            share = share_of_votes(share)
        tables = [VoteTable.fit(known, share, report.spread) for known in opinions.known.T]
        self.scorer_.let_vote(tables, weights)
        self.decision_ = MostVotes()
        votes, labels = self.decision_.decide(self._votes_of(opinions))
        agreement = (own_labels == labels[:, None]).mean(axis=1)
        mean_agreement = float(agreement.mean())
        alarms = class_alarms(votes, labels, self._of_source, self.classes_)
        # Where there are no unknowns none is probable.
        shared = doubt(n_classes) if share > 0 else 0.0
        self.scorer_.sharpen(sharpness_of(agreement), shared)
        self._keep_transduction(target, self._votes_of(opinions))
        self.agreement_ = agreement[np.argsort(target.index)]
        self.openness_ = report.share
        self.alarms_ = [alarm._asdict() for alarm in alarms]
        self.separation_ = replace(self._separation, agreement=mean_agreement).to_dict()
        finished = report.finished(report.share, own_boundary=False, n_targets=len(target))
        warnings = [*alarm_warnings(alarms), *finished.warnings]
        disagreement = 1 - mean_agreement
        if disagreement > DISPUTED:
            warnings.append(
                f"the members of the committee disagree with {disagreement:.0%} of the labels: "
                "check labels with 'osda review RUN'"
            )
        self.openness_report_ = replace(finished, warnings=tuple(warnings))

    def _opinions_of(self, target: Rows) -> Opinions:
        """Ask the members about targets, in the order of the rows."""
        scorer = self.scorer_
        parts = [
            in_blocks(scorer, scorer.opinions, torch.from_numpy(chunk))
            for _, chunk in target.chunks()
        ]
        return Opinions(
            known=np.concatenate([known for known, _ in parts]),
            nearest=np.concatenate([nearest for _, nearest in parts]),
        )

    def _votes_of(self, opinions: Opinions) -> Scores:
        """Let the members vote by what they have said already, with the bits of `predict`."""
        scorer = self.scorer_
        n_members = opinions.known.shape[1]

        def vote(both: Tensor) -> tuple[Tensor, Tensor]:
            voted: tuple[Tensor, Tensor] = scorer.vote(both[:, :n_members], both[:, n_members:])
            return voted

        both = torch.from_numpy(np.hstack([opinions.known, opinions.nearest]))
        classes, margin = in_blocks(scorer, vote, both)
        return Scores(classes=classes, known=margin)

    def _more_state(self) -> dict[str, Any]:
        return {"members": list(self.members_)}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.members_ = list(saved["members"])

    def _load_decision(self, saved: Mapping[str, Any]) -> Decision:
        return MostVotes() if self.has_target_ else NothingUnknown()

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> CommitteeScorer:
        by_name = {seat.name: seat for seat in SEATS}
        seats = [by_name[name] for name in self.members_ if name != TEXTS]
        scorers: list[nn.Module] = []
        tables: list[VoteTable] = []
        for place, seat in enumerate(seats):
            member = seat.method(scaling=seat.scaling)
            member.classes_ = self.classes_
            scorers.append(member._make_scorer(part(arrays, f"scorers.{place}.")))
        names = [seat.scaling for seat in seats]
        if TEXTS in self.members_:
            own = part(arrays, f"scorers.{len(seats)}.")
            scorers.append(TextMember(own["classes"], own["unknowns"]))
            names.append(NONE)
        for place in range(len(scorers)):
            own = part(arrays, f"tables.{place}.")
            tables.append(VoteTable(own["scores"], own["votes"]))
        scalings = {
            seat.scaling: Scaling(seat.scaling, part(arrays, f"scalings.{seat.scaling}."))
            for seat in seats
        }
        scorer = CommitteeScorer(scalings, names, scorers, len(self.classes_))
        scorer.let_vote(tables, arrays["weights"].numpy())
        scorer.sharpen(float(arrays["sharpness"]), float(arrays["doubt"]))
        return scorer
