"""No adaptation: a classifier trained on the source, and a rejector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from opensetda.context import FitContext
from opensetda.features.alignment import unit
from opensetda.methods.parameters import POSITIVE_OR_INFINITE, checked
from opensetda.methods.rejectors import REJECTORS
from opensetda.methods.rival_bases import RejectingRival, RejectingScorer
from opensetda.rows import Domains
from opensetda.share.decision import Scores


class SourceOnlyScorer(RejectingScorer):
    """Scores rows of unit length."""

    def embed(self, x: Tensor, of_source: bool = False) -> Tensor:
        """Scale rows to unit length: (n, D) -> (n, D)."""
        return unit(x)


@dataclass(eq=False, repr=False, kw_only=True)
class SourceOnly(RejectingRival):
    """Logistic regression on L2-normalised source rows; the least confident targets are unknown.

    The rejectors "osnn" and "osvm" are classifiers themselves and replace the regression.

    The other parameters are those of `RejectingRival`; the default of `rejector` is "quantile".

    Parameters
    ----------
    C : float, default=10.0
        Inverse strength of the regression's regularisation.
    """

    C: float = checked(10.0, POSITIVE_OR_INFINITE)
    rejector: str = "quantile"

    def _learn(self, domains: Domains, share: float, context: FitContext) -> Scores | None:
        chunks = [torch.from_numpy(chunk) for _, chunk in domains.source.chunks()]
        rows = torch.cat(chunks).double()
        self.scorer_ = SourceOnlyScorer(REJECTORS[self.rejector]())
        self.scorer_.fit(unit(rows), domains.y, domains.n_classes, self.C)
        if not domains.has_target:
            return None
        scores = self._score_targets(domains.target)
        self._finish_step(scores.known, context, 1)
        return scores

    def _make_scorer(self, arrays: Mapping[str, Tensor]) -> SourceOnlyScorer:
        return SourceOnlyScorer(self._saved_rejector(arrays), arrays)
