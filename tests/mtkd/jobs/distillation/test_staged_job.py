"""Recipes with stages and on plain text: outputs of stages, resuming, starting from another run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_students import SMALL_TRANSFORMER

from mtkd.jobs.distillation.distill import _per_task_warnings, distill
from mtkd.jobs.distillation.distill_tasks import TaskDistillation
from mtkd.jobs.distillation.distill_text import distill_text
from mtkd.jobs.request import Request
from mtkd.models.multitask import MultiTaskModel
from mtkd.recipes import load_settings, recipe_names
from mtkd.settings import DistillSettings
from mtkd.training.text_batches import TextBatches, encode_texts
from tasks.common.errors import UserError
from tasks.data.plain_text import TextFiles
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.task_names import resolve
from tasks.tokens.batching import Collator
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser

TWO_STAGES = {**SMALL_TRANSFORMER, "train.epochs": 1}
RELATIONS = {
    **SMALL_TRANSFORMER,
    "terms.relation.relation_heads": 4,
    "train.steps": 6,
    "train.micro_batch_size": None,
}


def settings_of(recipe: str, changes: dict) -> DistillSettings:
    return load_settings(recipe, "distill", changes)


def weights(place: Path) -> dict[str, torch.Tensor]:
    return MultiTaskModel.load(place).state_dict()


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def run_two_stages(out: Path, teacher: Path, **changes: object) -> Path:
    settings = settings_of("mlkd-bert-4", {**TWO_STAGES, **changes})
    distill(Request("pocket", "rte,stsb", out, 24, 16), settings, str(teacher))
    return out


@pytest.fixture(scope="session")
def uninterrupted_run(tiny_teacher: Path, build_once: Callable[..., Path]) -> Path:
    """A run with two stages."""
    return build_once("two-stages", lambda out: run_two_stages(out, tiny_teacher))


def command(recipe: str, changes: dict, *words: object) -> list[str]:
    sets = [
        word for key, value in changes.items() for word in ("--set", f"{key}={value}".replace("None", "none"))
    ]
    return ["distill", recipe, *map(str, words), *sets]


def test_every_recipe_names_its_source_and_resolves_its_stages() -> None:
    for name in recipe_names():
        settings = settings_of(name, {})
        assert settings.source and settings.resolved_stages()


def test_each_stage_writes_a_model_and_logs_its_terms(uninterrupted_run: Path) -> None:
    record = json.loads((uninterrupted_run / "run.json").read_text())
    assert list(record["training"]) == ["layers", "prediction"]
    first = (uninterrupted_run / "stages" / "layers" / "log.jsonl").read_text()
    assert "loss/mha" in first and "loss/kd" not in first and "score/" not in first
    assert "loss/kd" in (uninterrupted_run / "stages" / "prediction" / "log.jsonl").read_text()
    assert same_weights(weights(uninterrupted_run), weights(uninterrupted_run / "stages" / "prediction"))
    assert not same_weights(weights(uninterrupted_run), weights(uninterrupted_run / "stages" / "layers"))
    assert not any("projection" in name for name in weights(uninterrupted_run)) and not list(
        uninterrupted_run.rglob("checkpoints")
    )


def test_a_loss_can_be_off_in_one_stage_and_a_stage_can_start_from_another_run(
    uninterrupted_run: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    less = run_two_stages(tmp_path / "less", tiny_teacher, **{"terms.ffn.weight": 0})
    assert "loss/ffn" not in (less / "stages" / "layers" / "log.jsonl").read_text()
    once = run_two_stages(tmp_path / "once", tiny_teacher, one_stage=True)
    assert {"loss/ffn", "loss/kd"} <= set(json.loads((once / "log.jsonl").read_text().splitlines()[0]))
    later = run_two_stages(
        tmp_path / "later",
        tiny_teacher,
        run_stages=["prediction"],
        **{"student.transformer.init": str(uninterrupted_run / "stages" / "layers"), "train.lr": 1e-12},
    )
    start, end = (
        MultiTaskModel.load(place).encoder.state_dict()
        for place in (uninterrupted_run / "stages" / "layers", later)
    )
    for name in start:
        torch.testing.assert_close(start[name], end[name], atol=1e-6, rtol=0)


def test_settings_of_a_task_apply_when_it_is_trained_alone() -> None:
    alone = load_settings("mlkd-bert-4", "distill", {}, "cola")
    assert [stage.train.epochs for stage in alone.resolved_stages()] == [50, 30]
    assert alone.student.max_length == 64 and alone.train.lr == 1e-5
    assert [s.train.epochs for s in settings_of("mlkd-bert-4", {}).resolved_stages()] == [20, 15]
    short = load_settings("mlkd-bert-4", "distill", {"train.epochs": 2}, "cola")
    assert [stage.train.epochs for stage in short.resolved_stages()] == [2, 2]
    mixed = {"train.epochs": 2, "stages.layers.train.epochs": 7}
    assert [stage.train.epochs for stage in settings_of("mlkd-bert-4", mixed).resolved_stages()] == [7, 2]


def test_a_run_on_several_tasks_warns_that_settings_of_single_tasks_do_not_apply(
    uninterrupted_run: Path,
) -> None:
    assert (
        "the settings that mlkd-bert-4 has for stsb apply only in a run on that task alone. "
        "This run uses train.lr = 2e-05."
    ) in json.loads((uninterrupted_run / "run.json").read_text())["warnings"]
    settings = settings_of("mlkd-bert-4", {"train.epochs": 3})
    (warning,) = _per_task_warnings(settings, resolve("cola,mnli"))
    assert "has for cola, mnli apply only" in warning and "student.max_length = 128" in warning
    assert "stages.layers.train.epochs = 3" in warning
    assert not any(_per_task_warnings(settings, resolve(names)) for names in ("cola", "rte,mrpc"))
    settings.per_task["moood"] = {"train.lr": 1e-5}
    mood = replace(TASKS["sst2"], name="mood")
    assert not any("moood" in text for text in _per_task_warnings(settings, resolve("cola,mnli")))
    assert "(did you mean 'mood'?)" in _per_task_warnings(settings, [mood])[0]
    settings.per_task["cola"] = {"no.such.key": 1, "stages.other.train.lr": 1}
    assert "no.such.key = None" in _per_task_warnings(settings, resolve("cola,mnli"))[0]


def killed_and_resumed(processes: Any, mtkd: Callable, words: list[str], at: str) -> None:
    """Kill the command when it has renamed a path that matches the pattern, then run it to its end."""
    killed = processes.run(*words, kill_at=at)
    assert killed.code == -signal.SIGKILL, killed.err
    done = mtkd(*words)
    assert done.code == 0, done.err


@pytest.mark.slow(reason="starts a run several times")
def test_a_run_killed_in_its_second_stage_resumes_to_the_same_weights(
    tiny_teacher: Path, tmp_path: Path, processes: Any, mtkd: Callable
) -> None:
    changes = {"train.checkpoint_steps": 1, "stages.prediction.train.epochs": 2}
    straight = run_two_stages(tmp_path / "straight", tiny_teacher, **changes)
    out = tmp_path / "killed"
    words = command("mlkd-bert-4", {**TWO_STAGES, **changes}, "--data", "pocket", "--tasks", "rte,stsb")
    words += ["--limit", "24", "--eval-limit", "16", "--teacher", str(tiny_teacher), "--out", str(out)]
    killed_and_resumed(processes, mtkd, words, "*/stages/prediction/checkpoints/step-000000004")
    assert same_weights(weights(straight), weights(out))


def test_records_of_finished_stages_are_kept_on_resume(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"word {n}" for n in range(12)]
    train = {"sentence": texts, "label": [0, 1] * 6}
    data = open_data({"sst2": {"train": train, "validation": train, "unlabelled": {"sentence": texts}}})
    settings = settings_of("mlkd-bert-4", {**TWO_STAGES, "train.min_confidence": 1.0})
    straight, resumed = (Request(data, "sst2", tmp_path / name) for name in ("straight", "resumed"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(TaskDistillation, "scores", interrupted)
        distill(resumed, settings, str(tiny_teacher))
    one, other = (distill(request, settings, str(tiny_teacher)).record for request in (straight, resumed))
    assert one["dropped"] == other["dropped"] == {"sst2": 12}
    assert one["training"]["layers"].keys() == other["training"]["layers"].keys()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred texts of one to sixty words, in two files of different formats."""
    place = tmp_path_factory.mktemp("corpus")
    words = [
        "a",
        "small",
        "model",
        "learns",
        "from",
        "large",
        "ones",
        "what",
        "words",
        "and",
        "their",
        "order",
        "mean",
    ]
    texts = [" ".join(words[(n + i) % len(words)] for i in range(1 + n * 7 % 60)) for n in range(300)]
    (place / "a.txt").write_text("\n\n".join(texts[:150]) + "\n", encoding="utf-8")
    pq.write_table(pa.table({"text": texts[150:]}), place / "b.parquet")
    return place


