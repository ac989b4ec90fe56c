"""Benchmark a student's training step and a teacher's forward pass: rows/s, tokens/s, share of peak FLOPs.

Both models are Transformers with random weights, without dropout: mtkd's dropout on a CPU cannot be compiled.
Rows have equal lengths, and the student learns the labels. Each model is timed in fp32 and bf16, with and
without torch.compile, for several batch sizes:

    python scripts/bench_gpu.py --compile both --rows 32 --rows 256
    python scripts/bench_gpu.py --device cpu --rows 8 --rounds 1 --student 2x64 --teacher 2x64

FLOPs of a forward pass are 2 x weights of the linear layers x tokens, plus 4 x layers x rows x length^2 x
width for attention; a training step counts as three forward passes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import click
import torch

from mtkd.device import best_device
from mtkd.losses.objective import labels_objective
from mtkd.models.encoders.pretrained_config import TransformerConfig, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.outputs import LOGITS
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.train_settings import TrainSettings
from mtkd.training.optimizers import build_optimizer
from mtkd.training.train_step import TrainStep
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.task_names import resolve
from tasks.tokens.batching import Batch, ModelInputs, Tokens
from tasks.tokens.tokeniser import Tokeniser

# Dense TFLOP/s by the start of a device's name; the first match counts. The values are not verified against
# data sheets: --peak-tflops replaces them.
PEAKS = {
    "H200": {"bf16": 989.5, "fp32": 67.0},
    "H100 PCIe": {"bf16": 756.0, "fp32": 51.0},
    "H100": {"bf16": 989.5, "fp32": 67.0},
    "A100": {"bf16": 312.0, "fp32": 19.5},
    "L40S": {"bf16": 362.0, "fp32": 91.6},
    "L4": {"bf16": 121.0, "fp32": 30.3},
}
TASK = resolve("sst2")[0]


def make_model(shape: str, length: int, tokeniser: Tokeniser) -> MultiTaskModel:
    """Build a BERT of LAYERSxWIDTH with random weights and attention heads 64 wide."""
    layers, width = map(int, shape.split("x"))
    config = {
        "model_type": "bert",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": max(1, width // 64),
        "vocab_size": tokeniser.vocab_size,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    encoder = TransformerEncoder(TransformerConfig(hf=config))
    return MultiTaskModel(encoder, [TASK], tokeniser, ModelInfo(max_length=length))


def make_batch(rows: int, length: int, vocabulary: int) -> Batch:
    """Rows of random tokens without padding."""
    ids = torch.randint(vocabulary, (rows, length))
    tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    labels = torch.randint(2, (rows,)).float()
    return Batch(TASK.name, torch.arange(rows).numpy(), labels, None, ModelInputs(joined=tokens), None)


def forward_flops(model: MultiTaskModel, rows: int, length: int) -> float:
    """Floating-point operations of a forward pass.

    A layer multiplies each token by 12 d^2 weights, and the last layer only the first token by those of the
    queries, the output and the feed-forward network (10 d^2), since the task head reads no other token.
    """
    shape = model.encoder.spec
    d = shape.hidden_size
    whole = (shape.layers - 1) * length * (2 * 12 * d**2 + 4 * length * d)
    last = length * 2 * 2 * d**2 + 2 * 10 * d**2 + 4 * length * d
    return float(rows * (whole + last))


def training_step(model: MultiTaskModel, batch: Batch, bf16: bool, compiled: bool) -> Callable[[], object]:
    """One optimiser step of the student."""
    step = TrainStep(model.train(), labels_objective(), bf16)
    optimizer = build_optimizer(step, TrainSettings())
    if compiled:
        model.encoder.compile()
    counts = [len(batch)]

    def run() -> None:
        step(TASK, batch, None, counts, 0.0, counts)[0].backward()
        torch.nn.utils.clip_grad_norm_(step.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def teacher_pass(model: MultiTaskModel, batch: Batch, bf16: bool, compiled: bool) -> Callable[[], object]:
    """One forward pass of the teacher."""
    teacher = OnlineTeacher(model, LOGITS, "bf16" if bf16 else "fp32")
    if compiled:
        model.encoder.compile()
    return lambda: teacher.outputs(TASK, batch)


def seconds_of(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """The median time of a call, after two calls to warm up."""
    seconds = []
    for _ in range(rounds + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])


@click.command()
@click.option("--device", help="by default the GPU if there is one")
@click.option("--rows", "batches", default=[32, 128, 512], multiple=True, show_default=True)
@click.option("--length", default=128, show_default=True, help="tokens per row")
@click.option("--rounds", default=20, show_default=True)
@click.option("--student", default="6x384", show_default=True, help="layers x width")
@click.option("--teacher", default="12x768", show_default=True, help="layers x width")
@click.option("--compile", "compiling", type=click.Choice(["off", "on", "both"]), default="off")
@click.option("--peak-tflops", type=float, help="of the device, for all precisions, instead of the table")
def main(
    device: str | None,
    batches: tuple[int, ...],
    length: int,
    rounds: int,
    student: str,
    teacher: str,
    compiling: str,
    peak_tflops: float | None,
) -> None:
    """Print a line per model, precision and batch size."""
    torch_device = torch.device(device) if device else best_device()
    name = torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else torch_device.type
    peaks = next((peaks for device_name, peaks in PEAKS.items() if device_name in name), {})
    tokeniser = Tokeniser.load(locate(DEFAULT_ENCODER))
    print(f"{name}, rows of {length} tokens, {rounds} rounds")
    compiles = {"off": [False], "on": [True], "both": [False, True]}[compiling]
    workloads = (("student step", student, training_step, 3), ("teacher forward", teacher, teacher_pass, 1))
    for (title, shape, make, passes), precision, compiled in itertools.product(
        workloads, ("fp32", "bf16"), compiles
    ):
        for rows in batches:
            torch.manual_seed(0)
            torch.compiler.reset()
            model = make_model(shape, length, tokeniser).to(torch_device)
            batch = make_batch(rows, length, tokeniser.vocab_size).to(torch_device)
            seconds = seconds_of(make(model, batch, precision == "bf16", compiled), torch_device, rounds)
            tflops = passes * forward_flops(model, rows, length) / seconds / 1e12
            peak = peak_tflops or peaks.get(precision)
            share = f"{tflops / peak:.1%} of {peak:g}" if peak else "of unknown peak (--peak-tflops)"
            setup = f"{precision}{', compiled' if compiled else ''}"
            print(
                f"  {title} {shape}, {setup}, {rows} rows: {rows / seconds:,.1f} rows/s, "
                f"{rows * length / seconds:,.0f} tokens/s, {tflops:.4g} TFLOP/s, {share}"
            )


if __name__ == "__main__":
    main()
