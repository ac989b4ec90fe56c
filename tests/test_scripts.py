"""The benchmark scripts still run against the package."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.flop_counter import FlopCounterMode

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def run_script(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """Run a script in this process; returns its names."""
    monkeypatch.setattr(sys, "argv", list(words))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / words[0]), run_name="__main__")
    assert ended.value.code == 0
    return runpy.run_path(str(SCRIPTS / words[0]))


def test_bench_training_compares_the_loop_with_bare_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_script(monkeypatch, "bench_training.py", "--data", "pocket", "--rows", "4", "--rounds", "1")
    printed = capsys.readouterr().out
    assert "16 rows" in printed
    assert printed.count("ratio: median") == 2


def test_bench_gpu_runs_on_a_cpu_and_counts_the_operations(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("--rounds", "1", "--student", "1x32", "--teacher", "2x32", "--length", "16")
    script = run_script(
        monkeypatch, "bench_gpu.py", "--device", "cpu", "--rows", "8", *small, "--peak-tflops", "100"
    )
    printed = capsys.readouterr().out
    assert printed.count(" rows/s, ") == printed.count("% of 100") == 4
    tokeniser = script["Tokeniser"].load(script["locate"](script["DEFAULT_ENCODER"]))
    model = script["make_model"]("2x64", 16, tokeniser).eval()
    batch = script["make_batch"](4, 16, tokeniser.vocab_size)
    with FlopCounterMode(display=False) as counter:
        model(batch.inputs, "sst2")
    assert counter.get_total_flops() == pytest.approx(script["forward_flops"](model, 4, 16), rel=0.1)


def test_benchmarks_of_augmenters_share_their_measurements(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_script(monkeypatch, "bench_replacement.py", "--data", "pocket", "--copies", "1", "--rounds", "1")
    run_script(monkeypatch, "bench_masking.py", "--memory", "--rows", "100")
    printed = capsys.readouterr().out
    assert " per second (" in printed and re.search(r"100 copies: peak [\d,]+ MB", printed)


def test_squad_sentences_keeps_the_sentence_with_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def row(context: str, *answers: str) -> dict[str, Any]:
        starts = [context.rindex(answer) for answer in answers]
        return {
            "context": context,
            "answers": {"text": answers, "answer_start": starts},
        }

    context = "Anna slept.  Anna came with Bert. Bert left."
    rows = [row(context, "Anna", "Anna came"), row(context, "Bert. Bert")]
    (tmp_path / "squad").mkdir()
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "squad" / f"{split}.parquet")
    monkeypatch.setattr(sys, "argv", ["squad_sentences.py", str(tmp_path), str(tmp_path / "out")])
    runpy.run_path(str(SCRIPTS / "squad_sentences.py"), run_name="__main__")
    (kept,) = pq.read_table(tmp_path / "out" / "squad" / "train.parquet").to_pylist()
    assert kept["context"].strip() == "Anna came with Bert."
    answers = kept["answers"]
    assert answers["text"] == ["Anna", "Anna came"]
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        assert kept["context"][start : start + len(text)] == text
