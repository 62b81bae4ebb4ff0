"""A network on pairs of nodes that computes every unordered pair once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Pairs whose activations exist at one time, where pairs are independent of each other.
CHUNK_PAIRS = 16_384
# Numbers in a chunk of rows: small enough for the processor's cache, large enough for BLAS.
CHUNK_NUMBERS = 2_097_152
# Slope of LeakyReLU below zero, torch's default.
LEAK = 0.01


class _AbsoluteDifferenceMap(torch.autograd.Function):
    """|v_i - v_j| W^T for listed pairs, without keeping |v_i - v_j|.

    The differences are the widest tensor of the whole method and the cheapest to
    compute: they are made anew, a chunk at a time, in the backward pass.

    Shapes: v (N, D), first and second (P,), weight (H, D) -> (P, H).
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(v, first, second, weight)
        out = v.new_empty(len(first), len(weight))
        for part in _row_chunks(len(first), v.shape[1]):
            difference = v[first[part]].sub_(v[second[part]]).abs_()
            torch.mm(difference, weight.t(), out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None, None, Tensor | None]:
        (grad,) = grads
        v, first, second, weight = ctx.saved_tensors
        grad_v = torch.zeros_like(v) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight)
        for part in _row_chunks(len(first), v.shape[1]):
            difference = v[first[part]].sub_(v[second[part]])
            if grad_v is not None:
                pull = (grad[part] @ weight).mul_(difference.sign())
                grad_v.index_add_(0, first[part], pull)
                grad_v.index_add_(0, second[part], pull, alpha=-1)
            grad_weight.addmm_(grad[part].t(), difference.abs_())
        return grad_v, None, None, grad_weight


class _NormalisedLeaky(torch.autograd.Function):
    """Weighted batch normalisation and LeakyReLU that keep nothing but their input.

    With weights w that add up to one, mean m, deviation s and gradient g behind the
    LeakyReLU, the gradient of row r is scale / s (g_r - w_r (sum g + x_r sum g x)), where
    x = (h - m) / s. The sums of g are also the gradients of shift and scale.

    Shapes: h (R, H), w (R,), scale and shift (H,) -> (R, H), mean (H,), variance (H,).
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, w: Tensor, scale: Tensor, shift: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = w @ h
        variance = torch.zeros_like(mean)
        for part in _row_chunks(*h.shape):
            variance += w[part] @ (h[part] - mean).square_()
        factor = (variance + eps).rsqrt()
        out = torch.empty_like(h)
        for part in _row_chunks(*h.shape):
            torch.sub(h[part], mean, out=out[part])
            F.leaky_relu_(out[part].mul_(factor * scale).add_(shift), LEAK)
        ctx.save_for_backward(h, w, scale, shift, mean, factor)
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, Tensor, Tensor, None]:
        h, w, scale, shift, mean, factor = ctx.saved_tensors
        inner = torch.empty_like(h)
        grad_scale, grad_shift = torch.zeros_like(scale), torch.zeros_like(shift)
        for part in _row_chunks(*h.shape):
            x = (h[part] - mean).mul_(factor)
            leak = torch.where(x * scale + shift > 0, 1.0, LEAK).to(h.dtype)
            torch.mul(grads[0][part], leak, out=inner[part])
            grad_shift += inner[part].sum(0)
            grad_scale += x.mul_(inner[part]).sum(0)
        for part in _row_chunks(*h.shape):
            x = (h[part] - mean).mul_(factor)
            spread = x.mul_(grad_scale).add_(grad_shift).mul_(w[part, None])
            inner[part].sub_(spread).mul_(factor * scale)
        return inner, None, grad_scale, grad_shift, None


def _row_chunks(n_rows: int, width: int) -> list[slice]:
    size = max(1, CHUNK_NUMBERS // width)
    return [slice(start, start + size) for start in range(0, n_rows, size)]


class PairNorm(nn.Module):
    """BatchNorm over all N x N ordered pairs, from each unordered pair once, and LeakyReLU.

    The last row stands for the N pairs (i, i), which are all alike; every other row
    for the two ordered pairs (i, j) and (j, i). Weighted by 2 and N, mean and
    variance are those of the N x N pairs.

    Shapes: (P + 1, H) -> (P + 1, H), P = N (N - 1) / 2.
    """

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.momentum = momentum
        self.eps = eps

    def forward(self, h: Tensor, n_nodes: int) -> Tensor:
        """Normalise and rectify the P + 1 rows of a graph of `n_nodes` nodes."""
        if not self.training:
            factor = self.scale * (self.running_var + self.eps).rsqrt()
            return F.leaky_relu_(h * factor + (self.shift - self.running_mean * factor), LEAK)
        n_ordered = n_nodes * n_nodes
        w = h.new_full((len(h),), 2 / n_ordered)
        w[-1] = n_nodes / n_ordered
        normalised: Any = _NormalisedLeaky.apply
        out: Tensor
        out, mean, variance = normalised(h, w, self.scale, self.shift, self.eps)
        with torch.no_grad():
            unbiased = variance * (n_ordered / max(n_ordered - 1, 1))
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return out


class PairLayerNorm(nn.Module):
    """Layer normalisation and LeakyReLU, each pair on its own: (R, H) -> (R, H)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, n_nodes: int) -> Tensor:
        """Normalise and rectify; the size of the graph plays no part."""
        return F.leaky_relu_(self.norm(h), LEAK)


