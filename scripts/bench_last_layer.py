"""Benchmark running the last layer only for the first token, which is all that a classifier reads.

The encoders are BERT-style, with random weights and the given numbers of layers. Each is timed with its last
layer run for every token and for the first token only, in alternation: in training (forward and backward
pass, with dropout) and in inference. The script prints median times, and the median and range of the ratios.

    python scripts/bench_last_layer.py --layers 3 --layers 6
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import torch

from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.fast_dropout import use_dropout
from mtkd.models.fast_linear import use_linear
from tasks.tokens.batching import ModelInputs, Tokens


def build(layers: int, width: int) -> TransformerEncoder:
    """An encoder whose vector per row is the state of its first token."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    hf = {"model_type": "bert", "num_attention_heads": 12, **sizes}
    encoder = TransformerEncoder(TransformerConfig(hf=hf, pooling="cls"))
    use_dropout(encoder)
    use_linear(encoder)
    return encoder


def seconds(encoder: TransformerEncoder, run: Callable[[], None], first_only: bool) -> float:
    """The time of one pass."""
    encoder._selects_tokens = first_only
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


@click.command(help=__doc__)
@click.option("--layers", multiple=True, default=(3, 4, 6, 12), show_default=True)
@click.option("--width", default=384, show_default=True)
@click.option("--rows", default=32, show_default=True, help="Rows per batch.")
@click.option("--length", default=64, show_default=True, help="Tokens per row.")
@click.option("--rounds", default=15, show_default=True, help="Timed passes of each kind.")
def main(layers: tuple[int, ...], width: int, rows: int, length: int, rounds: int) -> None:
    ids = torch.randint(5, 30_000, (rows, length))
    inputs = ModelInputs(joined=Tokens(ids, torch.ones_like(ids).bool(), torch.zeros_like(ids)))
    for count in layers:
        encoder = build(count, width)

        def train(encoder: TransformerEncoder = encoder) -> None:
            encoder.train()(inputs).pooled.square().sum().backward()

        @torch.inference_mode()
        def infer(encoder: TransformerEncoder = encoder) -> None:
            encoder.eval()(inputs)

        for name, run in (("training", train), ("inference", infer)):
            times = [[seconds(encoder, run, first) for first in (True, False)] for _ in range(rounds + 2)][2:]
            ratios = [slow / fast for fast, slow in times]
            first, every = (1000 * statistics.median(column) for column in zip(*times, strict=True))
            print(
                f"{count:2} layers, {name:9}: {every:7.1f} ms all tokens, {first:7.1f} ms first token,",
                end="",
            )
            print(f"{statistics.median(ratios):6.2f}x ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
