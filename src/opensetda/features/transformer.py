"""What methods share that represent samples of both domains in one space."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from opensetda.rows import split_domains


class DomainTransformer(TransformerMixin):  # type: ignore[misc]
    """Gives a method ``transform``; its scorer has ``embed(rows, of_source)``."""

    transforms_domains = True

    @torch.no_grad()
    def transform(self: Any, X: Any, sample_domain: Any = None) -> npt.NDArray[np.float64]:
        """Return samples as the method represents them: (n, n_features) -> (n, d).

        `sample_domain` (n,) is 0 or more for rows of the source, which are scaled and centred by
        themselves, and negative for those of the target; None: all target.
        """
        rows = torch.from_numpy(np.array(self._check_rows(X)))
        embedded: Tensor = self.scorer_.embed(self.scaler_(rows), False)
        if sample_domain is not None:
            source = torch.from_numpy(split_domains(sample_domain, len(rows))[0])
            scaled = self.scaler_(rows[source], of_source=True)
            embedded[source] = self.scorer_.embed(scaled, True)
        return np.asarray(embedded.numpy())

    @torch.no_grad()
    def get_feature_names_out(self: Any, input_features: Any = None) -> npt.NDArray[Any]:
        """Return the names of the columns of `transform`: "movingmeans0", "movingmeans1" ...."""
        check_is_fitted(self)
        rows = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
        width = self.scorer_.embed(self.scaler_(rows), False).shape[1]
        name = type(self).__name__.lower()
        return np.array([f"{name}{number}" for number in range(width)], dtype=object)
