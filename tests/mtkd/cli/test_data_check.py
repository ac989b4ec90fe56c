"""What `mtkd data check` prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mtkd.cli.main import cli


@pytest.mark.parametrize(
    ("count", "printed"), [(6, "a 33%, b 13%, c 13%, d 13%, e 13%, f 13%"), (7, "7 labels: a 29% to g 12%")]
)
def test_of_many_labels_the_most_and_the_least_frequent_are_printed(
    count: int, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    labels = "abcdefg"[:count]
    rows = [f"text {n} {label},{label}" for label in labels for n in range(5 if label == "a" else 2)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    task = f'name = "topic"\nkind = "classify"\ncolumns = ["text"]\nlabels = {list(labels)}\n'
    (tmp_path / "topic.toml").write_text(f'{task}[files]\ntrain = "train.csv"\n')
    result = CliRunner().invoke(cli, ["data", "check", "--tasks", str(tmp_path / "topic.toml")])
    assert printed in result.stdout


def test_scores_out_of_range_and_the_number_of_lines_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    scores = ["1", "2", "7", "8", "9", "-3", "4.5", "high"]
    for split in ("train", "validation"):
        rows = [f"{split} {n},{score}" for n, score in enumerate(scores if split == "train" else scores[:2])]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *rows]))
    task = 'name = "score"\nkind = "regress"\ncolumns = ["text"]\nrange = [0, 5]\n[files]\n'
    files = 'train = "train.csv"\nvalidation = "validation.csv"\n'
    (tmp_path / "score.toml").write_text(task + files)
    words = ["data", "check", "--tasks", str(tmp_path / "score.toml")]
    shown = CliRunner().invoke(cli, words).stdout
    assert "column 'label': out of range: 4 rows, the first are:" in shown
    assert "hint: correct the scores in the file, or change `range` in the task file" in shown
    assert 'use kind = "classify"' in shown and "`labels`" not in shown
    assert "invalid 62%" in shown
    assert "5 errors, 0 warnings in 2 splits" in shown and "summarised" not in shown
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *(f"text {n},9" for n in range(20))]))
    shown = CliRunner().invoke(cli, [*words, "--list", "1"]).stdout
    assert "and 3 more lines (--list 0" in shown and "in 2 splits, summarised in 4 lines" in shown


@pytest.mark.parametrize("kind", ["checkpoint", "run"])
def test_tokens_are_counted_as_any_kind_of_teacher_does(
    mtkd: Any, save_checkpoint: Callable[..., Path], tiny_teacher: Path, kind: str
) -> None:
    teacher = save_checkpoint("Roberta", num_labels=5) if kind == "checkpoint" else tiny_teacher
    words = ("data", "check", "--data", "pocket", "--tasks", "rte,stsb", "--max-length", "24")
    checked, default = mtkd(*words, "--teacher", teacher), mtkd(*words)
    assert checked.code == default.code == 0, checked.err
    assert "tokens of the teacher's tokeniser" in checked.out
    same_tokens = checked.out == default.out.replace("default tokeniser", "teacher's tokeniser")
    assert same_tokens == (kind == "run")
    refused = mtkd(*words, "--teacher", "no/such")
    assert refused.code == 2 and "no/such" in refused.err
