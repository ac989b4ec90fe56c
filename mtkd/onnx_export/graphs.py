"""Trace a model into ONNX graphs with dynamic batch size and length, and write them with shared weights."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mtkd.models.capture import ATTENTION
from mtkd.models.encoders.bilstm import BiLSTMEncoder
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from mtkd.runtime import OUTPUT_PREFIX, disable_telemetry
from tasks.common.errors import UserError
from tasks.common.temporary import temporary_directory
from tasks.heads import SANHead
from tasks.tokens.batching import ModelInputs, Tokens

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20
GRAPH_WEIGHTS = "weights.bin"
_EXTERNAL = 1024  # bytes; smaller tensors stay inside the graph
_ALIGNMENT = 64  # bytes


class _Graph(nn.Module):
    """What is traced: token ids and masks as separate arguments, one tuple of logits as the result.

    Args:
        texts: the number of texts per row; None = one sequence per row.
    """

    def __init__(self, model: MultiTaskModel, texts: int | None):
        super().__init__()
        self.model, self.texts = model, texts
        tasks = model.tasks.items()
        self.heads = [head for head, task in tasks if texts is None or len(task.columns) == texts]
        self.compares_texts = {head for head, task in tasks if model.encoder.config.compares_texts(task)}

    @property
    def inputs(self) -> list[str]:
        """The names of the arguments; see `mtkd.runtime.graph_inputs`."""
        if self.texts is not None:
            numbers = range(1, self.texts + 1)
            return [f"{name}_{number}" for number in numbers for name in ("input_ids", "attention_mask")]
        reads_ends = any(isinstance(head, SANHead) for head in self.model.heads.values())
        reads_types = getattr(self.model.encoder, "reads_token_types", True)
        optional = {
            "token_type_ids": reads_types,
            "text_ends": reads_ends,
            "second_text": self.compares_texts,
        }
        return ["input_ids", "attention_mask", *(name for name, used in optional.items() if used)]

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The logits of every head, in the order of `heads`."""
        tensors = dict(zip(self.inputs, arguments, strict=True))
        inputs = self._joined(tensors) if self.texts is None else self._separate(tensors, self.texts)
        need = OutputSpec()
        for head in self.heads:
            need = need | self.model.head_inputs(head)
        output = self.model.encoder(inputs, need)
        first_vector = output
        if self.compares_texts and output.pooled is not None:  # of all tokens, if no text is marked as second
            first_vector = replace(output, pooled=output.pooled[:, : self.model.encoder.width])
        return tuple(
            self.model.logits(head, inputs, output if head in self.compares_texts else first_vector)
            for head in self.heads
        )

    def _joined(self, tensors: Mapping[str, Tensor]) -> ModelInputs:
        ids = tensors["input_ids"]
        marks = {name: tensors[name].bool() for name in ("text_ends", "second_text") if name in tensors}
        types = tensors.get("token_type_ids", torch.zeros_like(ids))
        mask = tensors["attention_mask"].bool()
        return ModelInputs(joined=Tokens(ids, mask, types, marks.get("text_ends"), marks.get("second_text")))

    def _separate(self, tensors: Mapping[str, Tensor], texts: int) -> ModelInputs:
        ids = [tensors[f"input_ids_{number}"] for number in range(1, texts + 1)]
        masks = [tensors[f"attention_mask_{number}"].bool() for number in range(1, texts + 1)]
        zeros = map(torch.zeros_like, ids)
        return ModelInputs(texts=tuple(map(Tokens, ids, masks, zeros)))


def trace(model: MultiTaskModel) -> dict[int | None, ModelProto]:
    """Trace a model: one graph, or one per number of texts if it reads texts separately.

    Returns:
        Number of texts (None = one sequence per row) -> the graph.
    """
    model = copy.deepcopy(model).cpu().float().eval()
    if isinstance(model.encoder, TransformerEncoder):
        config: Any = model.encoder.body.config
        if config._attn_implementation == ATTENTION:  # it records what losses need, and hinders tracing
            model.encoder.body.set_attn_implementation("eager")  # type: ignore[operator]
    if model.encoder.input_format != "separate":
        return {None: _traced(_Graph(model, None))}
    texts = sorted({len(task.columns) for task in model.tasks.values()})
    return {number: _traced(_Graph(model, number)) for number in texts}


