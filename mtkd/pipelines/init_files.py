"""The text of the task file and the pipeline that `mtkd init` writes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtkd.pipelines.init_student import DEFAULT_RECIPE, StudentPlan
from mtkd.teachers.label_lists import label_list
from tasks.common.records import as_toml
from tasks.task import Task

_LENGTHS, _SPAN_LENGTHS = (32, 256), (128, 384)  # smallest and largest `max_length`, in tokens
_EXPORT_PACKAGES = ("onnx", "onnxruntime", "onnxscript")

OUTPUTS = "runs"  # where the pipeline writes

_HEAD = """\
# {models}, and a control: the same student, which learns
# from the labels alone. Written by `mtkd init`; you can change every value (see docs/pipelines.md).
#
#   mtkd run {pipeline} --dry-run    shows the steps and their commands
#   mtkd run {pipeline}              runs the steps that are not finished

out = "{outputs}"                     # the outputs; paths are relative to this file
tasks = {task_file}
seed = 0
precision = "auto"               # bf16 if the processor or GPU supports it, else fp32
# device = "cpu"                 # by default a GPU if there is one
# limit = 1000                   # use at most this many training rows, to try things out
"""

_TEACHER = """
[steps.teacher]
title = "teacher: a pretrained encoder learns from the labels"
command = "refine"
encoder = "minilm"               # installed with mtkd; or a name on the hub, such as "bert-base-uncased"
set.max_length = {length:<15} # tokens per row
# epochs = 10                    # by default as many as make 1,000 steps, but 3 to 20
# With a fine-tuned model of your own, `mtkd init --teacher MODEL` writes a pipeline without this step.
"""

_QUESTIONS = """
[steps.questions]
title = "questions: generated from the paragraphs by English grammar rules"
command = "augment questions generate"
text = {file}
text-column = {column}
task = {task_file}
per-paragraph = 3
# words = "50:320"               # skip shorter paragraphs, and split longer ones between sentences
# model = "lmqg/t5-small-squad-qg"   # a T5 instead of rules; for other languages, name a multilingual one
"""

_MORE_QUESTIONS = """\
# To add generated questions, also pass `mtkd init` a .txt file with one paragraph per line."""

_STUDENT = """
[steps.student]
title = "student: {what}"
command = "distill"
recipe = {recipe:<23} # `mtkd recipes` lists others
{teacher}
{labels}{more_rows}
{settings}set.student.max_length = {length}
# steps = 2000
"""

_CONTROL = """
[steps.control]
title = "control: the same student learns from the labels alone, for the same number of steps"
command = "distill"
recipe = {recipe}
{unknown}teacher = {teacher:<22} # {about_teacher}
steps = "@student"
{settings}set.student.max_length = {length}
"""

_COMPARISON = """
[steps.comparison]
title = "comparison: the student's scores, and the difference from the control"
command = "evaluate"
model = "@student"
against = "@control"
report = true

[steps.against-teacher]
title = "comparison: the difference from the teacher"
command = "evaluate"
model = "@student"
against = {teacher}
{labels}
[steps.report]
title = "report: a page about the models"
command = "report html"
runs = {runs}
reference = "@control"
{checkpoint}"""

_EXPORT_STEP = """
[steps.export]
title = "export: the student as ONNX graphs, which run without torch"
command = "export"
model = "@student"
"""


def task_text(task: Task, files: Mapping[str, str]) -> str:
    """The text of the task file; `files`: split -> path relative to it."""
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


