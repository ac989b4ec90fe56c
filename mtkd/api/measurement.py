"""`mtkd.evaluate`, `predict`, `glue_submission` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd.api.argument_types import AnyModel, Device, Model
from mtkd.api.training_request import saved_path
from mtkd.evaluation.file_prediction import ROWS_PER_BLOCK, predict_file
from mtkd.model_files import EXPORT
from mtkd.output_files.remote_paths import remote_paths
from mtkd.runtime import OnnxModel
from tasks.common.arguments import PositiveInt, Threads, checked
from tasks.common.errors import UserError, warn_caller
from tasks.common.hub_loading import did_you_mean_model, is_hub_name
from tasks.model_tasks import task_of_model, with_text_columns
from tasks.task_names import TaskSpec

if TYPE_CHECKING:
    from mtkd.evaluation.prediction import SubmissionFile
    from mtkd.jobs.evaluation_result import Evaluation
    from mtkd.jobs.verify import Verified


@checked
@remote_paths("place")
def verify(place: str | Path | Model) -> Verified:
    """Compare the files in a directory with their recorded digests.

    Args:
        place: the directory of a run, model, corpus, store, export or question generator, a directory with
            several, or a model.

    Returns:
        The number of files, and what is wrong with each damaged file.

    Raises:
        UserError: there is no such directory, or it has no files with digests.
    """
    from mtkd.jobs.verify import verify as job

    return job(Path(saved_path("place", place)))


@checked
@remote_paths("model", "data", "tasks", "against", "encoder")
def evaluate(
    model: AnyModel,
    data: Any = None,
    tasks: TaskSpec | None = None,
    *,
    teacher_labels: str | Mapping[str, str | Sequence[str]] | Sequence[str] | None = None,
    split: str | None = None,
    limit: PositiveInt | None = None,
    batch: PositiveInt = 64,
    device: Device | None = None,
    against: AnyModel | None = None,
    baselines: bool = False,
    encoder: str | Path | None = None,
    predictions: str | Path | None = None,
) -> Evaluation:
    """Score a model on labelled rows, and compare it with another model; see `Model.evaluate`.

    Args:
        model: a run or model directory, or a model; or for one task a fine-tuned transformers checkpoint: a
            directory or hub name, a pipeline, or a pair of model and tokeniser.
        teacher_labels: the labels in the order of the outputs of such a checkpoint; see `mtkd.distill`.
        data, tasks, split, limit, batch, against, baselines, encoder, predictions: see `Model.evaluate`.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.
    """
    from mtkd.api.model import Model
    from mtkd.api.model_arguments import evaluated_model, path_of
    from mtkd.jobs.evaluate import evaluate as evaluate_model

    options: dict[str, Any] = {"split": split, "limit": limit, "baselines": baselines, "encoder": encoder}
    if isinstance(model, Model) and not teacher_labels:
        loaded = _loaded(model, device)
        return loaded.evaluate(data, tasks, batch=batch, against=against, predictions=predictions, **options)
    options["encoder"] = str(encoder) if encoder else None
    options["paths"] = {"model": path_of(model), "against": path_of(against)}
    options["against"] = evaluated_model("against", against)
    options["predictions"] = Path(predictions) if predictions else None
    source = evaluated_model("model", model)
    assert source is not None
    return evaluate_model(
        source, data, tasks, teacher_labels=teacher_labels, batch_size=batch, device=device, **options
    )


@checked
@remote_paths("model", "task", "source", out="out")
def predict(
    model: str | Path | Model,
    task: TaskSpec | None,
    source: str | Path,
    out: str | Path,
    *,
    teacher_labels: str | Mapping[str, str | Sequence[str]] | Sequence[str] | None = None,
    columns: Sequence[str] = (),
    format: str | None = None,
    block: PositiveInt = ROWS_PER_BLOCK,
    batch: PositiveInt = 64,
    threads: Threads | None = None,
    probabilities: bool = True,
    replace: bool = False,
    device: Device | None = None,
) -> int:
    """Predict every row of a file, and write all its columns with `prediction` and further columns added.

    The suffix of a file gives its format: JSON lines, CSV, TSV or parquet; text may be gzipped (`.jsonl.gz`).
    The rows may also be in a .json file, or in a .txt file with one text per line. Files are processed part
    by part, so memory use does not depend on their length, except for .json files, and for `rank` tasks,
    whose groups are predicted together. The output appears when it is complete. With an exported model, torch
    is not needed.

    The columns besides `prediction` depend on the type of the task. Classification adds `prediction_id` and
    `probabilities`, one for each label (columns `probability_LABEL` in CSV and TSV). Span tasks add `start`
    (the character at which the answer begins in the context; null if there is none), `score` (the sum of the
    logits of its start and end), `no_answer_score` and `n_best`, the 20 best answers. If "no answer" leads by
    more than the threshold that was tuned in training, `prediction` is "".

    Args:
        model: a run or model directory, an export, or a model; or the directory or hub name of a fine-tuned
            transformers checkpoint, for which `task` must be given.
        task: None = the model's only task.
        teacher_labels: the labels in the order of the outputs of such a checkpoint; see `mtkd.distill`.
        source: the file of rows, with the task's text columns; "-" or "/dev/stdin" = standard input.
        out: the file to write; "-" or "/dev/stdout" = standard output.
        columns: the text columns of the file in the order of the task's, if they have other names.
        format: "jsonl", "csv", "tsv" or "parquet", for files without such a suffix, and for standard input
            and output. By default, standard input is JSON lines, and the output has the input's format
            (JSON lines for parquet, .json and .txt).
        block: rows read at once; they are sorted by length, which saves padding.
        batch: rows per forward pass.
        threads: CPU threads; None = all cores for an exported model, and torch's current setting for others.
        probabilities: False = only add `prediction`.
        replace: replace columns of the input that have the name of an added column, for example in a file
            that `mtkd.predict` has written; otherwise such columns are an error.

    Returns:
        The number of rows.

    Raises:
        UserError: there is no such file, a row is malformed or lacks a column, a column would be replaced, or
            `out` is the input file.
    """
    options: dict[str, Any] = {
        "format": format,
        "block": block,
        "probabilities": probabilities,
        "replace": replace,
    }
    files = (Path(source), Path(out))
    if isinstance(model, str | Path) and (Path(model) / EXPORT).is_file():
        if device not in (None, "cpu"):
            raise UserError(f"`device={device!r}`: an exported model runs on the CPU", expected="cpu")
        exported = OnnxModel(model, threads=threads or 0)
        resolved_task = with_text_columns(task_of_model(task, list(exported.tasks.values())), columns)
        return predict_file(
            lambda rows, truncated: exported.predict_rows(resolved_task, rows, batch, truncated),
            resolved_task,
            *files,
            **options,
        )

    _require_torch(model)
    import torch

    from mtkd.evaluation.prediction import predict_rows
    from mtkd.models.saved_model import model_directory

    if not isinstance(model, Model) and (names_checkpoint(model) or teacher_labels):
        model = _open_checkpoint(Path(model), task, teacher_labels, device)
    elif isinstance(model, str | Path) and (Path(model) / "config.json").is_file():
        model_directory(Path(model))  # an error for a pretrained encoder, which `load` would accept
    loaded, threads_before = _loaded(model, device), torch.get_num_threads()
    resolved_task, module = with_text_columns(loaded.task(task), columns), loaded._loaded()
    torch.set_num_threads(threads or threads_before)
    try:
        return predict_file(
            lambda rows, truncated: predict_rows(module, resolved_task, rows, batch, False, truncated),
            resolved_task,
            *files,
            **options,
        )
    finally:
        torch.set_num_threads(threads_before)


def names_checkpoint(model: str | Path | Model) -> bool:
    """True for the directory or hub name of a fine-tuned transformers checkpoint."""
    from mtkd.teachers.transformers_checkpoint import checkpoint_directory

    if not isinstance(model, str | Path) or not (Path(model).is_dir() or is_hub_name(str(model))):
        return False
    return checkpoint_directory(str(model)) is not None


def _open_checkpoint(path: Path, task: TaskSpec | None, labels: Any, device: Device | None) -> Model:
    """Open a fine-tuned transformers checkpoint as a model of one task."""
    from mtkd.api.model import Model
    from mtkd.device import find_device
    from mtkd.jobs.open_model import open_model

    try:
        module, checkpoint = open_model(path, task, None, find_device(device), labels)
    except UserError as error:
        hint = error.hint and error.hint.replace("`tasks=", "`task=")
        raise UserError(error.problem, expected=error.expected, hint=hint) from error
    if checkpoint and checkpoint.warning:
        warn_caller(checkpoint.warning)
    return Model(module, device=device)


def _require_torch(model: str | Path | Model) -> None:
    """Check that torch can be imported; if not, a model directory that does not exist is the error."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if isinstance(model, str | Path) and not Path(model).exists():
            problem = f"there is no directory {model}{did_you_mean_model(str(model))}"
            raise UserError(problem, hint="models that are not exports need torch") from error
        raise


@checked
@remote_paths("models", "data")
def glue_submission(
    models: Sequence[str | Path | Model],
    data: Any,
    out: str | Path,
    *,
    batch: PositiveInt = 64,
    device: Device | None = None,
) -> list[SubmissionFile]:
    """Write GLUE's eleven submission files.

    Args:
        models: directories or models; each task is predicted by the first that was trained on it.
        data: where the test rows are read; see `mtkd.refine`.
        out: the directory to write.
        batch: rows per forward pass.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.

    Returns:
        One record per file, which tells whether a model or a constant predicted its rows.
    """
    from mtkd.evaluation import prediction
    from tasks.data.sources import open_data

    folder = Path(out)
    prediction.check_submission_directory(folder)
    loaded = [_loaded(model, device)._loaded() for model in models]
    return prediction.glue_submission(loaded, open_data(data), folder, batch)


def _loaded(model: str | Path | Model, device: Device | None = None) -> Model:
    from mtkd.api.load_model import load
    from mtkd.api.model import Model

    if isinstance(model, Model):
        return model.to(device) if device else model
    return load(model, device=device)
