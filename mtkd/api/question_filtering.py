"""`mtkd.augment.filter_questions`: keeping the generated questions that a teacher can answer."""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd import __version__
from mtkd.api.argument_types import Device, Engine, Model
from mtkd.api.training_request import saved_path
from mtkd.output_files.remote_paths import remote_paths
from mtkd.output_files.worker_pools import Workers, other_model, path_for_workers
from tasks.common.arguments import PositiveInt, checked, refuse_unknown

if TYPE_CHECKING:
    from augment.questions.filtering.filter_corpus import Filtered
    from tasks.scoring.answers import Answerer


@checked
@remote_paths("corpus", "teacher", out="out")
def filter_questions(
    corpus: str | Path,
    teacher: str | Path | Model,
    out: str | Path,
    *,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.filter_questions(...)",
    **settings: Any,
) -> Filtered:
    """Keep the generated questions that a teacher can answer, and add unanswerable ones.

    Args:
        corpus: the corpus of generated questions.
        teacher: a model that answers questions, or its directory.
        workers, engine, address: the processes that filter, as for `generate_questions`; each loads the
            teacher.
        settings: the options of `mtkd augment questions filter`, under the same names with underscores
            (`unanswerable`, `min_overlap`, `min_confidence`, `max_copied`, `round_trip`, ...): fields of
            `FilterSettings`. By default, `unanswerable` is 0.33 for a teacher that has learned to give no
            answer, and otherwise 0.

    Returns:
        The corpus that was written, and the number of questions by outcome.

    Raises:
        UserError: the corpus or the teacher cannot be used, or no question is left.
    """
    from augment.questions.filtering.filter_corpus import FilterSpec, filter_corpus, open_questions
    from augment.questions.filtering.filter_shard import FilterSettings
    from mtkd.output_files.distributed import join_process_group
    from tasks.common.progress import progress

    arguments = inspect.signature(filter_questions).parameters.keys() - {"settings"}
    fields = [field.name for field in dataclasses.fields(FilterSettings)]
    refuse_unknown("filter_questions", settings, [*fields, *arguments])
    processes = Workers(workers, engine, address)
    teacher_path = saved_path("teacher", teacher)
    settings.setdefault("unanswerable", usual_unanswerable(Path(teacher_path)))
    spec = FilterSpec(Path(corpus), FilterSettings(**settings), __version__, command)
    rows = open_questions(Path(corpus)).rows
    group = join_process_group()  # must come first: it sets the device of this process
    answerer = load_answerer(Path(teacher_path), "cpu" if processes.in_other_processes else None)
    load = partial(_load_in_worker, path_for_workers(teacher_path), answerer.digest)
    with progress("filtering", rows, unit="questions") as advance:
        return filter_corpus(
            spec,
            answerer,
            Path(out),
            workers=processes,
            load=load,
            overwrite=overwrite,
            group=group,
            advance=advance,
        )


def usual_unanswerable(teacher: Path) -> float:
    """The share of unanswerable questions in a filtered corpus, unless the user gives one."""
    from mtkd.models.saved_model import is_saved_model, read_saved

    gives_no_answer = is_saved_model(teacher) and any(task.unanswerable for task in read_saved(teacher).tasks)
    return 0.33 if gives_no_answer else 0.0


def load_answerer(directory: Path, device: Device | None = None) -> Answerer:
    """Load the teacher that answers questions, from a run or model directory."""
    from mtkd.device import find_device
    from mtkd.evaluation.question_answering import SpanAnswerer

    return SpanAnswerer.load(directory, find_device(device))


def _load_in_worker(teacher: str, digest: str) -> Answerer:
    """Load the teacher in a worker process; UserError if its digest differs from `digest`."""
    from mtkd.device import worker_device

    answerer = load_answerer(Path(teacher), str(worker_device()))
    if answerer.digest != digest:
        raise other_model(teacher)
    return answerer
