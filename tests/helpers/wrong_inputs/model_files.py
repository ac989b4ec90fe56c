# ruff: noqa: E501
"""Missing, damaged and wrong files of models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wrong_inputs.commands import Command, evaluate, generate, predict, refine
from wrong_inputs.json_files import DEEP
from wrong_inputs.tiny_inputs import Case, TinyInputs, replace

MODEL_FILES = (
    "model.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "heads.safetensors",
    "config.json",
)


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda raw: None, "empty": lambda raw: b"", "cut": lambda raw: raw[: len(raw) // 2],
    "NULs": lambda raw: b"\x00" * len(raw), "JSON": lambda raw: b"{}", "list": lambda raw: b"[]",
    "deep": lambda raw: b"[" * DEEP, "longer": lambda raw: raw + b"\x00" * 8, "header": lambda raw: b"\xff" * 8 + raw[8:],
}  # fmt: skip


def model_cases() -> Iterator[Case]:
    """Yield cases with missing or damaged files of models, encoders and generators."""
    readers: dict[str, tuple[str, Command]] = {
        "teacher": ("model/", lambda inputs, directory, out: evaluate(directory / "teacher", out)),
        "student": ("model/", lambda inputs, directory, out: evaluate(directory / "student", out)),
        "encoder": ("", lambda inputs, directory, out: refine(directory / "encoder", out)),
        "generator": (
            "",
            lambda inputs, directory, out: generate(directory / "generator", inputs.texts, out),
        ),
        "export": ("", lambda inputs, directory, out: predict(directory / "export", out)),
    }
    for item, (folder, command) in readers.items():
        for file in (*MODEL_FILES, "weights.bin", "model-2-texts.onnx", "generation_config.json"):
            for damage, change in DAMAGES.items():

                def make(
                    inputs: TinyInputs,
                    directory: Path,
                    item=item,
                    file=folder + file,
                    change=change,
                    command=command,
                ) -> list[Any]:
                    path = inputs.copy(item, directory) / file
                    if path.exists():
                        raw = path.read_bytes()
                        path.unlink()
                        if (damaged := change(raw)) is not None:
                            path.write_bytes(damaged)
                    return command(inputs, directory, directory / "out")

                yield Case(f"{item} {file} {damage}", make, must_fail=False)
    for item, (folder, command) in readers.items():
        for kind in ("nan", "inf", "extra", "shape", "lost", "int32", "bool", "complex64"):

            def weights(
                inputs: TinyInputs, directory: Path, item=item, folder=folder, kind=kind, command=command
            ) -> list[Any]:
                import torch
                from safetensors.torch import load_file, save_file

                path = inputs.copy(item, directory) / folder / "model.safetensors"
                if path.exists():
                    tensors = load_file(path)
                    name = next(key for key, value in tensors.items() if value.ndim == 2)
                    if kind in ("nan", "inf"):
                        tensors[name][0, 0] = float(kind)
                    elif kind == "shape":
                        tensors[name] = torch.zeros(3, 3)
                    elif kind in ("int32", "bool", "complex64"):
                        tensors[name] = tensors[name].to(getattr(torch, kind))
                    elif kind == "lost":
                        tensors = {
                            key: value for key, value in tensors.items() if ".0." not in key and key != name
                        }
                    else:
                        tensors["other"] = torch.zeros(3)
                    path.unlink()
                    save_file(tensors, path, {"format": "pt"})
                return command(inputs, directory, directory / "out")

            yield Case(f"{item} weights {kind}", weights, must_fail=kind != "extra" and item != "export")
    for key, value in {
        "attn_implementation": "kernels-community/flash-attn", "_attn_implementation": "flash_attention_2",
        "auto_map": {"AutoModel": "evil.Model"}, "quantization_config": {"quant_method": "fp8"},
        "num_hidden_layers": 5, "model_type": "roberta", "hidden_act": "__import__('os')", "hidden_size": 10**9,
        "num_attention_heads": 3, "pad_token_id": 10**6, "vocab_size": 5, "type_vocab_size": 0, "dtype": "float16",
        "return_dict": False, "max_position_embeddings": 2, "layer_norm_eps": -1, "initializer_range": "x",
    }.items():  # fmt: skip
        harmless = key in ("dtype", "return_dict", "initializer_range", "layer_norm_eps")
        for item in ("encoder", "model"):

            def config(inputs: TinyInputs, directory: Path, key=key, value=value, item=item) -> list[Any]:
                if item == "encoder":
                    file = inputs.copy("encoder", directory) / "config.json"
                    replace(file, json.dumps(json.loads(file.read_text()) | {key: value}))
                    return refine(directory / "encoder", directory / "out")
                file = inputs.copy("teacher", directory) / "model/model.json"
                values = json.loads(file.read_text())
                values["encoder"]["hf"][key] = value
                replace(file, json.dumps(values))
                return evaluate(directory / "teacher", directory / "out")

            # RoBERTa can load the weights of BERT: only the digests, which this copy lacks, tell them apart
            fits = harmless or (item, key) == ("model", "model_type")
            yield Case(f"{item} config {key}", config, must_fail=not fits)
