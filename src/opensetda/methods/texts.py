"""A member of the committee that knows the names of the classes, as rows beside those of images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opensetda.errors import InputError
from opensetda.features.alignment import unit
from opensetda.rows import TextRows


class TextMember(nn.Module):
    r"""Cosines to the rows of the names of classes and of unknowns, as CLIP classifies images.

    .. math:: s_c(x) = \cos(x, t_c), \qquad u(x) = \max_c s_c(x) - \max_k \cos(x, t'_k)

    with the rows :math:`t_c` of the classes and :math:`t'_k` of names of unknowns. The known score
    u is the largest cosine alone if there are no names of unknowns. Nothing is learned: neither
    labels nor targets change the scores.

    Shapes: x (n, D) -> cosines (n, C), known scores (n,).
    """

    classes: Tensor
    unknowns: Tensor

    def __init__(self, classes: Tensor, unknowns: Tensor) -> None:
        super().__init__()
        self.register_buffer("classes", classes)
        self.register_buffer("unknowns", unknowns)

    @classmethod
    def of(cls, texts: TextRows, width: int) -> TextMember:
        """Return the member for rows of this width."""
        for rows in texts:
            if rows.ndim != 2 or rows.shape[1] != width:
                raise InputError(f"texts: shape {rows.shape}; the rows have {width} columns")
        classes, unknowns = (unit(torch.tensor(rows, dtype=torch.float64)) for rows in texts)
        return cls(classes, unknowns)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Score rows, each on its own."""
        rows = unit(x)
        of_classes = rows @ self.classes.T
        known = of_classes.amax(dim=1)
        if len(self.unknowns):
            known = known - (rows @ self.unknowns.T).amax(dim=1)
        return of_classes, known
