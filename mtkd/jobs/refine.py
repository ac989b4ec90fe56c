"""Refine: a pretrained encoder becomes the multi-task teacher (MKD section 3.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mtkd.evaluation.baseline import baseline_warnings
from mtkd.jobs.common import (
    Request,
    begin,
    check_metric,
    encode_validation,
    evaluator,
    scores_record,
)
from mtkd.jobs.training_data import load_training_data, trainable_tasks
from mtkd.losses.objective import labels_objective
from mtkd.models.encoders.pretrained_config import digest_encoder, locate
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.multitask import ModelInfo, MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.settings import RefineSettings
from mtkd.training.batches import TaskBatches
from mtkd.training.run_directory import RunDirectory
from mtkd.training.trainer import Trainer, make_accelerator
from tasks.batching import Collator, Encoded
from tasks.tokeniser import Tokeniser


def run(
    request: Request,
    settings: RefineSettings,
    teacher: str,
    warn: Callable[[str], None] = lambda text: None,
) -> RunDirectory:
    """Train the multi-task teacher.

    Args:
        teacher: hub name or directory of a pretrained encoder, or `minilm`.
        warn: called with each warning: on the data before training, on the scores after it.

    Returns:
        the finished run; its record holds the validation scores.

    Raises:
        UserError: anything wrong with data, encoder or settings, before anything is written.
    """
    tasks = trainable_tasks(request.tasks)
    train = settings.train
    check_metric(train.metric, tasks)
    run = request.open_run("refine", settings, tasks, teacher=teacher)
    accelerator = make_accelerator(train)
    data = load_training_data(request, tasks)
    inputs = {"data": data.digests, "teacher": digest_encoder(teacher)}
    run.check_inputs(**inputs)
    if run.finished:
        return run
    torch.manual_seed(train.seed)
    pooling = None if settings.pooling == "auto" else settings.pooling
    encoder = TransformerEncoder.pretrained(teacher, pooling, settings.layers)
    info = ModelInfo(
        settings.max_length, settings.head_hidden, settings.dropout, base=teacher, stride=settings.stride
    )
    model = MultiTaskModel(encoder, tasks, Tokeniser.load(locate(teacher)), info)
    reader = model.reader
    data = data.as_read(reader)
    for text in data.lost if accelerator.is_main_process else ():
        warn(text)
    encoded = {part.task.name: Encoded.encode(part.train, reader.tokeniser) for part in data.parts}
    evaluate = evaluator(
        data.tasks, encode_validation(data.validation, reader), accelerator, train.eval_batch_size
    )
    objective = labels_objective()
    begin(run, accelerator, **inputs, rows=data.summary(), parameters=count_parameters(model).to_json())
    trainer = Trainer(
        accelerator,
        model,
        objective,
        TaskBatches(data.tasks, encoded, Collator(reader), train),
        train,
        request.out,
        evaluate=evaluate,
        label="refining",
    )
    outcome = trainer.fit()
    found = evaluate(model)
    scores = scores_record(found)
    if accelerator.is_main_process:
        model.info.scores = scores
        model.save(request.out / "model")
        run.finish(scores=scores, training=vars(outcome))
        if weak := baseline_warnings(data.tasks, found):
            warn("\n".join(weak))
    accelerator.wait_for_everyone()
    return run
