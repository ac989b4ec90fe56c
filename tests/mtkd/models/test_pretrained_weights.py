"""Weights of pretrained encoders: .bin files, whose code is not executed, and weights in several files."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mtkd.evaluation.frozen_encoder import FrozenEncoder
from mtkd.models.encoders.pretrained_config import digest_encoder
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.pretrained_weights import BIN, INDEX, SAFETENSORS
from tasks.common.errors import UserError
from tasks.common.sha256 import digest_file
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS


class Payload:
    """Unpickling it makes a directory."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def with_bin(original: Path, place: Path, weights: Any) -> Path:
    """Return a copy of a directory whose only weights are a .bin file with this content."""
    shutil.copytree(original, place, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(weights, place / BIN)
    return place


def old_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename weights as in early checkpoints of BERT: a prefix, other names of norms, and tied weights."""
    renamed = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): w
        for name, w in weights.items()
    }
    words = weights["embeddings.word_embeddings.weight"]
    return renamed | {"cls.predictions.decoder.weight": words, "fit_dense.weight": torch.ones(2, 2)}


def test_weights_from_bin_and_safetensors_are_equal(
    tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(tiny_encoder / SAFETENSORS)
    place = with_bin(tiny_encoder, tmp_path / "old", old_names(weights))
    expected = TransformerEncoder.pretrained(str(tiny_encoder)).state_dict()
    assert "safetensors" not in capsys.readouterr().err
    found = TransformerEncoder.pretrained(str(place)).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name
    assert f"converting {place / BIN} to safetensors" in capsys.readouterr().err
    before = digest_encoder(str(place))
    torch.save(old_names(weights) | {"more": torch.ones(1)}, place / BIN)
    assert before and digest_encoder(str(place)) != before


@pytest.mark.parametrize("written", ["torch", "pickle"])
def test_code_in_a_bin_is_not_executed(
    written: str, tiny_encoder: Path, tmp_path: Path, mtkd: Callable[..., Any]
) -> None:
    marker, out = tmp_path / "was-run", tmp_path / "run"
    content = {"embeddings.word_embeddings.weight": Payload(marker)}
    place = with_bin(tiny_encoder, tmp_path / "bad", content)
    if written == "pickle":
        (place / BIN).write_bytes(pickle.dumps(content))
    words = ("refine", "--data", "pocket", "--tasks", "rte", "--limit", 8, "--out", out, "--encoder")
    answered = mtkd(*words, place)
    assert (
        answered.code == 2 and "loading could run code" in answered.err and "weights_only" not in answered.err
    )
    assert not marker.exists() and not out.exists()
    torch.load(place / BIN, weights_only=False) if written == "torch" else pickle.loads(
        (place / BIN).read_bytes()
    )
    assert marker.is_dir(), "the payload works"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {"a": torch.ones(1)}, "epoch": 3}, "not a table of tensors, but holds dict, int"),
        (torch.ones(3), "holds one tensor"),
        (
            {"embeddings.word_embeddings.weight": torch.ones(30522, 16)},
            "has no weights for embeddings.LayerNorm.bias",
        ),
    ],
)
def test_bins_with_other_content_are_rejected(
    content: Any, message: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    place = with_bin(tiny_encoder, tmp_path / "other", content)
    with pytest.raises(UserError, match=message):
        TransformerEncoder.pretrained(str(place))
    (place / BIN).write_bytes(b"cut short")
    with pytest.raises(UserError, match="damaged"):
        TransformerEncoder.pretrained(str(place))
    (place / BIN).unlink()
    with pytest.raises(UserError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        TransformerEncoder.pretrained(str(place))


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, torch.uint8])
@pytest.mark.parametrize("split", [False, True])
def test_integer_weights_are_rejected(
    dtype: torch.dtype, split: bool, tiny_encoder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "other"
    shutil.copytree(tiny_encoder, place)
    weights = load_file(place / SAFETENSORS)
    name = "encoder.layer.0.output.dense.weight"
    weights[name] = weights[name].to(dtype)
    (place / SAFETENSORS).unlink()
    file = "part-1.safetensors" if split else SAFETENSORS
    save_file(weights, place / file, {"format": "pt"})
    if split:
        (place / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, file)}))
    with pytest.raises(
        UserError, match=f"{file} cannot be used: {name} holds .*, not floating-point numbers"
    ):
        TransformerEncoder.pretrained(str(place))


def test_the_digest_of_an_encoder_covers_all_parts(tiny_encoder: Path, tmp_path: Path) -> None:
    assert digest_encoder(str(tiny_encoder)) == digest_file(tiny_encoder / SAFETENSORS)
    place = tmp_path / "parts"
    shutil.copytree(tiny_encoder, place)
    weights = load_file(place / SAFETENSORS)
    (place / SAFETENSORS).unlink()
    parts = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(sorted(weights))}
    (place / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": parts}))

    def digest(factor: float) -> str | None:
        for part in set(parts.values()):
            by_name = {name: weights[name] * factor for name in weights if parts[name] == part}
            save_file(by_name, place / part, {"format": "pt"})
        return digest_encoder(str(place))

    rows = load_rows(open_data("pocket"), TASKS["sst2"], "validation", 8)
    digests, vectors = [], []
    for factor in (1.0, 2.0):
        digests.append(digest(factor))
        vectors.append(FrozenEncoder(str(place), tmp_path / "cache").vectors(rows)[0])
    assert None not in digests and digests[0] != digests[1]
    assert not np.array_equal(*vectors), "vectors of other weights are not taken from the cache"
    (place / "part-1.safetensors").unlink()
    with pytest.raises(UserError, match=r"part-1\.safetensors is missing"):
        digest_encoder(str(place))


def test_a_bin_can_come_from_the_hub(
    tiny_encoder: Path, cached_on_hub: Callable[..., None], tmp_path: Path
) -> None:
    weights = load_file(tiny_encoder / SAFETENSORS)
    cached_on_hub("some/encoder", with_bin(tiny_encoder, tmp_path / "old", weights))
    found = TransformerEncoder.pretrained("some/encoder").state_dict()
    for name, weight in TransformerEncoder.pretrained(str(tiny_encoder)).state_dict().items():
        assert torch.equal(found[name], weight), name
