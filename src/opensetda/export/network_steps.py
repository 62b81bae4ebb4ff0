"""Layers of torch, in evaluation mode and double precision, as nodes of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from opensetda.errors import InputError
from opensetda.export.onnx_graph import Value
from opensetda.export.row_steps import unit_rows
from opensetda.nn.parts import Adapter
from opensetda.pgl.graph import LEAK, PairLayerNorm, PairNorm

# Of torch's `normalize`.
SHORTEST = 1e-12


def array(tensor: Tensor) -> npt.NDArray[np.float64]:
    """Return weights as an array in double precision."""
    return np.asarray(tensor.detach().double().cpu().numpy())


def apply(module: Any, x: Value) -> Value:
    """Pass rows through a module: (..., d) -> (..., h)."""
    if isinstance(module, nn.Sequential):
        for layer in module:
            x = apply(layer, x)
        return x
    if isinstance(module, nn.Identity | nn.Dropout):
        return x
    if isinstance(module, nn.LeakyReLU):
        return x.maximum(x * module.negative_slope)
    if isinstance(module, nn.Linear):
        x = x @ array(module.weight.T)
        return x if module.bias is None else x + array(module.bias)
    if isinstance(module, Adapter):
        x = x if module.change is None else x + apply(module.change, x)
        return unit_rows(x, SHORTEST) if module.unit else x
    if isinstance(module, PairNorm | nn.BatchNorm1d):
        return _fixed_norm(module, x)
    if isinstance(module, PairLayerNorm):
        x = apply(module.norm, x)
        return x.maximum(x * LEAK)
    if isinstance(module, nn.LayerNorm):
        x = x - x.op("ReduceMean", axes=[-1])
        deviation = (x.op("Mul", x).op("ReduceMean", axes=[-1]) + module.eps).op("Sqrt")
        return x / deviation * array(module.weight) + array(module.bias)
    raise InputError(f"a layer {type(module).__name__} cannot be exported")


def _fixed_norm(module: PairNorm | nn.BatchNorm1d, x: Value) -> Value:
    """Normalise by the statistics of the training; `PairNorm` also rectifies."""
    parts: Any = module
    is_pairs = isinstance(module, PairNorm)
    scale, shift = (parts.scale, parts.shift) if is_pairs else (parts.weight, parts.bias)
    mean, variance = array(parts.running_mean), array(parts.running_var)
    factor = array(scale) / np.sqrt(variance + parts.eps)
    x = x * factor + (array(shift) - mean * factor)
    return x.maximum(x * LEAK) if is_pairs else x
