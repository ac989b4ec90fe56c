"""Quantise the products of a graph with matrices of weights, so that each row has a scale of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

MICROSOFT = "com.microsoft"  # ONNX Runtime's own operators
_ZERO_POINT = 128
_PLAIN_GEMM = {"transA": 0, "alpha": 1.0, "beta": 1.0}  # a Gemm that is a product and a sum
_CONSTANTS = {
    "int8.step": np.float32(1 / 127),
    "int8.smallest": np.float32(1e-20),  # the scale of a row of zeros
    "int8.one": np.float32(1),
    "int8.zero_point": np.uint8(_ZERO_POINT),
    "int8.last_axis": np.array([-1]),
}


def quantise_products(graph: GraphProto, skipped: Collection[str], *, reduce_range: bool) -> None:
    """Replace products x W with weights W by products of 8-bit integers, in place.

    W becomes int8 with one scale per column. When the graph runs, x becomes uint8 with one scale per row (the
    vector of one token or one text): x = scale * (q - 128) with scale = max |x| / 127. So the result of a row
    does not depend on the other rows of its batch.

    Args:
        skipped: names of nodes that stay in fp32.
        reduce_range: 7 bits for weights, so that products cannot overflow on processors without VNNI.
    """
    from onnx import numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    quantised_inputs: set[str] = set()
    replaced: set[str] = set()
    for node in graph.node:
        matrix = None if node.name in skipped else _matrix(node, weights)
        if matrix is None:
            nodes.append(node)
            continue
        source, name = node.input[0], f"{node.output[0]}.weights"
        if source not in quantised_inputs:
            quantised_inputs.add(source)
            nodes += _quantised_rows(source)
        replaced.add(node.input[1])
        largest = np.abs(matrix).max(0)
        scales = np.where(largest > 0, largest / (64 if reduce_range else 127), 1).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(np.rint(matrix / scales).astype(np.int8), name))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}.scales"))
        nodes += _product(node, name)
    if quantised_inputs:
        graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in _CONSTANTS.items())
    del graph.node[:]
    graph.node.extend(nodes)
    _remove_unread(graph, replaced)


def _matrix(node: NodeProto, weights: dict[str, TensorProto]) -> np.ndarray | None:
    """The (inputs, outputs) fp32 weights of a product; None for other nodes."""
    from onnx import TensorProto, helper, numpy_helper

    options: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    transposed = options.pop("transB", 0)
    is_product = node.op_type == "MatMul" or (
        node.op_type == "Gemm" and all(options.get(k, v) == v for k, v in _PLAIN_GEMM.items())
    )
    tensor = weights.get(node.input[1]) if is_product else None
    if tensor is None or tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 2:
        return None
    matrix = numpy_helper.to_array(tensor)
    return matrix.T if transposed else matrix


def _quantised_rows(source: str) -> Iterator[NodeProto]:
    """Nodes that write the rows of a tensor as uint8 (`.rows.q`), and their scales (`.rows.scale`)."""
    from onnx import TensorProto, helper

    prefix = f"{source}.rows"

    def node(kind: str, inputs: list[str], output: str, **options: Any) -> NodeProto:
        inputs = [f"{prefix}{name}" if name.startswith(".") else name for name in inputs]
        return helper.make_node(kind, inputs, [f"{prefix}.{output}"], f"{prefix}.{output}", **options)

    yield node("ReduceMax", [source, "int8.last_axis"], "max")
    yield node("ReduceMin", [source, "int8.last_axis"], "min")
    yield node("Neg", [".min"], "minus_min")
    yield node("Max", [".max", ".minus_min", "int8.smallest"], "largest")
    yield node("Mul", [".largest", "int8.step"], "scale")
    # As a matrix, because QuantizeLinear takes one scale for each index of one axis.
    yield node("Reshape", [".scale", "int8.last_axis"], "scales")
    yield node("Shape", [".scales"], "count")
    zero_point = helper.make_tensor("value", TensorProto.UINT8, [1], [_ZERO_POINT])
    yield node("ConstantOfShape", [".count"], "zero_points", value=zero_point)
    yield node("Shape", [source], "shape")
    yield node("Shape", [source], "width", start=-1)
    yield node("Concat", ["int8.last_axis", ".width"], "matrix_shape", axis=0)
    yield node("Reshape", [source, ".matrix_shape"], "matrix")
    yield node("QuantizeLinear", [".matrix", ".scales", ".zero_points"], "q_matrix", axis=0)
    yield node("Reshape", [".q_matrix", ".shape"], "q")


def _product(node: NodeProto, weights: str) -> Iterator[NodeProto]:
    """Nodes that compute the product of quantised rows and weights, and add the bias."""
    from onnx import helper

    rows, output, bias = f"{node.input[0]}.rows", node.output[0], node.input[2:]
    inputs = [f"{rows}.q", weights, "int8.one", f"{weights}.scales", "int8.zero_point"]
    unscaled, scaled = f"{output}.unscaled", f"{output}.scaled" if bias else output
    yield helper.make_node("MatMulIntegerToFloat", inputs, [unscaled], unscaled, domain=MICROSOFT)
    yield helper.make_node("Mul", [unscaled, f"{rows}.scale"], [scaled], f"{output}.scaled")
    if bias:
        yield helper.make_node("Add", [scaled, *bias], [output], f"{output}.with_bias")


def _remove_unread(graph: GraphProto, replaced: Collection[str]) -> None:
    """Remove the replaced fp32 weights that no node reads any more."""
    read = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read or tensor.name not in replaced]
    del graph.initializer[:]
    graph.initializer.extend(kept)
