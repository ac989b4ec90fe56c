"""Several teachers: one or more for each task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from mtkd.models.encoders.encoder import EncoderConfig
from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.initialisation import InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import EncoderSpec, ModelOutput, OutputSpec
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.teacher_sources import IndexedLogits, TeacherSource
from tasks.common.errors import UserError
from tasks.common.sha256 import digest_bytes
from tasks.task import Task
from tasks.tokens.batching import Batch
from tasks.tokens.tokeniser import Tokeniser

# What must be the same for all teachers whose hidden states are compared with those of one student.
_PROPERTIES = (
    *("family", "layers", "hidden_size", "attention_size", "heads", "pooled_size", "stride"),
    *("embedding_size", "table", "mean_pooled"),
)

Average = Literal["probabilities", "logits"]


@dataclass(frozen=True)
class Member:
    """A teacher of a group, and the names of the tasks that it teaches."""

    teacher: TeacherRef
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class TeacherGroup(TeacherRef):
    """Several teachers. The student starts from the first one, and takes its tokeniser.

    Attributes:
        members: the teachers; a task that several of them teach learns from their average.
    """

    members: tuple[Member, ...] = ()

    @staticmethod
    def of(members: Sequence[Member], tasks: Sequence[Task]) -> TeacherRef:
        """Group teachers; a single teacher of all tasks of the run is returned unchanged."""
        first = members[0].teacher
        heads = _compared_heads(members, tasks)
        if len(members) == 1 and len(members[0].tasks) == len(tasks):
            if isinstance(getattr(first.config, "pairs", None), list):  # perhaps of other tasks
                return replace(first, config=_with_pairs(first.config, heads, tasks))
            return first
        name = ", ".join(f"{task}={member.teacher.name}" for member in members for task in member.tasks)
        taught_names = {task for member in members for task in member.tasks}
        taught_tasks = [task for task in tasks if task.name in taught_names]
        saved = replace(first.saved, tasks=taught_tasks) if first.saved else None
        config = _with_pairs(first.config, heads, tasks)
        return TeacherGroup(name, saved, config, members=tuple(members))

    @property
    def digest(self) -> str:
        """A digest of all teachers and the tasks that they teach."""
        parts = [(member.tasks, member.teacher.digest) for member in self.members]
        return digest_bytes(json.dumps(parts))

    @property
    def init_spec(self) -> InitSpec:
        """The first teacher, to start a student from; the student reads each task as its teacher does."""
        return replace(self.members[0].teacher.init_spec, teacher=self.config)

    def tokeniser(self) -> Tokeniser:
        """The first teacher's tokeniser."""
        return self.members[0].teacher.tokeniser()

    def load(self, max_length: int | None) -> MultiTaskModel:
        """Raises UserError: only one teacher can be loaded here (`members` are loaded one by one)."""
        raise UserError(
            f"only one teacher can be used here, not several ({self.name})",
            expected="one model with a head for each task",
        )

    def check_can_provide(self, need: OutputSpec) -> None:
        """Check that the members can provide what the losses need.

        Raises:
            UserError: the losses need more than logits, but the teachers differ in size or tokeniser, or one
                task has several teachers.
        """
        if replace(need, logits=False) == OutputSpec():
            return
        reasons = []
        tasks = [task for member in self.members for task in member.tasks]
        if len(set(tasks)) < len(tasks):
            reasons.append("a task has several teachers, and only logits can be averaged")
        first = self.members[0].teacher
        of_first = _compared_spec(first, need)
        others = (m.teacher for m in self.members if _compared_spec(m.teacher, need) != of_first)
        other = next(others, first)
        differences = _differences(first, other, need) if other is not first else []
        if differences:
            reasons.append(
                f"the encoders of the teachers {first.name} and {other.name} differ: {', '.join(differences)}"
            )
        digests = {member.teacher.tokeniser().digest for member in self.members}
        if len(digests) > 1:
            reasons.append("the teachers have different tokenisers")
        if reasons:
            hint = "use one teacher, or a recipe that learns from logits alone (pretrained, mkd-lstm, static)"
            raise UserError(f"the losses compare more than logits, but {' and '.join(reasons)}", hint=hint)


