"""Inputs and outputs at URLs, with the in-memory file system of fsspec."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from run_records import finished_record

import mtkd as library
from tasks.common import mirror
from tasks.common.errors import UserError
from tasks.common.mirror import UPLOADING
from tasks.common.remote import local_copy
from tasks.common.urls import as_url, cache_directory

ROWS = [{"sentence": f"the {n} cats sleep well", "label": n % 2, "idx": n} for n in range(12)]


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The empty file system behind memory://, and a directory for local copies."""
    monkeypatch.setenv("MTKD_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def data(memory: Any) -> str:
    memory.pipe("/bucket/data/sst2/train.jsonl", lines(ROWS))
    memory.pipe("/bucket/data/sst2/validation.jsonl", lines(ROWS[:4]))
    return "memory://bucket/data"


def files(memory: Any, url: str) -> dict[str, bytes]:
    root = url.removeprefix("memory:/")
    return {name.removeprefix(f"{root}/"): memory.cat_file(name) for name in memory.find(root)}


def mask(data: str | Path, out: str | Path, **more: Any) -> Any:
    return library.augment.mask(data, "sst2", out, copies={"sst2": 2}, **more)


class Transfers:
    """Counts the files that are copied, and fails from the n-th file on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, fails_at: int | None = None):
        from fsspec.implementations.memory import MemoryFileSystem

        self.names: list[str] = []
        self.fails_at = fails_at
        real = getattr(MemoryFileSystem, name)

        def transfer(system: Any, source: str, target: str, **more: Any) -> Any:
            if self.fails_at is not None and len(self.names) >= self.fails_at:
                raise ConnectionError("the line is dead")
            self.names.append(source if name == "get_file" else target)
            return real(system, source, target, **more)

        monkeypatch.setattr(MemoryFileSystem, name, transfer)


def test_a_corpus_at_a_url_equals_that_of_local_paths(data: str, memory: Any, tmp_path: Path) -> None:
    memory.get("/bucket/data", str(tmp_path / "data"), recursive=True)
    here = mask(tmp_path / "data", tmp_path / "corpus")
    there = mask(data, "memory://bucket/corpus")
    found = files(memory, "memory://bucket/corpus")
    shard = "data/sst2-00000.parquet"
    assert found[shard] == (tmp_path / "corpus" / shard).read_bytes()
    assert set(found) == {shard, "manifest.json", "README.md"}
    assert here.manifest.key == there.manifest.key
    manifest = json.loads(found["manifest.json"])
    assert manifest["data"] == data and str(cache_directory()).encode() not in b"".join(found.values())
    assert there.manifest == library.augment.mask(data, "sst2", "memory://bucket/corpus", copies=2).manifest


def test_a_finished_output_is_downloaded_and_not_repeated(
    data: str, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "memory://bucket/corpus"
    made = mask(data, out)
    before = files(memory, out)
    monkeypatch.setenv("MTKD_CACHE", str(tmp_path / "another machine"))
    puts, gets = Transfers(monkeypatch, "put_file"), Transfers(monkeypatch, "get_file")
    again = mask(data, out)
    assert (made.made, again.made, again.kept) == (1, 0, 1)
    assert not puts.names and len(gets.names) == 5 and files(memory, out) == before
    mask(data, out)
    assert len(gets.names) == 5, "nothing is copied twice"


def test_a_different_output_is_rejected_or_overwritten(data: str, memory: Any) -> None:
    out = "memory://bucket/corpus"
    mask(data, out)
    with pytest.raises(UserError, match=f"^{out} holds another corpus") as caught:
        mask(data, out, seed=1)
    assert str(cache_directory()) not in str(caught.value)
    before = files(memory, out)
    memory.pipe("/bucket/data/sst2/train.jsonl", lines([*ROWS, ROWS[0] | {"idx": 99}]))
    assert mask(data, out, overwrite=True).manifest.tasks[0].source_rows == 13, "a changed input is noticed"
    after = files(memory, out)
    assert after.keys() == before.keys() and after["manifest.json"] != before["manifest.json"]
    memory.pipe("/bucket/other/notes.txt", b"mine")
    with pytest.raises(UserError, match=r"holds files that do not belong to an output: notes\.txt"):
        mask(data, "memory://bucket/other", overwrite=True)
    memory.pipe(f"/bucket/corpus/{'notes.txt'}", b"mine")
    with pytest.raises(UserError, match=r"do not belong to a corpus: notes\.txt"):
        mask(data, out)
    assert memory.cat_file("/bucket/corpus/notes.txt") == b"mine"


def test_a_failed_upload_is_resumed(data: str, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = "memory://bucket/corpus"
    with monkeypatch.context() as broken:
        puts = Transfers(broken, "put_file", fails_at=2)
        with pytest.raises(
            UserError, match="cannot upload to memory://bucket/corpus: the line is dead"
        ) as caught:
            mask(data, out)
    (kept,) = [word for word in str(caught.value).split() if word.startswith(str(cache_directory()))]
    assert list(Path(kept.rstrip(";")).rglob("manifest.json")), "the error says where the finished files are"
    assert len(puts.names) == 2 and "manifest.json" not in files(memory, out)
    with pytest.raises(UserError, match="is incomplete: it is being uploaded"):
        local_copy(out)
    rest = Transfers(monkeypatch, "put_file")
    again = mask(data, out)
    assert again.made == 0 and [Path(name).name for name in rest.names] == ["manifest.json"]
    assert UPLOADING not in files(memory, out) and local_copy(out).is_dir()


def test_an_incomplete_upload_of_another_machine_is_ignored(
    data: str, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "memory://bucket/corpus"
    memory.pipe("/bucket/data/sst2/train.jsonl", lines(ROWS * 5))
    with monkeypatch.context() as broken:
        Transfers(broken, "put_file", fails_at=1)
        with pytest.raises(UserError, match="cannot upload"):
            library.augment.run("mask", data, "sst2", out, copies=3, limit=7)
    mark = json.loads(memory.cat_file(f"/bucket/corpus/{UPLOADING}"))
    mark["files"].append("data/sst2-00007.parquet")
    memory.pipe(f"/bucket/corpus/{UPLOADING}", json.dumps(mark).encode())
    memory.pipe("/bucket/corpus/data/sst2-00007.parquet", b"left")
    monkeypatch.setenv("MTKD_CACHE", str(tmp_path / "another machine"))
    mask(data, out)
    assert set(files(memory, out)) == {"data/sst2-00000.parquet", "manifest.json", "README.md"}


def test_an_interrupted_copy_is_resumed(data: str, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were copied while an earlier one failed are not copied again either."""
    with monkeypatch.context() as broken:
        real, second = type(memory).get_file, threading.Event()

        def fail_first(system: Any, source: str, target: str, **more: Any) -> None:
            if source.endswith("train.jsonl"):
                second.wait(10)
                raise ConnectionError("the line is dead")
            real(system, source, target, **more)
            second.set()

        broken.setattr(type(memory), "get_file", fail_first)
        with pytest.raises(UserError, match="cannot read memory://bucket/data: the line is dead"):
            local_copy(data)
    gets = Transfers(monkeypatch, "get_file")
    copy = local_copy(data)
    assert gets.names == ["/bucket/data/sst2/train.jsonl"] and len(list(copy.rglob("*.jsonl"))) == 2
    (copy / "sst2" / "train.jsonl").write_bytes(b"damaged")
    memory.rm("/bucket/data/sst2/validation.jsonl")
    assert local_copy(data) == copy and (copy / "sst2" / "train.jsonl").read_bytes() == lines(ROWS)
    assert [file.name for file in copy.rglob("*.jsonl")] == ["train.jsonl"], "what is gone is gone here too"


def test_an_incomplete_upload_is_not_replaced_by_an_older_copy(
    data: str, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, here, there = "memory://bucket/corpus", str(tmp_path / "cache"), str(tmp_path / "another machine")
    mask(data, out)
    monkeypatch.setenv("MTKD_CACHE", there)
    assert mask(data, out).made == 0
    monkeypatch.setenv("MTKD_CACHE", here)
    with monkeypatch.context() as broken:
        Transfers(broken, "put_file", fails_at=1)
        with pytest.raises(UserError, match="cannot upload"):
            mask(data, out, seed=1, overwrite=True)
    monkeypatch.setenv("MTKD_CACHE", there)
    with pytest.raises(
        UserError, match="the upload of another output to memory://bucket/corpus was interrupted"
    ):
        mask(data, out)
    monkeypatch.setenv("MTKD_CACHE", here)
    assert mask(data, out, seed=1).made == 0
    assert json.loads(files(memory, out)["manifest.json"])["settings"]["seed"] == 1


def test_files_of_others_beside_a_copy_are_kept(data: str, memory: Any) -> None:
    copy = local_copy(data)
    cached = copy / "logits-0" / "0.safetensors"
    cached.parent.mkdir()
    cached.write_bytes(b"hours of work")
    memory.pipe("/bucket/data/rte/train.jsonl", b"{}")
    local_copy(data)
    memory.rm("/bucket/data/rte/train.jsonl")
    assert local_copy(data) == copy
    assert sorted(place.name for place in copy.iterdir()) == ["logits-0", "sst2"]
    assert cached.read_bytes() == b"hours of work"


def test_a_damaged_copy_is_downloaded_again(
    data: str, memory: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = local_copy(data)
    file = copy / "sst2" / "train.jsonl"
    before = file.stat()
    file.write_bytes(lines(ROWS).replace(b"cats", b"bats", 1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    monkeypatch.setattr(mirror, "_verified", set())  # as if in another process
    gets = Transfers(monkeypatch, "get_file")
    local_copy(data)
    assert file.read_bytes() == lines(ROWS) and gets.names == ["/bucket/data/sst2/train.jsonl"]
    assert (
        f"the local copy of {data}/sst2/train.jsonl is damaged and is copied again" in capfd.readouterr().err
    )


def test_an_index_that_names_files_outside_its_directory_is_rejected(data: str, tmp_path: Path) -> None:
    copy, thesis = local_copy(data), tmp_path / "thesis.tex"
    thesis.write_text("work of years")
    (index,) = cache_directory().glob("inputs/*/index.json")
    for name in (os.path.relpath(thesis, copy), str(thesis)):
        index.write_text(json.dumps(json.loads(index.read_text()) | {name: ["1 x", 1, 1]}))
        with pytest.raises(UserError, match=r"index\.json names a file outside its directory"):
            local_copy(data)
        assert thesis.read_text() == "work of years"


def test_a_file_system_with_few_features_is_supported(
    data: str, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example FTP: one connection, folders that must exist, and files without a version."""
    threads = set()
    for name in ("get_file", "put_file", "pipe_file"):
        real = getattr(type(memory), name)

        def call(
            system: Any, first: str, second: Any, *more: Any, real: Any = real, name: str = name
        ) -> None:
            threads.add(threading.current_thread().name)
            written = {"put_file": second, "pipe_file": first}.get(name)
            assert written is None or system.isdir(written.rpartition("/")[0]), written
            real(system, first, second, *more)

        monkeypatch.setattr(type(memory), name, call)
    monkeypatch.setattr("tasks.common.mirror._MANY_THREADS", ())
    monkeypatch.setattr("tasks.common.mirror.version_of", lambda about: None)
    out = "memory://bucket/new/corpus"
    assert [mask(data, out).made for _ in range(3)] == [1, 0, 0]
    assert all(name.endswith("_0") for name in threads - {"MainThread"}), "the first of each pool"
    monkeypatch.setenv("MTKD_CACHE", str(tmp_path / "another machine"))
    assert mask(data, out).made == 0


def test_a_model_at_an_http_url_is_not_an_endpoint() -> None:
    with pytest.raises(
        UserError, match=r"(cannot read )?http://127\.0\.0\.1:9/teacher( needs the package aiohttp)?"
    ):
        library.evaluate("http://127.0.0.1:9/teacher", "pocket")


def test_work_that_was_not_uploaded_is_kept_and_resumed(
    data: str, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted command resumes in its local copy, unless another process has written to the URL."""
    out = "memory://bucket/corpus"
    with monkeypatch.context() as broken:
        broken.setattr(
            "augment.corpus_writer.write_record", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            mask(data, out)
    assert not files(memory, out)
    memory.pipe("/bucket/corpus/manifest.json", b"{}")
    with pytest.raises(UserError, match="has changed since its local copy was made"):
        mask(data, out)
    memory.rm("/bucket/corpus/manifest.json")
    assert mask(data, out).made == 0, "its shard was finished"
    assert "manifest.json" in files(memory, out)


def test_a_run_can_be_read_and_written_at_urls(
    data: str,
    memory: Any,
    tiny_encoder: Path,
    tmp_path: Path,
    mtkd: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory.put(str(tiny_encoder), "/bucket/encoder", recursive=True)
    task = 'name = "mood"\nkind = "classify"\ncolumns = ["sentence"]\nlabels = ["bad", "good"]\n[files]\n'
    task += 'train = "train.jsonl"\nvalidation = "memory://bucket/data/sst2/validation.jsonl"\n'
    memory.pipe("/bucket/tasks/mood.toml", task.encode())
    memory.pipe("/bucket/tasks/train.jsonl", lines(ROWS))
    given = ("--tasks", "memory://bucket/tasks/mood.toml", "--steps", 1, "--set", "max_length=16", "--quiet")
    words = ("refine", "--encoder", "memory://bucket/encoder", *given, "--out", "memory://bucket/run")
    answered = mtkd(*words)
    assert answered.code == 0, answered.err
    found = files(memory, "memory://bucket/run")
    record = json.loads(found["run.json"])
    assert record["identity"]["encoder"] == "memory://bucket/encoder" and record["status"] == "finished"
    model = json.loads(found["model/model.json"])
    assert model["tasks"][0]["files"]["train"] == "memory://bucket/tasks/train.jsonl"
    assert not [name for name, raw in found.items() if str(cache_directory()).encode() in raw]

    monkeypatch.setenv("MTKD_CACHE", str(tmp_path / "another machine"))
    answered = mtkd(*words[:3], *given[:-1], "--out", "memory://bucket/run")
    assert "already finished: memory://bucket/run" in answered.err, "the identity has no local paths"
    assert mtkd("verify", "memory://bucket/run").code == 0
    memory.pipe("/bucket/rows.csv", b"sentence\nfine\nawful\n")
    words = (
        "--model",
        "memory://bucket/run",
        "--in",
        "memory://bucket/rows.csv",
        "--out",
        "memory://bucket/new.jsonl",
    )
    answered = mtkd("predict", *words)
    assert answered.code == 0 and "memory://bucket/new.jsonl" in answered.err, answered.err
    assert [json.loads(line)["sentence"] for line in memory.cat("/bucket/new.jsonl").splitlines()] == [
        "fine",
        "awful",
    ]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://bucket/dta", r"memory://bucket/dta does not exist \(did you mean '/bucket/data'\?\)"),
        ("s4://bucket/data", r"unknown scheme 's4' \(did you mean 's3'"),
        ("s3://bucket/data", r"needs the package s3fs\n  hint: pip install s3fs"),
        ("gs://bucket/data", r"needs the package gcsfs\n  hint: pip install gcsfs"),
        ("https://host/data", r"needs the package aiohttp"),
        ("s3://key:secret@bucket/data", "passwords and queries are not allowed"),
        ("s3://key:secret/secret@bucket/data", "passwords and queries are not allowed"),
        ("https://secret@host/data", "passwords and queries are not allowed"),
        ("https://host/data?token=secret", "passwords and queries are not allowed"),
        ("memory://bucket/../data", "is not the URL of a file or directory"),
        ("hdfs:///bucket/data", "is not the URL of a file or directory"),
        ("memory://bucket/data/sst2/train.jsonl", "'memory://bucket/data/sst2/train.jsonl' is a file"),
    ],
)
def test_invalid_input_urls_are_errors(
    url: str, message: str, data: str, mtkd: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("s3fs", "gcsfs", "aiohttp"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=message) as caught:
        library.check_data(url, "sst2")
    assert "secret" not in str(caught.value)
    answered = mtkd("data", "check", "--data", url, "--tasks", "sst2")
    assert answered.code == 2 and f"error: {caught.value}" in answered.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("compare", "mkd", "--teacher", "x", "--out", "memory://bucket/grid"),
            "--out memory://bucket/grid cannot",
        ),
        (("demo", "--out", "memory://bucket/demo"), "memory://bucket/demo/teacher: steps write to local"),
        (
            ("data", "check", "--data", "pocket", "--tasks", "sst2", "--quiet", "--json", "memory://x/y"),
            "memory://x/y",
        ),
        (("augment", "mask", "--out", "https://host/corpus"), "can only be read"),
        (("augment", "mask", "--out", "hf://owner/name/corpus"), "mtkd push"),
        (("augment", "mask", "--out", "s4://bucket/corpus"), "unknown scheme 's4'"),
        (("run", "memory://bucket/job.toml"), "cannot be a URL"),
    ],
)
def test_invalid_output_urls_are_errors(
    words: tuple[str, ...],
    message: str,
    mtkd: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ("--data", "pocket", "--tasks", "sst2", "--limit", 4) if words[0] == "augment" else ()
    answered = mtkd(*words, *more)
    assert answered.code == 2 and message in answered.err, answered.err
    assert not [place for place in tmp_path.iterdir() if place.name != "cache"]


def test_failures_to_copy_are_errors_that_name_the_file(
    data: str, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.store["/bucket/data/sst2/../../etc/passwd"] = memory.store["/bucket/data/sst2/train.jsonl"]
    with pytest.raises(UserError, match=r"has a file that cannot be copied: 'sst2/../../etc/passwd'"):
        local_copy(data)
    del memory.store["/bucket/data/sst2/../../etc/passwd"]
    from fsspec.implementations.memory import MemoryFileSystem

    monkeypatch.setattr(
        MemoryFileSystem, "get_file", lambda self, source, target: Path(target).write_bytes(b"x")
    )
    with pytest.raises(UserError, match="changed while it was copied"):
        local_copy(data)


def test_patterns_are_expanded_and_other_values_are_not_taken_for_paths(data: str, memory: Any) -> None:
    """Strings in rows in memory are not paths, and an endpoint is not a model to copy."""
    more = [{"sentence": f"the {n} dogs sleep"} for n in range(3)]
    memory.pipe({f"/bucket/more/{n}.jsonl": lines([row]) for n, row in enumerate(more)})
    memory.pipe("/bucket/more/notes.txt", b"mine")
    given = {"sst2": "memory://bucket/more/*.jsonl"}
    found = mask(data, "memory://bucket/corpus", unlabelled=given).manifest.tasks[0]
    assert (found.source_rows, found.unlabelled) == (15, 3)
    memory.rm("/bucket/more/1.jsonl")
    assert mask(data, "memory://bucket/fewer", unlabelled=given).manifest.tasks[0].unlabelled == 2
    rows = {"sst2": {"train": [{"sentence": "s3://bucket/data", "label": n % 2} for n in range(4)]}}
    given = {"sst2": [{"sentence": "s3://bucket/data"}]}
    assert mask(rows, "memory://bucket/rows", unlabelled=given).manifest.tasks[0].source_rows == 5
    memory.pipe("/bucket/text.txt", b"Anna walked to the old town. The town is near a river.\n")
    with pytest.raises(UserError, match="endpoint_model"):
        library.augment.generate_questions(
            "memory://bucket/text.txt", "memory://bucket/questions", model="http://localhost:1/v1"
        )


def test_a_pipeline_reads_urls(data: str, memory: Any, tmp_path: Path, mtkd: Callable[..., Any]) -> None:
    step = f'command = "augment mask"\ndata = "{data}"\ntasks = "sst2"\ncopies = 2\n'
    (tmp_path / "job.toml").write_text(f'[steps.copies]\n{step}out = "corpus"\n')
    answered = mtkd("run", tmp_path / "job.toml")
    assert answered.code == 0 and (tmp_path / "corpus" / "manifest.json").is_file(), answered.err
    assert "finished before" in mtkd("run", tmp_path / "job.toml").err
    memory.pipe("/bucket/data/sst2/train.jsonl", lines(ROWS[:6]))
    answered = mtkd("run", tmp_path / "job.toml")
    assert answered.code == 0 and f"{data}/sst2/train.jsonl has changed" in answered.err, answered.err
    (tmp_path / "job.toml").write_text(f'[steps.copies]\n{step}out = "memory://bucket/corpus"\n')
    assert "steps write to local directories" in mtkd("run", tmp_path / "job.toml").err


def test_a_store_can_be_at_a_url(tiny_teacher: Path, memory: Any, tmp_path: Path) -> None:
    memory.put(str(tiny_teacher), "/bucket/teacher", recursive=True)
    sets = {"student.max_length": 24, "student.transformer.layers": 2, "student.transformer.heads": 2}
    sets |= {"student.transformer.hidden_size": 8, "student.transformer.intermediate_size": 8}
    given: dict[str, Any] = {"data": "pocket", "tasks": "rte", "limit": 16, "settings": sets}
    given["teacher"] = "memory://bucket/teacher"
    store = "memory://bucket/store"
    there = library.build_store("hsk-tinybert-4", out=store, **given)
    named = given | {"teacher": tiny_teacher}
    here = library.build_store("hsk-tinybert-4", out=tmp_path / "store", **named)
    assert there.key == here.key and there.options["teacher"] == given["teacher"] == there.teacher.name
    shard = f"/bucket/store/{there.shards[0].file}"
    whole = memory.cat_file(shard)
    assert whole == (tmp_path / "store" / there.shards[0].file).read_bytes()
    memory.pipe(shard, whole[:-1] + bytes([whole[-1] ^ 1]))
    assert library.repair_store(store) == [there.shards[0].file] and memory.cat_file(shard) == whole
    assert library.store_info(store) == there and not library.verify(store).damaged
    small = {"student.max_length": 24, "student.head_hidden_size": 8, "student.bilstm.embeddings": "teacher"}
    small |= {f"student.bilstm.{name}_size": 8 for name in ("hidden", "projection", "output")}
    given |= {"teacher": "rte=memory://bucket/teacher", "settings": small, "steps": 1, "eval_limit": 8}
    student = library.distill("mkd-lstm", out="memory://bucket/student", **given)
    assert student.record["identity"]["teacher"] == {"rte": ["memory://bucket/teacher"]}
    assert library.load("memory://bucket/student").scores == student.scores


def test_a_finished_run_of_a_grid_is_found_by_its_command(tmp_path: Path, data: str) -> None:
    from mtkd.jobs.grid.grid_jobs import Job
    from tasks.common.files import write_json
    from tasks.common.records import write_record

    job = Job(("distill", "--data", str(local_copy(data))), tmp_path / "run")
    (tmp_path / "run").mkdir()
    write_record(job.out / "run.json", finished_record())
    write_json(job.command_file, job.command)
    assert json.loads(job.command_file.read_text())[2] == data == as_url(job.command[2]) and job.finished