class PairNetwork(nn.Module):
    r"""A symmetric function of two nodes (the G_E of Eq. 7).

    .. math:: g_{ij} = W_3\,\phi(W_2\,\phi(W_1 |v_i - v_j|))

    with normalisation and LeakyReLU in :math:`\phi`. As :math:`|v_i - v_j| = |v_j - v_i|`,
    each unordered pair is computed once. Pairs are independent of each other and worked
    through in chunks whose activations are recomputed in the backward pass: memory grows
    with N^2, not with N^2 times the width. Only the training with batch normalisation,
    which needs the statistics of all pairs, takes them at once.

    Shapes: v (N, D) -> g (N, N), symmetric.
    """

    def __init__(self, width_in: int, width: int, normalisation: str) -> None:
        super().__init__()
        self.first = nn.Linear(width_in, 2 * width, bias=False)
        self.second = nn.Linear(2 * width, width, bias=False)
        self.last = nn.Linear(width, 1)
        self.batch = normalisation == "batch"
        norm = PairNorm if self.batch else PairLayerNorm
        self.first_norm = norm(2 * width)
        self.second_norm = norm(width)

    def forward(self, v: Tensor) -> Tensor:
        """Score all pairs of nodes: (N, D) -> (N, N)."""
        n = len(v)
        first, second = torch.triu_indices(n, n, offset=1, device=v.device)
        # One row more, for the diagonal: a node and itself differ by nothing.
        zero = first.new_zeros(1)
        first, second = torch.cat([first, zero]), torch.cat([second, zero])
        if self.batch and self.training:
            scores = self._score(v, first, second, n)
        else:
            scores = torch.cat(
                [
                    self._score_chunk(
                        v,
                        first[start : start + CHUNK_PAIRS],
                        second[start : start + CHUNK_PAIRS],
                        n,
                    )
                    for start in range(0, len(first), CHUNK_PAIRS)
                ]
            )
        grid = scores[-1].expand(n, n).clone()
        grid[first[:-1], second[:-1]] = scores[:-1]
        grid[second[:-1], first[:-1]] = scores[:-1]
        return grid

    def between(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score pairs of a query and a support node: (Q, D), (S, D) -> (Q, S)."""
        n_queries, n_support = len(queries), len(support)
        v = torch.cat([queries, support])
        rows = max(1, CHUNK_PAIRS // n_support)
        columns = torch.arange(n_support, device=v.device) + n_queries
        parts = []
        for start in range(0, n_queries, rows):
            row = torch.arange(start, min(start + rows, n_queries), device=v.device)
            first = row.repeat_interleave(n_support)
            parts.append(self._score(v, first, columns.repeat(len(row)), 0))
        return torch.cat(parts).view(n_queries, n_support)

    def _score_chunk(self, v: Tensor, first: Tensor, second: Tensor, n: int) -> Tensor:
        if torch.is_grad_enabled() and n * n > 2 * CHUNK_PAIRS:
            scores: Tensor = checkpoint(self._score, v, first, second, n, use_reentrant=False)
            return scores
        return self._score(v, first, second, n)

    def _score(self, v: Tensor, first: Tensor, second: Tensor, n: int) -> Tensor:
        mapped: Any = _AbsoluteDifferenceMap.apply
        h = mapped(v, first, second, self.first.weight)
        h = self.first_norm(h, n)
        h = self.second_norm(self.second(h), n)
        out: Tensor = self.last(h).squeeze(-1)
        return out
