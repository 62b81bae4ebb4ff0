"""A plain reference of the edge network: all N x N ordered pairs, 1x1 convolutions, BatchNorm.

It is written for comparison, as one would write the paper down without a thought for time
or memory, and it is what `benchmarks/speed.py` and the tests measure `PairNetwork` against.
"""

from __future__ import annotations

from torch import Tensor, nn

from opensetda.pgl.graph import PairNetwork, PairNorm


class ReferencePairs(nn.Module):
    """The function of `PairNetwork` with batch normalisation, on every ordered pair.

    Shapes: v (N, D) -> (N, N).
    """

    def __init__(self, pairs: PairNetwork) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _convolution(pairs.first),
            _batch_norm(pairs.first_norm),
            nn.LeakyReLU(),
            _convolution(pairs.second),
            _batch_norm(pairs.second_norm),
            nn.LeakyReLU(),
            _convolution(pairs.last),
        )

    def forward(self, v: Tensor) -> Tensor:
        """Score all ordered pairs."""
        difference = (v[:, None, :] - v[None, :, :]).abs()
        image = difference.permute(2, 0, 1)[None]
        return self.layers(image)[0, 0]


def _convolution(linear: nn.Linear) -> nn.Conv2d:
    convolution = nn.Conv2d(
        linear.in_features, linear.out_features, kernel_size=1, bias=linear.bias is not None
    )
    convolution.weight.data.copy_(linear.weight.data[:, :, None, None])
    if linear.bias is not None:
        convolution.bias.data.copy_(linear.bias.data)
    return convolution


def _batch_norm(norm: PairNorm) -> nn.BatchNorm2d:
    batch_norm = nn.BatchNorm2d(len(norm.scale), eps=norm.eps, momentum=norm.momentum)
    batch_norm.weight.data.copy_(norm.scale.data)
    batch_norm.bias.data.copy_(norm.shift.data)
    return batch_norm
