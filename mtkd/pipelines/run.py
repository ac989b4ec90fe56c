"""`mtkd.run_pipeline`: run the steps of a pipeline that are not finished."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtkd.models.result_cache import cache_last_result
from mtkd.output_files.distributed import join_process_group
from mtkd.output_files.remote_paths import remote_paths
from mtkd.pipelines.control_check import different_students
from mtkd.pipelines.init_write import changed_sources
from mtkd.pipelines.pipeline_file import load_steps, output_directory, override, read_pipeline
from mtkd.pipelines.pipeline_runner import PipelineRunner, StepResult
from mtkd.pipelines.step_records import PIPELINE_RECORD
from tasks.common.arguments import checked
from tasks.common.errors import UserError, warn_caller
from tasks.common.locks import locked
from tasks.common.progress import say


@checked
@remote_paths()
def run_pipeline(
    file: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    estimate: bool = False,
) -> list[StepResult]:
    """Run all steps of a pipeline that are not finished; each is an mtkd command (docs/pipelines.md).

    A step runs again if its options or the files that it reads have changed, or if a step whose output it
    reads has run again. After an interruption, the same call resumes.

    Args:
        file: a TOML file, in which relative paths start at its directory; or "demo".
        settings: dotted key of the file -> value, such as {"seed": 1, "steps.teacher.epochs": 2}.
        overwrite: run all steps again.
        dry_run: run nothing.
        estimate: run only a few batches of each training and evaluation that never finished, in a temporary
            directory, to estimate its time.

    Returns:
        One result per step, in the order in which they run.

    Raises:
        UserError: the file or a step is invalid, raised before the first step runs; or a step raises it.
    """
    if join_process_group().count > 1:
        raise UserError(
            "a pipeline runs in one process", hint="start single commands with `accelerate launch`"
        )
    values, folder = read_pipeline(file)
    with contextlib.chdir(folder):
        steps, out = load_steps(values, settings or {}, Path(file).stem)
        runner = PipelineRunner(steps, out, overwrite, Path(file).name)
        if folder != Path():
            say(f"the commands run in {Path().resolve()}")
        read = {Path(path) for files in runner.inputs.values() for path in files}
        for source in changed_sources(sorted(read), runner.digests.of):
            warn_caller(
                f"{source} has changed since `mtkd init`; the job still uses its rows from then. To use the "
                "new rows, repeat `mtkd.init_pipeline` with the same arguments and `overwrite=True`."
            )
        for difference in different_students(runner.steps, runner.params):
            warn_caller(difference)
        if dry_run or estimate:
            with cache_last_result():
                return runner.plan(estimate)
        with locked(out), cache_last_result():
            return runner.run()


def record_file(file: str | Path, settings: Mapping[str, Any]) -> Path:
    """The file in which a pipeline with these settings records the steps that have run."""
    values, folder = read_pipeline(file)
    override(values, settings)
    return folder / output_directory(values, Path(file).stem) / PIPELINE_RECORD
