"""Run an exported model with ONNX Runtime. Nothing here imports torch or transformers.

It needs onnxruntime, tokenizers, numpy, pyarrow and pydantic; `mtkd[onnx]` installs the first one.

    from mtkd.runtime import OnnxModel

    model = OnnxModel("student-onnx")
    model.predict("rte", [("A man sleeps.", "A man rests.")])
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mtkd.model_files import EXPORT, EXPORT_AGAIN, read_export, read_model_file
from tasks.checks.truncated_rows import TruncatedRows
from tasks.common.arguments import PositiveInt, ThreadsOrAll, checked
from tasks.common.digests import damage_of
from tasks.common.errors import UserError, counted, reason_of
from tasks.common.sha256 import digest_file
from tasks.data.predicted_columns import predict_in_memory
from tasks.data.rows import Rows
from tasks.model_tasks import (
    mapped_logits,
    prediction_records,
    recorded_threshold,
    task_of_model,
    with_text_columns,
)
from tasks.task import Task
from tasks.task_names import TaskSpec
from tasks.tokens.encoding import PADDED, Encoded, TokenArrays, length_sorted_batches, pad_rows
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser, tokeniser_errors

OUTPUT_PREFIX = "logits_"  # the output of a head is named logits_HEAD


class OnnxModel:
    """An exported model: predicts rows without torch.

    Args:
        directory: what `mtkd export` wrote.
        threads: threads per prediction; 0 = all cores.

    Attributes:
        record: export.json.
        tasks: head -> the task with which the model was exported.
        reader: converts rows to token ids; tasks can have their own, see `reader_of`.

    Raises:
        UserError: the directory is not an export, a file is missing or damaged, or onnxruntime is not
            installed.
    """

    @checked
    def __init__(self, directory: str | Path, *, threads: ThreadsOrAll = 0):
        path = self._directory = Path(directory)
        self.record = read_export(path)
        for file, digest in self.record["files"].items():
            if not (path / file).is_file() or digest_file(path / file) != digest:
                raise UserError(f"{path / file} {damage_of(path / file)}", hint=EXPORT_AGAIN)
        model = read_model_file(path)
        self.tasks = {task.head: task for task in model.tasks}
        self._thresholds = model.known_thresholds
        tokeniser = Tokeniser(SavedTokeniser(path, self.record["tokeniser"]))  # type: ignore[arg-type]
        # "joined": a cross-encoder, "side-by-side": a bi-encoder, "separate": a BiLSTM or static student
        input_format = self.record["input_format"]
        self.reader = Reader(tokeniser, input_format, model.max_length, model.stride)
        self._side_by_side = frozenset(self.record.get("side_by_side", ()))  # heads
        self._graphs = {
            graph["texts"]: _Graph(path / graph["file"], threads) for graph in self.record["graphs"]
        }
        for task in model.tasks:
            self._graph_of(len(task.columns)).require_head(task)

    def run(self, tokens: tuple[TokenArrays, ...], head: str) -> np.ndarray:
        """The logits of a batch: (B, C), or (B, 2, L) for `span` tasks.

        Args:
            tokens: one sequence per row, or one per text and row, as `tasks.tokens.encoding.pad_rows` returns
                them with the reader of the task (`reader_of`).
        """
        return self._graph_of(len(tokens)).run(
            OUTPUT_PREFIX + head, graph_inputs(tokens, self.reader.input_format)
        )

    def reader_of(self, task: Task) -> Reader:
        """The reader that converts the rows of a task to token ids."""
        if task.head in self._side_by_side:
            return replace(self.reader, input_format="side-by-side")
        return self.reader

    def _graph_of(self, texts: int) -> _Graph:
        """The graph for tasks with this number of text columns; raises UserError if there is none."""
        key = texts if self.reader.input_format == "separate" else None
        if key not in self._graphs:
            problem = f"has no graph for tasks of {texts} text{'s' * (texts > 1)}"
            raise UserError(f"{self._directory / EXPORT} {problem}", hint=EXPORT_AGAIN)
        return self._graphs[key]

    def logits(self, task: Task, encoded: Encoded, batch: int = 64) -> np.ndarray:
        """The logits of every row, (n, C) float32, or (n, 2, max_length) for `span` tasks.

        Rows are processed in order of length, to keep padding low.
        """
        reader = self.reader_of(task)
        all_logits = np.zeros((len(encoded), *task.type.logits_shape(task, reader.max_length)), np.float32)
        for rows in length_sorted_batches(reader.lengths(encoded.texts), batch):
            logits = self.run(pad_rows(reader, encoded.texts, rows), task.head)
            logits = mapped_logits(task, self.tasks[task.head], logits)
            all_logits[rows] = PADDED
            all_logits[rows, ..., : logits.shape[-1]] = logits
        return all_logits

    @checked
    def task(self, task: TaskSpec | None = None) -> Task:
        """A task that the model can predict; see `mtkd.Model.task`."""
        return task_of_model(task, list(self.tasks.values()))

    @checked
    def predict(
        self,
        task: TaskSpec | None,
        rows: Any,
        *,
        columns: Sequence[str] = (),
        batch: PositiveInt = 64,
        replace: bool = False,
    ) -> Any:
        """Predict the labels of rows; see `mtkd.Model.predict`."""
        known_task = with_text_columns(self.task(task), columns)
        return predict_in_memory(
            lambda found: self.predict_rows(known_task, found, batch), known_task, rows, replace
        )

    def predict_rows(
        self, task: Task, rows: Rows, batch: int = 64, truncated: TruncatedRows | None = None
    ) -> list[dict[str, Any]]:
        """Like `predict`, for rows that have been read already.

        Args:
            truncated: where to count truncated rows, for one warning about many parts; by default, warn of
                them.
        """
        reader = self.reader_of(task)
        encoded = Encoded.encode(reader.rows(rows), reader.tokeniser)
        logits = self.logits(task, encoded, batch)
        threshold = recorded_threshold(self._thresholds, task, self.tasks)
        return list(prediction_records(task, reader, encoded, logits, threshold, truncated))


def disable_telemetry() -> None:
    """Stop onnxruntime from sending usage data and from writing files for it into the home directory.

    It has an effect only before onnxruntime is imported. A value that the user has set is kept.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def graph_inputs(tokens: tuple[TokenArrays, ...], input_format: str) -> dict[str, np.ndarray]:
    """All possible inputs of a graph, by name: (B, L) int64 arrays."""
    if input_format == "separate":
        return {
            f"{name}_{number}": array.astype(np.int64)
            for number, text in enumerate(tokens, 1)
            for name, array in (("input_ids", text.ids), ("attention_mask", text.mask))
        }
    (row,) = tokens
    empty = np.zeros(row.ids.shape, bool)
    arrays = {
        "input_ids": row.ids,
        "attention_mask": row.mask,
        "token_type_ids": row.token_type_ids,
        "text_ends": empty if row.ends is None else row.ends,
        "second_text": empty if row.second is None else row.second,
    }
    return {name: array.astype(np.int64) for name, array in arrays.items()}


