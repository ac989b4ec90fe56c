"""Benchmark windowing and span decoding relative to the model's time, on SQuAD's validation questions.

python scripts/bench_spans.py ../shared/data --rows 500
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch

from mtkd.models.encoders.pretrained_config import locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS
from tasks.scoring.span_answers import decode_spans
from tasks.tokens.encoding import Encoded
from tasks.tokens.tokeniser import Tokeniser


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    task = TASKS["squad"]
    rows = load_rows(open_data(args.data), task, "validation", args.rows)
    info = ModelInfo(args.length, head_hidden_size=0)
    model = MultiTaskModel(
        TransformerEncoder.pretrained("minilm"), [task], Tokeniser.load(locate("minilm")), info
    )
    shares: dict[str, list[float]] = {"windows": [], "decoding": [], "20 best": []}
    for _ in range(args.rounds):
        times = [time.perf_counter()]
        encoded = Encoded.encode(model.reader.rows(rows), model.tokeniser)
        times.append(time.perf_counter())
        logits = predict_logits(model, task, encoded)
        times.append(time.perf_counter())
        for n_best in (1, 20):
            decode_spans(encoded, logits, model.tokeniser.layout(2), n_best)
            times.append(time.perf_counter())
        windows, of_model, decoding, of_many = (b - a for a, b in itertools.pairwise(times))
        for name, seconds in zip(shares, (windows, decoding, of_many), strict=True):
            shares[name].append(seconds / of_model)
    print(f"{args.rows} questions, {args.length} tokens, minilm, {torch.get_num_threads()} threads")
    for name, ratios in shares.items():
        print(
            f"{name}: {statistics.median(ratios):.3f} of the model's time "
            f"({min(ratios):.3f} to {max(ratios):.3f}, {args.rounds} rounds)"
        )


if __name__ == "__main__":
    main()
