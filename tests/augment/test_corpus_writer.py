"""Corpora on disk: reproducible output, interruptions, overwriting and damaged files."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interrupted_shards import flip_a_bit, interrupt

from augment.copies_warnings import copies_warnings
from augment.corpus_writer import CorpusSpec, copies_of, total_copies, write_corpus
from augment.masking import Masking
from augment.replacement import Replacement
from mtkd.output_files.output_directory import CLAIM
from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError
from tasks.common.locks import LOCK
from tasks.data.corpus_reader import corpus_rows, read_corpus
from tasks.data.rows import Rows
from tasks.task import Task

ROOT = Path(__file__).resolve().parents[2]
SPEC = CorpusSpec(
    Masking(0.3, seed=5), {"rte": 4, "sst2": 3}, "made up", "0.1", "mtkd augment mask", shard_copies=90
)


def make_rows() -> dict[str, Rows]:
    draw = random.Random(0)

    def text() -> pa.StringArray:
        words = ["no", "one", "saw", "the", "heron", "où"]
        return pa.array([" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(100)])

    def rows(task: str, texts: int) -> Rows:
        uids = pa.array([f"{task}/train/{number}" for number in range(100)])
        return Rows(task, "train", uids, tuple(text() for _ in range(texts)), np.arange(100) % 2 + 0.0)

    return {"rte": rows("rte", 2), "sst2": rows("sst2", 1)}


ROWS = make_rows()


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpora") / "whole"
    write_corpus(SPEC, ROWS, out)
    return out


@pytest.fixture
def finished_copy(finished: Path, tmp_path: Path) -> Path:
    for name, raw in contents(finished).items():
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).write_bytes(raw)
    return tmp_path / "c"


def test_rows_read_back_in_order_and_unlabelled(finished):
    assert [task.name for task in read_corpus(finished).tasks] == ["rte", "sst2"]
    for task, copies in SPEC.copies.items():
        table = pa.concat_tables([part.table for part in SPEC.augmenter.make_copies(ROWS[task], copies)])
        rows = corpus_rows(finished, task)
        columns = ["text", "text_pair"][: len(ROWS[task].texts)]
        assert [text.to_pylist() for text in rows.texts] == [table[name].to_pylist() for name in columns]
        parents = [uid for uid in ROWS[task].uids.to_pylist() for _ in range(copies)]
        numbers = list(range(1, copies + 1)) * 100
        assert rows.uids.to_pylist() == [f"{a}#{b}" for a, b in zip(parents, numbers, strict=True)]
        assert np.isnan(rows.labels).all() and rows.groups is None and not rows.labelled


def test_manifest_counts_match_the_shards(finished):
    manifest = read_corpus(finished)
    assert manifest.rows == total_copies(SPEC, ROWS) == 700
    assert manifest.settings == {"p": 0.3, "seed": 5, "mask_token": "[MASK]"}
    assert len(manifest.shards) == 5 + 4  # 22 rows * 4 copies per shard; 30 rows * 3 copies
    for entry in manifest.tasks:
        texts = corpus_rows(finished, entry.name).texts
        copies = [
            " ".join(parts).split() for parts in zip(*(text.to_pylist() for text in texts), strict=True)
        ]
        masked = [copy.count("[MASK]") for copy in copies]
        assert entry.words_changed == pytest.approx(sum(masked) / sum(map(len, copies)), abs=1e-6)
        assert entry.unchanged == pytest.approx(masked.count(0) / len(copies), abs=1e-6)
    card = (finished / "README.md").read_text()
    assert (
        "deliberately unlabelled" in card
        and "mtkd augment mask" in card
        and "| rte | 100 | 4 | 400 |" in card
    )


def test_rows_without_text_are_not_copied(tmp_path):
    texts = ["some words here", " ", "", "."]
    rows = {
        "rte": replace(ROWS["rte"].slice(0, 4), texts=(pa.array(texts), pa.array([*texts[:3], ""]))),
        "sst2": replace(ROWS["sst2"].slice(0, 4), texts=(pa.array(texts),)),
    }
    for method in (Masking(0.3, seed=5), Replacement(tagger="none")):
        spec = replace(SPEC, augmenter=method.prepare(rows), shard_copies=8)
        write_corpus(spec, rows, tmp_path / method.name)
        manifest = read_corpus(tmp_path / method.name)
        assert [(task.source_rows, task.rows) for task in manifest.tasks] == [(4, 2 * 4), (4, 2 * 3)]
        parents = corpus_rows(tmp_path / method.name, "rte").uids.to_pylist()
        assert [uid.rpartition("#")[0][-2:] for uid in parents] == ["/0"] * 4 + ["/3"] * 4
        assert all(0 <= task.unchanged <= 1 for task in manifest.tasks)
        assert copies_warnings(manifest)[0] == "2 rows of rte have no text and were not copied"


def test_many_unchanged_copies_cause_a_warning(finished, tmp_path):
    assert copies_warnings(read_corpus(finished)) == []
    write_corpus(replace(SPEC, augmenter=Masking(0.01)), ROWS, tmp_path / "c")
    first, _ = copies_warnings(read_corpus(tmp_path / "c"))
    assert "no word is changed in" in first and "raise `p` (now 0.01) to change more" in first


def test_datasets_loads_it_and_no_row_has_a_label(finished, tmp_path):
    files = {"train": str(finished / "data/rte-*.parquet")}
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    assert len(loaded) == 400 and set(loaded["label"]) == {None} and set(loaded["task"]) == {"rte"}


@pytest.mark.parametrize(
    "method", [Masking(0.3, seed=5), Replacement(tagger="none", p_pos=0.0)], ids=lambda method: method.name
)
def test_memory_mapped_texts_write_identical_output(tmp_path, method):
    def widened(rows):
        texts = tuple(text.cast(pa.large_string()) for text in rows.texts)
        return replace(rows, uids=rows.uids.cast(pa.large_string()), texts=texts)

    kinds = {"plain": ROWS, "mapped": {task: widened(rows) for task, rows in ROWS.items()}}
    for name, rows in kinds.items():
        write_corpus(replace(SPEC, augmenter=method.prepare(rows)), rows, tmp_path / name)
    assert contents(tmp_path / "mapped") == contents(tmp_path / "plain")


def test_two_processes_write_identical_output(finished, tmp_path):
    done: list[int] = []
    assert write_corpus(SPEC, ROWS, tmp_path / "two", workers=Workers(2), advance=done.append).made == 9
    assert contents(tmp_path / "two") == contents(finished)
    assert sum(done) == 700


def test_interrupted_job_resumes_to_identical_output(finished, tmp_path):
    out, seen = tmp_path / "c", 0

    def stop(count: int) -> None:
        nonlocal seen
        seen += count
        if seen > 400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(SPEC, ROWS, out, advance=stop)
    assert not [name for name in contents(out) if name.endswith(".tmp")]
    with pytest.raises(UserError, match="unfinished corpus"):
        read_corpus(out)
    kept = len(list(out.glob("data/*.parquet")))
    written = write_corpus(SPEC, ROWS, out)
    assert (written.made, written.kept) == (9 - kept, kept) and kept > 0
    assert contents(out) == contents(finished)
    assert write_corpus(SPEC, ROWS, out).made == 0
    assert contents(out) == contents(finished)


def test_a_shard_damaged_after_an_interruption_is_rebuilt(finished, tmp_path, monkeypatch, capsys):
    out = tmp_path / "c"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, 3, KeyboardInterrupt())
        write_corpus(SPEC, ROWS, out)
    first, second, _ = sorted(out.glob("data/*.parquet"))
    flip_a_bit(first, 300)
    second.with_name(second.name + ".digest").unlink()
    written = write_corpus(SPEC, ROWS, out)
    assert (written.made, written.kept) == (8, 1)
    assert f"are rewritten: data/{first.name}, data/{second.name}\n" in capsys.readouterr().err
    assert contents(out) == contents(finished)


KILLED = """
import os, runpy, signal, sys
from pathlib import Path
here = runpy.run_path(sys.argv[1])
if __name__ == "__main__":
    seen = 0
    def advance(count):
        global seen
        seen += count
        if seen > 300:
            print("now", flush=True)
            if sys.argv[3] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
    options = dict(workers=here["Workers"](int(sys.argv[3])), advance=advance)
    here["write_corpus"](here["SPEC"], here["ROWS"], Path(sys.argv[2]), **options)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_job_resumes_to_identical_output(finished, tmp_path, workers):
    script, out = tmp_path / "killed.py", tmp_path / "c"
    script.write_text(KILLED)
    command = [sys.executable, str(script), __file__, str(out), str(workers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")])}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"now\n"
            if workers == 2:
                with pytest.raises(UserError, match="another process is writing"):
                    write_corpus(SPEC, ROWS, out)
        finally:
            process.kill()
        process.stdout.read()  # ends only when the workers, which share it, have exited
    assert not (out / "manifest.json").exists()
    written = write_corpus(SPEC, ROWS, out)
    assert written.kept >= 3 and written.made + written.kept == 9
    assert contents(out) == contents(finished)


def test_a_different_job_is_rejected_without_overwrite(finished, finished_copy):
    before = contents(finished_copy)
    others = [
        replace(SPEC, augmenter=Masking(0.3, seed=6)),
        replace(SPEC, copies={"rte": 4, "sst2": 2}),
        replace(SPEC, shard_copies=100),
    ]
    for other in others:
        with pytest.raises(UserError, match="another corpus") as error:
            write_corpus(other, ROWS, finished_copy)
        assert "`overwrite=True`" in str(error.value)
    with pytest.raises(UserError, match="another corpus"):
        write_corpus(SPEC, {**ROWS, "rte": ROWS["rte"].take(np.arange(99))}, finished_copy)
    (finished_copy / "manifest.json").unlink()
    with pytest.raises(UserError, match="another corpus"):
        write_corpus(others[0], ROWS, finished_copy)
    assert contents(finished_copy) == {name: raw for name, raw in before.items() if name != "manifest.json"}
    write_corpus(others[1], ROWS, finished_copy, overwrite=True)
    assert read_corpus(finished_copy).task("sst2").rows == 200
    write_corpus(SPEC, ROWS, finished_copy, overwrite=True)
    assert contents(finished_copy) == contents(finished)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_shard_missing_from_the_manifest_is_not_touched(finished_copy, overwrite):
    (finished_copy / "data/mine-00000.parquet").write_text("work of years")
    before = contents(finished_copy)
    with pytest.raises(UserError, match=r"do not belong to a corpus: data/mine-00000\.parquet\n"):
        write_corpus(replace(SPEC, shard_copies=100), ROWS, finished_copy, overwrite=overwrite)
    assert contents(finished_copy) == before


@pytest.mark.parametrize("name", ["thesis.tex", "README.md", "data/mine.parquet", "manifest.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_with_other_files_is_not_touched(tmp_path, name, overwrite):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError):
        write_corpus(SPEC, ROWS, tmp_path, overwrite=overwrite)
    assert contents(tmp_path) == {name: b"{}"}


def test_a_damaged_shard_is_rejected_and_rebuilt(finished, finished_copy):
    path = finished_copy / "data/rte-00001.parquet"
    raw = path.read_bytes()

    changed = bytearray(raw)
    changed[len(raw) // 3] ^= 1
    for damaged, problem in ((raw[:-10], "bytes, not"), (bytes(changed), "SHA-256"), (None, "is missing")):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(UserError, match=problem) as error:
            corpus_rows(finished_copy, "rte")
        assert str(path) in str(error.value)
        assert write_corpus(SPEC, ROWS, finished_copy).made == 1
        assert contents(finished_copy) == contents(finished)


def test_invalid_corpora_are_rejected(finished_copy, tmp_path):
    with pytest.raises(UserError, match=r"there is no corpus .*nowhere"):
        read_corpus(tmp_path / "nowhere")
    with pytest.raises(UserError, match="did you mean 'rte'"):
        corpus_rows(finished_copy, "rtte")
    path = finished_copy / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(UserError, match="format 99"):
        read_corpus(finished_copy)
    path.write_text(json.dumps({"format": 1, "tasks": []}))
    with pytest.raises(UserError, match="lacks the key 'method'"):
        read_corpus(finished_copy)


def test_a_full_disk_keeps_the_finished_shards(finished, tmp_path, monkeypatch):
    written = 0
    real = pq.ParquetWriter.write_table

    def write_table(self, *args, **kwargs):
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", write_table)
        with pytest.raises(UserError, match="disk is full"):
            write_corpus(SPEC, ROWS, tmp_path / "c")
    files = [name for name in sorted(contents(tmp_path / "c")) if name not in (LOCK, CLAIM)]
    kept = [f"data/rte-0000{number}.parquet" for number in range(3)]
    assert files == sorted([*kept, *(f"{file}.digest" for file in kept)])
    assert write_corpus(SPEC, ROWS, tmp_path / "c").kept == 3
    assert contents(tmp_path / "c") == contents(finished)


def test_defaults_and_errors_of_the_number_of_copies():
    tasks = [Task("rte", "classify", ("a", "b"), copies=40), Task("sst2", "classify", ("a",))]
    assert copies_of(tasks) == {"rte": 40, "sst2": 10}
    assert copies_of(tasks, "sst2=3") == {"rte": 40, "sst2": 3}
    assert copies_of(tasks, " 7, rte = 2 ") == {"rte": 2, "sst2": 7}
    with pytest.raises(UserError, match=r"'sst'.*did you mean 'sst2'"):
        copies_of(tasks, "sst=3")
    for typo in ("rte=", "rte=x", "rte=0", "rte=-1", "rte=1.5", "rte:4", "=4", "rte=²"):
        with pytest.raises(UserError):
            copies_of(tasks, typo)


def test_a_job_without_rows_is_an_error():
    with pytest.raises(UserError, match="no task to copy"):
        write_corpus(SPEC, {}, Path("unused"))
    with pytest.raises(UserError, match="'rte' has no rows"):
        write_corpus(SPEC, {"rte": ROWS["rte"].take(np.arange(0))}, Path("unused"))
    with pytest.raises(UserError, match="0 copies of task 'rte'"):
        write_corpus(replace(SPEC, copies={"rte": 0}), {"rte": ROWS["rte"]}, Path("unused"))
    assert not Path("unused").exists()
