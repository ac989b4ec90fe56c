"""Options that would have no effect are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_PREDICT = "predict --model m --task rte --in a.csv --out b.csv"
_GENERATE = "augment questions generate --text texts.txt --out x"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (f"{_PREDICT} --data pocket", "--data has no effect without --glue-submission"),
        (f"{_PREDICT} --glue-submission x", "--glue-submission has no effect without --data"),
        ("predict --model m --data pocket --glue-submission x --in y", "--in has no effect with --glue-sub"),
        ("export --model m --out x --max-drop 2", "--max-drop has no effect without --int8"),
        ("export --model m --out x --reduce-range", "--reduce-range/--full-range has no effect"),
        ("export --model m --out x --full-range", "--reduce-range/--full-range has no effect"),
        (
            "report html runs --out x.html --teacher-labels rte=a,b",
            "--teacher-labels has no effect",
        ),
        (
            "distill mkd-lstm --data pocket --tasks rte --text-column t --out x",
            "--text-column t has no effect",
        ),
        ("suggest --int8", "--int8 has no effect without --max-mb"),
        ("store build --repair --out x --set terms.hidden.weight=1", "--set has no effect with --repair"),
        ("store build --repair --out x --data pocket", "--data has no effect with --repair"),
        (
            f"{_GENERATE} --model http://localhost:1/v1 --top-p 0.5",
            "--top-p 0.5 has no effect",
        ),
        ("augment questions train --data pocket --out x --model m --layers 2", "has no effect on m"),
    ],
)
def test_an_option_without_effect_is_an_error(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("Rain fell on Rome in 1980.\n")
    before = set(tmp_path.iterdir())
    refused = mtkd(*words.split())
    assert refused.code == 2
    assert complaint in " ".join(refused.err.split())
    assert "hint:" in refused.err and set(tmp_path.iterdir()) == before


def test_the_default_data_does_not_count_as_given(
    mtkd: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTKD_DATA", "pocket")
    refused = mtkd("store", "build", "--repair", "--out", tmp_path / "x")
    assert refused.code == 2 and "no effect" not in refused.err


def test_an_error_about_a_setting_names_the_option_that_set_it(mtkd: Callable, tmp_path: Path) -> None:
    words = ("distill", "mkd-lstm", "--data", "pocket", "--tasks", "rte", "--teacher", "minilm")
    refused = mtkd(*words, "--init", "minilm", "--out", tmp_path / "x")
    assert refused.code == 2 and "--init minilm has no effect: the student of this recipe" in refused.err
