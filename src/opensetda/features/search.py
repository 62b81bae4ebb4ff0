"""Places of values in sorted columns, in a form that can also be exported."""

from __future__ import annotations

import torch
from torch import Tensor


def last_reached(ordered: Tensor, values: Tensor) -> Tensor:
    """Return the last place whose entry a value reaches, -1 if it is below all.

    Shapes: rising columns (L, D), values (n, D) -> places (n, D).
    """
    if not torch.onnx.is_in_onnx_export():
        columns = ordered.T.contiguous()
        places = torch.searchsorted(columns, values.T.contiguous(), right=True)
        return places.T - 1
    # By halving: `searchsorted` has no ONNX.
    levels = int(ordered.shape[0])
    place = torch.full_like(values, -1, dtype=torch.int64)
    step = 1 << (levels.bit_length() - 1)
    while step:
        further = place + step
        entry = ordered.gather(0, further.clamp(max=levels - 1))
        is_reached = (further < levels) & (values >= entry)
        place = torch.where(is_reached, further, place)
        step //= 2
    return place
