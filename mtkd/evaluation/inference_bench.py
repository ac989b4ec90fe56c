"""Benchmark the speed, size and memory of several models on the same machine in the same run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtkd.device import find_device
from mtkd.dtypes import Precision
from mtkd.models.encoders.encoder_registry import is_defined_here
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import Parameters, count_parameters
from mtkd.models.saved_model import disk_bytes, read_saved
from mtkd.output_files.worker_pools import LocalPool
from mtkd.torch_state import with_torch_defaults
from tasks.common.errors import UserError, unknown
from tasks.common.progress import progress
from tasks.task import Task
from tasks.tokens.batching import ModelInputs, Tokens

STATUS = Path("/proc/self/status")  # on Linux, the memory use of this process


@dataclass(frozen=True)
class BenchSettings:
    """What to time.

    Attributes:
        seq_len: tokens per row, without padding; models that read texts separately divide them evenly between
            the texts of a row.
        batch: rows per batch.
        rounds: timed batches per model.
        warmup: batches per model before timing starts.
        precision: `fp32`, or `bf16` for automatic mixed precision.
        device: the torch device to run on.
        task: the task whose head is used; None = the first that all models have, preferring tasks with two
            texts.
        texts_len: tokens per text, for models that read texts separately; None = an even share of `seq_len`.
    """

    seq_len: int = 128
    batch: int = 128
    rounds: int = 10
    warmup: int = 2
    precision: Precision = "fp32"
    device: str = "cpu"
    task: str | None = None
    texts_len: int | None = None


@dataclass(frozen=True)
class InferenceResult:
    """The measurements of one model.

    Attributes:
        name: the name of the model.
        ms: the median time per batch in milliseconds; `fastest` and `slowest` are the extremes.
        rows_per_second: the throughput at the median time.
        speed: the speed relative to the first model, as the median of the ratios of each round.
        parameters: the number of weights.
        disk_bytes: the size of the weights on disk.
        peak_bytes: the size of the weights plus the peak memory of running a batch, measured in a separate
            process; None if the system does not report it, or for a class that is defined in this session.
    """

    name: str
    ms: float
    fastest: float
    slowest: float
    rows_per_second: float
    speed: float
    parameters: Parameters
    disk_bytes: int
    peak_bytes: int | None

    @property
    def speed_text(self) -> str:
        """The relative speed as text, such as `1.25x`."""
        return format_speed(self.speed)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {**asdict(self), "parameters": self.parameters.to_json()}


def format_speed(speed: float) -> str:
    """A relative speed such as `1.25x`; below 0.1 with two significant digits, never as `0.00x`."""
    return f"{speed:.2f}x" if speed >= 0.1 else f"{speed:.2g}x"


@with_torch_defaults
def bench_inference(models: Mapping[str, Path], settings: BenchSettings) -> list[InferenceResult]:
    """Time models in turn, round by round, on random token ids without padding.

    Args:
        models: name -> directory for `MultiTaskModel.load`; the others are compared with the first one.

    Raises:
        UserError: a directory contains no model, the models have no task in common, `seq_len` is too long for
            one of them, or the device does not exist.
    """
    find_device(settings.device)
    loaded = {name: MultiTaskModel.load(directory) for name, directory in models.items()}
    head = common_head(loaded, settings.task)
    for name, model in loaded.items():
        check_length(name, model, settings)
    peaks = {name: _peak_apart(directory, head, settings) for name, directory in models.items()}
    runs = {name: batch_runner(model.to(settings.device), head, settings) for name, model in loaded.items()}
    times = time_in_turn(runs, settings.rounds, settings.warmup, wait_for(settings.device))
    first = times[next(iter(times))]
    results = []
    for name, seconds in times.items():
        median = statistics.median(seconds)
        results.append(
            InferenceResult(
                name=name,
                ms=median * 1e3,
                fastest=min(seconds) * 1e3,
                slowest=max(seconds) * 1e3,
                rows_per_second=settings.batch / median,
                speed=statistics.median(a / b for a, b in zip(first, seconds, strict=True)),
                parameters=count_parameters(loaded[name]),
                disk_bytes=disk_bytes(models[name]),
                peak_bytes=peaks[name],
            )
        )
    return results


def time_each_shape(models: Mapping[str, Path], settings: BenchSettings) -> dict[str, InferenceResult]:
    """Time only the first model of each shape; models whose encoders have the same shape share its result.

    Args:
        models: name -> directory, as for `bench_inference`, which also raises the errors.

    Returns:
        Name -> result, for all models.
    """
    shapes = {
        name: json.dumps(read_saved(path).encoder_json, sort_keys=True) for name, path in models.items()
    }
    chosen = {shape: name for name, shape in reversed(shapes.items())}
    timed_models = {name: models[name] for name in sorted(chosen.values(), key=list(models).index)}
    timed = {result.name: result for result in bench_inference(timed_models, settings)}
    return {name: timed[chosen[shape]] for name, shape in shapes.items()}


def save_with_heads(encoder: str, tasks: Sequence[Task], directory: Path) -> Path:
    """Save the encoder of a transformers checkpoint with new heads, so that it can be timed."""
    model = MultiTaskModel.without_heads(encoder, None)
    model.set_tasks(list(tasks))
    model.save(directory)
    return directory


def time_in_turn(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Measure the seconds of each function in each round; every round calls all of them in turn.

    Args:
        runs: name -> function to time.
        wait: called before the clock is read, for devices on which calls return early.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    with progress("timing", rounds, unit="rounds") as advance, torch.inference_mode():
        for run in runs.values():
            for _ in range(warmup):
                run()
        for _ in range(rounds):
            for name, run in runs.items():
                wait()
                start = time.perf_counter()
                run()
                wait()
                times[name].append(time.perf_counter() - start)
            advance()
    return times


def common_head(models: Mapping[str, MultiTaskModel], task: str | None) -> str:
    """The head to use: `task`, or the first that all models have, preferring tasks with two texts.

    Raises:
        UserError: not all models have that head, or they have none in common.
    """
    first, *others = models.values()
    shared = [name for name in first.tasks if all(name in model.tasks for model in others)]
    if task is not None:
        if task not in shared:
            raise unknown("task", task, shared, hint="name a task that every model was trained on")
        return task
    if not shared:
        has = "; ".join(f"{name}: {', '.join(model.tasks)}" for name, model in models.items())
        raise UserError(f"the models have no task in common ({has})", hint="compare models of one task")
    return max(shared, key=lambda name: len(first.tasks[name].columns))


def batch_runner(model: MultiTaskModel, head: str, settings: BenchSettings) -> Callable[[], Tensor | None]:
    """A function that runs one batch of random token ids, the same in each call, and returns its logits."""
    inputs = random_inputs(model, head, settings)
    device_type, bf16 = torch.device(settings.device).type, settings.precision == "bf16"

    def run() -> Tensor | None:
        with torch.autocast(device_type, torch.bfloat16, enabled=bf16):
            return model(inputs, head).logits

    return run


def random_inputs(model: MultiTaskModel, head: str, settings: BenchSettings) -> ModelInputs:
    """A batch of random token ids without padding: (batch, seq_len), or a part of it for each text."""
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> Tokens:
        shape = (settings.batch, length)
        ids = torch.randint(model.tokeniser.vocab_size, shape, generator=generator)
        return Tokens(ids, torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.int64))

    n_texts = len(model.tasks[head].columns)
    if model.encoder.input_format != "separate":
        joined = tokens(settings.seq_len)
        if model.encoder.config.compares_texts(model.tasks[head]):
            second = (torch.arange(settings.seq_len) >= settings.seq_len // 2).expand(joined.ids.shape)
            joined = replace(joined, second=second)
        return ModelInputs(joined=joined).to(settings.device)
    length = settings.texts_len or max(1, settings.seq_len // n_texts)
    return ModelInputs(texts=tuple(tokens(length) for _ in range(n_texts))).to(settings.device)


def check_length(name: str, model: MultiTaskModel, settings: BenchSettings) -> None:
    """Check that an encoder can read `seq_len` tokens.

    Raises:
        UserError: this is more than its maximum sequence length.
    """
    positions = model.encoder.positions or settings.seq_len
    if settings.seq_len > positions:
        raise UserError(
            f"{name} cannot read {settings.seq_len} tokens",
            expected=f"{positions} or fewer",
            hint=f"use `seq_len={positions}`",
        )


def wait_for(device: str) -> Callable[[], object]:
    """The function that `time_in_turn` calls before it reads the clock, for models on this device."""
    return torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None


def _peak_apart(directory: Path, head: str, settings: BenchSettings) -> int | None:
    """Run `_peak` in a new process, whose memory nothing else has used; None if it cannot load the model."""
    if is_defined_here(read_saved(directory).encoder_json["kind"]):
        return None
    with LocalPool(1, None) as pool:
        measured: int | None = pool.result(
            pool.submit(_peak, directory, head, settings, torch.get_num_threads())
        )
        return measured


@torch.inference_mode()
def _peak(directory: Path, head: str, settings: BenchSettings, threads: int) -> int | None:
    """Measure the size of the weights plus the peak memory of running a batch, in bytes.

    The peak that `getrusage` reports cannot be used, because a child process inherits its parent's.
    """
    torch.set_num_threads(threads)
    model = MultiTaskModel.load(directory).to(settings.device)
    run = batch_runner(model, head, settings)
    if torch.device(settings.device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(settings.device)
        run()
        return torch.cuda.max_memory_allocated(settings.device)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which loading has raised
        before = _status_bytes("VmRSS")
        run()
        weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        return weights + _status_bytes("VmHWM") - before
    except (OSError, KeyError):  # not on this system
        return None


def _status_bytes(key: str) -> int:
    """A memory size from this process's status, such as VmRSS (current) or VmHWM (peak)."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[key].split()[0]) * 1024
