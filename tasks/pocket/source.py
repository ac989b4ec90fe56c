"""The splits of the pocket tasks, and the generation of their rows.

Labels follow from the text by rules that a model can learn. Columns and label ids are the same as on the hub.
Splits do not overlap, and test labels are -1, as on the hub. GLUE tasks with training rows also have a split
`unlabelled`. Validation, test and unlabelled rows contain words that the training rows lack (`rare_words`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import pyarrow as pa

from tasks.common.errors import unknown
from tasks.pocket import entailment, reading_comprehension, single
from tasks.pocket import paraphrases as pairs
from tasks.pocket.rare_words import with_rare_words
from tasks.pocket.rng import GeneratedRow, Maker, Rng
from tasks.pocket.words import OFFICE, TOWN
from tasks.task import UNLABELLED

TRAIN, VALIDATION, TEST = 500, 150, 100
UNLABELLED_ROWS = 4000
SIZES = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
SQUAD_SIZES = {"train": TRAIN, "validation": VALIDATION}
LABEL = pa.int64()


@dataclass(frozen=True)
class Pool:
    """Rows from one generator, distributed over splits in order.

    Attributes:
        make: draws one row with the requested label.
        labels: the labels to request, in turn.
        sizes: split -> number of rows.
    """

    make: Maker
    labels: tuple[int, ...]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class GeneratedTask:
    """How one task is generated: its text columns, its pools of rows, and the Arrow type of its labels."""

    columns: tuple[str, ...]
    pools: tuple[Pool, ...]
    label: pa.DataType = LABEL


SENTENCES = ("sentence1", "sentence2")
MATCHED = {"train": 600, "validation_matched": VALIDATION, "test_matched": TEST}
MISMATCHED = {"validation_mismatched": VALIDATION, "test_mismatched": TEST}

GENERATED_TASKS = {
    "cola": GeneratedTask(("sentence",), (Pool(single.cola, (1, 0), SIZES),)),
    "sst2": GeneratedTask(("sentence",), (Pool(single.sst2, (1, 0), SIZES),)),
    "mrpc": GeneratedTask(SENTENCES, (Pool(pairs.mrpc, (1, 0), SIZES),)),
    "stsb": GeneratedTask(SENTENCES, (Pool(pairs.stsb, (0, 1, 2, 3, 4, 5), SIZES),), pa.float32()),
    "qqp": GeneratedTask(("question1", "question2"), (Pool(pairs.qqp, (1, 0), SIZES),)),
    "mnli": GeneratedTask(
        ("premise", "hypothesis"),
        (
            Pool(partial(entailment.mnli, TOWN), (0, 1, 2), MATCHED),
            Pool(partial(entailment.mnli, OFFICE), (0, 1, 2), MISMATCHED),
        ),
    ),
    "qnli": GeneratedTask(("question", "sentence"), (Pool(reading_comprehension.qnli, (0, 1), SIZES),)),
    "rte": GeneratedTask(SENTENCES, (Pool(entailment.rte, (0, 1), SIZES),)),
    "wnli": GeneratedTask(SENTENCES, (Pool(entailment.wnli, (1, 0), SIZES),)),
    "ax": GeneratedTask(("premise", "hypothesis"), (Pool(entailment.ax, (0, 1, 2), {"test": 60}),)),
}

POCKET_SPLITS: dict[str, tuple[str, ...]] = {
    **{
        name: tuple(split for pool in generated.pools for split in pool.sizes)
        for name, generated in GENERATED_TASKS.items()
    },
    "squad": tuple(SQUAD_SIZES),
    "squad_v2": tuple(SQUAD_SIZES),
}
"""The splits of each pocket task."""


def has_unlabelled(task_name: str) -> bool:
    """True if a task has the split `unlabelled`."""
    return task_name in GENERATED_TASKS and "train" in POCKET_SPLITS[task_name]


def generate(task_name: str, split: str, seed: int = 0) -> pa.Table:
    """One split of a pocket task, with the hub's columns; the result depends only on the arguments.

    Raises:
        UserError: unknown task or split.
    """
    if task_name not in POCKET_SPLITS:
        raise unknown("pocket task", task_name, POCKET_SPLITS)
    splits = (*POCKET_SPLITS[task_name], *([UNLABELLED] if has_unlabelled(task_name) else []))
    if split not in splits:
        raise unknown(f"split of the pocket task {task_name}:", split, splits)
    if task_name in ("squad", "squad_v2"):
        return _squad_table(_paragraphs(task_name, seed)[split], split)
    generated = GENERATED_TASKS[task_name]
    rows = _unlabelled(task_name, seed) if split == UNLABELLED else _generate_splits(task_name, seed)[split]
    arrays = [pa.array([row.texts[i] for row in rows], pa.string()) for i in range(len(generated.columns))]
    names = list(generated.columns)
    if split != UNLABELLED:
        hidden = split.startswith("test")
        arrays.append(pa.array([-1 if hidden else row.label for row in rows], generated.label))
        names.append("label")
    arrays.append(pa.array(range(len(rows)), pa.int32()))
    return pa.table(arrays, names=[*names, "idx"])


@lru_cache(maxsize=16)
def _generate_splits(task_name: str, seed: int) -> dict[str, list[GeneratedRow]]:
    """Every labelled split of a task: rows with different texts, distributed to the splits in order."""
    splits: dict[str, list[GeneratedRow]] = {}
    for number, pool in enumerate(GENERATED_TASKS[task_name].pools):
        rng = Rng(f"pocket/{task_name}/{number}/{seed}")
        rows = iter(_different_rows(rng, pool, sum(pool.sizes.values())))
        for split, size in pool.sizes.items():
            part = rng.sample([next(rows) for _ in range(size)], size)
            rare = Rng(f"pocket/{task_name}/{split}/rare/{seed}")
            splits[split] = part if split == "train" else [_rare(rare, row) for row in part]
    return splits


@lru_cache(maxsize=16)
def _unlabelled(task_name: str, seed: int) -> list[GeneratedRow]:
    """Rows like the training rows but with rare words, which are in no other split."""
    rng = Rng(f"pocket/{task_name}/{UNLABELLED}/{seed}")
    others = {row.texts for rows in _generate_splits(task_name, seed).values() for row in rows}
    drawn = _different_rows(rng, GENERATED_TASKS[task_name].pools[0], UNLABELLED_ROWS)
    return [row for row in (_rare(rng, row) for row in drawn) if row.texts not in others]


def _different_rows(rng: Rng, pool: Pool, count: int) -> list[GeneratedRow]:
    rows: dict[tuple[str, ...], GeneratedRow] = {}
    while len(rows) < count:
        row = pool.make(rng, pool.labels[len(rows) % len(pool.labels)])
        rows.setdefault(row.texts, row)
    return list(rows.values())


def _rare(rng: Rng, row: GeneratedRow) -> GeneratedRow:
    return GeneratedRow(with_rare_words(rng, row.texts), row.label)


@lru_cache(maxsize=4)
def _paragraphs(task_name: str, seed: int) -> dict[str, list[reading_comprehension.GeneratedParagraph]]:
    """Both splits of a SQuAD task: articles with different titles, until a split has enough questions.

    In squad_v2 every fourth question has no answer.
    """
    rng = Rng(f"pocket/{task_name}/{seed}")
    titles: set[str] = set()
    splits: dict[str, list[reading_comprehension.GeneratedParagraph]] = {}
    for split, size in SQUAD_SIZES.items():
        splits[split] = []
        while sum(len(paragraph.questions) for paragraph in splits[split]) < size:
            paragraph = reading_comprehension.squad(rng, unanswered=task_name == "squad_v2")
            if paragraph.title not in titles:
                titles.add(paragraph.title)
                splits[split].append(paragraph)
    return splits


def _squad_table(paragraphs: list[reading_comprehension.GeneratedParagraph], split: str) -> pa.Table:
    """One row per question, with SQuAD's columns."""
    questions = [(paragraph, question) for paragraph in paragraphs for question in paragraph.questions]
    answers = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
    return pa.table(
        {
            "id": pa.array([f"pocket-{split}-{number:04d}" for number in range(len(questions))], pa.string()),
            "title": pa.array([paragraph.title for paragraph, _ in questions], pa.string()),
            "context": pa.array([paragraph.context for paragraph, _ in questions], pa.string()),
            "question": pa.array([question.text for _, question in questions], pa.string()),
            "answers": pa.array(
                [
                    {"text": [q.answer], "answer_start": [q.start]}
                    if q.answer
                    else {"text": [], "answer_start": []}
                    for _, q in questions
                ],
                answers,
            ),
        }
    )
