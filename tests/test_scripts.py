"""The benchmark scripts still run against the package."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.flop_counter import FlopCounterMode

from mtkd.cli.main import cli
from mtkd.grids import load_grid

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def run_script(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """A function that runs a script in this process and returns its global names."""
    monkeypatch.setattr(sys, "argv", list(words))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / words[0]), run_name="__main__")
    assert ended.value.code == 0
    return runpy.run_path(str(SCRIPTS / words[0]))


@pytest.mark.slow(reason="a benchmark in a process of its own")
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


def test_bench_last_layer_compares_all_tokens_with_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("--layers", "1", "--width", "48", "--rows", "2", "--length", "8", "--rounds", "1")
    run_script(monkeypatch, "bench_last_layer.py", *small)
    found = re.findall(r"1 layers, (\w+) *: +[\d.]+ ms all tokens, .*x \(", capsys.readouterr().out)
    assert found == ["training", "inference"]


def test_benchmarks_of_augmenters_share_their_measurements(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_script(monkeypatch, "bench_replacement.py", "--data", "pocket", "--copies", "1", "--rounds", "1")
    run_script(monkeypatch, "bench_masking.py", "--memory", "--rows", "100")
    printed = capsys.readouterr().out
    assert " per second (" in printed and re.search(r"100 copies: peak [\d,]+ MB", printed)


STAND_IN = """#!/usr/bin/env bash
words=("${0##*/}" "$@")
printf -v line '%s\\t' "${words[@]//$'\\n'/ }"
echo "$line" >> "$COMMANDS"  # in one write, because the script runs some commands side by side
"""


@pytest.mark.parametrize("mini", ["", "1"])
def test_results_gpu_runs_the_tables_first_and_every_command_parses(
    mini: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.common.progress._quiet", False)  # parsing --quiet sets it
    programs, log = tmp_path / "programs", tmp_path / "commands"
    programs.mkdir()
    for name in ("mtkd", "python", "timeout"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    run_it = '#!/usr/bin/env bash\nwhile [ "$1" != mtkd ] && [ "$1" != python ]; do shift; done; exec "$@"\n'
    (programs / "timeout").write_text(run_it)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}", "COMMANDS": str(log), "MINI": mini, "MTKD": "mtkd"
    }  # fmt: skip
    words = ["bash", str(SCRIPTS / "results_gpu.sh"), str(tmp_path / "data"), str(tmp_path / "out")]
    subprocess.run(words, env=environment, check=True, capture_output=True)
    commands = [line.rstrip("\t").split("\t") for line in log.read_text().splitlines()]
    grids = [Path(command[2]).stem for command in commands if command[1] == "compare"]
    assert grids == ["few_labels", "all_labels", "methods_steps", "generated_questions", "waldorf-gpu"]
    bench = next(command for command in commands if command[1].endswith("bench_gpu.py"))
    assert commands[-1] is bench, "it comes after the tables"
    assert bench[bench.index("--compile") + 1] == ("off" if mini else "both")
    script = runpy.run_path(str(SCRIPTS / "bench_gpu.py"))
    for program, *given in commands:
        if program == "mtkd":
            group: Any = cli
            while isinstance(group, click.Group):
                group, given = group.get_command(click.Context(group), given[0]), given[1:]
            parsed = group.make_context(group.name, given).params
            if group.name == "compare":
                load_grid(parsed["grid"], {}, {})
        elif given[0] != "-c":
            script["main"].make_context("bench", given[1:])


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
