"""A warning if a BiLSTM, which starts from random weights, has few rows."""

from __future__ import annotations

from pathlib import Path

from small_students import SMALL_LSTM

from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.request import Request
from mtkd.recipes import load_settings
from tasks.data.unlabelled import UnlabelledRequest


def test_a_bilstm_with_few_rows_causes_a_warning(tiny_teacher: Path, tmp_path: Path) -> None:
    settings = load_settings("mkd-lstm", "distill", SMALL_LSTM | {"train.steps": 1, "train.batch_size": 8})

    def warnings(name: str, unlabelled: UnlabelledRequest) -> list[str]:
        request = Request("pocket", "sst2", tmp_path / name, eval_limit=16)
        made = distill(request, settings, str(tiny_teacher), unlabelled=unlabelled)
        return [text for text in made.record["warnings"] if "BiLSTM" in text]

    (text,) = warnings("few", UnlabelledRequest())
    assert "on 500 rows per task" in text and "`unlabelled=...`" in text
    assert not warnings("text", UnlabelledRequest({"sst2": "unlabelled"}, 1_600)), "2,100 rows"
