"""Output directories and shards: what is rejected, removed, kept and rebuilt."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtkd.output_files.distributed import ProcessGroup
from mtkd.output_files.output_directory import CLAIM, OutputKind, check_directory, open_directory
from mtkd.output_files.sharded_output import Footer, Make, PlannedShard, ShardedOutput
from mtkd.output_files.worker_pools import Workers
from tasks.common.errors import UserError
from tasks.common.locks import LOCK, locked


def read_identity(directory: Path) -> Any:
    path = directory / "note.json"
    return json.loads(path.read_text())["identity"] if path.is_file() else None


KIND = OutputKind("notebook", "note.json", (r"note\.json", r"pages/\d+\.txt"), read_identity)


def write_notebook(path: Path, identity: Any = "a") -> Path:
    (path / "pages").mkdir(parents=True)
    (path / "pages/1.txt").write_text("one")
    (path / "note.json").write_text(json.dumps({"identity": identity}))
    return path


def files_of(path: Path) -> list[str]:
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and file.name not in (LOCK, CLAIM)
    )


def test_an_empty_directory_is_accepted_and_the_same_output_resumed(tmp_path: Path) -> None:
    assert not check_directory(tmp_path / "new", KIND, "a")
    new = tmp_path / "new"
    writing = pytest.raises(UserError, match="another process is writing")
    with open_directory(new, KIND, "a"), writing, locked(new):
        pass
    there = write_notebook(tmp_path / "there", {"a": [1]})
    assert check_directory(there, KIND, {"a": [1]})
    with open_directory(there, KIND, {"a": [1]}):
        assert files_of(there) == ["note.json", "pages/1.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "pages/mine.txt", "other/1.txt"])
def test_foreign_files_are_named_and_nothing_is_touched(tmp_path: Path, name: str, overwrite: bool) -> None:
    there = write_notebook(tmp_path / "there")
    (there / name).parent.mkdir(exist_ok=True)
    (there / name).write_text("work of years")
    before = files_of(there)
    refused = pytest.raises(UserError, match=f"do not belong to a notebook: {name}")
    with refused, open_directory(there, KIND, "a", overwrite=overwrite):
        pass
    assert files_of(there) == before


def test_files_with_the_right_names_but_no_marker_are_foreign(tmp_path: Path) -> None:
    there = write_notebook(tmp_path / "there")
    (there / "note.json").unlink()
    with pytest.raises(UserError, match=r"pages/1\.txt"):
        check_directory(there, KIND, "a", overwrite=True)


def test_a_different_output_is_rejected_or_overwritten(tmp_path: Path) -> None:
    there = write_notebook(tmp_path / "there", "b")
    (there / ".git").mkdir()
    (there / ".git/config").write_text("")
    with pytest.raises(UserError, match="another notebook: it is blue"):
        check_directory(there, KIND, "a", difference=lambda: "it is blue")
    with open_directory(there, KIND, "a", overwrite=True):
        assert files_of(there) == [".git/config"] and not (there / "pages").exists()


def test_an_interrupted_removal_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = write_notebook(tmp_path / "there", "b")

    def killed(path: Path, **options: Any) -> None:
        if path.exists():
            os.unlink(path)
        if path.name == "note.json":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        with open_directory(there, KIND, "a", overwrite=True):
            pass
    assert (there / "pages/1.txt").is_file() and not (there / "note.json").exists()
    assert not check_directory(there, KIND, "a")
    (there / "thesis.tex").write_text("work of years")
    with pytest.raises(UserError, match=r"do not belong to a notebook: thesis\.tex\n"):
        check_directory(there, KIND, "a")
    (there / "thesis.tex").unlink()
    with open_directory(there, KIND, "a"):
        assert files_of(there) == []


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    there = write_notebook(tmp_path / "there")
    mark = "0123456789abcdef"
    (there / "other").mkdir()
    (there / "other" / LOCK).touch()  # a different output, which may be in use
    for name in (
        f".note.json.{mark}.tmp",
        f"pages/.2.txt.{mark}.tmp",
        "pages/.2.txt.swp",
        f"other/.a.{mark}.tmp",
    ):
        (there / name).write_text("half")
    (there / f".work.{mark}.old").mkdir()
    with open_directory(there, KIND, "a"):
        assert files_of(there) == ["note.json", f"other/.a.{mark}.tmp", "pages/.2.txt.swp", "pages/1.txt"]
        assert not (there / f".work.{mark}.old").exists()


def test_processes_wait_for_each_other_at_the_start_and_the_end(tmp_path: Path) -> None:
    """The first process changes the directory only while the second one does not read it."""
    there, together, seen = write_notebook(tmp_path / "there"), threading.Barrier(2), []

    def slow_finish(path: Path) -> bool:
        time.sleep(0.2)
        return KIND.read_identity(path) is not None

    kind = replace(KIND, work=(r"pages/\d+\.txt",), is_finished=slow_finish)

    def second() -> None:
        time.sleep(0.2)
        seen.append(files_of(there))  # as it inspects the directory
        with open_directory(there, kind, "b", group=ProcessGroup(1, 2, together.wait)):
            time.sleep(0.2)
            seen.append(files_of(there))
        seen.append([*files_of(there), str((there / CLAIM).is_file())])

    thread = threading.Thread(target=second)
    thread.start()
    with open_directory(there, kind, "b", overwrite=True, group=ProcessGroup(0, 2, together.wait)):
        write_notebook(there, "b")
    thread.join()
    assert seen == [["note.json", "pages/1.txt"], ["note.json", "pages/1.txt"], ["note.json", "False"]]


class LineFormat:
    """A text format with the key on the first line and one line per item."""

    def write(self, path: Path, content: list[str], key: str) -> None:
        path.write_text("\n".join([key, *content]))

    def read_footer(self, path: Path) -> Footer | None:
        lines = path.read_text().split("\n") if path.is_file() else None
        return Footer(lines[0], len(lines) - 1) if lines else None


def make_lines(shard: PlannedShard, advance: Any) -> list[str]:
    advance(shard.size)
    return [str(number) for number in shard.rows]


def planned(path: Path, key: str = "k") -> ShardedOutput:
    shards = [PlannedShard(f"{n}.txt", "t", np.arange(3 * n, 3 * n + 3)) for n in range(5)]
    return ShardedOutput(path, key, shards, LineFormat())


def record_and_open(record: Path) -> Make:
    """Return a setup function that records the process that calls it."""
    with record.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return make_lines


@pytest.fixture(params=["here", "processes", "ray"])
def workers(request: pytest.FixtureRequest) -> Workers:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return Workers(engine="ray")
    return Workers(1 if request.param == "here" else 2)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_only_missing_damaged_and_foreign_shards_are_rebuilt(
    tmp_path: Path, workers: Workers, is_recorded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    record, tmp_path = tmp_path / "opened", tmp_path / "out"
    output = planned(tmp_path)
    output.write(output.missing(), make_lines, workers=workers)
    entries = output.entries()
    recorded = {entry.file: entry.sha256 for entry in entries}
    assert [entry.rows for entry in entries] == [3] * 5 and not output.missing()
    assert all(entry.damage(tmp_path, digest=True) is None for entry in entries)
    before = {file: (tmp_path / file).read_text() for file in files_of(tmp_path)}
    for file in recorded if is_recorded else ():  # it was finished
        (tmp_path / f"{file}.digest").unlink()
    (tmp_path / "0.txt").unlink()
    (tmp_path / "1.txt").write_text("other\n3\n4\n5")
    (tmp_path / "2.txt").write_text("k\n6\n7\n9")  # detected only by its digest
    if not is_recorded:
        (tmp_path / "3.txt.digest").unlink()
    recorded = recorded if is_recorded else {}
    missing = output.missing(recorded)
    assert [shard.file for shard in missing] == ["0.txt", "1.txt", "2.txt", "3.txt"][: 4 - is_recorded]
    assert [entry.damage(tmp_path, digest=True) is None for entry in entries] == [False] * 3 + [True] * 2
    done: list[int] = []
    setup = partial(record_and_open, record)
    output.write(missing, setup=setup, workers=workers, advance=done.append)
    opened = record.read_text().split()
    assert len(set(opened)) == len(opened) and (str(os.getpid()) in opened) != workers.in_other_processes
    assert "damaged or have no digest are rewritten: 1.txt, 2.txt" in capsys.readouterr().err
    if not is_recorded:
        assert {file: (tmp_path / file).read_text() for file in files_of(tmp_path)} == before
    assert sum(done) == 3 * len(missing) and output.entries(recorded) == entries
    assert output.missing(recorded) == []


def die_once(inputs: tuple[PlannedShard, Path], advance: Any) -> list[str]:
    """Make a shard; kill the first worker that makes the third shard."""
    shard, died = inputs
    if shard.file == "2.txt" and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return make_lines(shard, advance)


def open_die_once() -> Make:
    return die_once


def test_a_killed_process_ends_the_job(tmp_path: Path) -> None:
    output, died = planned(tmp_path / "out"), tmp_path / "died"
    with pytest.raises(UserError, match="a worker process was killed"):
        output.write(output.missing(), die_once, inputs=lambda s: (s, died), workers=Workers(2))
    output.write(output.missing(), die_once, inputs=lambda s: (s, died))
    assert not output.missing()


@pytest.mark.parametrize("given", [{"make": die_once}, {"setup": open_die_once}], ids=["task", "actor"])
def test_ray_repeats_the_shard_of_a_killed_worker(
    tmp_path: Path, ray_cluster: None, given: dict[str, Any]
) -> None:
    output, died = planned(tmp_path / "out"), tmp_path / "died"
    output.write(output.missing(), inputs=lambda s: (s, died), workers=Workers(2, "ray"), **given)
    assert died.exists()
    whole = planned(tmp_path / "whole")
    whole.write(whole.missing(), make_lines)
    assert output.entries() == whole.entries()


def make_slowly(inputs: tuple[PlannedShard, Path], advance: Any) -> list[str]:
    shard, begun = inputs
    (begun / shard.file).touch()
    time.sleep(0.1 if shard.file == "0.txt" else 1.5)
    return make_lines(shard, advance)


def open_make_slowly() -> Make:
    return make_slowly


@pytest.mark.parametrize("given", [{"make": make_slowly}, {"setup": open_make_slowly}], ids=["task", "actor"])
def test_ray_writes_nothing_after_an_interruption(
    tmp_path: Path, ray_cluster: None, given: dict[str, Any]
) -> None:
    output, begun = planned(tmp_path / "out"), tmp_path / "begun"
    begun.mkdir()

    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.write(
            output.missing(),
            inputs=lambda s: (s, begun),
            workers=Workers(2, "ray"),
            advance=interrupt,
            **given,
        )
    before = files_of(tmp_path / "out"), files_of(begun)
    time.sleep(2)
    assert (files_of(tmp_path / "out"), files_of(begun)) == before and len(before[1]) < 5


def test_invalid_numbers_of_workers_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="`address` applies only to `engine='ray'`"):
        Workers(address="auto")
    monkeypatch.setattr("mtkd.output_files.worker_pools.join_process_group", lambda: ProcessGroup(0, 2))
    assert Workers(2).in_other_processes
    with pytest.raises(UserError, match="Ray starts its own processes"):
        Workers(engine="ray")


def test_ray_is_used_even_for_a_single_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = planned(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(UserError, match="needs the package ray"):
        output.write(output.missing()[:1], make_lines, workers=Workers(engine="ray"))
    output.write([], make_lines, workers=Workers(engine="ray"))


def test_ranks_share_the_shards(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)
    written: dict[int, list[str]] = {0: [], 1: []}

    def work(number: int) -> None:
        def make(shard: PlannedShard, advance: Any) -> list[str]:
            written[number].append(shard.file)
            return make_lines(shard, advance)

        output = planned(tmp_path / "two")
        output.write(output.missing(), make, group=ProcessGroup(number, 2, lambda: barrier.wait(30) and None))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(written[0]), len(written[1])) == (3, 2)
    one = planned(tmp_path / "one")
    one.write(one.missing(), make_lines)
    assert one.entries() == planned(tmp_path / "two").entries()
