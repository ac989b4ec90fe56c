"""The order of a checkpoint's outputs, checked on labelled rows; the average of several teachers."""

from __future__ import annotations

import ast
import itertools
import re

import numpy as np
import pytest
from scipy.special import expit, log_softmax, logit, softmax

from mtkd.teachers.group import average_logits
from mtkd.teachers.label_order import check_order, label_order
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.task_names import resolve

MNLI = resolve("mnli")[0]
TOPICS = Task("topics", "multilabel", ("text",), ("a", "b", "c"))


def noisy_logits(labels: np.ndarray, right: float, seed: int = 0) -> np.ndarray:
    """Return logits that are largest at the label in this fraction of the rows, and random otherwise."""
    random = np.random.default_rng(seed)
    guess = np.where(random.random(len(labels)) < right, labels, random.integers(0, 3, len(labels)))
    return np.eye(3)[guess.astype(int)] * 2 + random.normal(0, 0.1, (len(labels), 3))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_wrong_order_is_detected_and_named(order: tuple[int, ...]) -> None:
    labels = np.random.default_rng(1).choice(3, 60, p=[0.5, 0.3, 0.2]).astype(float)
    trained = [MNLI.labels[number] for number in order]  # the label of each output of the checkpoint
    outputs = noisy_logits(labels, 0.6)[:, order]
    if order == (0, 1, 2):
        return check_order("the teacher x", MNLI, (0, 1, 2), outputs, labels)
    with pytest.raises(UserError) as error:
        check_order("the teacher x", MNLI, (0, 1, 2), outputs, labels)
    assert suggested_labels(str(error.value)) == {"mnli": trained}
    # with what the message says, the outputs are in order
    given = [trained.index(name) for name in MNLI.labels]
    return check_order("the teacher x", MNLI, given, outputs[:, given], labels)


def test_the_suggestion_is_relative_to_the_current_order() -> None:
    labels = np.arange(60) % 3.0
    taken = (
        2,
        0,
        1,
    )  # output 2 was taken for label 0, and so on, but the outputs are in the order of the labels
    with pytest.raises(UserError) as error:
        check_order("x", MNLI, taken, noisy_logits(labels, 0.9)[:, taken], labels)
    assert suggested_labels(str(error.value)) == {"mnli": ["entailment", "neutral", "contradiction"]}


def suggested_labels(message: str) -> dict[str, list[str]]:
    """Return the value of `teacher_labels` in a message, evaluated as Python code."""
    argument = re.search(r"`teacher_labels=([^`]*)`", message)
    assert argument, message
    return ast.literal_eval(argument[1])


def is_accepted(logits: np.ndarray, labels: np.ndarray) -> bool:
    try:
        check_order("x", MNLI, (0, 1, 2), logits, labels)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_weak_teachers_and_few_rows_raise_no_error(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.choice(3, 200, p=[0.8, 0.1, 0.1]).astype(float)
    constant = np.tile([0.0, 0.0, 5.0], (200, 1))
    assert is_accepted(constant, labels)
    assert is_accepted(random.normal(size=(200, 3)), labels)
    assert is_accepted(np.eye(3)[[1, 0, 2]], np.array([0.0, 1, 2]))
    assert is_accepted(noisy_logits(labels, 0.5, seed), np.full(200, np.nan))


def test_several_labels_per_row() -> None:
    labels = (np.random.default_rng(0).random((80, 3)) < [0.5, 0.3, 0.2]).astype(float)
    outputs = np.where(labels == 1, 2.0, -2.0)
    check_order("x", TOPICS, (0, 1, 2), outputs, labels)
    with pytest.raises(UserError, match=r"teacher_labels={'topics': \['b', 'a', 'c'\]}"):
        check_order("x", TOPICS, (0, 1, 2), outputs[:, [1, 0, 2]], labels)
    check_order("x", TOPICS, (0, 1, 2), np.tile([5.0, -5, -5], (80, 1)), labels[:, [1, 0, 2]])


def test_averages_of_several_teachers() -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(0, 3, (5, 3)).astype(np.float32) for _ in range(3)]
    np.testing.assert_allclose(average_logits(MNLI, parts, "logits"), np.mean(parts, 0), rtol=1e-5)
    found = average_logits(MNLI, parts, "probabilities")
    np.testing.assert_allclose(found, np.log(np.mean(softmax(parts, -1), 0)), rtol=1e-5)
    found = average_logits(TOPICS, parts, "probabilities")
    np.testing.assert_allclose(found, logit(np.mean(expit(np.array(parts, float)), 0)), rtol=1e-4, atol=1e-5)
    scores = [part[:, :1] for part in parts]
    for average in ("logits", "probabilities"):
        found = average_logits(resolve("stsb")[0], scores, average)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, np.mean(scores, 0), rtol=1e-5)
    spans = [random.normal(0, 3, (4, 2, 6)).astype(np.float32) for _ in range(2)]
    for part in spans:
        part[0, :, 4:] = -1e4
    found = average_logits(resolve("squad")[0], spans, "probabilities")
    expected = np.log(np.mean(np.exp(log_softmax(np.array(spans, float), -1)), 0) + 1e-300)
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-5)
    np.testing.assert_allclose(softmax(found[0], -1), np.exp(expected[0]), atol=1e-6)
    assert average_logits(MNLI, parts[:1], "probabilities") is parts[0]


def test_the_hint_does_not_repeat_the_assumed_order() -> None:
    order, warning = label_order("the checkpoint x", MNLI, ["LABEL_0", "LABEL_1", "LABEL_2"])
    assert order == (0, 1, 2) and warning is not None
    assert suggested_labels(warning) == {"mnli": ["FIRST", "SECOND", "THIRD"]}
    four = Task("topics", "classify", ("text",), ("a", "b", "c", "d"))
    with pytest.raises(UserError) as error:
        label_order("the checkpoint x", four, ["w", "x", "y", "z"])
    assert suggested_labels(str(error.value)) == {"topics": ["FIRST", "SECOND", "THIRD", ...]}


def test_names_that_are_numbers_are_matched_by_value() -> None:
    stars = Task("stars", "classify", ("text",), ("1", "2", "3"))
    assert label_order("x", stars, ["3.0", "2.0", "1.0"]) == ((2, 1, 0), None)
    signs = Task("signs", "classify", ("text",), ("-1", "0"))
    with pytest.raises(UserError, match="the outputs of x are named 0, 1, but the labels of the task"):
        label_order("x", signs, ["0", "1"])


@pytest.mark.parametrize(
    ("labels", "names", "hint"),
    [
        ("person place N/A", "person place", "no output is named N/A: change or leave out the rows"),
        ("Person person place", "person place", "some labels differ only in case or punctuation: write each"),
        ("person PLACE", "person place thing", "no row is labelled thing: list all outputs as `labels`"),
    ],
)
def test_labels_that_do_not_fit_the_outputs_are_named(labels: str, names: str, hint: str) -> None:
    task = Task("kinds", "classify", ("text",), tuple(labels.split()))
    with pytest.raises(UserError) as error:
        label_order("the teacher x", task, names.split(), None)
    assert error.value.hint is not None and error.value.hint.startswith(hint)
