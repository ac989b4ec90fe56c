"""Knowledge stores: stored and online training, interruptions, damaged files and invalid usage."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from first_terms import FirstTerms
from in_process_workers import kill_a_worker
from interrupted_shards import flip_a_bit, interrupt
from safetensors.torch import load_file, save_file

import mtkd
from mtkd.evaluation.baselines import LINEAR
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.knowledge_store.build_store import build_store, repair_store
from mtkd.jobs.knowledge_store.plan_store import plan_store
from mtkd.jobs.knowledge_store.store_request import StoreRequest
from mtkd.jobs.model_origin import pretrained_encoder
from mtkd.jobs.request import Request
from mtkd.knowledge_store.contents import LogitsLayout
from mtkd.knowledge_store.shard_files import Shard, ShardReader, check_shards
from mtkd.knowledge_store.sizing import choose_selection, hidden_state_amount
from mtkd.knowledge_store.store_manifest import damaged_shards, read_store_manifest
from mtkd.knowledge_store.stored_teacher import StoredTeacher, find_stored_rows
from mtkd.models.multitask import MultiTaskModel
from mtkd.output_files.safetensors_shards import Header, read_header
from mtkd.output_files.worker_pools import Workers
from mtkd.outputs import OutputSpec
from mtkd.recipes import load_settings
from mtkd.selection import Selection
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.training.callbacks import Callback
from tasks.common.errors import MtkdWarning, UserError
from tasks.common.records import write_record
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve
from tasks.tokens.batch_stream import blocks_of
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded
from tasks.tokens.sampler import TaskSampler

SIZES = {
    "student.max_length": 24,
    "student.transformer.layers": 2,
    "student.transformer.hidden_size": 12,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 16,
    "student.dropout": 0.0,
    "train.batch_size": 8,
    "train.epochs": 1,
    "train.keep": "last",
}
PART = {"terms.hidden.depth": 2, "terms.hidden.tokens": 4, "terms.hidden.width": 0.5}
# One loss term for every kind of output that a store can hold.
EVERY_KIND = {
    "soft": {"loss": "soft_labels"},
    "rows": {"loss": "sample_similarity", "row_vector": "pooled"},
    "cls": {"loss": "cls_mse", "layer_map": "uniform", "include_last": True, "projection": "shared"},
    "hidden": {"loss": "hidden_mse", "layer_map": [[0, 0], [1, 1], [2, 3]]},
    "context": {"loss": "hidden_mse", "vectors": "context", "layer_map": "last"},
    "scores": {"loss": "attention_score_mse", "layer_map": "uniform"},
    "relation": {"loss": "relation", "relations": ["q-k", "v-v"], "relation_heads": 2},
    "part": {"loss": "hidden_knowledge", "tokens": 5, "width": 0.5, "top": 2},
}


def hsk_settings(**changes: Any) -> DistillSettings:
    return load_settings("hsk-tinybert-4", "distill", {**SIZES, **PART, **changes})


def request(teacher: Path, tasks: str = "rte,stsb", limit: int | None = 40, **more: Any) -> StoreRequest:
    sets = {**SIZES, **PART, **more.pop("sets", {})}
    return StoreRequest("hsk-tinybert-4", "pocket", tasks, str(teacher), sets, limit=limit, batch=8, **more)


def built(out: Path, teacher: Path, **more: Any) -> Path:
    build_store(request(teacher, **more), out, "test")
    return out


def files_of(store: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((store / "shards").iterdir())}


def student(
    out: Path,
    settings: DistillSettings,
    teacher: Path | None,
    store: Path | None,
    tasks: str = "rte,stsb",
    callbacks: Sequence[Callback] = (),
) -> dict[str, torch.Tensor]:
    given = Request("pocket", tasks, out, 40, 16)
    distill(given, settings, str(teacher) if teacher else None, store=store, callbacks=callbacks)
    return MultiTaskModel.load(out).state_dict()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small shards, so that there are several."""
    monkeypatch.setattr("tasks.tokens.batch_stream.BLOCK", 16)
    monkeypatch.setattr("mtkd.knowledge_store.shard_files.BLOCK", 16)


