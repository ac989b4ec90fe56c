"""Score and time a teacher that is given to a grid, which no run of the grid scores or times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mtkd.device import find_device
from mtkd.evaluation.differences import Splits
from mtkd.evaluation.inference_bench import save_with_heads
from mtkd.evaluation.scoring import read_predictions, write_predictions
from mtkd.jobs.evaluate import evaluate
from mtkd.jobs.grid.grid_baselines import PredictionsByTask
from mtkd.jobs.grid.grid_jobs import GridInputs, safe_file_name
from mtkd.models.parameter_count import count_parameters
from mtkd.teachers.find_teachers import find_teachers
from mtkd.teachers.teacher_names import teachers_by_task
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.transformers_checkpoint import CheckpointRef
from mtkd.training.run_directory import PREDICTIONS
from tasks.common.digests import DIGESTS, write_digests
from tasks.common.errors import UserError
from tasks.common.files import atomic_directory
from tasks.common.locks import remove_leftovers
from tasks.common.records import Record, read_record, write_record
from tasks.common.sha256 import digest_bytes
from tasks.scoring.row_predictions import RowPredictions
from tasks.task import Task

_FOLDER, _RECORD = "teacher-scores", "evaluation.json"


@dataclass(frozen=True)
class _ScoreRecord(Record):
    """What was scored.

    Attributes:
        identity: a digest of the teacher and the rows.
        parameters: the number of the teacher's weights; `parameters_without_embeddings`: outside the word
            embeddings.
    """

    identity: str
    parameters: int
    parameters_without_embeddings: int


@dataclass
class TeacherScores:
    """The predictions and the size of a given teacher.

    Attributes:
        predicted: task -> seed 0 -> split -> predictions.
        parameters: the number of weights, of the largest model if each task has a teacher of its own;
            `parameters_without_embeddings`: outside the word embeddings.
        first: the teacher of the first task; None if no task was scored.
    """

    predicted: PredictionsByTask = field(default_factory=dict)
    parameters: int = 0
    parameters_without_embeddings: int = 0
    first: TeacherRef | None = None


def score_given_teacher(
    inputs: GridInputs,
    tasks: Mapping[str, Task],
    task_specs: Mapping[str, str],
    predicted: Mapping[str, PredictionsByTask],
    say: Callable[[str], None],
) -> TeacherScores:
    """Score the teacher of `inputs` on the validation rows that the cells were scored on.

    The predictions are cached in `out`/teacher-scores, so an unchanged teacher is scored only once.

    Args:
        tasks: name -> the task as the models know it.
        task_specs: task -> the task specification of the grid that it belongs to.
        predicted: cell -> its predictions.

    Raises:
        UserError: the teacher cannot be scored on one of the tasks, which the message names.
    """
    if (inputs.out / _FOLDER).is_dir():
        remove_leftovers(inputs.out / _FOLDER)
    result = TeacherScores()
    for name, task in tasks.items():
        runs = [splits for cell in predicted.values() for splits in cell.get(name, {}).values()]
        if not runs:
            continue
        try:
            teacher = _find(inputs, task, task_specs[name])
            splits, record = _score(inputs, teacher, task, runs[0], say)
        except UserError as error:
            raise UserError(f"it cannot be scored on {name}: {error.problem}") from error
        result.first = result.first or teacher
        result.predicted[name] = {0: splits}
        if record.parameters > result.parameters:
            result.parameters = record.parameters
            result.parameters_without_embeddings = record.parameters_without_embeddings
    return result


def timed_directory(teacher: TeacherRef, unused_directory: Path) -> Path:
    """The directory of a teacher; the encoder of a checkpoint is first saved to `unused_directory`."""
    if not isinstance(teacher, CheckpointRef):
        return Path(teacher.name)
    assert teacher.saved is not None
    return save_with_heads(str(teacher.directory), teacher.saved.tasks, unused_directory)


def _find(inputs: GridInputs, task: Task, task_spec: str) -> TeacherRef:
    """The teacher of a task."""
    given = (inputs.teacher or "").replace("{task}", task_spec)
    teachers = [teacher for name, teacher in teachers_by_task(given) if name in (None, task.name)]
    if not teachers:
        raise UserError("no teacher is named for it")
    teacher = find_teachers(teachers, [task], heads=True, labels=inputs.labels_of_teacher([task]))
    assert teacher is not None
    return teacher


def _score(
    inputs: GridInputs, teacher: TeacherRef, task: Task, rows_of_cells: Splits, say: Callable[[str], None]
) -> tuple[dict[str, RowPredictions], _ScoreRecord]:
    """The teacher's predictions for the rows of a task, read from `out` or computed."""
    identity = digest_bytes(teacher.digest or teacher.name, *_row_parts(rows_of_cells))
    directory = inputs.out / _FOLDER / safe_file_name(task.name)
    if cached := _read(directory, identity, task):
        return cached
    say(f"scoring the teacher {teacher.name} on {task.name}")
    model = teacher.load(None).to(find_device(None))
    scores = evaluate(model, inputs.data or None, [task], limit=inputs.eval_limit).scores
    splits = {score.split: score.predictions for score in scores if score.predictions is not None}
    if splits.keys() != rows_of_cells.keys() or any(
        not rows.uids.equals(rows_of_cells[split].uids) for split, rows in splits.items()
    ):
        raise UserError("the validation rows are not those that the cells were scored on")
    size = count_parameters(model)
    record = _ScoreRecord(identity, size.total, size.without_embeddings)
    with atomic_directory(directory) as temporary:
        write_predictions(temporary / PREDICTIONS, scores)
        write_record(temporary / _RECORD, vars(record))
        write_digests(temporary)
    return splits, record


def _read(
    directory: Path, identity: str, task: Task
) -> tuple[dict[str, RowPredictions], _ScoreRecord] | None:
    """The cached predictions and their record; None if they are incomplete, damaged or of other inputs."""
    if not all((directory / name).is_file() for name in (_RECORD, DIGESTS)):
        return None
    try:
        record = read_record(directory / _RECORD, _ScoreRecord)
        predictions = read_predictions(directory / PREDICTIONS, [task]).get(task.name)
    except UserError:
        return None
    return (predictions, record) if predictions and record.identity == identity else None


def _row_parts(splits: Splits) -> list[str | bytes]:
    """The uids and labels of the rows of some splits, for a digest."""
    return [
        part
        for split, rows in sorted(splits.items())
        for part in (split, "\n".join(rows.uids.to_pylist()), rows.labels.tobytes())
    ]
