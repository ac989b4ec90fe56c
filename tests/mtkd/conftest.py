"""Fixtures that several test files use: encoders, teachers, transformers checkpoints, and a task file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mtkd.jobs.refine import refine
from mtkd.jobs.request import Request
from mtkd.recipes import load_settings

SMALL_RUN = {"train.epochs": 1, "train.batch_size": 16, "max_length": 32, "train.warmup": 0.0}


@pytest.fixture(scope="session")
def write_task() -> Callable[..., Path]:
    """A function that writes `topics.toml`, a task of one text per row, and the rows of its splits."""

    def write(place: Path, kind: str, labels: Sequence[str], **splits: str | list[dict[str, object]]) -> Path:
        """Write rows as JSON lines; a split can also be the name of a file that the caller writes."""
        place.mkdir(parents=True, exist_ok=True)
        files = {}
        for split, given in splits.items():
            files[split] = given if isinstance(given, str) else f"{split}.jsonl"
            if not isinstance(given, str):
                (place / files[split]).write_text("\n".join(map(json.dumps, given)) + "\n", encoding="utf-8")
        settings = {"name": "topics", "kind": kind, "columns": ["text"], "labels": list(labels)}
        tables = (settings, files)
        lines = [
            "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) for table in tables
        ]
        (place / "topics.toml").write_text("\n\n[files]\n".join(lines) + "\n", encoding="utf-8")
        return place / "topics.toml"

    return write


@pytest.fixture(scope="session")
def tiny_teacher(tiny_encoder: Path, build_once: Callable[..., Path]) -> Path:
    """A finished run of `refine` on three pocket tasks."""
    settings = load_settings("refine", "refine", SMALL_RUN)

    def make(out: Path) -> None:
        refine(Request("pocket", "sst2,rte,stsb", out, 48, 32), settings, str(tiny_encoder))

    return build_once("teacher", make)


@pytest.fixture(scope="session")
def span_teacher(tiny_encoder: Path, build_once: Callable[..., Path]) -> Path:
    """A finished run of `refine` on two pocket tasks, one of which is a span task."""
    settings = load_settings("refine", "refine", SMALL_RUN | {"max_length": 48, "stride": 8})

    def make(out: Path) -> None:
        refine(Request("pocket", "squad_v2,rte", out, 48, 32), settings, str(tiny_encoder))

    return build_once("span-teacher", make)


@pytest.fixture
def cached_on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that puts a directory into the hub's cache, as a downloaded model of that name."""
    cache = tmp_path / "hub-cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))

    def put(name: str, place: Path) -> None:
        folder = cache / f"models--{name.replace('/', '--')}"
        shutil.copytree(place, folder / "snapshots" / ("0" * 40))
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0" * 40)

    return put


def byte_level_tokeniser(place: Path) -> Any:
    """Save a byte-level BPE tokeniser of 400 tokens, trained on the pocket rows of sst2."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaTokenizerFast

    from tasks.data.loading import load_rows
    from tasks.data.sources import PocketSource
    from tasks.task_names import resolve

    rows = load_rows(PocketSource(), resolve("sst2")[0], "train")
    bpe = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(rows.texts[0].to_pylist(), vocab_size=400, special_tokens=specials)
    place.mkdir(parents=True, exist_ok=True)
    bpe.save_model(str(place))
    return RobertaTokenizerFast(vocab=str(place / "vocab.json"), merges=str(place / "merges.txt"))


@pytest.fixture
def save_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """A function that saves a random transformers checkpoint with its tokeniser, as fine-tuning would.

    Weights are large, so that logits differ between rows.
    """
    import torch
    import transformers

    from mtkd.models.encoders.pretrained_config import locate

    def save(
        kind: str, name: str = "", *, seed: int = 0, head: str = "", layers: int = 2, **config: Any
    ) -> Path:
        place = tmp_path / (name or kind + head)
        if kind == "Roberta":
            tokeniser = byte_level_tokeniser(tmp_path / "bpe")
        else:
            tokeniser = transformers.AutoTokenizer.from_pretrained(locate("minilm"))
        tokeniser.model_max_length = 64
        sizes = {
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "hidden_size": 16,
        }
        if kind == "DistilBert":
            sizes = {"n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dim": 16}
        sizes |= {"max_position_embeddings": 66 if kind == "Roberta" else 64, "vocab_size": len(tokeniser)}
        settings = getattr(transformers, f"{kind}Config")(
            **sizes, pad_token_id=tokeniser.pad_token_id, **config
        )
        torch.manual_seed(seed)
        model = getattr(transformers, kind + (head or "ForSequenceClassification"))(settings)
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.data.mul_(8.0)
        model.save_pretrained(place)
        tokeniser.save_pretrained(place)
        return place

    return save
