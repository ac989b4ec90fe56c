"""Unlabelled rows: the student learns the teacher's outputs on them as on any other row."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from in_process_workers import kill_a_worker
from interrupted_shards import flip_a_bit, interrupt
from small_students import SMALL_LSTM

import mtkd
from mtkd.api.augmentation import mask
from mtkd.jobs.distillation.distill import distill
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import load_training_data
from mtkd.models.multitask import MultiTaskModel
from mtkd.output_files.worker_pools import Engine, Workers
from mtkd.recipes import load_settings
from mtkd.training.run_directory import RunDirectory
from tasks.common.errors import UserError
from tasks.data.corpus_reader import corpus_rows
from tasks.data.rows import has_label
from tasks.data.sources import PocketSource
from tasks.data.table_source import TableSource
from tasks.data.unlabelled import UnlabelledRequest
from tasks.glue import TASKS
from tasks.task import Task

SMALL = SMALL_LSTM | {"train.epochs": 2}
SST2 = TASKS["sst2"]


def settings_of(**changes: object) -> Any:
    return load_settings("mkd-lstm", "distill", {**SMALL, **changes})


def pocket(split: str = "train") -> pa.Table:
    return PocketSource().table(SST2, split)


def run(
    out: Path, teacher: Path | None, data: Any, given: Any = None, limit: int | None = None, **changes: object
) -> RunDirectory:
    unlabelled = UnlabelledRequest({} if given is None else {"sst2": given}, limit)
    request = Request(data, "sst2", out, eval_limit=16)
    return distill(
        request,
        settings_of(**changes),
        teacher and str(teacher),
        unlabelled=unlabelled,
        warn=lambda text: None,
    )


def weights(made: RunDirectory) -> dict[str, torch.Tensor]:
    return made.model().state_dict()


def assert_same(one: RunDirectory, other: RunDirectory) -> None:
    expected, found = weights(one), weights(other)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_removing_half_of_the_labels_changes_nothing_if_only_logits_are_compared(
    tiny_teacher: Path, tmp_path: Path
) -> None:
    """The same 48 rows, in the same order, with the labels of the last 24 removed."""
    rows, validation = pocket().slice(0, 48), pocket("validation")
    whole = TableSource({"sst2": {"train": rows, "validation": validation}})
    half = {"train": rows.slice(0, 24), "validation": validation}
    bare = rows.slice(24).select(["sentence"])
    named = TableSource({"sst2": half | {"unlabelled": bare}})
    live = {"teacher.cache_logits": False}
    expected = run(tmp_path / "whole", tiny_teacher, whole, **live)
    found = run(tmp_path / "half", tiny_teacher, named, **live)
    assert_same(expected, found)
    assert found.record["rows"]["sst2"]["unlabelled"] == 24
    with_null_labels = bare.append_column("label", pa.nulls(24, pa.int64())).to_pandas()
    source = TableSource({"sst2": half})
    cached = weights(run(tmp_path / "cached", tiny_teacher, source, with_null_labels))
    for name, value in weights(expected).items():  # the teacher sees different batches: equal up to rounding
        torch.testing.assert_close(cached[name], value, atol=1e-4, rtol=1e-3)
    fewer = run(tmp_path / "fewer", tiny_teacher, named, limit=0)
    assert fewer.record["rows"]["sst2"] == {"train": 24, "unlabelled": 0, "validation": 16}


def test_unlabelled_rows_need_a_loss_that_can_use_them(tiny_teacher: Path, tmp_path: Path) -> None:
    source = TableSource({"sst2": {split: pocket(split).slice(0, 16) for split in ("train", "validation")}})
    rows = ["a fine film", "a dull film"]
    with pytest.raises(UserError, match="every loss of this run needs labels"):
        run(tmp_path / "run", None, source, rows, supervision="labels")
    with pytest.raises(UserError, match="`unlabelled` names the task 'rte'"):
        request = Request(source, "sst2", tmp_path / "run")
        distill(request, settings_of(), str(tiny_teacher), unlabelled=UnlabelledRequest({"rte": rows}))
    with pytest.raises(UserError, match="holds 1, but unlabelled rows"):
        run(tmp_path / "run", tiny_teacher, source, {"sentence": rows, "label": [None, 1]})
    with pytest.raises(UserError, match="no column 'sentence'"):
        run(tmp_path / "run", tiny_teacher, source, {"sentences": rows})
    assert not (tmp_path / "run").exists()
    splits = {split: pocket(split).slice(0, 16) for split in ("train", "validation")}
    source = TableSource({"sst2": splits | {"unlabelled": {"sentence": rows}}})
    made = run(tmp_path / "labels", None, source, supervision="labels")
    assert made.record["warnings"] == [
        "unlabelled rows are not used, since every loss of this run needs labels"
    ]


def test_a_killed_run_does_not_label_the_same_rows_again(
    processes: Any, tiny_teacher: Path, tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_teacher, teacher, ignore=shutil.ignore_patterns("logits-*"))
    file = tmp_path / "more.csv"
    texts = pocket().column("sentence").to_pylist()
    file.write_text("sentence\n" + "".join(f'"{texts[n % 200]} {n}"\n' for n in range(9000)))
    sets = {name: value for name, value in SMALL.items() if name != "train.epochs"} | {"train.steps": 20}
    words = ["distill", "mkd-lstm", "--data", "pocket", "--tasks", "sst2", "--teacher", teacher]
    words += [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    words += ["--limit", 32, "--eval-limit", 16, "--unlabelled", f"sst2={file}", "--device", "cpu", "--quiet"]
    words += ["--set", "train.checkpoint_steps=5"]
    out = tmp_path / "run"
    killed = processes.run(*words, "--out", out, kill_at="*/sst2-unlabelled-*/000000000.safetensors")
    assert killed.code != 0
    made = {path: path.stat().st_mtime_ns for path in teacher.glob("logits-*/*/*.safetensors")}
    assert len(made) == 2, "that of the 32 rows, and the first of the two of the 9,000"
    killed = processes.run(*words, "--out", out, kill_at="*/checkpoints/step-000000010")
    assert killed.code != 0
    resumed = processes.run(*words, "--out", out)
    assert resumed.code == 0, resumed.err
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert len(list(teacher.glob("logits-*/*/*.safetensors"))) == 3
    whole = processes.run(*words, "--out", tmp_path / "whole")
    assert whole.code == 0, whole.err
    one, other = (MultiTaskModel.load(place).state_dict() for place in (out, tmp_path / "whole"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    record = json.loads((out / "run.json").read_text())
    assert record["rows"]["sst2"]["unlabelled"] == 9000
    assert record["identity"]["unlabelled"] == {"sst2": str(file)}


def test_logits_damaged_after_an_interruption_are_recomputed(
    tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtkd.teachers.logits_cache._SHARD_ROWS", 8)
    source = TableSource({"sst2": {split: pocket(split).slice(0, 24) for split in ("train", "validation")}})
    teachers = [
        shutil.copytree(tiny_teacher, tmp_path / name, ignore=shutil.ignore_patterns("logits-*"))
        for name in ("one", "other")
    ]
    whole = run(tmp_path / "whole", teachers[0], source)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, 2, KeyboardInterrupt())
        run(tmp_path / "resumed", teachers[1], source)
    first, _ = sorted(teachers[1].glob("logits-*/*/*.safetensors"))
    flip_a_bit(first)
    resumed = run(tmp_path / "resumed", teachers[1], source)
    one, other = (
        {path.relative_to(teacher): path.read_bytes() for path in teacher.glob("logits-*/*/*")}
        for teacher in teachers
    )
    assert one == other and len(one) == 3 + 1
    assert_same(whole, resumed)


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_worker_processes_label_the_rows(
    tiny_teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    request: pytest.FixtureRequest,
) -> None:
    """The logits and the student equal those of one process; with Ray, although a worker is killed."""
    monkeypatch.setattr("mtkd.teachers.logits_cache._SHARD_ROWS", 8)
    request.getfixturevalue("ray_cluster" if engine == "ray" else "in_process_workers")
    killed = tmp_path / "killed"
    if engine == "ray":
        kill_a_worker(monkeypatch, killed)
    teachers, runs = [], []
    for name, workers in (("one", Workers()), ("other", Workers(2, engine))):
        teachers.append(
            shutil.copytree(tiny_teacher, tmp_path / name, ignore=shutil.ignore_patterns("logits-*"))
        )
        monkeypatch.chdir(tmp_path)
        given = Request("pocket", "sst2", tmp_path / f"run-{name}", 24, 16, workers=workers)
        settings = settings_of(**{"train.eval_batch_size": 2})
        more = UnlabelledRequest({"sst2": ["a fine film", "a dull film"] * 8})
        runs.append(distill(given, settings, name, unlabelled=more, warn=lambda text: None))
    one, other = (
        {path.relative_to(teacher): path.read_bytes() for path in teacher.glob("logits-*/*/*")}
        for teacher in teachers
    )
    assert one == other and len(one) == 5 + 2, "and two files of digests"
    assert_same(*runs)
    assert killed.exists() == (engine == "ray")


def test_workers_need_rows_to_label_and_a_teacher_on_disk(tiny_teacher: Path, tmp_path: Path) -> None:
    given = Request("pocket", "sst2", tmp_path / "run", 16, 16, workers=Workers(2))
    with pytest.raises(UserError, match="this run computes none"):
        distill(given, settings_of(**{"teacher.cache_logits": False}), str(tiny_teacher))
    with pytest.raises(UserError, match=r"a model in memory \(MultiTaskModel\)"):
        distill(given, settings_of(), MultiTaskModel.load(tiny_teacher))
    with pytest.raises(UserError, match="`workers` cannot be combined with `text`"):
        mtkd.distill("mkd-lstm", text=tmp_path, workers=2, out=tmp_path / "run", teacher=tiny_teacher)
    assert not (tmp_path / "run").exists()


def test_a_store_serves_runs_with_fewer_unlabelled_rows(
    mtkd: Any, tiny_teacher: Path, tmp_path: Path
) -> None:
    words = ["--data", "pocket", "--tasks", "sst2", "--limit", 16, "--unlabelled", "sst2=unlabelled"]
    words.append("--quiet")
    store = tmp_path / "store"
    made = mtkd(
        *("store", "build", "--recipe", "mkd-lstm", *words, "--unlabelled-limit", 40),
        *("--teacher", tiny_teacher, "--set", "student.max_length=24", "--out", store),
    )
    assert made.code == 0, made.err
    sets = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    run = ["distill", "mkd-lstm", *words, "--eval-limit", 16, *sets]
    stored = mtkd(*run, "--unlabelled-limit", 20, "--store", store, "--out", tmp_path / "stored")
    assert stored.code == 0, stored.err
    live = mtkd(*run, "--unlabelled-limit", 20, "--teacher", tiny_teacher, "--out", tmp_path / "live")
    assert live.code == 0, live.err
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("stored", "live")]
    assert [record["rows"]["sst2"]["unlabelled"] for record in records] == [20, 20]
    one, other = (MultiTaskModel.load(tmp_path / name).state_dict() for name in ("stored", "live"))
    for name, value in one.items():  # logits in the store are float16
        torch.testing.assert_close(other[name], value, atol=2e-3, rtol=2e-2)
    more = mtkd(*run, "--unlabelled-limit", 60, "--store", store, "--out", tmp_path / "more")
    assert more.code == 2 and "was built from other sst2 rows" in more.err


def write_texts(path: Path, count: int, word: str = "film") -> str:
    path.write_text("sentence\n" + "".join(f"a fine {word} of number {n}\n" for n in range(count)))
    return str(path)


def test_copies_of_unlabelled_rows_follow_their_rows(mtkd: Any, tmp_path: Path) -> None:
    file, corpus = write_texts(tmp_path / "more.csv", 30), tmp_path / "corpus"
    words = ["--data", "pocket", "--tasks", "sst2", "--limit", 16, "--copies", 2, "--p", 0.3, "--quiet"]
    made = mtkd("augment", "mask", *words, "--unlabelled", f"sst2={file}", "--out", corpus)
    assert made.code == 0, made.err
    rows = corpus_rows(corpus, "sst2")
    for uid, text in zip(rows.uids.to_pylist(), rows.texts[0].to_pylist(), strict=True):
        split, number = uid.rpartition("#")[0].split("/")[1:]
        if split == "unlabelled":
            source = f"a fine film of number {number}".split()
            assert all(found in (word, "[MASK]") for found, word in zip(text.split(), source, strict=True))
    assert sum("/unlabelled/" in uid for uid in rows.uids.to_pylist()) == 60

    def load(given: str | None = file, limit: int | None = None, train: int = 16) -> tuple[int, int]:
        request = UnlabelledRequest({} if given is None else {"sst2": given}, limit)
        asked = Request("pocket", "sst2", tmp_path, train, 8)
        (part,) = load_training_data(asked, [SST2], [corpus], request).parts
        uids = part.train.uids.to_pylist()
        rows = [uid for uid in uids if "#" not in uid]
        copied = Counter(uid.rpartition("#")[0] for uid in uids if "#" in uid)
        assert copied == dict.fromkeys(rows, 2), "copies of the rows that are used, and no others"
        labelled = np.array(uids)[has_label(part.train.labels)].tolist()
        assert labelled == [uid for uid in rows if uid.startswith("sst2/train/")]
        return len(uids), part.unlabelled

    assert load() == (3 * 46, 30)
    assert load(train=4, limit=10) == (3 * 14, 10)
    assert load(limit=0) == load(None, limit=0) == (3 * 16, 0)
    others = write_texts(tmp_path / "other.csv", 30, "book"), write_texts(tmp_path / "few.csv", 29)
    for other in (None, *others):
        with pytest.raises(UserError, match="30 unlabelled rows of sst2, but the run uses other") as refused:
            load(other)
        assert refused.value.hint is not None and "`unlabelled_limit=0`" in refused.value.hint
    again = mtkd("augment", "mask", *words, "--out", corpus)
    assert again.code == 2 and "another corpus" in again.err


def test_copies_are_trained_on_like_other_unlabelled_rows(tiny_teacher: Path, tmp_path: Path) -> None:
    """The same rows in the same order: as copies from a corpus, or all from one unlabelled table."""
    splits = {split: pocket(split).slice(0, 16) for split in ("train", "validation")}
    more = {"sentence": [f"a fine film of number {n}" for n in range(12)]}
    corpus = mask({"sst2": splits}, "sst2", tmp_path / "corpus", unlabelled={"sst2": more}, copies=1)
    assert corpus.manifest.task("sst2").unlabelled == 12 and corpus.manifest.rows == 28
    live: dict[str, Any] = {"teacher.cache_logits": False, "train.unlabelled_fraction": 0.6}
    whole = [*corpus_rows(tmp_path / "corpus", "sst2").texts[0].to_pylist(), *more["sentence"]]
    expected = run(tmp_path / "rows", tiny_teacher, TableSource({"sst2": splits}), whole, **live)
    found = distill(
        Request(TableSource({"sst2": splits}), "sst2", tmp_path / "copies", eval_limit=16),
        settings_of(**live),
        str(tiny_teacher),
        [tmp_path / "corpus"],
        unlabelled=UnlabelledRequest({"sst2": more}),
    )
    assert_same(expected, found)
    assert found.record["rows"]["sst2"] == {"train": 56, "unlabelled": 40, "validation": 16}


def test_copies_of_unlabelled_candidates_stay_in_their_groups(tmp_path: Path) -> None:
    rank = Task(name="r", kind="rank", columns=("a", "b"), labels=("no", "yes"), group="a", positive=1)
    train = {"a": ["x", "x", "y"], "b": ["1", "2", "3"], "label": [0, 1, 1]}
    splits = {"train": train, "validation": train}
    more = {"a": ["z", "z", "z", "w", "w"], "b": list("abcde")}
    mask({"r": splits}, rank, tmp_path / "corpus", unlabelled={"r": more}, copies=3)
    request = Request(TableSource({"r": splits}), [rank], tmp_path)
    for limit in (None, 3):
        given = UnlabelledRequest({"r": more}, limit)
        (part,) = load_training_data(request, [rank], [tmp_path / "corpus"], given).parts
        assert part.train.groups is not None
        group = dict(zip(part.train.uids.to_pylist(), part.train.groups.tolist(), strict=True))
        copies = [uid for uid in group if "#" in uid]
        assert len(copies) == 3 * (len(group) - len(copies))
        for one, other in itertools.combinations(copies, 2):
            parents, numbers = zip(*(uid.split("#") for uid in (one, other)), strict=True)
            together = numbers[0] == numbers[1] and group[parents[0]] == group[parents[1]]
            assert (group[one] == group[other]) == together
        assert not {group[uid] for uid in copies} & {group[uid] for uid in group if "#" not in uid}
