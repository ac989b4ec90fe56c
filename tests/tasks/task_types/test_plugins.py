"""A task type that another installed package provides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.common.errors import UserError
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.task_names import resolve
from tasks.task_types import registry

MODULE = '''
from tasks.task_types import LossSum
from tasks.task_types.regression import Regression


class Count(Regression):
    """Counts: the logit is the logarithm of the expected count."""

    default_metrics = ("spearman",)

    def loss(self, task, logits, labels, groups=None):
        known = ~labels.isnan()
        rate = logits.float().squeeze(1)
        return LossSum(((rate.exp() - labels.nan_to_num() * rate) * known).sum(), known.sum())

    def decode(self, task, logits, groups=None, threshold=None):
        return super().decode(task, logits).round()
'''
TOML = """
name = "words"
kind = "count"
columns = ["text"]
range = [0.0, 9.0]
[files]
train = "train.csv"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package on sys.path that registers the task type `count`; the fixture's value is a task file."""
    site = tmp_path / "site"
    info = site / "counting-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "counting_type.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mtkd.task_types]\ncount = counting_type:Count\n")
    (tmp_path / "words.toml").write_text(TOML)
    (tmp_path / "train.csv").write_text("text,label\na b,2\na,1\n")
    monkeypatch.syspath_prepend(site)
    _forget()
    yield tmp_path / "words.toml"
    _forget()


def _forget() -> None:
    for cached in (registry.installed_types, registry.task_type, registry._find):
        cached.cache_clear()


def test_a_plugin_task_type_works_like_a_built_in_one(installed: Path) -> None:
    [task] = resolve(str(installed))
    assert "count" in registry.task_type_names()
    assert task.metrics == ("spearman",)
    rows = load_rows(open_data("pocket"), task, "train")
    assert rows.labels.tolist() == [2.0, 1.0]
    logits = torch.tensor([[0.5], [0.0]])
    expected = (np.exp(0.5) - 2 * 0.5) + 1.0
    found = task.type.loss(task, logits, torch.tensor(rows.labels))
    assert found.total.item() == pytest.approx(expected)
    assert task.type.decode(task, np.array([[1.4], [20.0]])).tolist() == [1.0, 9.0]


def test_a_plugin_task_type_is_unknown_without_its_package(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    _forget()
    with pytest.raises(UserError, match=r"unknown task type in .*'count'"):
        resolve(str(installed))
