"""The text of the files that `mtkd init` writes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.records import as_toml
from tasks.task import Task

_TOKENS_PER_WORD, _SPECIAL = 1.4, 4
_LENGTHS, _SPAN_LENGTHS = (32, 256), (128, 384)  # shortest and longest rows, in tokens
_EXPORT = ("onnx", "onnxruntime", "onnxscript")

_PIPELINE = """\
# A teacher, a small student that learns from it, and a control: the same student, which learns from the
# labels alone. Written by `mtkd init`; every value may be changed. docs/pipelines.md describes the format.
#
#   mtkd run {pipeline} --dry-run    shows the steps and their commands
#   mtkd run {pipeline}              runs those that are not finished

out = "runs"                     # the outputs; paths are relative to this file
tasks = {task_file}
seed = 0
precision = "auto"               # bf16 where the processor or GPU multiplies in it
# device = "cpu"                 # by default a GPU if there is one
# limit = 1000                   # at most so many training rows, to try things out

[steps.teacher]
title = "teacher: a pretrained encoder learns from the labels"
command = "refine"
encoder = "minilm"               # installed with mtkd; or a name on the hub, such as "bert-base-uncased"
set.max_length = {length:<15} # tokens per row
# epochs = 10                    # by default about 1,000 steps, but 3 to 20 epochs

# If you have a fine-tuned model, delete the step above and write its path or hub name for "@teacher".
[steps.student]
title = "student: three layers of the teacher learn from it"
command = "distill"
recipe = "layerwise-3"           # `mtkd recipes` lists others
teacher = "@teacher"             # the output of the step above
{unlabelled}
set.student.max_length = {length}
# steps = 2000

[steps.control]
title = "control: the same student learns from the labels alone, in as many steps"
command = "distill"
recipe = "layerwise-3"
teacher = "@teacher"             # tells which encoder to start from; nothing is learned from it
steps = "@student"
set.supervision = "labels"
set.student.max_length = {length}
set.student.transformer.init = "encoder"

[steps.comparison]
title = "comparison: the student's scores, and the difference to the control"
command = "evaluate"
model = "@student"
against = "@control"
report = true

[steps.report]
title = "report: a page about the teacher, the student and the control"
command = "report html"
runs = ["@teacher", "@student", "@control"]
reference = "@control"
"""

_EXPORT_STEP = """
[steps.export]
title = "export: the student as ONNX graphs, which run without torch"
command = "export"
model = "@student"
"""


def task_text(task: Task, files: Mapping[str, str]) -> str:
    """The task file; `files`: split -> path relative to it."""
    values: dict[str, Any] = {"name": task.name, "kind": task.kind, "columns": list(task.columns)}
    values["label"] = task.label
    values |= {"labels": list(task.labels)} if task.labels else {}
    values |= {"range": list(task.range)} if task.range else {}
    values |= {"unanswerable": True} if task.unanswerable else {}
    values["metrics"] = list(task.metrics)
    return "\n".join(
        [
            "# Written by `mtkd init`; docs/add-a-task.md describes the format.",
            *(f"{key} = {as_toml(value)}" for key, value in values.items()),
            "\n[files]",
            *(f"{split} = {as_toml(file)}" for split, file in files.items()),
            "",
        ]
    )


def pipeline_text(task: Task, train: pa.Table, unlabelled: Sequence[str]) -> str:
    """The pipeline; `unlabelled`: files of rows without labels, relative to it."""
    files: Any = unlabelled[0] if len(unlabelled) == 1 else list(unlabelled) or "more-*.csv"
    option = f"unlabelled = {{ {as_toml(task.name)} = {as_toml(files)} }}"
    text = _PIPELINE.format(
        pipeline="pipeline.toml",
        task_file=as_toml(f"{task.name}.toml"),
        length=_max_length(task, train),
        unlabelled=option if unlabelled else f"# {option}  # text without labels helps most",
    )
    if all(map(importlib.util.find_spec, _EXPORT)):
        return text + _EXPORT_STEP
    commented = "".join(f"# {line}\n" if line else "\n" for line in _EXPORT_STEP.splitlines())
    return f"{text}\n# This step needs the packages onnx, onnxruntime and onnxscript.{commented}"


def _max_length(task: Task, train: pa.Table) -> int:
    """The number of tokens that 95% of the rows do not exceed, estimated from their words."""
    word_counts = sum(
        pc.list_value_length(pc.utf8_split_whitespace(train[name].cast(pa.string()))).to_numpy()
        for name in task.columns
    )
    tokens = float(np.nanpercentile(word_counts, 95)) * _TOKENS_PER_WORD + _SPECIAL
    shortest, longest = _SPAN_LENGTHS if task.type.predicts_spans else _LENGTHS
    return min(longest, max(shortest, 16 * math.ceil(tokens / 16)))
