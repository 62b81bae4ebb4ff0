"""Cross-validation with scikit-learn: folds that keep both domains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection import StratifiedKFold

from opensetda.errors import InputError
from opensetda.rows import IntArray, split_domains


class DomainKFold(StratifiedKFold):  # type: ignore[misc]
    """K folds, each with its part of every class of the source, and of the target.

    Labels of targets are not read. `GridSearchCV(..., cv=DomainKFold()).fit(X, y, groups=domain,
    sample_domain=domain)` searches; with metadata routing `sample_domain=domain` is enough.

    Parameters
    ----------
    n_splits : int, default=5
        The number of folds.
    shuffle : bool, default=True
        Whether rows are drawn into folds at random; otherwise in their order.
    random_state : int, default=0
        The seed.
    """

    __metadata_request__split: ClassVar = {"sample_domain": True, "groups": False}

    def __init__(
        self, n_splits: int = 5, *, shuffle: bool = True, random_state: int | None = 0
    ) -> None:
        super().__init__(n_splits, shuffle=shuffle, random_state=random_state if shuffle else None)

    def get_n_splits(
        self, X: Any = None, y: Any = None, groups: Any = None, sample_domain: Any = None
    ) -> int:
        """Return the number of folds."""
        return int(self.n_splits)

    def split(
        self, X: Any, y: Any = None, groups: Any = None, sample_domain: Any = None
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the rows to fit to and the rows to score; `groups` may hold the domains, too."""
        domain = groups if sample_domain is None else sample_domain
        if domain is None or y is None:
            raise InputError("DomainKFold: give y, and groups=sample_domain")
        source, target = split_domains(domain, len(y))
        for name, rows in (("source", source), ("target", target)):
            if len(rows) < self.n_splits:
                raise InputError(
                    f"sample_domain: {len(rows)} rows of the {name} for {self.n_splits} folds; "
                    "give more rows, or fewer folds"
                )
        strata = np.zeros(len(y), dtype=np.intp)
        strata[source] = 1 + np.unique(np.asarray(y)[source], return_inverse=True)[1]
        return iter(super().split(np.zeros(len(y)), strata))
