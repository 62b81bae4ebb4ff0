"""An image of any size to features: resized to the bit as `resize_image` does, and the backbone.

torch resizes uint8 pixels by whole numbers: the weights of each axis, in [-2^15, 2^15), are
fractions with a common power of two below, and pixels are rounded after each axis. A float
resize would be another by one level in a few pixels, which is enough to give a sample other
neighbours, and probabilities that differ in the second digit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from opensetda.backbones.engines import export
from opensetda.backbones.model import LONGEST_STRIP, load_backbone
from opensetda.backbones.recipe import Preprocessing, Recipe
from opensetda.export.assembled import IMAGE
from opensetda.export.onnx_graph import Graph, Value

# Taps on either side of a pixel that is not made smaller.
_REACH = {"bicubic": 2.0, "bilinear": 1.0}
_CUBIC = -0.5
_MOST_BITS, _LARGEST_WEIGHT = 22, 2**15
# New pixels at a time.
_BLOCK = 16
_WHOLE, _REAL = np.int64, np.float64


def image_input(recipe: Recipe, state: Any) -> Value:
    """Return features, (1, width), of the input of a new graph that takes an image.

    `state` are fine-tuned weights instead of the recipe's.
    """
    graph = Graph()
    image = graph.input(IMAGE, np.uint8, ["height", "width", 3])
    pixels = resized(image, recipe.preprocessing)
    backbone = onnx.load_from_string(export(load_backbone(recipe, state)))
    return graph.splice(backbone, pixels.op("Unsqueeze", graph.constant([0], _WHOLE)))


def resized(image: Value, how: Preprocessing) -> Value:
    """Resize, and crop, uint8 pixels: (height, width, 3) -> (size, size, 3)."""
    if how.resize == "crop":
        image = _without_ends(image)
    height, width = _side(image, 0), _side(image, 1)
    # Columns first, as torch does: pixels are rounded in between. They are transposed as rows of
    # bytes, which is far faster than as rows of pixels.
    columns = _reshaped(image, height, -1).op("Transpose", perm=[1, 0])
    columns = _resample(_reshaped(columns, width, -1), width, height, how)
    rows = _reshaped(columns, 3 * how.size, -1).op("Transpose", perm=[1, 0])
    return _reshaped(_resample(rows, height, width, how), how.size, how.size, 3)


def _reshaped(values: Value, *sizes: Value | int) -> Value:
    graph = values.graph
    known = [_one(s) if isinstance(s, Value) else graph.constant([s], _WHOLE) for s in sizes]
    return values.op("Reshape", graph.op("Concat", *known, axis=0))


def _side(image: Value, axis: int) -> Value:
    shape = image.op("Shape", dtype=_WHOLE)
    return shape.op("Gather", image.graph.constant(axis, _WHOLE), axis=0)


def _without_ends(image: Value) -> Value:
    """Cut the ends of long strips, as before a resize in torch."""
    sides = [_side(image, 0), _side(image, 1)]
    longest = sides[0].minimum(sides[1]) * LONGEST_STRIP
    for axis, side in enumerate(sides):
        start = ((side - longest) / 2).maximum(0)
        image = _cut(image, axis, start, start + side.minimum(longest))
    return image


def _cut(values: Value, axis: int, start: Value, stop: Value) -> Value:
    return values.op("Slice", _one(start), _one(stop), values.graph.constant([axis], _WHOLE))


def _resample(rows: Value, n_in: Value, other: Value, how: Preprocessing) -> Value:
    """Resize the first axis, and cut its middle: uint8 (n_in, m) -> (size, m).

    As products of matrices: some new pixels at a time, by the old ones in their reach. `other` is
    the size of the other axis.
    """
    graph, n_blocks = rows.graph, -(-how.size // _BLOCK)
    n_out = graph.constant(how.shorter_side, _WHOLE)
    if how.resize == "crop":
        # The shorter side itself has a smaller quotient.
        longer = (n_in * how.shorter_side).cast(_REAL) / other.cast(_REAL)
        n_out = longer.cast(_WHOLE).maximum(n_out)
    weights, first, bits = _weights(graph, n_in, n_out, how)
    margin = ((n_out - how.size).cast(_REAL) / 2.0).op("Round").cast(_WHOLE)
    wanted = (margin + np.arange(n_blocks * _BLOCK)).minimum(n_out - 1)
    weights, first = (values.op("Gather", wanted, axis=0) for values in (weights, first))
    begins = _reshaped(first, n_blocks, _BLOCK)
    starts, taps = begins.columns(0, 1), _side(weights, 1)
    reach = (begins.columns(_BLOCK - 1, _BLOCK) - starts).op("ReduceMax", keepdims=0) + taps
    places = _reshaped(begins - starts, -1, 1) + _range(taps)
    old = (starts + _range(reach)).minimum(n_in - 1)
    pixels = rows.op("Gather", old, axis=0)
    # Unsigned bytes: products of signed ones saturate on some processors.
    shifted = weights + _LARGEST_WEIGHT
    high = shifted / 256
    unit = graph.constant(2 ** np.arange(_MOST_BITS + 1), np.int32).op("Gather", bits, axis=0)
    total = unit / 2
    for part, zero, value in ((high, 128, 256), (shifted - high * 256, 0, 1)):
        shape = graph.constant([n_blocks * _BLOCK], _WHOLE).op("Concat", _one(reach), axis=0)
        filler = numpy_helper.from_array(np.array([zero], np.uint8))
        empty = shape.op("ConstantOfShape", value=filler, dtype=np.uint8)
        matrix = empty.op("ScatterElements", places, part.cast(np.uint8), axis=1)
        blocks, offset = _reshaped(matrix, n_blocks, _BLOCK, -1), graph.constant(zero, np.uint8)
        product = blocks.op("MatMulInteger", pixels, offset, dtype=np.int32)
        total = product * value + total
    rounded = (total.maximum(0) / unit).minimum(255).cast(np.uint8)
    ends = graph.constant(0, _WHOLE), graph.constant(how.size, _WHOLE)
    return _cut(_reshaped(rounded, n_blocks * _BLOCK, -1), 0, *ends)


def _one(number: Value) -> Value:
    return number.op("Reshape", number.graph.constant([1], _WHOLE))


def _weights(graph: Graph, n_in: Value, n_out: Value, how: Preprocessing) -> tuple[Value, ...]:
    """Return whole weights (n_out, K), the first pixel of each (n_out, 1), and their bits."""
    scale = n_in.cast(_REAL) / n_out.cast(_REAL)
    larger = scale.maximum(1.0)
    support = larger * _REACH[how.interpolation]
    centre = (_range(n_out).cast(_REAL) + 0.5) * scale
    centre = centre.op("Unsqueeze", graph.constant([1], _WHOLE))
    first = (centre - support + 0.5).op("Floor").maximum(0.0)
    end = (centre + support + 0.5).op("Floor").minimum(n_in.cast(_REAL))
    tap = _range((support.op("Ceil") * 2.0 + 1.0).cast(_WHOLE)).cast(_REAL)
    apart = ((tap + (first - centre) + 0.5) * (graph.constant(1.0) / larger)).op("Abs")
    if how.interpolation == "bicubic":
        near = (apart * (_CUBIC + 2) - (_CUBIC + 3)) * apart * apart + 1.0
        far = (((apart - 5.0) * apart + 8.0) * apart - 4.0) * _CUBIC
        near = (apart < 1.0).where(near, (apart < 2.0).where(far, 0.0))
    else:
        near = (apart < 1.0).where(-(apart - 1.0), 0.0)
    weights = (tap < (end - first)).where(near, 0.0)
    weights = weights / weights.sum()
    largest = weights.op("ReduceMax", keepdims=0)
    units = graph.constant(2.0 ** np.arange(_MOST_BITS + 1))
    # As many bits as the largest weight leaves below 2^15.
    rounded = (largest * 2.0 ** np.arange(1, _MOST_BITS + 1) + 0.5).cast(_WHOLE)
    fits = rounded.op("Less", _LARGEST_WEIGHT, dtype=bool).cast(_WHOLE)
    bits = fits.op("ReduceSum", None, keepdims=0)
    weights = weights * units.op("Gather", bits, axis=0)
    # A cast cuts digits off: halves go away from zero.
    whole = (weights + (weights < 0.0).where(-0.5, 0.5)).cast(_WHOLE)
    return whole, first.cast(_WHOLE), bits


def _range(count: Value) -> Value:
    zero, one = count.graph.constant(0, _WHOLE), count.graph.constant(1, _WHOLE)
    return zero.op("Range", count, one)
