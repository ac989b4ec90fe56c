"""Benchmark the inference speed of students against the encoders that their papers compare them with.

All models have the sizes of the papers and random weights, and run in alternating rounds of one process.
`mkd` is the BiLSTM with MKD's seven task heads, compared with three BERT layers and TinyBERT. `waldorf` is
WaLDORf with a span head, compared with BERT-base and TinyBERT. Examples:

    python scripts/bench_inference.py --rounds 10 --json inference.json
    python scripts/bench_inference.py --of waldorf --batch 32 --seq-len 384 --precision fp32
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from measuring import TINYBERT_4

from mtkd.evaluation.inference_bench import BenchSettings, InferenceResult, bench_inference
from mtkd.models.encoders.bilstm import BiLSTMEncoder
from mtkd.models.encoders.bilstm_settings import BiLSTMConfig
from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.encoders.pretrained_config import TransformerConfig, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.encoders.waldorf import WaldorfConfig, WaldorfEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from tasks.common.files import write_json
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.task_names import resolve
from tasks.tokens.tokeniser import Tokeniser

BERT_3 = {"model_type": "bert", "num_hidden_layers": 3}
BERT_BASE = {"model_type": "bert"}


@dataclass(frozen=True)
class Comparison:
    """A student and the models that it is compared with.

    Attributes:
        tasks: the tasks for which the models have heads.
        encoders: vocabulary size -> encoders by name; speeds are relative to the first one.
    """

    student: str
    tasks: str
    encoders: Callable[[int], dict[str, AnyEncoder]]


def _of_mkd(words: int) -> dict[str, AnyEncoder]:
    vocab = {"vocab_size": words}
    return {
        "transformer-3 (768)": TransformerEncoder(
            TransformerConfig(hf=BERT_3 | vocab, pooling="cls-of-layers")
        ),
        "tinybert-4 (312)": TransformerEncoder(TransformerConfig(hf=TINYBERT_4 | vocab)),
        "bilstm-biattention": BiLSTMEncoder(BiLSTMConfig(kind="bilstm-biattention", vocab_size=words)),
        "bilstm": BiLSTMEncoder(BiLSTMConfig(kind="bilstm", vocab_size=words)),
    }


def _of_waldorf(words: int) -> dict[str, AnyEncoder]:
    vocab = {"vocab_size": words}
    return {
        "bert-base": TransformerEncoder(TransformerConfig(hf=BERT_BASE | vocab)),
        "tinybert-4 (312)": TransformerEncoder(TransformerConfig(hf=TINYBERT_4 | vocab)),
        "waldorf": WaldorfEncoder(WaldorfConfig(vocab_size=words)),
    }


COMPARISONS = {
    "mkd": Comparison("bilstm-biattention", "mkd", _of_mkd),
    "waldorf": Comparison("waldorf", "squad", _of_waldorf),
}


def save_models(root: Path, compared: Comparison) -> dict[str, Path]:
    """Save the models with random weights; returns name -> directory, with the reference first."""
    tokeniser = Tokeniser.load(locate(DEFAULT_ENCODER))
    directories = {}
    for number, (name, encoder) in enumerate(compared.encoders(tokeniser.vocab_size).items()):
        directories[name] = root / str(number)
        info = ModelInfo() if compared.tasks == "mkd" else ModelInfo(head_hidden_size=0)
        MultiTaskModel(encoder, resolve(compared.tasks), tokeniser, info).save(directories[name])
    return directories


def show(results: list[InferenceResult], settings: BenchSettings, name: str) -> None:
    """Print one table as Markdown, and the student's speed relative to each of the others."""
    print(
        f"\n{settings.seq_len} tokens, batch {settings.batch}, {settings.precision}, {settings.device}",
        end="",
    )
    print(f" ({torch.get_num_threads()} threads)" if settings.device == "cpu" else "")
    print(
        "\n| model | ms per batch (min-max) | rows/s | speed | weights (no embeddings) | disk MB | peak MB |"
    )
    print("|---|---|---|---|---|---|---|")
    for r in results:
        size = r.parameters
        peak = "?" if r.peak_bytes is None else f"{r.peak_bytes / 1e6:.0f}"
        print(
            f"| {r.name} | {r.ms:.0f} ({r.fastest:.0f}-{r.slowest:.0f}) | {r.rows_per_second:.0f} "
            f"| {r.speed:.2f}x | {size.total / 1e6:.1f}M ({size.without_embeddings / 1e6:.1f}M) "
            f"| {r.disk_bytes / 1e6:.0f} | {peak} |"
        )
    student = next(r for r in results if r.name == name)
    ratios = [f"{student.speed / r.speed:.2f}x {r.name}" for r in results if r is not student]
    print(f"\n{name}: {', '.join(ratios)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Benchmark the inference speed of students with random weights."
    )
    parser.add_argument("--of", choices=list(COMPARISONS), default="mkd")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--seq-len", type=int, nargs="+", default=[128, 256], help="tokens per row, both texts"
    )
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    args = parser.parse_args()
    compared = COMPARISONS[args.of]
    written = []
    with tempfile.TemporaryDirectory() as root:
        models = save_models(Path(root), compared)
        base = BenchSettings(batch=args.batch, rounds=args.rounds, device=args.device)
        for precision in args.precision:
            for seq_len in args.seq_len:
                settings = replace(base, seq_len=seq_len, precision=precision)
                results = bench_inference(models, settings)
                show(results, settings, compared.student)
                written.append(asdict(settings) | {"models": [result.to_json() for result in results]})
    if args.json:
        write_json(args.json, written)


if __name__ == "__main__":
    main()