@pytest.fixture(scope="module")
def store(tiny_teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("stores") / "store", tiny_teacher)


def every_kind(monkeypatch: pytest.MonkeyPatch) -> DistillSettings:
    """A recipe with all kinds of loss terms, which can also be loaded by name."""
    plain = hsk_settings().model_dump() | {"terms": EVERY_KIND, "stages": {}}
    plain["student"]["transformer"]["heads"] = 2
    settings: DistillSettings = validate(DistillSettings, plain)
    monkeypatch.setattr("mtkd.jobs.knowledge_store.prepare_store.load_settings", lambda *given: settings)
    return settings


def test_rows_that_the_teacher_truncates_cause_a_warning(tiny_teacher: Path, tmp_path: Path) -> None:
    sets = SIZES | PART | {"student.max_length": 8}
    given: dict[str, Any] = {"data": "pocket", "tasks": "rte", "teacher": tiny_teacher, "limit": 20}
    truncated = (
        "training rows of rte have more than 8 tokens, and will be truncated; a larger student.max_length"
    )
    with pytest.warns(MtkdWarning, match=truncated):
        mtkd.plan_store("hsk-tinybert-4", settings=sets, **given)
    with pytest.warns(MtkdWarning, match=truncated):
        mtkd.build_store("hsk-tinybert-4", out=tmp_path / "store", settings=sets, **given)


