"""Quantise a traced graph to int8: matrix products, LSTMs and embedding tables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mtkd.onnx_export.int8_products import MICROSOFT, quantise_products
from mtkd.runtime import disable_telemetry
from tasks.common.temporary import temporary_directory

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

# What stays in fp32. A part is added when the scores without it fall by too much.
KEPT: tuple[tuple[str, ...], ...] = ((), ("heads",), ("heads", "last layers"))
_QUANTISED = {"MatMul", "Gemm", "LSTM"}
_SMALLEST_TABLE = 64  # rows; smaller tables are not worth it


def quantise(graph: ModelProto, kept: Sequence[str], *, reduce_range: bool) -> ModelProto:
    """Quantise a graph.

    The weights of matrix products become int8 with one scale per output, and their inputs uint8 with one
    scale per row (`quantise_products`). The weights of LSTMs also become int8; their inputs have one scale
    for each batch. Embedding tables become int8 with one scale per row, because rows differ much in size.
    Everything else is computed in fp32.

    Args:
        graph: with its weights; it is not changed.
        kept: parts that stay in fp32, one of `KEPT`.
        reduce_range: 7 bits for weights, so that products cannot overflow on processors without VNNI.
    """
    import onnx
    from onnx import helper

    copied = onnx.ModelProto()
    copied.CopyFrom(graph)
    _copy_shared_weights(copied.graph)
    _quantise_tables(copied.graph)
    skipped = {node.name for node in _nodes_of(copied.graph, kept)}
    quantise_products(copied.graph, skipped, reduce_range=reduce_range)
    if all(opset.domain != MICROSOFT for opset in copied.opset_import):
        copied.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return _quantise_lstms(copied, skipped, reduce_range=reduce_range)


def _quantise_lstms(graph: ModelProto, skipped: Collection[str], *, reduce_range: bool) -> ModelProto:
    import onnx

    disable_telemetry()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    if all(node.op_type != "LSTM" for node in graph.graph.node):
        return graph
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it suggests steps that were done by the exporter
    try:
        with temporary_directory() as directory:
            file = directory / "graph.onnx"
            quantize_dynamic(
                graph,
                file,
                op_types_to_quantize=["LSTM"],
                per_channel=True,
                reduce_range=reduce_range,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=sorted(skipped),
            )
            return onnx.load(str(file))
    finally:
        logging.disable(level)


def lacks_vnni() -> bool:
    """True if this processor lacks an instruction for products of int8 vectors (VNNI, or Arm's)."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return not any(
        capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8", "dotprod", "asimddp")
    )


def _copy_shared_weights(graph: GraphProto) -> None:
    """Give nodes that share a weight their own copies, which are easier to quantise; files hold them once."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    shared = [n for n in graph.node if n.op_type == "Identity" and n.input[0] in weights]
    for node in shared:
        copied = graph.initializer.add()
        copied.CopyFrom(weights[node.input[0]])
        copied.name = node.output[0]
        graph.node.remove(node)


def _quantise_tables(graph: GraphProto) -> None:
    """Replace each large table that rows are gathered from by int8 rows and their scales."""
    from onnx import TensorProto, helper, numpy_helper

    tables = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    replaced: dict[int, list[NodeProto]] = {}
    for name, tensor in tables.items():
        large = len(tensor.dims) == 2 and tensor.dims[0] >= _SMALLEST_TABLE
        nodes = readers.get(name, [])
        if tensor.data_type != TensorProto.FLOAT or not large or not all(map(_gathers_rows, nodes)):
            continue
        values = numpy_helper.to_array(tensor)
        largest = np.abs(values).max(1, keepdims=True)
        scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        graph.initializer.remove(tensor)
        graph.initializer.append(
            numpy_helper.from_array(np.rint(values / scales).astype(np.int8), f"{name}.int8")
        )
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}.scales"))
        for node in nodes:
            (out,), ids = node.output, node.input[1]
            replaced[id(node)] = [
                helper.make_node("Gather", [f"{name}.int8", ids], [f"{out}.int8"], f"{out}.rows"),
                helper.make_node("Cast", [f"{out}.int8"], [f"{out}.cast"], f"{out}.to_float", to=1),
                helper.make_node("Gather", [f"{name}.scales", ids], [f"{out}.scales"], f"{out}.row_scales"),
                helper.make_node("Mul", [f"{out}.cast", f"{out}.scales"], [out], f"{out}.scaled"),
            ]
    nodes = [new_node for node in graph.node for new_node in replaced.get(id(node), [node])]
    del graph.node[:]
    graph.node.extend(nodes)


def _gathers_rows(node: NodeProto) -> bool:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return node.op_type == "Gather" and axis == 0


def _nodes_of(graph: GraphProto, fp32_parts: Sequence[str]) -> Iterator[NodeProto]:
    """The nodes with weights of these parts; the last layers are the last third outside the heads."""
    weights = {tensor.name for tensor in graph.initializer}
    nodes = [n for n in graph.node if n.op_type in _QUANTISED and weights & set(n.input)]
    if "heads" in fp32_parts:
        yield from filter(_of_head, nodes)
    if "last layers" in fp32_parts:
        body_nodes = [node for node in nodes if not _of_head(node)]
        yield from body_nodes[len(body_nodes) * 2 // 3 :]


def _of_head(node: NodeProto) -> bool:
    """One exporter names the module of a node in the node's metadata, the other in its weights' names."""
    scopes = [entry.value for entry in node.metadata_props if entry.key == "namespace"]
    return any("model.head_modules." in name for name in (*node.input, *scopes))