def _traced(graph: _Graph) -> ModelProto:
    import onnx

    example = _example(graph)
    outputs = [OUTPUT_PREFIX + head for head in graph.heads]
    options: Any = {"input_names": graph.inputs, "output_names": outputs, "opset_version": OPSET}
    with _quiet(), torch.no_grad():
        if not isinstance(graph.model.encoder, BiLSTMEncoder):
            dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
            program = torch.onnx.export(
                graph, example, dynamo=True, dynamic_shapes=((dynamic,) * len(example),), **options
            )
            assert program is not None
            model_proto: ModelProto = program.model_proto
            return model_proto
        # torch.export fixes the length of an LSTM's input to that of the example; this exporter does not, and
        # it writes ONNX's own LSTM instead of a loop over the tokens.
        axes = {name: {0: "batch", 1: f"length_{name[-1]}"} for name in graph.inputs}
        with temporary_directory() as directory:
            file = directory / "graph.onnx"
            torch.onnx.export(graph, example, str(file), dynamo=False, dynamic_axes=axes, **options)
            return onnx.load(str(file))


def _example(graph: _Graph) -> tuple[Tensor, ...]:
    """Two rows, the second one shorter. Two texts have different lengths, so that both stay dynamic."""
    unknown = graph.model.tokeniser.unknown_id

    def values(name: str) -> Tensor:
        length = 10 if name.endswith("_2") else 12
        is_token = torch.arange(length) < torch.tensor([[length], [length - 3]])
        is_last = is_token & (is_token.cumsum(1) == is_token.sum(1, keepdim=True))
        marks = {
            "input_ids": torch.full(is_token.shape, unknown),
            "attention_mask": is_token,
            "text_ends": is_last | (torch.arange(length) == 4),
            "second_text": is_token & (torch.arange(length) > 4),
        }
        return marks.get(name.removesuffix("_1").removesuffix("_2"), torch.zeros(is_token.shape)).long()

    return tuple(map(values, graph.inputs))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's progress and warnings; what it does is checked afterwards."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(None),
            contextlib.redirect_stderr(None),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def write_graphs(graphs: Mapping[int | None, ModelProto], directory: Path) -> list[dict[str, Any]]:
    """Write graphs to a directory, with all their weights in one file; equal tensors are written once.

    Returns:
        For each graph its file and number of texts, as export.json has them.
    """
    import onnx

    written: dict[bytes, tuple[int, int]] = {}
    entries = []
    with open(directory / GRAPH_WEIGHTS, "wb") as weights:
        for texts, original in graphs.items():
            graph = onnx.ModelProto()
            graph.CopyFrom(original)
            for tensor in graph.graph.initializer:
                content = onnx.numpy_helper.to_array(tensor).tobytes()
                if len(content) < _EXTERNAL:
                    continue
                key = hashlib.sha256(content).digest()
                if key not in written:
                    weights.write(bytes(-weights.tell() % _ALIGNMENT))
                    written[key] = weights.tell(), len(content)
                    weights.write(content)
                _refer(tensor, *written[key])
            file = "model.onnx" if texts is None else f"model-{texts}-text{'s' * (texts > 1)}.onnx"
            onnx.save(graph, str(directory / file))
            entries.append({"file": file, "texts": texts})
    return entries


def _refer(tensor: Any, offset: int, length: int) -> None:
    """Replace a tensor's values by a reference to the file of the weights."""
    for name in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(name)
    tensor.data_location = 1  # EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", GRAPH_WEIGHTS), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def require_exporter() -> None:
    """Check that the packages that write ONNX are installed.

    Raises:
        UserError: they are not.
    """
    disable_telemetry()
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"an export needs the package {error.name}", hint="pip install onnx onnxscript onnxruntime"
        ) from error
