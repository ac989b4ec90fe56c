"""`mtkd.suggest_students`: find students that are fast and small enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.api.argument_types import Device, Model, Unlabelled
from mtkd.api.training_request import saved_path
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import PositiveFloat, Rounds, Threads, TimedBatch, TimedTokens, checked
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.task_names import TaskSpec

if TYPE_CHECKING:
    from mtkd.jobs.suggest import Suggestions


@checked
@remote_paths("teacher", "data", "tasks", "unlabelled")
def suggest_students(
    teacher: str | Path | Model = DEFAULT_ENCODER,
    *,
    target_speedup: PositiveFloat | None = None,
    max_mb: PositiveFloat | None = None,
    int8: bool = False,
    data: Any = None,
    tasks: TaskSpec | None = None,
    unlabelled: Unlabelled | None = None,
    seq_len: TimedTokens = 128,
    batch: TimedBatch = 16,
    rounds: Rounds = 5,
    threads: Threads | None = None,
    device: Device | None = None,
) -> Suggestions:
    """Time students of several shapes against the teacher, and say which reach the targets.

    Nothing is trained: the students have random weights. Among them are Transformers with fewer of the
    teacher's layers, the default encoder if the teacher is larger, narrower Transformers, BiLSTMs, and
    averaged token vectors. Each is listed with the command that trains it, in the order of its expected score
    by mtkd's own measurements; the order on your tasks can differ.

    Args:
        teacher: a run or model directory, a model, or a pretrained encoder.
        target_speedup: the minimum speed of a student, relative to the teacher.
        max_mb: the maximum size of a student's weights in MB (10^6 bytes), in fp32 unless `int8`.
        int8: `max_mb` limits the size of an int8 export, which is about a quarter of the fp32 weights.
        data: the training rows; with them, BiLSTM and static students are also timed with a vocabulary pruned
            to the tokens of these rows (`student.vocabulary=pruned`). Not needed for task files with [files].
        tasks: by default those of the teacher.
        unlabelled: unlabelled rows of these tasks; see `mtkd.distill`.
        seq_len: tokens per row.
        batch: rows per batch.
        rounds: timed batches per model, after one that is not timed.
        threads: CPU threads; None = torch's current setting.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.

    Raises:
        UserError: a target is not above 0, the teacher is unknown, is not a Transformer or cannot read
            `seq_len` tokens, or the data is invalid.
    """
    import torch

    from mtkd.device import find_device
    from mtkd.evaluation.inference_bench import BenchSettings
    from mtkd.jobs.suggest import suggest
    from tasks.data.unlabelled import UnlabelledRequest

    settings = BenchSettings(seq_len, batch, rounds, warmup=1, device=str(find_device(device)))
    request = UnlabelledRequest({} if unlabelled is None else unlabelled)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or threads_before)
    try:
        return suggest(
            saved_path("teacher", teacher),
            target_speedup,
            max_mb,
            settings,
            data=data,
            tasks=tasks,
            unlabelled=request,
            int8=int8,
        )
    finally:
        torch.set_num_threads(threads_before)
