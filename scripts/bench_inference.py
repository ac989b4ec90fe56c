"""Inference speed of MKD's BiLSTM student against three BERT layers and the TinyBERT shape.

Random weights at the papers' sizes with MKD's seven task heads; every model in one process, round by
round. Example:

    python scripts/bench_inference.py --rounds 10 --json inference.json
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch

from mtkd.engine.bench import BenchSettings, InferenceResult, bench_inference
from mtkd.model import ModelInfo, MultiTaskModel
from mtkd.students.bilstm import BiLSTMConfig, BiLSTMEncoder
from mtkd.students.build import AnyEncoder
from mtkd.students.hf_config import DEFAULT_TEACHER, TransformerConfig, locate
from mtkd.students.transformer import TransformerEncoder
from tasks.files import write_json
from tasks.registry import resolve
from tasks.tokenise import Tokeniser

BERT_3 = {"model_type": "bert", "num_hidden_layers": 3}
TINYBERT_4 = {
    "model_type": "bert",
    "num_hidden_layers": 4,
    "hidden_size": 312,
    "intermediate_size": 1200,
    "num_attention_heads": 12,
}
STUDENT = "bilstm-biattention"


def save_models(root: Path) -> dict[str, Path]:
    """Write the models with random weights; name -> directory, the one to compare with first."""
    tokeniser = Tokeniser.load(locate(DEFAULT_TEACHER))
    vocab = {"vocab_size": tokeniser.vocab_size}
    bert_3 = TransformerConfig(hf=BERT_3 | vocab, pooling="cls-of-layers")
    encoders: dict[str, AnyEncoder] = {
        "transformer-3 (768)": TransformerEncoder(bert_3),
        "tinybert-4 (312)": TransformerEncoder(TransformerConfig(hf=TINYBERT_4 | vocab)),
        STUDENT: BiLSTMEncoder(BiLSTMConfig(kind="bilstm-biattention", **vocab)),
        "bilstm": BiLSTMEncoder(BiLSTMConfig(kind="bilstm", **vocab)),
    }
    places = {}
    for number, (name, encoder) in enumerate(encoders.items()):
        places[name] = root / str(number)
        MultiTaskModel(encoder, resolve("mkd"), tokeniser, ModelInfo()).save(places[name])
    return places


def show(results: list[InferenceResult], settings: BenchSettings) -> None:
    """Print one table as Markdown, and how the student compares with each of the others."""
    half = settings.seq_len // 2
    print(f"\n{half}+{half} tokens, batch {settings.batch}, {settings.precision}, {settings.device}", end="")
    print(f" ({torch.get_num_threads()} threads)" if settings.device == "cpu" else "")
    print("\n| model | ms a batch (min-max) | rows/s | speed | weights (no embeddings) | disk MB | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for r in results:
        size = r.parameters
        peak = "?" if r.peak_bytes is None else f"{r.peak_bytes / 1e6:.0f}"
        print(
            f"| {r.name} | {r.ms:.0f} ({r.fastest:.0f}-{r.slowest:.0f}) | {r.rows_per_second:.0f} "
            f"| {r.speed:.2f}x | {size.total / 1e6:.1f}M ({size.without_embeddings / 1e6:.1f}M) "
            f"| {r.disk_bytes / 1e6:.0f} | {peak} |"
        )
    student = next(r for r in results if r.name == STUDENT)
    ratios = [f"{student.speed / r.speed:.2f}x {r.name}" for r in results if r is not student]
    print(f"\n{STUDENT}: {', '.join(ratios)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Inference speed of the students, random weights.")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seq-len", type=int, nargs="+", default=[128, 256], help="tokens a row, both texts")
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here as well")
    given = parser.parse_args()
    written = []
    with tempfile.TemporaryDirectory() as root:
        models = save_models(Path(root))
        base = BenchSettings(batch=given.batch, rounds=given.rounds, device=given.device)
        for precision in given.precision:
            for seq_len in given.seq_len:
                settings = replace(base, seq_len=seq_len, precision=precision)
                results = bench_inference(models, settings)
                show(results, settings)
                written.append(asdict(settings) | {"models": [result.to_json() for result in results]})
    if given.json:
        write_json(given.json, written)


if __name__ == "__main__":
    main()
