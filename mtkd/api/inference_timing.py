"""`mtkd.bench_inference`: compare the inference speed of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtkd.api.argument_types import Device, Model
from mtkd.api.measurement import names_checkpoint
from mtkd.api.training_request import model_or_path
from mtkd.dtypes import Precision
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import Rounds, TimedBatch, TimedTokens, WarmupRounds, checked
from tasks.common.errors import UserError, warn_caller
from tasks.common.temporary import temporary_directory

if TYPE_CHECKING:
    from mtkd.evaluation.inference_bench import InferenceResult
    from tasks.task import Task


@checked
@remote_paths("models")
def bench_inference(
    models: Sequence[str | Path | Model] | Mapping[str, str | Path | Model],
    *,
    seq_len: TimedTokens = 128,
    batch: TimedBatch = 128,
    rounds: Rounds = 10,
    warmup: WarmupRounds = 2,
    precision: Precision = "fp32",
    device: Device | None = None,
) -> list[InferenceResult]:
    """Time models in alternation in one run: median and range, parameters, disk size and peak memory.

    Args:
        models: directories or models, or a mapping from names to these; the others are compared with the
            first. Of a fine-tuned transformers checkpoint, the encoder is timed with an mtkd head.
        seq_len: tokens per row.
        batch: rows per batch.
        rounds: timed batches per model.
        warmup: batches per model before these, which are not timed.
        precision: "bf16" runs the models under autocast.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.

    Returns:
        One result per model, in the order of `models`.
    """
    from mtkd.device import find_device
    from mtkd.evaluation import inference_bench as bench
    from mtkd.precision import warn_of_slow_bf16

    warn_of_slow_bf16(precision, find_device(device), warn_caller)
    settings = bench.BenchSettings(seq_len, batch, rounds, warmup, precision, str(find_device(device)))
    listed_models = list(models.values() if isinstance(models, Mapping) else models)
    if not listed_models:
        raise UserError("`models` is empty", expected="one or more models")
    with temporary_directory() as folder:  # models in memory are saved, since another process measures memory
        tasks = _benchmark_tasks(listed_models)
        directories = [_directory(model, folder / str(n), tasks) for n, model in enumerate(listed_models)]
        names = list(models) if isinstance(models, Mapping) else _bench_names(listed_models)
        return bench.bench_inference(dict(zip(names, directories, strict=True)), settings)


def _benchmark_tasks(models: Iterable[str | Path | Model]) -> list[Task]:
    """The tasks for which checkpoints get heads: those of the first mtkd model, or SST-2 if there is none."""
    from mtkd.models.saved_model import read_saved
    from tasks.glue import TASKS

    for model in models:
        if not isinstance(model, str | Path):
            return list(model.tasks.values())
        if not names_checkpoint(model):
            return read_saved(Path(model)).tasks
    return [TASKS["sst2"]]


def _directory(model: str | Path | Model, unused_directory: Path, tasks: list[Task]) -> Path:
    """The directory of a model; what is not saved as an mtkd model is first saved to `unused_directory`."""
    if not isinstance(model, str | Path):
        source = model_or_path(model)
        return Path(source) if isinstance(source, str) else model.save(unused_directory)
    if not names_checkpoint(model):
        return Path(model)
    from mtkd.evaluation.inference_bench import save_with_heads

    return save_with_heads(str(model), tasks, unused_directory)


def _bench_names(models: Sequence[str | Path | Model]) -> list[str]:
    """The names of the models in the results: their paths, with the number of a model that needs one."""
    names: list[str] = []
    for number, model in enumerate(models, 1):
        path = model if isinstance(model, str | Path) else model.path
        name = str(path) if path else f"model {number}"
        names.append(f"{name} (model {number})" if name in names else name)
    return names
