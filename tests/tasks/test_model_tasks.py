"""A model's head for a task with other labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from tasks.common.errors import UserError
from tasks.glue import TASKS
from tasks.model_tasks import mapped_logits, require_heads, task_of_model
from tasks.task import Task

MNLI = TASKS["mnli"]
RTE = replace(
    TASKS["rte"],
    head="mnli",
    map={"contradiction": "not_entailment", "entailment": "entailment", "neutral": "not_entailment"},
)


def test_probabilities_of_merged_labels_are_added_up() -> None:
    logits = np.random.default_rng(0).normal(0, 8, (50, 3)).astype(np.float32)
    before = softmax(logits.astype(np.float64), axis=1)
    after = softmax(mapped_logits(RTE, MNLI, logits).astype(np.float64), axis=1)
    entailed = before[:, MNLI.labels.index("entailment")]
    assert after[:, RTE.labels.index("entailment")] == pytest.approx(entailed, abs=1e-6)
    assert after.sum(axis=1) == pytest.approx(np.ones(50))
    assert mapped_logits(TASKS["rte"], TASKS["rte"], logits) is logits
    turned = replace(MNLI, name="turned", labels=MNLI.labels[::-1], map={name: name for name in MNLI.labels})
    assert np.array_equal(mapped_logits(turned, MNLI, logits), logits[:, ::-1])


@pytest.mark.parametrize(
    ("task", "known", "message"),
    [
        (RTE, MNLI, None),
        (replace(RTE, map={**RTE.map, "netural": "entailment"}), MNLI, r"'netural' \(did you mean 'neutral'"),
        (
            replace(RTE, map={"entailment": "entailment"}),
            MNLI,
            "lacks the label 'neutral' of the head",
        ),
        (replace(RTE, map={}), MNLI, "`map` in the task file"),
        (RTE, replace(MNLI, kind="multilabel", metrics=("micro_f1",)), "as multilabel .* is now classify"),
        (RTE, TASKS["sst2"], r"has no head for the task 'rte' \('mnli'\)"),
        (replace(RTE, columns=("a",)), MNLI, "2 texts per row of 'mnli', but 'rte' has 1"),
        (replace(MNLI, columns=("a",)), MNLI, "2 texts per row of 'mnli', but the task has 1"),
        (replace(MNLI, columns=("a", "b")), MNLI, None),
    ],
)
def test_a_map_must_fit_the_head(task: Task, known: Task, message: str | None) -> None:
    if message is None:
        require_heads({known.head: known}, [task], "the model")
        assert task_of_model(task, [known]) == task
    else:
        with pytest.raises(UserError, match=message):
            require_heads({known.head: known}, [task], "the model")