class SavedTokeniser:
    """The parts of a fast transformers tokeniser that `Tokeniser` needs, read without transformers.

    Args:
        directory: the directory that contains tokenizer.json.
        names: the result of `tokeniser_names` for the tokeniser that was saved there.
    """

    is_fast = True

    def __init__(self, directory: Path, names: Mapping[str, Any]):
        from tokenizers import Tokenizer

        self.name_or_path = str(directory)
        file = directory / "tokenizer.json"
        with tokeniser_errors(str(file)):
            self.backend_tokenizer = Tokenizer.from_file(str(file))
        self.model_input_names: list[str] = names["inputs"]
        for kind in ("pad", "unk", "mask"):
            setattr(self, f"{kind}_token", names[kind])
            setattr(self, f"{kind}_token_id", self.backend_tokenizer.token_to_id(names[kind]))

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)


def tokeniser_names(tokeniser: Tokeniser) -> dict[str, Any]:
    """The special tokens and model inputs, which `SavedTokeniser` needs besides tokenizer.json."""
    hf = tokeniser.hf
    names = {kind: str(getattr(hf, f"{kind}_token")) for kind in ("pad", "unk", "mask")}
    return {**names, "inputs": list(hf.model_input_names)}


class _Graph:
    """An ONNX graph of an export.

    Args:
        file: the file of the graph; the file of its weights is beside it.
        threads: threads per prediction; 0 = all cores.

    Raises:
        UserError: the graph is damaged, or onnxruntime is not installed.
    """

    def __init__(self, file: Path, threads: int):
        disable_telemetry()
        try:
            import onnxruntime
        except ImportError as error:
            raise UserError("exported models need onnxruntime", hint="pip install onnxruntime") from error
        self._file = file
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        with self._errors():
            self._session: Any = onnxruntime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )
        self._inputs = [value.name for value in self._session.get_inputs()]

    def require_head(self, task: Task) -> None:
        """Check that the graph has an output for a task, with as many logits as its labels need."""
        shapes = {value.name: value.shape for value in self._session.get_outputs()}
        shape, expected = shapes.get(OUTPUT_PREFIX + task.head), task.type.n_outputs(task)
        if shape is None:
            raise UserError(f"{self._file} has no output for the head {task.head!r}", hint=EXPORT_AGAIN)
        fixed = len(shape) > 1 and isinstance(shape[1], int) and not task.map
        if fixed and shape[1] != expected:
            problem = (
                f"has {counted(shape[1], 'output')} for the head {task.head!r}, but its task needs {expected}"
            )
            raise UserError(f"{self._file} {problem}", hint=EXPORT_AGAIN)

    def run(self, output: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute one output of the graph.

        Args:
            arrays: input name -> values; inputs that the graph does not read are ignored.

        Raises:
            UserError: the graph reads another input, or the output is not finite.
        """
        if unknown_inputs := [name for name in self._inputs if name not in arrays]:
            raise UserError(
                f"{self._file} reads the input {unknown_inputs[0]!r}, which is unknown", hint=EXPORT_AGAIN
            )
        with self._errors():
            values: np.ndarray = self._session.run([output], {name: arrays[name] for name in self._inputs})[0]
        if not np.isfinite(values).all():
            raise UserError(
                f"{self._file} gives logits that are not finite: its weights are damaged", hint=EXPORT_AGAIN
            )
        return values

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn onnxruntime's errors into a UserError that names the graph."""
        try:
            yield
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            raise UserError(f"{self._file} cannot be run: {reason_of(error)}", hint=EXPORT_AGAIN) from error
