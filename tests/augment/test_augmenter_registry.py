"""Augmenters by name, and a plugin augmenter on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from augment.augmenter_registry import build_augmenter
from augment.masking import Masking
from tasks.common.errors import UserError
from tasks.data.corpus_reader import corpus_rows, read_corpus
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with the augmenter of tests/helpers/reversing_plugin.py."""
    site = tmp_path / "site"
    info = site / "reversing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reversing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mtkd.augmenters]\nreverse = reversing_plugin:Reverse\n")
    monkeypatch.syspath_prepend(str(site))


def test_built_in_augmenters_by_name() -> None:
    assert build_augmenter("mask", {"p": 0.2, "seed": 3}) == Masking(0.2, seed=3)
    with pytest.raises(UserError, match="did you mean 'seed'"):
        build_augmenter("mask", {"sead": 3})
    for wrong in ({"p": "often"}, {"p": True}, {"seed": 1.5}, {"mask_token": 5}):
        ((setting, value),) = wrong.items()
        with pytest.raises(UserError, match=f"the augmenter 'mask': {setting}={value!r} is not valid"):
            build_augmenter("mask", wrong)
    with pytest.raises(UserError, match="0 < p < 1"):
        build_augmenter("mask", {"p": 3})
    with pytest.raises(UserError, match=r"`mtkd\.augment\.generate_questions`"):
        build_augmenter("questions", {})


def test_an_augmenter_from_another_package(plugin: None, mtkd: Callable, tmp_path: Path) -> None:
    words = ("augment", "run", "reverse", "--data", "pocket", "--tasks", "rte", "--limit", 12)
    out = tmp_path / "corpus"
    done = mtkd(*words, "--set", "start=7", "--copies", 2, "--out", out)
    assert done.code == 0, done.err
    manifest = read_corpus(out)
    assert (manifest.method, manifest.settings) == ("reverse", {"start": 7, "mark": "#"})
    copies = corpus_rows(out, "rte")
    source = load_rows(open_data("pocket"), resolve("rte")[0], "train", 12)
    for made, column in zip(copies.texts, source.texts, strict=True):
        plain = [" ".join(text.split()[::-1]) for text in column.to_pylist()]
        assert made.to_pylist() == [f"{text} #{number}" for text in plain for number in (7, 8)]
    again = mtkd(*words, "--set", "start=8", "--copies", 2, "--out", out)
    assert again.code == 2 and "holds another corpus" in again.err
    missing = mtkd(*words, "--out", tmp_path / "other")
    assert missing.code == 2 and "needs start" in missing.err and "--set start=..." in missing.err
    assert not (tmp_path / "other").exists()
