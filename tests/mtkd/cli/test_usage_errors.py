"""Errors of click have the same form as those of mtkd."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("--steps", "sixty"), ["--steps 'sixty' is not valid", "expected: an integer of 1 or more"]),
        (("--steps", "0"), ["--steps 0 is not valid", "expected: an integer of 1 or more"]),
        (("--lr", "fast"), ["--lr 'fast' is not valid", "expected: a number"]),
        (
            ("--engine", "rya"),
            ["--engine 'rya' is not valid (did you mean 'ray'?)", "expected: processes, ray"],
        ),
        ((), ["the option --out is missing", "expected: --out DIR (output directory)"]),
        (("--out",), ["the option --out has no value"]),
        (("--out", "x", "more"), ["unexpected argument more"]),
        (
            ("--recipe", "x"),
            [
                "unknown option '--recipe': RECIPE is given without an option",
                "expected: mtkd distill RECIPE ...",
            ],
        ),
        (
            ("--tasks", "job/moods.toml", "--unlabelled", "more.csv"),
            [
                "--unlabelled 'more.csv' does not name a task",
                "expected: TASK=FILE, once for each task or file",
                "hint: --unlabelled moods=more.csv",
            ],
        ),
        (
            ("--tasks", "sst2", "--tasks", "rte", "--out", "x"),
            ["--tasks is given twice", "expected: one value", "hint: separate several values with commas"],
        ),
        (
            ("--seed", "1", "--seed=2", "--seed", "3"),
            ["--seed is given 3 times", "expected: one value"],
        ),
        (("--otu", "x"), ["unknown option '--otu' (did you mean '--out'?)"]),
    ],
)
def test_errors_state_the_problem_and_what_was_expected(
    mtkd: Callable, words: tuple[str, ...], lines: list[str]
) -> None:
    answered = mtkd("distill", "layerwise-3", *words)
    shown = [line.strip() for line in answered.err.removeprefix("error: ").splitlines()]
    assert answered.code == 2 and shown[: len(lines)] == lines, answered.err
    assert shown[len(lines) :] in ([], ["hint: mtkd distill --help"])


def test_a_missing_argument_is_named(mtkd: Callable) -> None:
    assert mtkd("distill", "--out", "x").err.startswith("error: the argument RECIPE is missing")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--price-in", "-1"), "a number of 0 or more"),
        (("--retries", "some"), "an integer of 0 or more"),
        (("--requests-per-minute", "0"), "a number above 0"),
        (("--batch", "0"), "an integer of 1 or more, or auto"),
        (("--batch", "AUTO"), "an integer of 1 or more, or auto"),
    ],
)
def test_numbers_out_of_range_are_errors_that_state_the_range(
    mtkd: Callable, words: tuple[str, ...], expected: str
) -> None:
    answered = mtkd("augment", "questions", "generate", *words)
    assert f"expected: {expected}\n" in answered.err, answered.err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--out", "\udcff"), r"--out '\udcff' is not valid"),
        (("--out", "x", "--lr", "nan"), "--lr nan is not valid\n  expected: a finite number\n"),
    ],
)
def test_values_that_are_invalid_for_every_option_are_errors(
    mtkd: Callable, words: tuple[str, ...], shown: str
) -> None:
    answered = mtkd("refine", "--encoder", "minilm", "--data", "pocket", *words)
    assert answered.code == 2 and answered.err.startswith(f"error: {shown}"), answered.err
    assert "\n  expected: " in answered.err


@pytest.mark.parametrize(
    ("words", "shown", "expected"),
    [
        (("evaluate", "--model", "", "--data", "pocket"), "--model is empty", "DIR|NAME"),
        (("refine", "--encoder", "minilm", "--out", "x", "--data", ""), "--data is empty", "pocket|hub|DIR"),
        (
            ("compare", "mlkd-table-8", "--out", "x", "--teacher", "t", "--store", ""),
            "--store is empty",
            "DIR",
        ),
        (("verify", ""), "the argument DIR is empty", "a path or name"),
        (("init", "rows.csv", "", "--out", "x"), "the argument DATA... is empty", "a path or name"),
        (("run", "", "--dry-run"), "the argument FILE is empty", "a path or name"),
        (("compare", "", "--out", "x", "--teacher", "t"), "there is no grid ''", "a TOML file"),
        (("recipes", "show", ""), "unknown recipe ''", "bert-emd-4"),
    ],
)
def test_empty_paths_are_not_the_current_directory(
    mtkd: Callable, words: tuple[str, ...], shown: str, expected: str
) -> None:
    answered = mtkd(*words)
    assert answered.code == 2 and answered.err.startswith(f"error: {shown}\n  expected: {expected}")


@pytest.mark.parametrize("words", [("refine",), ("recipes", "show", "refine"), ("bench", "inference", "run")])
def test_an_option_for_one_value_may_be_given_only_once_in_every_command(
    mtkd: Callable, words: tuple[str, ...]
) -> None:
    answered = mtkd(*words, "--json", "a.json", "--json", "b.json")
    assert answered.code == 2 and answered.err.startswith("error: --json is given twice"), answered.err


def test_flags_and_options_for_several_values_may_be_repeated(mtkd: Callable) -> None:
    words = ("--quiet", "--quiet", "--set", "train.lr=1e-4", "--set", "train.lr=1e-5", "--data", "x")
    assert "the option --out is missing" in mtkd("distill", "layerwise-3", "--data", "y", *words).err
