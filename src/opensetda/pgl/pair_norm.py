"""Batch normalisation of all pairs of nodes, of which each is computed once."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PairNorm(nn.Module):
    r"""Batch normalisation over all N x N ordered pairs, from each unordered pair once.

    Each of the first P rows stands for (i, j) and (j, i), the last one for the N equal pairs
    (i, i), which are 1/N of all. With mean m and variance s of the first P rows:

    .. math::
        \mu &= (1 - \tfrac1N) m + \tfrac1N h_P \\
        \sigma^2 &= (1 - \tfrac1N) (s + (m - \mu)^2) + \tfrac1N (h_P - \mu)^2

    Shapes: (P + 1, H) -> (P + 1, H) in training, P = N (N - 1) / 2; (..., H) otherwise.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.momentum = momentum
        self.eps = eps

    def forward(self, h: Tensor) -> Tensor:
        """Normalise, in training by the statistics of these pairs."""
        mean = self.running_mean
        variance = self.running_var
        if self.training:
            n = (1 + math.isqrt(8 * len(h) - 7)) // 2
            spread, centre = torch.var_mean(h[:-1], dim=0, correction=0)
            mean = torch.lerp(centre, h[-1], 1 / n)
            variance = torch.lerp(spread + (centre - mean) ** 2, (h[-1] - mean) ** 2, 1 / n)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (n**2 / (n**2 - 1)), self.momentum)
        factor = self.scale * (variance + self.eps).rsqrt()
        return torch.addcmul(self.shift - mean * factor, h, factor)
