"""What a generator is trained on: prompts from a span task's rows, each with the questions asked of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.questions.prompt_formats import Format
from tasks.errors import UserError
from tasks.sources import DataSource, validated_table
from tasks.task import Task


@dataclass(frozen=True)
class Asked:
    """A prompt, and the questions that people asked of it; `context` is the paragraph behind it."""

    prompt: str
    questions: tuple[str, ...]
    context: str


@dataclass(frozen=True)
class EncodedPrompt:
    """`Asked` as token ids: the prompt, cut to the limit, and each question with its end."""

    prompt: list[int]
    questions: list[list[int]]


def span_task(tasks: list[Task]) -> Task:
    """The one task that is named, if it is a span task with training rows; UserError otherwise."""
    if len(tasks) != 1:
        raise UserError(f"{len(tasks)} tasks are named", expected="one span task, such as squad")
    task = tasks[0]
    if not task.type.predicts_spans:
        raise UserError(
            f"task {task.name!r} is a {task.kind} task",
            expected="a span task (columns: question, context), such as squad or a task's .toml file",
        )
    return task


def read_asked(
    source: DataSource, task: Task, split: str, form: Format, limit: int | None, seed: int
) -> list[Asked]:
    """The prompts of one split in file order.

    Blank texts are skipped, and where the format marks an answer, rows without one.

    Args:
        limit: rows, drawn at random from `seed`; None = all.

    Raises:
        UserError: the split is not there, a row is wrong, or nothing is left.
    """
    table = validated_table(source, task, split).table
    columns = [table[name].to_pylist() for name in (*task.columns, task.label)]
    chosen = np.arange(table.num_rows)
    if limit is not None and limit < len(chosen):
        stream = np.random.default_rng([seed, zlib.crc32(f"{task.name}/{split}".encode())])
        chosen = np.sort(stream.choice(len(chosen), limit, replace=False))
    found: dict[str, list[str]] = {}
    contexts: dict[str, str] = {}
    for row in chosen.tolist():
        question, context, answers = (column[row] for column in columns)
        if not context.strip() or not question.strip():
            continue
        if form.asks_for_an_answer and not answers["text"]:
            continue
        marked = form.asks_for_an_answer
        prompt = (
            form.prompt(context, answers["text"][0], answers["answer_start"][0])
            if marked
            else form.prompt(context)
        )
        found.setdefault(prompt, []).append(question.strip())
        contexts[prompt] = context
    if not found:
        raise UserError(f"{task.name}/{split} has no row with a context and a question", hint="raise `limit`")
    return [Asked(prompt, tuple(questions), contexts[prompt]) for prompt, questions in found.items()]


def encode(tokenizer: Any, asked: list[Asked], max_input: int, max_output: int) -> list[EncodedPrompt]:
    """The prompts and questions as ids, cut to the limits."""
    prompts = tokenizer([one.prompt for one in asked], truncation=True, max_length=max_input).input_ids
    flat = [question for one in asked for question in one.questions]
    questions = iter(tokenizer(flat, truncation=True, max_length=max_output).input_ids)
    return [
        EncodedPrompt(prompt, [next(questions) for _ in one.questions])
        for prompt, one in zip(prompts, asked, strict=True)
    ]


def prompt_batches(encoded: list[EncodedPrompt], size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """One epoch's batches of prompts of like length, in an order drawn from (seed, epoch).

    A prompt comes with all its questions, so that it is read once; `size` is about how many questions are
    in a batch.
    """
    stream = np.random.default_rng([seed, epoch])
    order = stream.permutation(len(encoded))
    lengths = np.array([len(one.prompt) for one in encoded])
    made: list[list[int]] = []
    pool = 64 * size
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        batch: list[int] = []
        held = 0
        for number in part.tolist():
            count = len(encoded[number].questions)
            if batch and held + count > size:
                made.append(batch)
                batch, held = [], 0
            batch.append(number)
            held += count
        made.append(batch)
    return (made[place] for place in stream.permutation(len(made)))
