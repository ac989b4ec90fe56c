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
    users: dict[str, tuple[str, Command]] = {
        "teacher": ("model/", lambda inputs, at, out: evaluate(at / "teacher", out)),
        "student": ("model/", lambda inputs, at, out: evaluate(at / "student", out)),
        "encoder": ("", lambda inputs, at, out: refine(at / "encoder", out)),
        "generator": ("", lambda inputs, at, out: generate(at / "generator", inputs.texts, out)),
        "export": ("", lambda inputs, at, out: predict(at / "export", out)),
    }
    for item, (folder, words) in users.items():
        for file in (*MODEL_FILES, "weights.bin", "model-2-texts.onnx", "generation_config.json"):
            for damage, change in DAMAGES.items():

                def make(
                    inputs: TinyInputs, at: Path, i=item, f=folder + file, c=change, w=words
                ) -> list[Any]:
                    path = inputs.copy(i, at) / f
                    if path.exists():
                        raw = path.read_bytes()
                        path.unlink()
                        if (new := c(raw)) is not None:
                            path.write_bytes(new)
                    return w(inputs, at, at / "out")

                yield Case(f"{item} {file} {damage}", make, refused=False)
    for item, (folder, words) in users.items():
        for kind in ("nan", "inf", "extra", "shape", "lost", "int32", "bool", "complex64"):

            def weights(inputs: TinyInputs, at: Path, i=item, f=folder, k=kind, w=words) -> list[Any]:
                import torch
                from safetensors.torch import load_file, save_file

                path = inputs.copy(i, at) / f / "model.safetensors"
                if path.exists():
                    found = load_file(path)
                    name = next(n for n, value in found.items() if value.ndim == 2)
                    if k in ("nan", "inf"):
                        found[name][0, 0] = float(k)
                    elif k == "shape":
                        found[name] = torch.zeros(3, 3)
                    elif k in ("int32", "bool", "complex64"):
                        found[name] = found[name].to(getattr(torch, k))
                    elif k == "lost":
                        found = {n: value for n, value in found.items() if ".0." not in n and n != name}
                    else:
                        found["other"] = torch.zeros(3)
                    path.unlink()
                    save_file(found, path, {"format": "pt"})
                return w(inputs, at, at / "out")

            yield Case(f"{item} weights {kind}", weights, refused=kind != "extra" and item != "export")
    for key, value in {
        "attn_implementation": "kernels-community/flash-attn", "_attn_implementation": "flash_attention_2",
        "auto_map": {"AutoModel": "evil.Model"}, "quantization_config": {"quant_method": "fp8"},
        "num_hidden_layers": 5, "model_type": "roberta", "hidden_act": "__import__('os')", "hidden_size": 10**9,
        "num_attention_heads": 3, "pad_token_id": 10**6, "vocab_size": 5, "type_vocab_size": 0, "dtype": "float16",
        "return_dict": False, "max_position_embeddings": 2, "layer_norm_eps": -1, "initializer_range": "x",
    }.items():  # fmt: skip
        harmless = key in ("dtype", "return_dict", "initializer_range", "layer_norm_eps")
        for item in ("encoder", "model"):

            def config(inputs: TinyInputs, at: Path, k=key, v=value, p=item) -> list[Any]:
                if p == "encoder":
                    file = inputs.copy("encoder", at) / "config.json"
                    replace(file, json.dumps(json.loads(file.read_text()) | {k: v}))
                    return refine(at / "encoder", at / "out")
                file = inputs.copy("teacher", at) / "model/model.json"
                values = json.loads(file.read_text())
                values["encoder"]["hf"][k] = v
                replace(file, json.dumps(values))
                return evaluate(at / "teacher", at / "out")

            # RoBERTa can load the weights of BERT: only the digests, which this copy lacks, tell them apart
            fits = harmless or (item, key) == ("model", "model_type")
            yield Case(f"{item} config {key}", config, refused=not fits)