def test_a_complete_fp32_store_gives_the_same_student_as_the_teacher(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    settings = every_kind(monkeypatch)
    store = built(tmp_path / "store", tiny_teacher, dtype="fp32")
    assert len(read_store_manifest(store).shards) == 6, "each task in three shards"
    live, stored = FirstTerms(), FirstTerms()
    online = student(tmp_path / "online", settings, tiny_teacher, None, callbacks=[live])
    monkeypatch.setattr("mtkd.teachers.teacher_ref.TeacherRef.load", None)  # loading the teacher would fail
    offline = student(tmp_path / "offline", settings, None, store, callbacks=[stored])
    for name in online:
        torch.testing.assert_close(online[name], offline[name], rtol=0, atol=5e-5, msg=name)
    assert live.first.keys() == EVERY_KIND.keys()
    assert live.first == pytest.approx(stored.first, rel=1e-6, abs=1e-6), "before anything differs"


def test_stored_outputs_match_the_teacher(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    every_kind(monkeypatch)
    store = built(tmp_path / "store", tiny_teacher, dtype="fp32")
    manifest = read_store_manifest(store)
    (rte,) = resolve("rte")
    rows = load_rows(open_data("pocket"), rte, "train", 40)
    teacher = MultiTaskModel.load(tiny_teacher)
    teacher.set_max_length(24)
    batch = Collator(teacher.reader, teacher.reader)(
        Encoded.encode(rows, teacher.tokeniser), np.array([3, 39, 0, 17, 8])
    )
    three = frozenset({3})
    need = OutputSpec(
        logits=True,
        pooled=True,
        cls=three,
        hidden=frozenset({0, 3}),
        query=three,
        key=three,
        value=three,
        context=three,
        scores=frozenset({2}),
        selected=frozenset({1}),
        selection=manifest.contents.need.selection,
    )
    assert not need.missing_from(manifest.contents.offers)
    stored = StoredTeacher(store, manifest, need, {"rte": find_stored_rows(store, manifest, rows)}).outputs(
        rte, batch
    )
    online = OnlineTeacher(teacher, need).outputs(rte, batch)
    mask = batch.inputs.joined.mask  # type: ignore[union-attr]
    torch.testing.assert_close(stored.logits, online.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(stored.pooled, online.pooled, atol=1e-5, rtol=0)
    for kind in ("hidden", "query", "key", "value", "context"):
        assert getattr(stored, kind).keys() == getattr(online, kind).keys()
        for layer, values in getattr(online, kind).items():
            mine = getattr(stored, kind)[layer]
            torch.testing.assert_close(mine[mask], values[mask], atol=1e-5, rtol=0)
    both = (mask[:, None, :, None] & mask[:, None, None, :]).expand_as(online.scores[2])
    torch.testing.assert_close(stored.scores[2][both], online.scores[2][both], atol=1e-5, rtol=0)
    torch.testing.assert_close(stored.cls[3], online.cls[3], atol=1e-5, rtol=0)
    kept, expected = stored.selected[1], online.selected[1]
    assert torch.equal(kept.valid, expected.valid) and torch.equal(kept.activations, expected.activations)
    assert torch.equal(kept.positions[kept.valid], expected.positions[expected.valid])
    torch.testing.assert_close(kept.values, expected.values, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("dtype", "error"), [("fp32", 1e-6), ("fp16", 5e-4), ("bf16", 4e-3), ("int8", 4e-3)])
def test_dtypes_have_the_expected_precision(
    dtype: Any, error: float, tiny_teacher: Path, tmp_path: Path
) -> None:
    """The error of each vector relative to its largest value."""
    store = built(tmp_path / "store", tiny_teacher, tasks="rte", dtype=dtype)
    manifest = read_store_manifest(store)
    (rte,) = resolve("rte")
    rows = load_rows(open_data("pocket"), rte, "train", 40)
    teacher = MultiTaskModel.load(tiny_teacher)
    teacher.set_max_length(24)
    batch = Collator(teacher.reader, teacher.reader)(Encoded.encode(rows, teacher.tokeniser), np.arange(40))
    need = manifest.contents.offers
    mine = StoredTeacher(store, manifest, need, {"rte": find_stored_rows(store, manifest, rows)}).outputs(
        rte, batch
    )
    theirs = OnlineTeacher(teacher, need).outputs(rte, batch)
    for layer, kept in mine.selected.items():
        expected = theirs.selected[layer].values
        largest = expected.abs().amax(-1, keepdim=True).clamp(min=1e-9)
        apart = ((kept.values - expected).abs() / largest).max()
        assert (0 if dtype == "fp32" else error / 50) <= apart <= error


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_the_predicted_size_matches_the_written_size(dtype: Any, tiny_teacher: Path, tmp_path: Path) -> None:
    asked = request(tiny_teacher, limit=None, dtype=dtype)
    plan = plan_store(asked, tmp_path)
    predicted = plan.bytes
    assert str(plan).startswith("<StorePlan ") and "running the teacher: about" in repr(plan)
    build_store(asked, tmp_path / "store", "test")
    written = sum(
        f.stat().st_size for kind in ("shards", "rows") for f in (tmp_path / "store" / kind).iterdir()
    )
    assert predicted == pytest.approx(written, rel=0.02)


def test_mask_bits_are_packed(store: Path) -> None:
    tensors = load_file(store / read_store_manifest(store).shards[0].file)
    assert tensors["selected.activations"].dtype == torch.uint8
    assert tensors["selected.activations"].shape[-1] == 2, "16 units in two bytes"
    assert tensors["selected.values"].shape[-1] == 8, "and the values of a half of them"


def test_a_larger_store_serves_a_smaller_selection_and_fewer_rows(tiny_teacher: Path, tmp_path: Path) -> None:
    smaller = hsk_settings(**{"terms.hidden.depth": 1, "terms.hidden.tokens": 2, "terms.hidden.width": 0.25})
    wide = built(tmp_path / "wide", tiny_teacher, dtype="fp32", limit=80)
    online = student(tmp_path / "online", smaller, tiny_teacher, None, "rte")
    offline = student(tmp_path / "offline", smaller, None, wide, "rte")
    for name in online:
        torch.testing.assert_close(online[name], offline[name], rtol=0, atol=5e-5)


def test_a_build_stopped_at_any_shard_resumes_to_identical_output(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    whole = built(tmp_path / "whole", tiny_teacher)
    out = tmp_path / "stopped"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt(patched, 4, KeyboardInterrupt())  # type: ignore[arg-type]
        built(out, tiny_teacher)
    with pytest.raises(UserError, match="is an unfinished knowledge store"):
        read_store_manifest(out)
    flip_a_bit(out / read_store_manifest(whole).shards[0].file)
    manifest, _, made = build_store(request(tiny_teacher), out, "test")
    assert made == len(manifest.shards) - 3 and files_of(out) == files_of(whole)
    assert manifest.shards == read_store_manifest(whole).shards
    assert build_store(request(tiny_teacher), out, "test")[2] == 0, "it is finished"


def test_worker_processes_load_the_teacher_and_write_identical_output(
    tiny_teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_blocks: None,
    in_process_workers: Workers,
) -> None:
    whole = built(tmp_path / "whole", tiny_teacher)
    monkeypatch.chdir(tiny_teacher.parent)
    asked = request(Path(tiny_teacher.name))
    manifest, _, made = build_store(asked, tmp_path / "other", "test", workers=in_process_workers)
    assert made == len(manifest.shards) > 4 and files_of(tmp_path / "other") == files_of(whole)
    assert manifest.shards == read_store_manifest(whole).shards


def test_a_different_teacher_at_the_same_path_is_rejected(tiny_teacher: Path, tmp_path: Path) -> None:
    teacher = shutil.copytree(tiny_teacher, tmp_path / "teacher")
    load = TeacherRef.find(str(teacher), heads=True).loader(None)
    assert load().info.max_length == 32
    weights = teacher / "model/model.safetensors"
    save_file({name: value + 1 for name, value in load_file(weights).items()}, weights)
    with pytest.raises(UserError, match="is another model on"):
        load()


def test_ray_builds_an_identical_store_although_an_actor_is_killed(
    tiny_teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_blocks: None,
    ray_cluster: None,
) -> None:
    whole, killed = built(tmp_path / "whole", tiny_teacher, limit=80), tmp_path / "killed"
    kill_a_worker(monkeypatch, killed)
    out = tmp_path / "ray"
    manifest, _, made = build_store(request(tiny_teacher, limit=80), out, "test", workers=Workers(2, "ray"))
    assert killed.exists() and made == len(manifest.shards) > 4
    for file in ("manifest.json", "rows/rte.parquet", "rows/stsb.parquet"):
        assert (out / file).read_bytes() == (whole / file).read_bytes(), file
    assert files_of(out) == files_of(whole)
    assert repair_store(out, Workers(2, "ray"))[1] == []
    (out / manifest.shards[0].file).unlink()
    assert repair_store(out, Workers(2, "ray"))[1] == [manifest.shards[0].file]
    assert files_of(out) == files_of(whole)


def build_command(out: Path, teacher: Path, limit: int = 300) -> list[str]:
    sets = [word for key, value in {**SIZES, **PART}.items() for word in ("--set", f"{key}={value}")]
    asked = ["store", "build", "--recipe", "hsk-tinybert-4", "--data", "pocket", "--tasks", "rte,stsb"]
    return [
        *asked,
        "--teacher",
        str(teacher),
        "--limit",
        str(limit),
        "--batch",
        "8",
        "--out",
        str(out),
        *sets,
    ]


def test_a_killed_build_resumes_and_two_processes_write_identical_output(
    tiny_teacher: Path, tmp_path: Path, processes: Any, mtkd: Callable[..., Any]
) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    killed = processes.run(*build_command(alone, tiny_teacher), kill_at="*/shards/rte*.safetensors")
    assert killed.code == -signal.SIGKILL and not (alone / "manifest.json").exists()
    again = mtkd(*build_command(alone, tiny_teacher))
    assert again.code == 0 and "1 were there already" in again.err, again.err
    two = processes.run(*build_command(both, tiny_teacher), count=2)
    assert two.code == 0, two.err
    assert files_of(both) == files_of(alone)
    assert (both / "rows" / "rte.parquet").read_bytes() == (alone / "rows" / "rte.parquet").read_bytes()


@pytest.mark.parametrize("file", ["../victim", "/tmp/victim", "shards/../../victim"])
def test_a_manifest_that_names_files_outside_its_directory_is_rejected(
    tiny_teacher: Path, tmp_path: Path, small_blocks: None, mtkd: Callable[..., Any], file: str
) -> None:
    store = built(tmp_path / "store", tiny_teacher)
    (tmp_path / "victim").write_text("work of years")
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["shards"][0]["file"] = file
    write_record(store / "manifest.json", manifest)
    before = files_of(store)
    for words in (["store", "build", "--repair", "--out", store], build_command(store, tiny_teacher)):
        refused = mtkd(*words)
        assert refused.code == 2 and "is not the path of a file inside" in refused.err
    assert (tmp_path / "victim").read_text() == "work of years" and files_of(store) == before


def test_shards_are_opened_only_when_they_are_read(
    tiny_teacher: Path, tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = built(tmp_path / "store", tiny_teacher)
    manifest = read_store_manifest(store)
    opened: list[str] = []

    def read(path: Path) -> Header:
        opened.append(path.name)
        return read_header(path)

    monkeypatch.setattr("mtkd.knowledge_store.shard_files.read_header", read)
    check_shards(store, manifest)
    assert not opened
    first, *_, last = manifest.shards_of("rte")
    fields = manifest.contents.fields(LogitsLayout(2))
    ShardReader(store, manifest).read("rte", np.array([0]), fields)
    assert opened == [Path(first.file).name]
    other = replace(last, task="rte", rows=last.rows + 1)  # the digest is correct, but the content is not
    shards = (*(shard for shard in manifest.shards if shard.file != last.file), other)
    tasks = tuple(replace(task, rows=task.rows + (task.name == "rte")) for task in manifest.tasks)
    wrong = replace(manifest, tasks=tasks, shards=shards)
    check_shards(store, wrong)
    with pytest.raises(UserError, match=r"shard .* cannot be read: .*\n  hint: `mtkd.repair_store"):
        ShardReader(store, wrong).read("rte", np.array([wrong.task("rte").rows - 1]), fields)
    for shard in manifest.shards:
        (store / shard.file).unlink()
    with pytest.raises(UserError, match=rf"{Path(first.file).name} is missing.* more\n"):
        check_shards(store, manifest)


def test_only_damaged_shards_are_named_and_repaired(
    tiny_teacher: Path, tmp_path: Path, small_blocks: None, mtkd: Callable[..., Any]
) -> None:
    store = built(tmp_path / "store", tiny_teacher)
    before = files_of(store)
    shards = sorted((store / "shards").iterdir())
    shards[0].write_bytes(shards[0].read_bytes()[:-5])
    flipped = bytearray(shards[1].read_bytes())
    flipped[-3] ^= 4
    shards[1].write_bytes(flipped)
    shards[2].unlink()
    times = {file: file.stat().st_mtime_ns for file in shards[3:]}
    states = damaged_shards(store, read_store_manifest(store))
    assert [state.split(":")[0].split(",")[0] for state in states.values()] == [
        f"has {len(before[shards[0].name]) - 5} bytes",
        "was altered",
        "is missing",
    ]
    answer = mtkd("verify", store)
    assert answer.code == 2 and all(f"{store / file} {state}" in answer.out for file, state in states.items())
    assert f"hint: mtkd store build --repair --out {store} rebuilds" in answer.err
    with pytest.raises(UserError, match=r"rte-0000[012].safetensors (has|was altered|is missing)"):
        student(tmp_path / "run", hsk_settings(), None, store)
    assert repair_store(store)[1] == list(states)
    assert files_of(store) == before and not damaged_shards(store, read_store_manifest(store))
    assert times == {file: file.stat().st_mtime_ns for file in shards[3:]}, "the others were left alone"
    assert repair_store(store)[1] == []
    for file in (store / "rows" / "rte.parquet", store / "teacher" / "tokenizer.json"):
        flip_a_bit(file)
        with pytest.raises(UserError, match=f"{file.name} is damaged: it has changed"):
            student(tmp_path / "run", hsk_settings(), None, store)
        assert f"mtkd store build --repair --out {store}" in mtkd("verify", store).err
        repaired = mtkd("store", "build", "--repair", "--out", store)
        assert repaired.code == 0 and "rebuilt 1 damaged file\n" in repaired.err
        assert files_of(store) == before
    for file in (shards[1], store / "rows" / "rte.parquet", store / "teacher" / "tokenizer.json"):
        flip_a_bit(file)
    repaired = mtkd("store", "build", "--repair", "--out", store)
    assert f"rebuilt 1 damaged shard of {len(shards)} and 2 other damaged files\n" in repaired.err
    assert files_of(store) == before
    manifest = store / "manifest.json"
    content = manifest.read_text()
    manifest.write_text(content.replace('"fp32"', '"bf16"'))
    again = "restore it from a copy, or build the store again with"
    for words in (["verify", store], ["store", "info", store]):
        assert f"hint: {again} --overwrite" in mtkd(*words).err
    manifest.write_text(content)
    shards[1].write_bytes(flipped)
    shards[2].unlink()
    assert build_store(request(tiny_teacher), store, "test")[2] == 2, (
        "the command that built it mends it, too"
    )
    assert files_of(store) == before


def test_a_repair_needs_the_same_teacher(
    tiny_teacher: Path, tiny_encoder: Path, tmp_path: Path, store: Path
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_teacher, teacher)
    mine = built(tmp_path / "store", teacher)
    next((mine / "shards").iterdir()).unlink()
    model = MultiTaskModel.load(teacher)
    next(iter(model.head_modules.parameters())).data += 1
    model.save(teacher / "model")
    with pytest.raises(UserError, match=r"cannot be repaired: its teacher is .*digest \w{12}.*, not"):
        repair_store(mine)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"student.max_length": 32}, {}, "built with at most 24 tokens per row, but this student reads 32"),
        ({"terms.hidden.tokens": 9}, {}, "lacks what hsk-tinybert-4 needs.*9 tokens by att-last-no-sep"),
        ({"terms.hidden.depth": 3}, {}, "selected hidden states of layer 0"),
        ({"terms.hidden.width": 0.6}, {}, "0.6 of the width"),
        ({"terms.hidden.token_selection": "left"}, {}, "4 tokens by left"),
        ({"terms.hidden.tokens": 25}, {}, "cannot keep 25 tokens of rows of at most 24"),
        ({}, {"tasks": "sst2"}, "unknown task of this store 'sst2'"),
        (
            {},
            {"limit": 60},
            r"not contain \d+ of these 60 rows.*digest of these rows \w{12}, of the rows in the store",
        ),
        ({}, {"teacher": "other"}, r"built with the teacher .*digest \w{12}\), not with"),
    ],
)
def test_a_store_with_other_contents_is_rejected(
    changes: dict,
    options: dict,
    message: str,
    store: Path,
    tiny_teacher: Path,
    tmp_path: Path,
) -> None:
    teacher = None
    if options.get("teacher"):
        teacher = str(tmp_path / "teacher")
        model = MultiTaskModel.load(tiny_teacher)
        next(iter(model.parameters())).data += 1
        model.save(tmp_path / "teacher")
    given = Request("pocket", options.get("tasks", "rte"), tmp_path / "run", options.get("limit", 40), 16)
    with pytest.raises(UserError) as caught:
        distill(given, hsk_settings(**changes), teacher, store=store)
    assert re.search(message, "\n".join(caught.value.lines()))
    assert not (tmp_path / "run" / "model").exists()


def test_missing_outputs_of_a_store_are_named(store: Path, tmp_path: Path) -> None:
    settings = load_settings("mlkd-bert-4", "distill", SIZES)
    with pytest.raises(
        UserError, match="lacks what mlkd-bert-4 needs: first-token vectors of layer 3, hidden"
    ):
        student(tmp_path / "run", settings, None, store)


def test_unsuitable_output_directories_are_errors(
    store: Path, tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="holds another knowledge store: its rte rows have the digest"):
        built(store, tiny_teacher, limit=20)
    with pytest.raises(UserError, match="holds another knowledge store: it was built with another"):
        built(store, tiny_teacher, dtype="int8")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"do not belong to a knowledge store: notes\.txt"):
        built(tmp_path, tiny_teacher)
    from tasks.common.locks import locked

    with locked(tmp_path / "busy"), pytest.raises(UserError, match="another process is writing"):
        built(tmp_path / "busy", tiny_teacher)
    newer = json.loads((store / "manifest.json").read_text()) | {"format": 99}
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "manifest.json").write_text(json.dumps(newer))
    with pytest.raises(UserError, match="is of format 99"):
        read_store_manifest(tmp_path / "newer")
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=10))
    with pytest.raises(UserError, match=r"the store needs [\d,]+ bytes, but .* has only 10 free"):
        built(tmp_path / "large", tiny_teacher)


