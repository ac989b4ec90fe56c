"""Distil: a student learns from a teacher (or, for comparison, from labels alone)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mtkd.config import DistillSettings, LabelsSettings
from mtkd.engine.parameters import count_parameters
from mtkd.engine.rundir import RUN_FILE, RunDir
from mtkd.engine.trainer import Trainer, make_accelerator
from mtkd.losses.build import build_objective
from mtkd.losses.objective import Objective
from mtkd.model import ModelInfo, MultiTaskModel, digest_model, model_directory
from mtkd.records import LOGITS, Need
from mtkd.stages.common import (
    Request,
    begin,
    check_metric,
    encode_validation,
    evaluator,
    scores_record,
)
from mtkd.stages.data import TrainingData, load_training_data, trainable_tasks
from mtkd.students.build import Origin, build_student
from mtkd.students.transformer import DEFAULT_TEACHER, locate
from mtkd.teacher.cache import cache_logits
from mtkd.teacher.source import CachedLogits, OnlineTeacher, TeacherSource
from tasks.batching import Collator, Encoded, Reader
from tasks.corpus import read_corpus
from tasks.errors import UserError
from tasks.sources import digest_rows
from tasks.tokenise import Tokeniser


@dataclass(frozen=True)
class Plan:
    """What a distillation runs with, once everything has been checked.

    Attributes:
        teacher: None where the student learns from labels.
        warnings: what the user should know before trusting the result.
    """

    data: TrainingData
    student: MultiTaskModel
    objective: Objective
    teacher: MultiTaskModel | None
    warnings: list[str]


def run(
    request: Request,
    settings: DistillSettings,
    teacher: Path | None,
    corpus: Path | None = None,
    warn: Any = lambda text: None,
) -> RunDir:
    """Train one student for all tasks of the request.

    Args:
        teacher: a run of `refine` (or any mtkd model that has a head for each task); may be None only
            with `supervision = "labels"`.
        corpus: an augmented corpus, whose copies are added to the training rows.
        warn: called with each warning, before training starts.

    Returns:
        the finished run; its record holds the validation scores.

    Raises:
        UserError: anything wrong with data, teacher, corpus or settings, before anything is written.
    """
    tasks = trainable_tasks(request.tasks)
    _check_sources(settings, teacher, corpus)
    if settings.supervision == "labels":
        settings = settings.model_copy(update={"terms": {"labels": LabelsSettings(loss="labels")}})
    train = settings.train
    check_metric(train.metric, tasks)
    names = {"teacher": str(teacher) if teacher else None, "corpus": str(corpus) if corpus else None}
    run = request.open_run("distill", settings, tasks, **names)
    accelerator = make_accelerator(train)
    teacher_model = MultiTaskModel.load(teacher).to(accelerator.device) if teacher else None
    if teacher_model and settings.supervision == "teacher":
        teacher_model.require(tasks, f"the teacher {teacher}")
    data = load_training_data(request, tasks, corpus)
    inputs = {
        "data": data.digests,
        "teacher": digest_model(teacher) if teacher else None,
        "corpus": read_corpus(corpus).key if corpus else None,
    }
    run.check_inputs(**inputs)
    if run.finished:
        return run
    plan = _plan(data, settings, teacher_model)
    if corpus:
        _check_mask(corpus, plan)
    if plan.teacher:
        plan.warnings.extend(_judge_teacher(plan, accelerator, train.eval_batch_size))
    for text in plan.warnings if accelerator.is_main_process else ():
        warn(text)
    begin(
        run,
        accelerator,
        **inputs,
        rows=data.summary(),
        parameters=count_parameters(plan.student).to_json(),
        warnings=plan.warnings,
    )
    _train(request, settings, plan, accelerator, run, _home(teacher, request.out) if teacher else request.out)
    return run


def _check_sources(settings: DistillSettings, teacher: Path | None, corpus: Path | None) -> None:
    from_labels = settings.supervision == "labels"
    if teacher is None and not from_labels:
        raise UserError(
            f"the recipe {settings.name} needs a teacher",
            mend="pass --teacher DIR of a run of mtkd refine, or --set supervision=labels for labels alone",
        )
    if corpus and from_labels:
        raise UserError(
            "supervision=labels cannot use an augmented corpus: its rows have no labels",
            mend="leave --corpus out",
        )


def _plan(data: TrainingData, settings: DistillSettings, teacher: MultiTaskModel | None) -> Plan:
    """Build the student and the objective, and check that they fit the teacher."""
    wanted = settings.student
    own = teacher.tokeniser if teacher else Tokeniser.load(locate(DEFAULT_TEACHER))
    tokeniser = own
    if wanted.vocabulary == "word":
        texts = (text for part in data.parts for text in part.train.texts)
        tokeniser = Tokeniser.word_level(texts, wanted.vocabulary_size)
    torch.manual_seed(settings.train.seed)
    base = teacher.info.base if teacher else None
    encoder = build_student(wanted, Origin(tokeniser, teacher.encoder if teacher else None, own, base))
    info = ModelInfo(wanted.max_length, wanted.head_hidden, wanted.dropout)
    student = MultiTaskModel(encoder, data.tasks.values(), tokeniser, info)
    if teacher is None or settings.supervision == "labels":
        return Plan(data, student, build_objective(settings.terms, encoder, None), None, [])
    objective = build_objective(settings.terms, encoder, teacher.encoder)
    need = objective.student_need | objective.teacher_need
    if need.tokens and not student.reader.reads_like(teacher.reader):
        raise UserError(
            f"a term of {settings.name} compares teacher and student token by token, and they read "
            f"differently: "
            f"the teacher {_reading(teacher.reader)}, the student {_reading(student.reader)}",
            mend="use a Transformer student with the teacher's vocabulary and max_length, or drop the term",
        )
    objective.check(student.offers, teacher.offers, settings.name)
    return Plan(data, student, objective, teacher, [])


def _check_mask(corpus: Path, plan: Plan) -> None:
    """Refuse a corpus whose mask token means nothing to teacher or student."""
    token = read_corpus(corpus).settings.get("mask_token")
    for who, model in (("teacher", plan.teacher), ("student", plan.student)):
        if model and token is not None and model.tokeniser.mask_token != token:
            raise UserError(
                f"the corpus {corpus} masks words by {token!r}, the {who}'s mask token is "
                f"{model.tokeniser.mask_token!r}",
                mend=f"make the corpus with --mask-token '{model.tokeniser.mask_token}'",
            )


def _reading(reader: Reader) -> str:
    how = "both texts in one sequence" if reader.view == "joint" else "each text apart"
    vocabulary = f"{reader.tokeniser.vocab_size} ids (digest {reader.tokeniser.digest[:8]})"
    return f"{how}, {vocabulary}, at most {reader.max_length} tokens"


def _judge_teacher(plan: Plan, accelerator: Accelerator, batch_size: int) -> list[str]:
    """A warning for each task on which the teacher does no better than the commonest answer."""
    assert plan.teacher is not None
    validation = encode_validation(plan.data.validation, plan.teacher.reader)
    scores = evaluator(plan.data.tasks, validation, accelerator, batch_size)(plan.teacher)
    return [
        f"the teacher scores {s.primary:.3f} on {s.task}/{s.split}, no better than always giving the "
        f"commonest answer ({s.majority:.3f}): its knowledge of this task is worth nothing. "
        f"Refine it longer, or leave {s.task} out."
        for s in scores
        if s.primary <= s.majority
    ]


def _teacher_source(
    plan: Plan, settings: DistillSettings, accelerator: Accelerator, home: Path
) -> tuple[TeacherSource | None, Reader | None]:
    """The teacher as the loop sees it, and how it reads (None if it needs no batches).

    Args:
        home: where computed logits are kept.
    """
    teacher = plan.teacher
    need = plan.objective.teacher_need
    if teacher is None or need == Need():
        return None, None
    if not (settings.teacher.cache_logits and need == LOGITS):
        return OnlineTeacher(teacher, need, settings.teacher.precision), teacher.reader
    encoded = {p.task.name: Encoded.encode(p.train, teacher.tokeniser) for p in plan.data.parts}
    logits = cache_logits(
        teacher,
        plan.data.tasks,
        encoded,
        _places(plan, settings, home),
        accelerator,
        precision=settings.teacher.precision,
        batch_size=settings.train.eval_batch_size,
    )
    teacher.cpu()  # it is not run again, and its place on a GPU is wanted
    return CachedLogits(logits), None


def _places(plan: Plan, settings: DistillSettings, home: Path) -> dict[str, Path]:
    """Where the logits of each task are kept: a directory for each content of rows and each precision."""
    return {
        part.task.name: home / f"{part.task.name}-{settings.teacher.precision}-{digest_rows(part.train)[:16]}"
        for part in plan.data.parts
    }


def _home(teacher: Path, out: Path) -> Path:
    """Computed logits go beside the teacher's weights, for its next student; else into `out`."""
    run = model_directory(teacher).parent
    ours = (run / RUN_FILE).is_file() and os.access(run, os.W_OK)
    return (run if ours else out) / f"logits-{digest_model(teacher)[:16]}"


def _train(
    request: Request, settings: DistillSettings, plan: Plan, accelerator: Accelerator, run: RunDir, home: Path
) -> None:
    source, teacher_reader = _teacher_source(plan, settings, accelerator, home)
    student, data = plan.student, plan.data
    other = teacher_reader.tokeniser if teacher_reader else None
    if other is not None and other.digest == student.tokeniser.digest:
        other = None
    encoded = {p.task.name: Encoded.encode(p.train, student.tokeniser, other) for p in data.parts}
    validation = encode_validation(data.validation, student.reader)
    evaluate = evaluator(data.tasks, validation, accelerator, settings.train.eval_batch_size)
    trainer = Trainer(
        accelerator,
        student,
        plan.objective,
        data.tasks,
        encoded,
        Collator(student.reader, teacher_reader),
        settings.train,
        request.out,
        evaluate=evaluate,
        teacher=source,
        label="distilling" if source else "training",
    )
    outcome = trainer.fit()
    scores = scores_record(evaluate(student))
    if accelerator.is_main_process:
        student.info.scores = scores
        student.save(request.out / "model")
        run.finish(scores=scores, training=vars(outcome))
    accelerator.wait_for_everyone()
