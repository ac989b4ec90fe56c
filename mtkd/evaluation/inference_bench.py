"""How fast models answer and what they cost: several models in turn, on the same machine in the same run."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mtkd.device import find_device
from mtkd.models.multitask import MultiTaskModel, disk_bytes
from mtkd.models.parameter_count import Parameters, count_parameters
from tasks.batching import ModelInputs, Tokens
from tasks.errors import UserError, unknown
from tasks.progress import progress

Precision = Literal["fp32", "bf16"]
STATUS = Path("/proc/self/status")  # Linux: the memory of this process


@dataclass(frozen=True)
class BenchSettings:
    """What is timed.

    Attributes:
        seq_len: tokens a row in all, every one real; a row's texts share them evenly in models that
            read texts apart.
        batch: rows a batch.
        rounds: timed batches of each model.
        warmup: batches of each model before the clock starts.
        precision: `fp32`, or `bf16` for automatic mixed precision.
        device: where to run, as torch names it.
        task: whose head answers; None = the first that all models have, tasks of two texts first.
        texts_len: tokens a text where texts are read apart; None = an even share of seq_len.
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
    """What one model took.

    Attributes:
        name: of the model.
        ms: median milliseconds a batch; `fastest` and `slowest` are the extremes.
        rows_per_second: at the median.
        speed: how many times as fast as the first model, the median of the rounds' own ratios.
        parameters: how many weights.
        disk_bytes: size of the weights file.
        peak_bytes: weights, and on top of them what running a batch took at its peak, measured in a
            process of its own; None where the system does not tell.
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

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "parameters": self.parameters.to_json()}


def bench_inference(models: Mapping[str, Path], settings: BenchSettings) -> list[InferenceResult]:
    """Time models in turn, round by round, on random ids at full length.

    Args:
        models: name -> directory that `MultiTaskModel.load` reads; the first is what the others are
            compared with.

    Raises:
        UserError: no model there, no task that all of them know, more tokens than one can read, or the
            device is not there.
    """
    find_device(settings.device)
    loaded = {name: MultiTaskModel.load(place) for name, place in models.items()}
    head = common_head(loaded, settings.task)
    for name, model in loaded.items():
        _check_length(name, model, settings)
    peaks = {name: _peak_apart(place, head, settings) for name, place in models.items()}
    runs = {name: batch_runner(model.to(settings.device), head, settings) for name, model in loaded.items()}
    times = time_in_turn(runs, settings.rounds, settings.warmup, _wait_for(settings.device))
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


def time_in_turn(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int,
    wait: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each run in each round; a round runs all of them, so that all meet the same machine.

    Args:
        runs: name -> what to time.
        wait: called before the clock is read, for devices that work on after a call returns.
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
    """The head that answers: `task`, or the first that all models have, tasks of two texts first.

    Raises:
        UserError: not all models have it, or they have none in common.
    """
    first, *others = models.values()
    shared = [name for name in first.tasks if all(name in model.tasks for model in others)]
    if task is not None:
        if task not in shared:
            raise unknown("task", task, shared, hint="name a task that every model was trained on")
        return task
    if not shared:
        has = "; ".join(f"{name}: {', '.join(model.tasks)}" for name, model in models.items())
        raise UserError(f"these models have no task in common ({has})", hint="compare models of one task")
    return max(shared, key=lambda name: len(first.tasks[name].columns))


def batch_runner(model: MultiTaskModel, head: str, settings: BenchSettings) -> Callable[[], Tensor | None]:
    """A function that runs one batch of random ids, the same each time, and gives the logits (B, C)."""
    inputs = random_inputs(model, head, settings)
    kind, automatic = torch.device(settings.device).type, settings.precision == "bf16"

    def run() -> Tensor | None:
        with torch.autocast(kind, torch.bfloat16, enabled=automatic):
            return model(inputs, head).logits

    return run


def random_inputs(model: MultiTaskModel, head: str, settings: BenchSettings) -> ModelInputs:
    """A batch of random ids without padding: (batch, seq_len), or a share of it for each text."""
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> Tokens:
        shape = (settings.batch, length)
        ids = torch.randint(model.tokeniser.vocab_size, shape, generator=generator)
        return Tokens(ids, torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.int64))

    if model.encoder.input_format == "joined":
        return ModelInputs(joined=tokens(settings.seq_len)).to(settings.device)
    n_texts = len(model.tasks[head].columns)
    length = settings.texts_len or max(1, settings.seq_len // n_texts)
    return ModelInputs(texts=tuple(tokens(length) for _ in range(n_texts))).to(settings.device)


def _check_length(name: str, model: MultiTaskModel, settings: BenchSettings) -> None:
    """Refuse more tokens than the encoder has positions, if it has any."""
    positions = model.encoder.positions or settings.seq_len
    if settings.seq_len > positions:
        raise UserError(
            f"{name} cannot read {settings.seq_len} tokens",
            expected=f"{positions} or fewer",
            hint="lower seq-len",
        )


def _wait_for(device: str) -> Callable[[], object]:
    return torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None


def _peak_apart(place: Path, head: str, settings: BenchSettings) -> int | None:
    """`_peak` in a fresh process, which nothing else has used memory of."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_peak, place, head, settings, torch.get_num_threads()).result()


@torch.inference_mode()
def _peak(place: Path, head: str, settings: BenchSettings, threads: int) -> int | None:
    """Bytes of the weights and, on top, of running a batch, at the peak.

    The peak that `getrusage` gives is no use here: a child starts with its parent's.
    """
    torch.set_num_threads(threads)
    model = MultiTaskModel.load(place).to(settings.device)
    run = batch_runner(model, head, settings)
    if torch.device(settings.device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(settings.device)
        run()
        return torch.cuda.max_memory_allocated(settings.device)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
        before = _status_bytes("VmRSS")
        run()
        weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        return weights + _status_bytes("VmHWM") - before
    except OSError:
        return None


def _status_bytes(key: str) -> int:
    """A size in this process's status, such as VmRSS (now) or VmHWM (at its peak)."""
    lines = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:")]
    return int(lines[0].split()[1]) * 1024