def run_on_text(
    out: Path, corpus: Path, teacher: Path, recipe: str = "minilmv2-6x384", **changes: object
) -> Path:
    settings = settings_of(recipe, {**RELATIONS, **changes})
    distill_text(Request(str(corpus), "text", out, None, 4), settings, str(teacher), corpus)
    return out


def test_a_student_trained_on_plain_text_works_in_every_command(
    mtkd: Callable, corpus: Path, tiny_encoder: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel

    out = run_on_text(tmp_path / "run", corpus, tiny_encoder)
    assert AutoModel.from_pretrained(out / "model").config.hidden_size == 12
    assert "text/held-out" in json.loads((out / "run.json").read_text())["scores"]
    tuned = mtkd(
        *("finetune", "--model", out, "--task", "rte", "--data", "pocket", "--out", tmp_path / "tuned"),
        *("--limit", 16, "--eval-limit", 16, "--epochs", 1, "--set", "learning_rates=[1e-4]", "--quiet"),
    )
    assert tuned.code == 0, tuned.err
    started = mtkd(
        *("distill", "bert-pkd-3", "--init", out, "--teacher", tiny_teacher, "--data", "pocket"),
        *("--tasks", "rte", "--out", tmp_path / "pkd", "--limit", 16, "--eval-limit", 16, "--epochs", 1),
        *("--set", "student.transformer.layers=2", "--set", "terms.patience.projection=shared"),
        *("--set", "student.max_length=24", "--quiet"),
    )
    assert started.code == 0, started.err


def test_a_recipe_with_a_stage_of_tasks_trains_on_text(
    corpus: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    wanted = {**SMALL_TRANSFORMER, "train.steps": 2, "train.micro_batch_size": None}
    warnings: list[str] = []
    run = distill_text(
        Request(str(corpus), "text", tmp_path / "run", None, 4),
        load_settings("tinybert-4", "distill", wanted, "text"),
        str(tiny_encoder),
        corpus,
        warn=warnings.append,
    )
    assert run.record["scores"]["text/held-out"]["loss"] > 0
    assert len(warnings) == 1, "the stage of tasks is left out, and it says so"


def test_a_run_on_text_that_resumes_after_its_last_stage_has_scores(
    corpus: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {**SMALL_TRANSFORMER, "train.steps": 2, "train.micro_batch_size": None}
    settings = load_settings("tinybert-4", "distill", changes, "text")

    def run(name: str) -> Any:
        return distill_text(
            Request(str(corpus), "text", tmp_path / name, None, 4), settings, str(tiny_encoder), corpus
        )

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("mtkd.jobs.distillation.staged_job.JobResult", interrupted)
        run("resumed")
    assert run("resumed").scores["text/held-out"]["loss"] == run("straight").scores["text/held-out"]["loss"]


@pytest.mark.slow(reason="trains in several processes")
def test_a_killed_run_on_text_resumes_to_the_same_weights(
    corpus: Path, tiny_encoder: Path, tmp_path: Path, processes: Any, mtkd: Callable
) -> None:
    # A pass has 19 steps: the run is killed in the first and ends in the second.
    changes = {"train.checkpoint_steps": 5, "train.steps": 30, "train.steps_per_epoch": 12}
    changes["train.batch_size"] = 16
    straight = run_on_text(tmp_path / "straight", corpus, tiny_encoder, **changes)
    out = tmp_path / "killed"
    words = command("minilmv2-6x384", {**RELATIONS, **changes}, "--text", corpus, "--teacher", tiny_encoder)
    words += ["--eval-limit", "4", "--out", str(out)]
    killed_and_resumed(processes, mtkd, words, "*/checkpoints/step-000000015")
    assert same_weights(weights(straight), weights(out))


def test_one_pass_over_text_sees_every_piece_once(corpus: Path, tiny_encoder: Path) -> None:
    reader = Reader(Tokeniser.load(str(tiny_encoder)), "joined", 24)
    files = TextFiles.open(corpus)
    texts = [text for chunk in files.chunks() for text in chunk.to_pylist()]
    assert len(texts) == 300
    kept = [text for n, text in enumerate(texts) if n % 64 != 63 or n >= 128]
    pieces = encode_texts(pa.array(kept), reader).texts[0]
    assert pieces.lengths.max() == 22, "truncated to what fits beside the special tokens"
    batches = -(-len(pieces) // 8)
    train = settings_of("minilmv2-6x384", {**RELATIONS, "train.steps": batches}).train
    batch_source = TextBatches(files, Collator(reader), train, held_out=2)
    assert batch_source.total(2) == 2 * batches and len(batch_source.held_out()) >= 2
    seen, real = [], []
    for draw in batch_source.epoch(0, 0, {}):
        tokens = batch_source.collate(draw.rows, draw.indices).inputs.joined
        real.append(tokens.mask.float().mean().item())
        seen += [tuple(ids[mask][1:-1].tolist()) for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
    assert sorted(seen) == sorted(tuple(pieces.row(i).tolist()) for i in range(len(pieces)))
    assert sum(real) / len(real) > 0.9, "batches hold texts of about one length"
    budget = TextBatches(files, Collator(reader), train.model_copy(update={"batch_tokens": 100}), held_out=2)
    padded, rows = [], 0
    for draw in budget._draws(0, 0, 0):
        if draw.cursor["passes"]:
            break
        padded.append(budget.collate(draw.rows, draw.indices).inputs.joined.ids.numel())
        rows += len(draw.indices)
    assert rows == len(pieces) and 70 < np.mean(padded) < max(padded) <= 100


def test_packed_texts_fill_every_sequence_and_lose_no_token(corpus: Path, tiny_encoder: Path) -> None:
    tokeniser = Tokeniser.load(str(tiny_encoder))
    texts = pa.array(["the cat sat", "on mats", "the dog sat on the long mat"] * 5)
    packed = encode_texts(texts, Reader(tokeniser, "joined", 12), pack=True).texts[0]
    (end,) = tokeniser.layout(1).specials[-1]
    lists = [tokeniser.token_ids(texts.slice(n, 1)).values.tolist() for n in range(len(texts))]
    joined = lists[0] + [token for ids in lists[1:] for token in (end, *ids)]
    assert packed.values.tolist() == joined
    assert packed.lengths.tolist() == [10] * (len(joined) // 10) + [len(joined) % 10] * (len(joined) % 10 > 0)
    files, train = TextFiles.open(corpus), settings_of("minilmv2-6x384", RELATIONS).train
    plain, full = (
        TextBatches(files, Collator(Reader(tokeniser, "joined", 24)), train, pack=pack).held_out()
        for pack in (False, True)
    )
    assert len(full) < len(plain) and full.texts[0].lengths[:-1].min() == 22


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("mkd-lstm", {"train.steps": 2}, r"logits \(logits_mse\) of mkd-lstm needs a task"),
        ("minilmv2-6x384", {"train.steps": None}, "text is measured in steps"),
        ("minilmv2-6x384", {"terms.relation.relation_heads": 5}, "5 relation heads"),
        ("minilmv2-6x384", {"supervision": "labels"}, "plain text has no labels"),
    ],
)
def test_unusable_text_is_an_error(
    recipe: str, changes: dict, message: str, corpus: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    sizes = RELATIONS if recipe.startswith("mini") else {}
    with pytest.raises(UserError, match=message):
        settings = settings_of(recipe, {**sizes, **changes})
        distill_text(Request("", "text", tmp_path / "run"), settings, str(tiny_encoder), corpus)
    assert not (tmp_path / "run").exists()
