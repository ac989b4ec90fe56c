"""Benchmark the cost of capturing a teacher's internals: forward passes that return vectors or scores.

The model is an encoder of the size of BERT-base with random weights, run without gradients. One process
alternates between these forward passes:

- plain: transformers' BertModel with SDPA, capturing nothing; the reference;
- vectors: mtkd, with the queries, keys, values and context vectors of all 12 layers, and the pooled vector;
- eager: transformers' BertModel with eager attention and output_attentions, the usual approach;
- scores: mtkd, with the attention scores of all 12 layers, and the pooled vector;
- one layer: mtkd, with the queries, keys and values of layer 6 only; higher layers are not run.

After each pass, glibc's allocator returns large blocks to the kernel, which has to clear them for the next
pass. The script therefore restarts itself with an allocator setting that keeps the memory. `--allocator
default` does not change the setting.

    python scripts/bench_capture.py
    python scripts/bench_capture.py --lengths real --allocator default
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import torch
from measuring import restart_keeping_memory
from torch import Tensor
from transformers import BertConfig, BertModel
from transformers.utils import logging

from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.outputs import OutputSpec
from tasks.tokens.batching import ModelInputs, Tokens

HF = BertConfig().to_dict()  # 12 layers, 768 wide, a vocabulary of 30522
ALL = frozenset(range(1, 13))
NAMES = ("vectors", "eager", "scores", "one layer")
NEEDS = {
    "vectors": OutputSpec(pooled=True, query=ALL, key=ALL, value=ALL, context=ALL),
    "scores": OutputSpec(pooled=True, scores=ALL),
    "one layer": OutputSpec(query=frozenset({6}), key=frozenset({6}), value=frozenset({6})),
}

Forward = Callable[[Tokens], Any]


def batches_of(lengths: str, rows: int, longest: int, batches: int) -> list[Tokens]:
    """Random ids: one batch at full length, or length-sorted batches of realistic lengths (mean near 40)."""
    if lengths == "full":
        counts = torch.full((rows,), longest)
    else:
        drawn = (torch.randn(rows * batches) * 0.6 + 3.5).exp()
        counts = drawn.long().clamp(10, longest).sort().values
    tokens = []
    for part in counts.split(rows):
        mask = torch.arange(int(part.max())) < part.unsqueeze(1)
        ids = torch.randint(1000, HF["vocab_size"], mask.shape) * mask
        tokens.append(Tokens(ids, mask, torch.zeros_like(ids)))
    return tokens


def forward_passes() -> dict[str, Forward]:
    """Name -> forward pass. All have equal weights, in separate modules of mtkd and transformers."""
    encoder = TransformerEncoder(TransformerConfig(hf=HF)).eval()
    weights = encoder.body.state_dict()

    def plain(attention: str, **more: Any) -> Forward:
        config = BertConfig(attn_implementation=attention)  # type: ignore[call-arg]
        body = BertModel(config, add_pooling_layer=False).eval()
        body.load_state_dict(weights)

        def run(tokens: Tokens) -> Any:
            inputs = {"attention_mask": tokens.mask.long(), "token_type_ids": tokens.token_type_ids}
            return body(input_ids=tokens.ids, **inputs, **more)

        return run

    def captured(need: OutputSpec) -> Forward:
        return lambda tokens: encoder(ModelInputs(joined=tokens), need)

    return {
        "plain": plain("sdpa"),
        "vectors": captured(NEEDS["vectors"]),
        "eager": plain("eager", output_attentions=True),
        "scores": captured(NEEDS["scores"]),
        "one layer": captured(NEEDS["one layer"]),
    }


def check(forwards: dict[str, Forward], tokens: Tokens) -> None:
    """Check the captured tensors against transformers: equal vectors, and scores that give its attention."""
    vectors, eager, scores = (forwards[name](tokens) for name in ("vectors", "eager", "scores"))
    torch.testing.assert_close(vectors.pooled, forwards["plain"](tokens).last_hidden_state[:, 0])
    padding = torch.zeros(tokens.mask.shape).masked_fill(~tokens.mask, -1e30)[:, None, None]
    for layer, attention in enumerate(eager.attentions, 1):
        computed: Tensor = (scores.scores[layer] + padding).softmax(-1)
        torch.testing.assert_close(computed, attention, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def compare(kind: str, rows: int, longest: int, rounds: int, batches: int, only: tuple[str, ...]) -> None:
    """Time all forward passes in alternating order and print the median ratio to the plain one."""
    torch.manual_seed(0)
    forwards, drawn = forward_passes(), batches_of(kind, rows, longest, batches)
    check(forwards, drawn[0])
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", *(only or NAMES))}
    for number in range(rounds + 1):  # the first round warms up
        for name in list(seconds)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            for tokens in drawn:
                forwards[name](tokens)
            if number:
                seconds[name].append((time.perf_counter() - started) / len(drawn))
    mean_length = torch.cat([part.mask.sum(1) for part in drawn]).float().mean()
    threads = torch.get_num_threads()
    print(f"{kind} length, {rows} rows per batch, {mean_length:.0f} tokens per row, {threads} threads")
    for name, times in seconds.items():
        ratios = [captured / plain for captured, plain in zip(times, seconds["plain"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        print(
            f"  {name:9}: {statistics.median(times) * 1e3:6.0f} ms per batch; time relative to plain: median "
            f"{statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})"
        )


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option("--lengths", type=click.Choice(["full", "real", "both"]), default="both", show_default=True)
@click.option("--rows", default=16, show_default=True, help="Rows per batch.")
@click.option("--longest", default=128, show_default=True, help="Tokens of the longest row.")
@click.option("--rounds", type=click.IntRange(2), default=9, show_default=True)
@click.option("--batches", default=4, show_default=True, help="Batches of realistic lengths per round.")
@click.option("--only", type=click.Choice(NAMES), multiple=True, help="Run only this one and plain.")
@click.option("--allocator", type=click.Choice(["kept", "default"]), default="kept", show_default=True)
def main(
    lengths: str,
    rows: int,
    longest: int,
    rounds: int,
    batches: int,
    only: tuple[str, ...],
    allocator: str,
) -> None:
    """Print milliseconds and ratios."""
    if allocator == "kept":
        restart_keeping_memory()
    logging.set_verbosity_error()
    for kind in ("full", "real") if lengths == "both" else (lengths,):
        compare(kind, rows, longest, rounds, batches, only)


if __name__ == "__main__":
    main()
