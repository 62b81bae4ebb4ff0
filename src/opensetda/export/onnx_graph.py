"""ONNX graphs written like numpy: values with operators, of which every one adds a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

# Those of torch's exporter of backbones: graphs of two versions cannot be joined.
OPSET, IR_VERSION = 17, 8

Operand: TypeAlias = "Value | npt.ArrayLike"


class Graph:
    """Nodes and constants of a graph; numbers are in double precision unless said otherwise."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, dtype: npt.DTypeLike, shape: Sequence[str | int]) -> Value:
        """Declare an input; a name among the sizes is a size that varies."""
        self._inputs.append(helper.make_tensor_value_info(name, _element(dtype), shape))
        return Value(self, name, np.dtype(dtype))

    def output(self, name: str, value: Value, shape: Sequence[str | int]) -> None:
        """Declare a value as an output, under a name."""
        self._nodes.append(helper.make_node("Identity", [value.name], [name]))
        element = _element(value.dtype)
        self._outputs.append(helper.make_tensor_value_info(name, element, shape))

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float64) -> Value:
        """Return an array, or a number, as a value."""
        array = np.asarray(values, dtype=dtype)
        name = f"c{len(self._constants)}"
        # Text is an array of objects there.
        plain = array.astype(object) if array.dtype.kind == "U" else np.ascontiguousarray(array)
        self._constants.append(numpy_helper.from_array(plain.reshape(array.shape), name))
        return Value(self, name, array.dtype)

    def op(
        self, kind: str, *operands: Operand | None, dtype: Any = None, **attributes: Any
    ) -> Value:
        """Add a node and return its output.

        Operands that are no values become constants of the first value's type, None is left out.
        The `dtype` of the output is that of the first value, unless it is given.
        """
        return self.ops(kind, *operands, dtypes=[dtype], **attributes)[0]

    def ops(
        self, kind: str, *operands: Operand | None, dtypes: Sequence[Any], **attributes: Any
    ) -> list[Value]:
        """Add a node of several outputs, see `op`, and return them."""
        like = next(o.dtype for o in operands if isinstance(o, Value))
        values = [
            o if o is None or isinstance(o, Value) else self.constant(o, like) for o in operands
        ]
        names = [f"v{len(self._nodes)}_{place}" for place in range(len(dtypes))]
        given = ["" if value is None else value.name for value in values]
        self._nodes.append(helper.make_node(kind, given, names, **attributes))
        found = [like if dtype is None else dtype for dtype in dtypes]
        return [Value(self, name, dtype) for name, dtype in zip(names, found, strict=True)]

    def model(self, metadata: dict[str, str]) -> Any:
        """Return the ONNX model."""
        graph = helper.make_graph(
            self._nodes, "opensetda", self._inputs, self._outputs, self._constants
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="opensetda"
        )
        helper.set_model_props(model, metadata)
        return model

    def splice(self, model: Any, feed: Value) -> Value:
        """Add the nodes of a model of one input and one output of float32; return the output."""
        inner = onnx.compose.add_prefix(model, "inner/").graph
        self._nodes.append(helper.make_node("Identity", [feed.name], [inner.input[0].name]))
        self._nodes += inner.node
        self._constants += inner.initializer
        return Value(self, inner.output[0].name, np.dtype(np.float32))


def _element(dtype: npt.DTypeLike) -> int:
    kind = np.dtype(dtype)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(object) if kind.kind == "U" else kind))


class Value:
    """The output of a node, (n, ...): arithmetic on it adds nodes."""

    def __init__(self, graph: Graph, name: str, dtype: Any) -> None:
        self.graph, self.name, self.dtype = graph, name, np.dtype(dtype)

    def op(self, kind: str, *others: Operand | None, **options: Any) -> Value:
        """Add a node whose first operand is this value."""
        return self.graph.op(kind, self, *others, **options)

    def __add__(self, other: Operand) -> Value:
        return self.op("Add", other)

    def __sub__(self, other: Operand) -> Value:
        return self.op("Sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self.op("Mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self.op("Div", other)

    def __matmul__(self, other: Operand) -> Value:
        return self.op("MatMul", other)

    def __neg__(self) -> Value:
        return self.op("Neg")

    def __lt__(self, other: Operand) -> Value:
        return self.op("Less", other, dtype=bool)

    def __ge__(self, other: Operand) -> Value:
        return self.op("GreaterOrEqual", other, dtype=bool)

    def maximum(self, other: Operand) -> Value:
        """Return the larger of two values, element by element."""
        return self.op("Max", other)

    def minimum(self, other: Operand) -> Value:
        """Return the smaller of two values, element by element."""
        return self.op("Min", other)

    def where(self, yes: Operand, no: Operand, dtype: npt.DTypeLike = np.float64) -> Value:
        """Choose by this truth value, element by element."""
        values = [o if isinstance(o, Value) else self.graph.constant(o, dtype) for o in (yes, no)]
        return self.op("Where", *values, dtype=values[0].dtype)

    def cast(self, dtype: npt.DTypeLike) -> Value:
        """Return another type of number."""
        return self.op("Cast", dtype=dtype, to=_element(dtype))

    def sum(self) -> Value:
        """Sum the last axis, which stays with size 1."""
        axes = self.graph.constant([-1], np.int64)
        return self.op("ReduceSum", axes, keepdims=1)

    def max(self) -> Value:
        """Return the largest of the last axis, which stays with size 1."""
        return self.op("ReduceMax", axes=[-1], keepdims=1)

    def flat(self) -> Value:
        """Return one axis: (n, 1) -> (n,)."""
        return self.op("Reshape", self.graph.constant([-1], np.int64))

    def columns(self, start: int, stop: int) -> Value:
        """Return some columns: (n, d) -> (n, stop - start); `stop` may be negative."""
        places = [self.graph.constant([number], np.int64) for number in (start, stop, 1)]
        return self.op("Slice", *places)

    def take(self, places: Value) -> Value:
        """Take from each row the entries at its places: (n, d), (n, k) -> (n, k)."""
        return self.op("GatherElements", places, axis=1)