def pipeline_text(
    task: Task,
    length: int,
    unlabelled: Sequence[str],
    plan: StudentPlan,
    paragraphs: tuple[str, str] | None = None,
) -> str:
    """The text of the pipeline.

    Args:
        length: `max_length` of its models.
        unlabelled: files of unlabelled rows, relative to it.
        paragraphs: the file of paragraphs about which it generates questions, relative to it, and the name of
            their column.
    """
    files: Any = unlabelled[0] if len(unlabelled) == 1 else list(unlabelled) or "more-*.csv"
    option = f"unlabelled = {{ {as_toml(task.name)} = {as_toml(files)} }}"
    models = "A small student that learns from a teacher"
    models = models if plan.teacher else "A teacher, a small student that learns from it"
    task_file = as_toml(f"{task.name}.toml")
    text = _HEAD.format(models=models, pipeline="pipeline.toml", outputs=OUTPUTS, task_file=task_file)
    if paragraphs:
        file, column = map(as_toml, paragraphs)
        text += _QUESTIONS.format(task_file=task_file, file=file, column=column)
        option = f"{option}\n" if unlabelled else ""
        option += 'corpus = "@questions"            # the teacher answers these questions'
    elif not unlabelled:
        option = f"# {option}  # unlabelled text helps most"
        option = _MORE_QUESTIONS if task.type.predicts_spans else option
    text += "" if plan.teacher else _TEACHER.format(length=length)
    text += _STUDENT.format(
        what=_described(plan),
        recipe=as_toml(plan.recipe),
        teacher=f"teacher = {as_toml(plan.teacher)}"
        if plan.teacher
        else 'teacher = "@teacher"             # the output of the step `teacher`',
        labels=_labels_option(task, plan),
        settings=_settings(plan.shared),
        length=length,
        more_rows=option,
    )
    text += _CONTROL.format(
        recipe=as_toml(plan.recipe),
        unknown=_UNKNOWN.format(option=plan.encoder_option) if plan.encoder_option else "",
        teacher=as_toml(plan.control_teacher or plan.teacher or "@teacher"),
        about_teacher=_about_control(plan),
        settings=_settings({**plan.control, **plan.shared}),
        length=length,
    )
    teacher_run = [plan.teacher] if plan.is_run else [] if plan.teacher else ["@teacher"]
    text += _COMPARISON.format(
        teacher=as_toml(plan.teacher or "@teacher"),
        labels=_labels_option(task, plan),
        runs=as_toml([*teacher_run, "@student", "@control"]),
        checkpoint="" if teacher_run else f"teacher = {as_toml(plan.teacher)}\n{_labels_option(task, plan)}",
    )
    if all(map(importlib.util.find_spec, _EXPORT_PACKAGES)):
        return text + _EXPORT_STEP
    commented = "".join(f"# {line}\n" if line else "\n" for line in _EXPORT_STEP.splitlines())
    return f"{text}\n# This step needs the packages onnx, onnxruntime and onnxscript.{commented}"


def _settings(settings: Mapping[str, Any]) -> str:
    """The lines of a step that change settings."""
    return "".join(f"set.{key} = {as_toml(value)}\n" for key, value in settings.items())


_UNKNOWN = """\
# The encoder that the teacher was fine-tuned from is unknown, so the control starts from the teacher's
# weights, too. If you know that encoder, write its name: {option} = "NAME"
"""


def _about_control(plan: StudentPlan) -> str:
    """A comment on the control's teacher."""
    if plan.control_teacher and not plan.teacher:
        return "the teacher's encoder, from which the control starts; it learns nothing from it"
    if plan.own_encoder:
        return "not a teacher here: it only tells the control how to read pairs of texts"
    return "only says which encoder the control starts from; it learns nothing from it"


def _described(plan: StudentPlan) -> str:
    """What the student is, for the title of its step."""
    if plan.recipe == DEFAULT_RECIPE:
        return "three layers of the teacher, distilled from it"
    if plan.own_encoder:
        return f"starts from the encoder {plan.own_encoder}, and learns from the teacher"
    return f"{Path(plan.recipe).stem}, distilled from the teacher"


def _labels_option(task: Task, plan: StudentPlan) -> str:
    """The line with the order of a checkpoint's labels; "" if it was not given."""
    if not plan.teacher_labels:
        return ""
    return f"teacher-labels = {{ {as_toml(task.name)} = {as_toml(label_list(plan.teacher_labels))} }}\n"


def suitable_length(task: Task, lengths: np.ndarray) -> int:
    """The `max_length` that 95% of the rows do not exceed, as a multiple of 16 within `length_limits`.

    Args:
        lengths: (n,) tokens of each row (`TokenSample.lengths`).
    """
    shortest, longest = length_limits(task)
    return min(longest, max(shortest, 16 * math.ceil(float(np.percentile(lengths, 95)) / 16)))


def length_limits(task: Task) -> tuple[int, int]:
    """The smallest and the largest `max_length` that `mtkd init` writes for a task."""
    return _SPAN_LENGTHS if task.type.predicts_spans else _LENGTHS
