"""Checkpoints without digests whose files are damaged or do not match the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtkd.training.checkpoint import Position, find_checkpoint, restore_checkpoint, save_checkpoint
from mtkd.training.checkpoint_tensors import CHECKPOINT_WEIGHTS, OPTIMIZER
from tasks.common.errors import UserError

Tensors = dict[str, Tensor]


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model with tied weights and its optimiser after a step."""
    module = nn.ModuleDict({"one": nn.Linear(3, 4), "other": nn.Linear(3, 4), "norm": nn.LayerNorm(4)})
    module["other"].weight = module["one"].weight  # type: ignore[assignment]
    optimizer = torch.optim.Adam(module.parameters())
    rows = torch.ones(2, 3)
    module["norm"](module["one"](rows) + module["other"](rows)).square().sum().backward()
    optimizer.step()
    return module, optimizer


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    for step in (2, 4):
        save_checkpoint(tmp_path, *trained(), Position(step=step))
        (tmp_path / f"step-{step:09d}" / "digests.json").unlink()
    return tmp_path


@pytest.mark.parametrize("file", [CHECKPOINT_WEIGHTS, OPTIMIZER, "position.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "directory"])
def test_the_checkpoint_before_a_damaged_one_is_used(checkpoints: Path, file: str, damage: str) -> None:
    path = checkpoints / "step-000000004" / file
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes(b"" if damage == "empty" else b"\xff" * 99)
    position = restore_checkpoint(checkpoints, *trained())
    assert position is not None and position.step == 2
    assert [entry.name for entry in checkpoints.iterdir()] == ["step-000000002"]


@pytest.mark.parametrize(
    "damage", [b"", b"\xff" * 99, b"[]", b"{}", b'{"files": {"../x": "0"}}', "directory", "changed"]
)
def test_the_checkpoint_before_one_with_damaged_digests_is_used(
    damage: bytes | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (2, 4):
        save_checkpoint(tmp_path, *trained(), Position(step=step))
    digests = tmp_path / "step-000000004" / "digests.json"
    if damage == "changed":
        assert '"algorithm": "xxh3_128"' in digests.read_text()
        digests.write_text(digests.read_text().replace("xxh3_128", "xxh3_129"))
    elif isinstance(damage, bytes):
        digests.write_bytes(damage)
    else:
        digests.unlink()
        digests.mkdir()
    position = restore_checkpoint(tmp_path, *trained())
    assert position is not None and position.step == 2
    assert (
        "step-000000004 is damaged; training resumes from the checkpoint before it" in capsys.readouterr().err
    )


def test_a_damaged_checkpoint_is_not_used_after_its_removal_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4):
        save_checkpoint(tmp_path, *trained(), Position(step=step))
    weights = tmp_path / "step-000000004" / CHECKPOINT_WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 4]))

    def interrupted(directory: Path) -> None:
        (directory / "digests.json").unlink()  # its files are removed in any order
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("shutil.rmtree", interrupted)
        find_checkpoint(tmp_path)
    position = restore_checkpoint(tmp_path, *trained())
    assert position is not None and position.step == 2


def test_a_read_error_of_the_digests_removes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, *trained(), Position(step=2))

    def fail(file: Path, *_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tasks.common.reading.open", fail, raising=False)
    with pytest.raises(UserError, match=r"cannot read .*digests\.json: Input/output error"):
        restore_checkpoint(tmp_path, *trained())
    assert len(list(tmp_path.iterdir())) == 1


def test_a_read_error_removes_no_checkpoint(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("mtkd.training.checkpoint.read_header", fail)
    with pytest.raises(OSError, match="Input/output error"):
        restore_checkpoint(checkpoints, *trained())
    assert len(list(checkpoints.iterdir())) == 2


def test_a_run_does_not_resume_from_damaged_checkpoints(checkpoints: Path) -> None:
    for file in checkpoints.glob(f"*/{CHECKPOINT_WEIGHTS}"):
        file.write_bytes(b"damaged")
    assert find_checkpoint(checkpoints) is None


def changed(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        (CHECKPOINT_WEIGHTS, lambda found: found.pop("norm.bias"), "'norm.bias' is missing"),
        (CHECKPOINT_WEIGHTS, lambda found: found.update(more=torch.ones(1)), "the model has no 'more'"),
        (
            CHECKPOINT_WEIGHTS,
            lambda found: found.update({"norm.bias": torch.ones(5)}),
            r"of the shape \(5,\), not \(4,\)",
        ),
        (
            CHECKPOINT_WEIGHTS,
            lambda found: found.update({"norm.bias": torch.ones(4).int()}),
            "of the type torch.int32",
        ),
        (OPTIMIZER, lambda found: found.update(more=torch.ones(1)), "the model has no ''"),
        (OPTIMIZER, lambda found: found.update({"x|step": torch.ones(1)}), "the model has no 'x'"),
        (OPTIMIZER, lambda found: found.pop("norm.bias|exp_avg"), "and another parameter"),
        (OPTIMIZER, lambda found: found.update({"norm.bias|exp_avg": torch.ones(5)}), "is of the shape"),
    ],
)
def test_tensors_of_the_wrong_shape_are_an_error_that_names_the_file(
    checkpoints: Path, file: str, change: Callable[[Tensors], object], problem: str
) -> None:
    changed(checkpoints / "step-000000004" / file, change)
    with pytest.raises(UserError, match=f"step-000000004 does not fit the model: {file}: .*{problem}"):
        restore_checkpoint(checkpoints, *trained())
    assert len(list(checkpoints.iterdir())) == 2


def test_a_file_named_like_a_checkpoint_is_ignored(checkpoints: Path) -> None:
    (checkpoints / "step-000000006").write_text("")
    position = restore_checkpoint(checkpoints, *trained())
    assert position is not None and position.step == 4


def test_a_position_of_another_version_is_an_error(checkpoints: Path) -> None:
    (checkpoints / "step-000000004" / "position.json").write_text('{"step": 4, "more": 1}')
    with pytest.raises(UserError, match=r"there is no key 'more'\n  hint: delete this checkpoint to resume"):
        restore_checkpoint(checkpoints, *trained())
    assert len(list(checkpoints.iterdir())) == 2


@pytest.mark.parametrize("key", ["epoch_losses", "unlogged"])
def test_a_position_with_a_task_without_values_is_an_error(checkpoints: Path, key: str) -> None:
    text = json.dumps({"step": 4, key: {"loss": []}})
    (checkpoints / "step-000000004" / "position.json").write_text(text)
    with pytest.raises(UserError, match=rf"{key}\.loss"):
        restore_checkpoint(checkpoints, *trained())