def test_a_full_disk_keeps_the_finished_shards(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    out, written = tmp_path / "store", []

    def full(tensors: Any, path: Path, metadata: Any = None) -> None:
        if len(written) == 2:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        save_file(tensors, path, metadata)

    with monkeypatch.context() as patched:
        patched.setattr("mtkd.output_files.safetensors_shards.save_file", full)
        with pytest.raises(UserError, match="the disk is full"):
            built(out, tiny_teacher)
    assert len(list((out / "shards").iterdir())) == 2 + 2, (
        "two shards with their digests, nothing half-written"
    )
    assert build_store(request(tiny_teacher), out, "test")[2] == 4


def test_nan_outputs_of_a_teacher_are_an_error_that_names_the_row(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs_of = OnlineTeacher.outputs

    def nan_outputs(self: OnlineTeacher, task: Any, batch: Any) -> Any:
        found = outputs_of(self, task, batch)
        for values in found.selected.values():
            rows = (
                torch.from_numpy(batch.indices == 3) if batch.task == "stsb" else torch.zeros(len(batch)) > 0
            )
            values.values[rows] = torch.nan
        return found

    monkeypatch.setattr(OnlineTeacher, "outputs", nan_outputs)
    with pytest.raises(UserError, match=r"the teacher's selected for \S*stsb\S*\d+ \(stsb\) is not finite"):
        built(tmp_path / "store", tiny_teacher)
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_a_student_of_a_store_knows_the_encoder_of_its_teacher(
    tiny_teacher: Path, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(store, tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    student(tmp_path / "run", hsk_settings(), None, Path("store"))
    monkeypatch.chdir("/")
    assert pretrained_encoder(tmp_path / "run") == pretrained_encoder(tiny_teacher) is not None
    found = evaluate(tmp_path / "run", "pocket", "rte", limit=16, baselines=True)
    assert LINEAR in found.differences
    shutil.rmtree(tmp_path / "store")
    assert pretrained_encoder(tmp_path / "run") is None


def test_a_budget_selects_the_most_useful_amount(tiny_teacher: Path, tmp_path: Path) -> None:
    def bytes_of(depth: int, tokens: int, width: float) -> int:
        return int(1000 * hidden_state_amount(depth, tokens, width))

    assert choose_selection(10**9, 5, 128, bytes_of) == (1, 10, 1.0), "an amount of at most ten, of one layer"
    depth, tokens, width = choose_selection(3100, 5, 128, bytes_of)
    assert (
        hidden_state_amount(depth, tokens, width) == pytest.approx(3.0)
        and depth == 1
        and tokens >= 7
        and width >= 0.2
    )
    assert choose_selection(300, 5, 128, bytes_of)[2] == pytest.approx(0.3), (
        "where little fits, the floors give way"
    )
    with pytest.raises(UserError, match="no store fits into a budget of 50 bytes") as caught:
        choose_selection(50, 5, 128, bytes_of)
    assert "100 bytes or more" in "\n".join(caught.value.lines())
    small = plan_store(request(tiny_teacher, budget=9000), tmp_path)
    assert small.prepared.bytes <= 9000 and small.prepared.chosen["terms.hidden.tokens"] >= 1
    with pytest.raises(UserError, match="tinybert-4 keeps none"):
        plan_store(
            StoreRequest("tinybert-4", "pocket", "rte", str(tiny_teacher), SIZES, budget=10**6), tmp_path
        )


def test_initialising_from_the_teacher_needs_its_weights(
    tiny_teacher: Path, tmp_path: Path, store: Path
) -> None:
    plain = {"student.transformer.init": "teacher", "student.max_length": 24, "train.epochs": 1, **PART}
    plain |= {"student.transformer.layers": 2, "student.transformer.hidden_size": 16}
    plain |= {"student.transformer.heads": 2, "student.transformer.intermediate_size": 32}
    settings = load_settings("hsk-tinybert-4", "distill", plain)
    student(tmp_path / "run", settings, None, store)
    manifest = json.loads((store / "manifest.json").read_text())
    moved = tmp_path / "moved"
    shutil.copytree(store, moved)
    manifest["teacher"]["name"] = str(tmp_path / "gone")
    write_record(moved / "manifest.json", manifest)
    with pytest.raises(UserError, match=r"the store's teacher, .*gone, which does not exist"):
        student(tmp_path / "other", settings, None, moved)


def test_the_index_gives_the_positions_of_rows(store: Path) -> None:
    table = pq.read_table(store / "rows" / "rte.parquet")
    order = np.concatenate(blocks_of("rte", 40))
    assert table["row"].to_pylist() == order.tolist() and sorted(order.tolist()) == list(range(40))
    shard = Shard(store / read_store_manifest(store).shards_of("rte")[0].file)
    assert shard.offsets["kept"][-1] == len(shard.views["selected.values"])


def test_blocks_are_shuffled_and_every_row_is_read_once(small_blocks: None) -> None:
    lengths = {"rte": np.random.default_rng(0).integers(3, 40, 100)}
    sampler = TaskSampler(lengths, 4, blocks=True)
    block_of = {int(row): n for n, block in enumerate(blocks_of("rte", 100)) for row in block}
    epochs = [[draw.indices for draw in sampler.epoch(n)] for n in (0, 1)]
    for batches in epochs:
        assert sorted(np.concatenate(batches).tolist()) == list(range(100))
        order = [block_of[int(row)] for batch in batches for row in batch]
        runs = sum(a != b for a, b in pairwise(order))
        assert runs <= 40, "a block is left only when it is done"
    assert [b.tolist() for b in epochs[0]] != [b.tolist() for b in epochs[1]]
    small = {"rte": lengths["rte"][:16]}
    one, other = (TaskSampler(small, 4, blocks=blocks).epoch(0) for blocks in (True, False))
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(one, other, strict=True))


def test_a_selection_of_everything_is_stored_as_complete_states(tiny_teacher: Path, tmp_path: Path) -> None:
    whole = {"terms.hidden.tokens": 24, "terms.hidden.width": 1.0, "terms.hidden.token_selection": "left"}
    store = built(tmp_path / "store", tiny_teacher, tasks="rte", sets=whole)
    contents = read_store_manifest(store).contents
    assert contents.need.selection == Selection(24, "left", 1.0)
    assert "selected.activations" not in {field.name for field in contents.fields(LogitsLayout(2))}


def test_a_request_uses_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml", "own.toml"):
        (tmp_path / name).touch()
    (tmp_path / "sst2").mkdir()  # is not the task
    options = StoreRequest("own.toml", "pocket", "sst2, mine.toml,gone.toml", "teacher").options()
    assert options["recipe"] == str(tmp_path / "own.toml")
    assert options["tasks"] == f"sst2,{tmp_path / 'mine.toml'},gone.toml"


def test_info_prints_the_command_that_built_the_store(store: Path, mtkd: Callable) -> None:
    assert f"\nbuilt by: {read_store_manifest(store).command}\n" in mtkd("store", "info", store).out
