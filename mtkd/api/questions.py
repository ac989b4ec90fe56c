"""`mtkd.augment.train_questions` and `generate_questions`: questions about paragraphs, and their cost."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtkd import __version__
from mtkd.api.argument_types import Device, Engine
from mtkd.dtypes import Precision
from mtkd.output_files.remote_paths import remote_paths
from mtkd.output_files.worker_pools import Workers
from tasks.common.arguments import PositiveFloat, PositiveInt, Seed, checked, refuse_unknown
from tasks.common.errors import UserError, warn_caller
from tasks.data.sources import open_data
from tasks.task_names import TaskSpec, resolve

if TYPE_CHECKING:
    from augment.corpus_writer import WrittenCorpus
    from augment.questions.generation.prepare_generation import PreparedGeneration


@checked
@remote_paths("model", "data", "task", out="out")
def train_questions(
    model: str | Path,
    data: Any,
    out: str | Path,
    *,
    task: TaskSpec = "squad",
    format: Literal["context", "answer", "sentence"] = "context",
    epochs: PositiveInt = 3,
    steps: PositiveInt | None = None,
    lr: PositiveFloat | None = None,
    batch: PositiveInt = 64,
    max_input: PositiveInt = 512,
    max_output: PositiveInt = 48,
    seed: Seed = 0,
    precision: Precision = "fp32",
    vocab_size: PositiveInt = 8000,
    d_model: PositiveInt = 256,
    layers: PositiveInt = 4,
    heads: PositiveInt = 4,
    d_ff: PositiveInt = 1024,
    limit: PositiveInt | None = None,
    eval_limit: PositiveInt | None = None,
    device: Device | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.train_questions(...)",
) -> dict[str, Any]:
    """Fine-tune a T5 to write the questions of a span task; an unfinished run is resumed.

    Args:
        model: the T5 to start from: a hub name or directory, or "scratch" for random weights and the sizes
            `vocab_size`, `d_model`, `layers`, `heads` and `d_ff`.
        data, out: see `mtkd.refine`.
        task: a span task.
        format: what the generator reads: "context" = only the context; "answer" = the answer, then the
            context; "sentence" = the answer, then the sentence that contains it.
        epochs, steps, lr, batch, seed, precision: the training settings; `batch` is questions per step.
        max_input, max_output: the maximum number of tokens of a prompt and of a question.
        limit, eval_limit: the maximum number of training and of held-out rows (1,000 held-out rows by
            default).

    Returns:
        The report: losses, scores on held-out rows, and samples.

    Raises:
        UserError: the data, the model or the directory cannot be used, in which case nothing is written; or
            the loss is no longer finite.
        Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
    """
    from augment.questions.generator import Reading
    from augment.questions.training.config import FROM_SCRATCH, GeneratorTrainingConfig
    from augment.questions.training.from_scratch import NewModelShape
    from augment.questions.training.prompts import span_task
    from augment.questions.training.train_generator import TrainingPlace, train_generator
    from mtkd.device import find_device, keep_memory
    from mtkd.precision import warn_of_slow_bf16

    shape = NewModelShape(vocab_size, d_model, layers, heads, d_ff)
    for name, value in vars(shape).items() if str(model) != FROM_SCRATCH else ():
        if value != getattr(NewModelShape, name):
            raise UserError(
                f"`{name}={value}` has no effect on {model}, which has sizes of its own",
                hint=f"leave it out, or train a new T5: `model='{FROM_SCRATCH}'`",
            )
    config = GeneratorTrainingConfig(
        str(model),
        Reading(format, max_input, max_output),
        shape,
        epochs=epochs,
        steps=steps,
        lr=lr,
        batch_size=batch,
        seed=seed,
        precision=precision,
        limit=limit,
        eval_limit=eval_limit or 1000,
    )
    training_place = TrainingPlace(Path(out), find_device(device), __version__, command, overwrite)
    warn_of_slow_bf16(precision, training_place.device, warn_caller)
    with keep_memory():
        return train_generator(config, open_data(data), span_task(resolve(task, data=data)), training_place)


@checked
@remote_paths("text", "model", "task", out="out", endpoint="model")
def generate_questions(
    text: str | Path,
    out: str | Path,
    *,
    model: str | Path = "rules",
    task: TaskSpec = "squad",
    words: str | None = None,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    overwrite: bool = False,
    device: Device | None = None,
    command: str = "mtkd.augment.generate_questions(...)",
    **options: Any,
) -> tuple[WrittenCorpus, PreparedGeneration]:
    """Write questions about paragraphs, for a teacher to answer; an unfinished corpus is resumed.

    Args:
        text: paragraphs: a file or directory of text, parquet or JSONL, or "hub:NAME".
        model: a trained generator (a directory or hub name), "rules" for rules of English grammar, or the URL
            of an OpenAI-compatible endpoint ("http://localhost:8000/v1"), whose `endpoint_model` is used.
        task: the span task that the questions are for.
        words: "MIN:MAX", the lengths of the paragraphs to use, in words; longer ones are split between
            sentences.
        workers, engine, address: the processes that write the questions, as for `mask`; not for an endpoint.
            Each process loads the generator. With Ray, there is one per GPU of the cluster, if it has any.
        options: the other options of `mtkd augment questions generate`, under the same names with underscores
            (`per_paragraph`, `beams`, `sample`, `top_p`, ...): fields of `GenerationConfig`.

    Returns:
        The corpus that was written, and the prepared generation with its counts of paragraphs.

    Raises:
        UserError: the generator, the paragraphs or the options cannot be used; or the endpoint fails, in
            which case its earlier responses are kept.
    """
    from augment.corpus_writer import total_copies, write_corpus
    from mtkd.output_files.distributed import join_process_group
    from tasks.common.progress import progress, say

    processes = Workers(workers, engine, address)
    group = join_process_group()  # must come first: it sets the device of this process
    arguments: Any = {"model": model, "task": task, "words": words, "overwrite": overwrite, "device": device}
    arguments |= {"function": "generate_questions", "command": command}
    with _prepared(text, out, processes, **arguments, **options) as ready:
        if ready.estimate:
            say(f"to send: {ready.estimate.sentence()}")
            ready.try_first()
        total = total_copies(ready.spec, ready.rows)
        with progress("questions", total, unit="questions") as advance:
            written = write_corpus(
                ready.spec,
                ready.rows,
                Path(out),
                workers=processes,
                overwrite=overwrite,
                advance=advance,
                group=group,
            )
    return written, ready


@checked
@remote_paths("text", "model", "task", out="out", uploads=False, endpoint="model")
def estimate_questions(
    text: str | Path,
    out: str | Path,
    *,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    **options: Any,
) -> PreparedGeneration:
    """Count paragraphs and estimate the cost of `generate_questions`; nothing is sent or written.

    Args:
        text, out, workers, engine, address, options: see `generate_questions`.

    Returns:
        An object with `counts` of paragraphs, and for an endpoint an `estimate` of requests, tokens and cost.

    Raises:
        UserError: the generator, the paragraphs or the options cannot be used.
    """
    processes = Workers(workers, engine, address)
    with _prepared(text, out, processes, function="estimate_questions", **options) as ready:
        return ready


@contextlib.contextmanager
def _prepared(
    text: str | Path,
    out: str | Path,
    processes: Workers,
    *,
    function: str,
    model: str | Path = "rules",
    task: TaskSpec = "squad",
    words: str | None = None,
    overwrite: bool = False,
    device: Device | None = None,
    command: str = "",
    **options: Any,
) -> Iterator[PreparedGeneration]:
    """Prepare `generate_questions`; leaving the `with` block stops running requests.

    Args:
        function: the function that the user called, for the error about an unknown option.
    """
    from augment.corpus_writer import check_corpus_output
    from augment.questions.generation.config import GenerationConfig
    from augment.questions.generation.paragraphs import Words
    from augment.questions.generation.prepare_generation import prepare_generation
    from augment.questions.rules.rule_augmenter import RULES
    from augment.questions.training.prompts import span_task
    from mtkd.output_files.distributed import join_process_group

    known = {field.name for field in dataclasses.fields(GenerationConfig)} - {"form", "text"} | {"format"}
    arguments = inspect.signature(generate_questions).parameters
    refuse_unknown(function, options, [*known, *arguments.keys() - {"options"}])
    name = span_task(resolve(task)).name
    options["form"] = options.pop("format", None)
    config = GenerationConfig(str(text), str(model), words=Words.parse(words) if words else None, **options)
    with contextlib.ExitStack() as stack:
        torch_device: Any = None
        if config.asks_endpoint and (join_process_group().count > 1 or processes.in_other_processes):
            raise UserError(
                "an endpoint can only be used by one process",
                hint="`concurrency=N` sends several requests at a time",
            )
        if config.model != RULES and not config.asks_endpoint:  # the others need no torch
            from mtkd.device import find_device, keep_memory
            from mtkd.precision import warn_of_slow_bf16

            if join_process_group().is_main and config.backend == "native":
                warn_of_slow_bf16(config.precision, find_device(device), warn_caller)
            stack.enter_context(keep_memory())
            torch_device = find_device("cpu" if processes.in_other_processes else device)
        where: Any = {"out": Path(out), "overwrite": overwrite, "workers": processes}
        ready = prepare_generation(config, name, torch_device, __version__, command, **where)
        stack.callback(ready.close)
        if ready.estimate:  # before anything is paid for
            check_corpus_output(ready.spec, ready.rows, Path(out), overwrite=overwrite)
        yield ready