def _compared_heads(members: Sequence[Member], tasks: Sequence[Task]) -> list[str]:
    """The heads of the tasks whose two texts are read side by side by their teacher."""
    by_name = {task.name: task for task in tasks}
    taught = [(member.teacher.config, by_name[name]) for member in members for name in member.tasks]
    return sorted({task.head for config, task in taught if config.compares_texts(task)})


def _with_pairs(config: EncoderConfig, heads: Sequence[str], tasks: Sequence[Task]) -> EncoderConfig:
    """The configuration of a Transformer that reads the tasks of some heads side by side, and no others."""
    if not isinstance(config, TransformerConfig):
        return config
    joined = [task for task in tasks if len(task.columns) == 2 and task.head not in heads]
    pairs = (list(heads) if joined else "bi-encoder") if heads else "cross-encoder"
    return config.model_copy(update={"pairs": pairs})


def _compared_spec(ref: TeacherRef, need: OutputSpec) -> EncoderSpec:
    """The sizes of a teacher; how it pools counts only if the losses compare what is pooled by the mean."""
    spec: EncoderSpec = ref.config.spec
    if not need.pooled:  # a bi-encoder does not offer the pooled vector of a pair
        spec = replace(spec, offers=replace(spec.offers, pooled=False))
    return spec if need.mean else replace(spec, mean_pooled=False)


def _differences(first: TeacherRef, other: TeacherRef, need: OutputSpec) -> list[str]:
    """The properties in which the encoders of two teachers differ, each with both values."""
    one, two = (
        {name: getattr(_compared_spec(ref, need), name) for name in _PROPERTIES} for ref in (first, other)
    )
    differences = [f"{name} {one[name]} and {two[name]}" for name in one if one[name] != two[name]]
    return differences or ["the outputs that they offer"]


class TeacherByTask:
    """Sends each batch to the teacher of its task."""

    def __init__(self, sources: Mapping[str, TeacherSource]):
        self._sources = sources
        self.offers = next(iter(sources.values())).offers

    def outputs(self, task: Task, batch: Batch, need: OutputSpec | None = None) -> ModelOutput:
        """Return the outputs of the task's teacher."""
        return self._sources[task.name].outputs(task, batch, need)


class AveragedLogits:
    """The averages of several teachers' logits, computed for the rows that are asked for.

    Args:
        parts: the logits of each teacher, indexed by row numbers.
        average: see `average_logits`.
    """

    def __init__(self, task: Task, parts: Sequence[IndexedLogits], average: Average):
        self._task = task
        self._parts = parts
        self._average = average

    def __len__(self) -> int:
        return len(self._parts[0])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return average_logits(self._task, [part[indices] for part in self._parts], self._average)


def average_logits(task: Task, parts: Sequence[np.ndarray], average: Average) -> np.ndarray:
    """The average of several teachers' logits.

    Args:
        parts: (n, C) or (n, 2, L) float32 for each teacher.
        average: "logits" is their mean; "probabilities" gives the logits of the mean probabilities (their
            logarithm, or the log-odds for tasks of several labels per row). Scores are always averaged
            themselves.
    """
    if len(parts) == 1:
        return parts[0]
    logits = torch.stack([torch.from_numpy(part) for part in parts]).double()
    arranged = task.type.softmax_logits(logits)
    if average == "logits" or arranged is None:
        return logits.mean(0).float().numpy()
    mean = arranged.log_softmax(-1).logsumexp(0) - np.log(len(parts))
    if arranged.shape != logits.shape:  # (n, K, 2): a distribution for each label
        mean = mean[..., 0] - mean[..., 1]
    return mean.float().numpy()
