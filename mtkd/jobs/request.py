"""The arguments that all training jobs share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from mtkd.train_settings import TrainSettings
from mtkd.training.run_directory import RunDirectory
from tasks.common.errors import UserError
from tasks.common.sha256 import digest_bytes
from tasks.data.sources import DataSource, open_data
from tasks.task import Task


@dataclass(frozen=True)
class Request:
    """The arguments that all training jobs share.

    Attributes:
        data: a name or directory for `tasks.data.sources.open_data`, a `DataSource`, whose `name` is recorded
            in run.json, or None for the files that the tasks name themselves.
        tasks: task names as on the command line, or tasks.
        out: the run directory.
        limit, eval_limit: rows per training and validation split; None = all.
        resume, overwrite: what to do with a run that is already in `out`.
        device: "cpu", "cuda", "cuda:1" or "mps"; None = the GPU if available.
        workers: what computes the teacher's logits of all rows, if they are computed before training.
    """

    data: str | DataSource | None
    tasks: str | Sequence[Task]
    out: Path
    limit: int | None = None
    eval_limit: int | None = None
    resume: bool = False
    overwrite: bool = False
    device: str | None = None
    workers: Workers = THIS_PROCESS

    def source(self) -> DataSource:
        """Open the data source.

        Raises:
            UserError: the directory does not exist.
        """
        return open_data(self.data)

    def open_run(self, command: str, settings: Any, tasks: list[Task], **sources: Any) -> RunDirectory:
        """Open the run directory. The identity of the run is everything that determines its result.

        Args:
            command: "refine", "distill" or "finetune".
            sources: further parts of the identity.

        Raises:
            UserError: the directory holds another run.
        """
        values = settings.model_dump()
        for key in ("checkpoint_minutes", "checkpoint_steps"):  # these do not affect the result
            values["train"].pop(key)
        identity = {
            "command": command,
            "data": self.data.name if isinstance(self.data, DataSource) else self.data,
            "tasks": ",".join(task.name for task in tasks),
            "task_digest": digest_bytes(json.dumps([task.to_json() for task in tasks]))[:16],
            "limit": self.limit,
            "eval_limit": self.eval_limit,
            **sources,
            "settings": values,
        }
        return RunDirectory(self.out, identity, resume=self.resume, overwrite=self.overwrite)


def refuse_unlabelled_settings(train: TrainSettings, job: str) -> None:
    """Check that no setting for unlabelled rows is given to a job that does not use such rows.

    Args:
        job: what does not use them, for the message.

    Raises:
        UserError: such a setting is given.
    """
    for name in ("unlabelled_fraction", "min_confidence"):
        if (value := getattr(train, name)) is not None:
            raise UserError(
                f"train.{name} = {value}, but {job} does not use the unlabelled rows of tasks",
                hint=f"leave `train.{name}` out; mtkd distill uses it",
            )
