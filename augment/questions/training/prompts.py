"""Training data of a generator: prompts from the rows of a span task, each with its questions."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.questions.prompt_formats import PromptFormat
from tasks.common.errors import UserError
from tasks.data.loading import validated_table
from tasks.data.sources import DataSource
from tasks.task import Task


@dataclass(frozen=True)
class ReferenceQuestions:
    """A prompt and its human-written questions; `context` is the paragraph that the prompt was made from."""

    prompt: str
    questions: tuple[str, ...]
    context: str


@dataclass(frozen=True)
class EncodedPrompt:
    """`ReferenceQuestions` as token ids: the truncated prompt, and each question with its end token."""

    prompt: list[int]
    questions: list[list[int]]


def span_task(tasks: list[Task]) -> Task:
    """Return the only task; UserError if there is not exactly one, or if it is not a span task."""
    if len(tasks) != 1:
        raise UserError(f"{len(tasks)} tasks were given", expected="one span task, such as squad")
    task = tasks[0]
    if not task.type.predicts_spans:
        raise UserError(
            f"task {task.name!r} is a {task.kind} task",
            expected="a span task (columns: question, context), such as squad or a task's .toml file",
        )
    return task


def read_reference_questions(
    source: DataSource, task: Task, split: str, form: PromptFormat, limit: int | None, seed: int
) -> list[ReferenceQuestions]:
    """Read the prompts of one split in file order.

    Rows with blank texts are skipped, and if the format marks an answer, so are rows without one.

    Args:
        limit: number of rows to sample, using `seed`; None = all.

    Raises:
        UserError: the split is missing, a row is invalid, or no row is left.
    """
    table = validated_table(source, task, split).table
    columns = [table[name].to_pylist() for name in (*task.columns, task.label)]
    chosen = np.arange(table.num_rows)
    if limit is not None and limit < len(chosen):
        stream = np.random.default_rng([seed, zlib.crc32(f"{task.name}/{split}".encode())])
        chosen = np.sort(stream.choice(len(chosen), limit, replace=False))
    questions_by_prompt: dict[str, list[str]] = {}
    contexts: dict[str, str] = {}
    for row in chosen.tolist():
        question, context, answers = (column[row] for column in columns)
        if not context.strip() or not question.strip():
            continue
        if form.uses_answer and not answers["text"]:
            continue
        answer = (answers["text"][0], answers["answer_start"][0]) if form.uses_answer else ()
        prompt = form.prompt(context, *answer)
        questions_by_prompt.setdefault(prompt, []).append(question.strip())
        contexts[prompt] = context
    if not questions_by_prompt:
        raise UserError(
            f"{task.name}/{split} has no row with a context and a question", hint="increase `limit`"
        )
    return [
        ReferenceQuestions(prompt, tuple(questions), contexts[prompt])
        for prompt, questions in questions_by_prompt.items()
    ]


def encode(
    tokenizer: Any, references: list[ReferenceQuestions], max_input: int, max_output: int
) -> list[EncodedPrompt]:
    """Convert prompts and questions to token ids, truncated to the limits."""
    prompts = tokenizer(
        [reference.prompt for reference in references], truncation=True, max_length=max_input
    ).input_ids
    flat = [question for reference in references for question in reference.questions]
    questions = iter(tokenizer(flat, truncation=True, max_length=max_output).input_ids)
    return [
        EncodedPrompt(prompt, [next(questions) for _ in reference.questions])
        for prompt, reference in zip(prompts, references, strict=True)
    ]


def prompt_batches(encoded: list[EncodedPrompt], size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Batches of prompts of similar length for one epoch, in random order given by (seed, epoch).

    All questions of a prompt are in the same batch, so the prompt is encoded once. `size` is the approximate
    number of questions per batch.
    """
    stream = np.random.default_rng([seed, epoch])
    order = stream.permutation(len(encoded))
    lengths = np.array([len(one.prompt) for one in encoded])
    batches: list[list[int]] = []
    pool = 64 * size
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        batch: list[int] = []
        held = 0
        for number in part.tolist():
            count = len(encoded[number].questions)
            if batch and held + count > size:
                batches.append(batch)
                batch, held = [], 0
            batch.append(number)
            held += count
        batches.append(batch)
    return (batches[index] for index in stream.permutation(len(batches)))
