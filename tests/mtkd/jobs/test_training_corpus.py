"""The rows of a corpus that a run trains on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import mtkd
from augment import corpus_writer, source_rows
from mtkd.cli.flags import as_options
from mtkd.jobs.training_corpus import add_corpora, corpora_key
from tasks.common.errors import UserError
from tasks.data import loading
from tasks.data.corpus_reader import read_corpus_manifest
from tasks.data.loading import digest_rows, load_rows
from tasks.data.sources import open_data
from tasks.data.unlabelled import UnlabelledRequest
from tasks.glue import TASKS
from tasks.task import Task

ONE = Task(name="one", kind="classify", columns=("a",), labels=("no", "yes"), test=())
TABLE = [{"a": f"text {n} of many", "label": n % 2} for n in range(40)]


@pytest.mark.parametrize("unlabelled", [None, {"one": [(f"more {n}",) for n in range(15)]}])
def test_corpora_of_both_formats_are_matched_to_their_rows(
    unlabelled: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "DIGEST_BLOCK", 12)
    options = {"copies": 2, "unlabelled": unlabelled}
    data, source = {"one": {"train": TABLE}}, open_data({"one": {"train": TABLE}})
    with monkeypatch.context() as patch:  # as before blocks had digests of their own
        patch.setattr(corpus_writer, "CORPUS_FORMAT", 1)
        patch.setattr(source_rows, "digest_blocks", digest_rows)
        mtkd.augment.mask(data, [ONE], tmp_path / "1", **options)
    mtkd.augment.mask(data, [ONE], tmp_path / "2", **options)
    train = load_rows(source, ONE, "train")
    request = UnlabelledRequest(unlabelled) if unlabelled else None
    first, second = (
        add_corpora([tmp_path / name], source, [ONE], ONE, train, train, request)[0] for name in ("1", "2")
    )
    assert len(first) == 40 + 2 * (40 + (15 if unlabelled else 0))
    assert digest_rows(first) == digest_rows(second)
    others = load_rows(open_data({"one": {"train": [*TABLE[:-1], TABLE[0]]}}), ONE, "train")
    for name in ("1", "2"):
        with pytest.raises(UserError, match="was not made from the one rows"):
            add_corpora([tmp_path / name], source, [ONE], ONE, others, others, request)


def test_tasks_without_copies_keep_their_rows_and_corpora_of_one_task_are_combined(tmp_path: Path) -> None:
    two, three = replace(ONE, name="two"), replace(ONE, name="three")
    data = {"one": {"train": TABLE}, "two": {"train": TABLE}}
    a, b = tmp_path / "a", tmp_path / "b"
    mtkd.augment.mask(data, [ONE], a, copies=2)
    mtkd.augment.mask(data, [ONE, two], b, copies=1, seed=1)
    source = open_data(data)
    train = load_rows(source, ONE, "train")
    rows, counts = add_corpora([a], source, [ONE, two], two, train, train, None)
    assert digest_rows(rows) == digest_rows(train) and counts == {}
    rows, counts = add_corpora([a, b], source, [ONE, two], ONE, train, train, None)
    assert len(rows) == 40 + 80 + 40 and counts == {"copies": 120}
    assert len(set(rows.uids.to_pylist())) == len(rows), "stores find rows by their uids"
    with pytest.raises(UserError, match="has copies for one, but the run trains on two, three"):
        add_corpora([a], source, [two, three], two, train, train, None)
    assert corpora_key([a]) == read_corpus_manifest(a).key and corpora_key([]) is None
    assert corpora_key([a, b]) not in (None, corpora_key([a]), corpora_key([b]), corpora_key([b, a]))


@pytest.mark.parametrize(
    ("named", "rows_of", "call", "command"),
    [
        ("pocket", "'pocket'", "data='pocket', tasks='sst2'", "--data pocket --tasks sst2"),
        (None, "the task files", "data=None, tasks='TASK.toml'", "--tasks TASK.toml"),
        ({"sst2": {}}, "'memory'", "data=..., tasks='sst2'", "--data ... --tasks sst2"),
    ],
)
def test_the_hint_of_a_corpus_of_other_rows_can_be_typed(
    named: object, rows_of: str, call: str, command: str, tmp_path: Path
) -> None:
    task = TASKS["sst2"]
    mtkd.augment.mask("pocket", "sst2", tmp_path, copies=1, limit=8)
    rows = load_rows(open_data("pocket"), task, "validation")
    with pytest.raises(UserError, match=f"was not made from the sst2 rows of {rows_of}\n") as error:
        add_corpora([tmp_path], open_data(named), [task], task, rows, rows, None)
    hint = str(error.value.hint)
    assert hint == f"make one from them: `mtkd.augment.mask({call}, out='DIR')`"
    assert as_options(hint) == f"make one from them: mtkd augment mask {command} --out DIR"


def test_corpora_and_stores_are_told_apart(tmp_path: Path) -> None:
    mtkd.augment.mask({"one": {"train": TABLE}}, ONE, tmp_path / "corpus", copies=1)
    with pytest.raises(UserError, match="is a corpus, not a knowledge store"):
        mtkd.store_info(tmp_path / "corpus")
    (tmp_path / "manifest.json").write_text('{"format": 99, "teacher": {}, "contents": {}}')
    with pytest.raises(UserError, match="is a knowledge store, not a corpus"):
        read_corpus_manifest(tmp_path)
