"""`mtkd.suggest_students`: which students are as fast and as small as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.output_files.remote_paths import remote_paths
from tasks.common.errors import UserError
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.task_names import TaskSpec

if TYPE_CHECKING:
    from mtkd.jobs.suggest import Suggestions


@remote_paths("teacher", "data", "tasks", "unlabelled")
def suggest_students(
    teacher: str | Path = DEFAULT_ENCODER,
    *,
    target_speedup: float | None = None,
    max_mb: float | None = None,
    int8: bool = False,
    data: Any = None,
    tasks: TaskSpec | None = None,
    unlabelled: Mapping[str, str | Path | Sequence[Path]] | None = None,
    seq_len: int = 128,
    batch: int = 16,
    rounds: int = 5,
    threads: int | None = None,
    device: str | None = None,
) -> Suggestions:
    """Time students of several shapes against the teacher, and say which reach the targets.

    Nothing is trained. The students have random weights: some of the teacher's layers, narrower Transformers,
    BiLSTMs, and averaged token vectors. Each is listed with the command that trains it, in the order of the
    scores to expect from what was measured elsewhere; the scores on your tasks can differ.

    Args:
        teacher: a run or model directory, or a pretrained encoder.
        target_speedup: how many times as fast as the teacher a student is to be.
        max_mb: the maximum size of its weights in MB (10^6 bytes), in fp32 unless `int8`.
        int8: `max_mb` limits the size of an int8 export, which is about a quarter of the fp32 weights.
        data: the training rows; with them, BiLSTM and static students are also timed with a vocabulary pruned
            to the tokens of these rows (`student.vocabulary=pruned`).
        tasks: by default those of the teacher.
        unlabelled: text without labels of these tasks; see `mtkd.distill`.
        seq_len: tokens per row; batch: rows per batch; rounds: timed batches per model, after one more.
        threads: of the CPU; None = as torch is set.

    Raises:
        UserError: a target is not above 0, the teacher is unknown, no Transformer or cannot read `seq_len`
            tokens, or the data is invalid.
    """
    import torch

    from mtkd.device import find_device
    from mtkd.evaluation.inference_bench import BenchSettings
    from mtkd.jobs.suggest import suggest
    from tasks.data.unlabelled import UnlabelledRequest

    for name, value in (("seq_len", seq_len), ("batch", batch), ("rounds", rounds), ("threads", threads)):
        if value is not None and value < 1:
            raise UserError(f"`{name}={value}` is not valid", expected="1 or more")
    settings = BenchSettings(seq_len, batch, rounds, warmup=1, device=str(find_device(device)))
    request = UnlabelledRequest({} if unlabelled is None else unlabelled)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or threads_before)
    try:
        return suggest(
            str(teacher),
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
