"""Fine-tuned transformers checkpoints as teachers: the model with its own head and its own tokeniser."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtkd.models.digest import digest_weights
from mtkd.models.encoders.pretrained_config import config_of
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.initialisation import InitSpec
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.pretrained_weights import BIN, find_weights, load_pretrained
from mtkd.models.saved_model import ModelInfo, SavedModel, is_saved_model
from mtkd.outputs import LOGITS, ModelOutput, OutputSpec
from mtkd.teachers.checkpoint_config import checkpoint_config, output_names
from mtkd.teachers.label_order import label_order
from mtkd.teachers.teacher_ref import TeacherRef, in_memory
from mtkd.torch_state import isolated
from tasks.common.errors import UserError, shorten
from tasks.common.hub_loading import CHECKPOINT_FILES, DEFAULT_ENCODER, load_named, similar_model
from tasks.common.records import read_record
from tasks.common.sha256 import digest_bytes, digest_file
from tasks.task import Task
from tasks.tokens.batching import ModelInputs
from tasks.tokens.encoding import PADDED
from tasks.tokens.tokeniser import Tokeniser

_CLASSIFIER, _READER = "ForSequenceClassification", "ForQuestionAnswering"
_LONGEST = 512  # tokens per row, for checkpoints that do not state a limit
RUN_OR_CHECKPOINT = "an mtkd run, or a fine-tuned transformers checkpoint (a directory, or a hub name)"


class CheckpointModel(MultiTaskModel):
    """A transformers classifier or question-answering model, run unchanged, for one task.

    Args:
        classifier: a `...ForSequenceClassification` or `...ForQuestionAnswering`.
        order: the output of the classifier for each label of the task; empty = as they are.
    """

    def __init__(
        self, classifier: nn.Module, task: Task, tokeniser: Tokeniser, info: ModelInfo, order: Sequence[int]
    ):
        encoder = TransformerEncoder(config_of(classifier.config), classifier.base_model)  # type: ignore[arg-type]
        super().__init__(encoder, [], tokeniser, info)
        self.tasks = {task.head: task}
        self.classifier = classifier
        self._order = list(order)

    def forward(self, inputs: ModelInputs, head: str, need: OutputSpec = LOGITS) -> ModelOutput:
        """Run a batch; see `MultiTaskModel.forward`."""
        if not need.logits:
            return super().forward(inputs, head, need)
        result, out = self.encoder.run(self.classifier, inputs, replace(need, logits=False))  # type: ignore[operator]
        return ModelOutput(**vars(out), logits=self._logits(self.tasks[head], result, out.mask))

    def _logits(self, task: Task, result: Any, mask: Tensor) -> Tensor:
        if task.type.predicts_spans:
            logits = torch.stack([result.start_logits, result.end_logits], 1)
            return logits.masked_fill(~mask.unsqueeze(1), PADDED)
        logits = result.logits[:, self._order] if self._order else result.logits
        if task.kind == "rank" and logits.shape[1] == 2:  # a classifier of right and wrong: the log-odds
            return logits[:, [task.positive]] - logits[:, [1 - task.positive]]
        return logits

    def save(self, directory: Path) -> None:
        """Raises UserError: a transformers checkpoint is already on disk."""
        raise UserError("a transformers checkpoint is saved with its own `save_pretrained`")


@dataclass(frozen=True)
class CheckpointRef(TeacherRef):
    """A fine-tuned checkpoint of transformers that teaches one task.

    Attributes:
        task: the task.
        order: the output of the checkpoint for each label of the task; empty = as they are.
        warning: what had to be assumed about the labels; None = nothing.
        directory: the local directory; None if the model was passed as an object.
        module: the model and its tokeniser, if they were passed as objects.
    """

    task: Task | None = None
    order: tuple[int, ...] = ()
    warning: str | None = None
    directory: Path | None = None
    module: tuple[nn.Module, Any] | None = None

    @staticmethod
    def of(
        name: str, source: Path | tuple[nn.Module, Any], task: Task, labels: Sequence[str] | None = None
    ) -> CheckpointRef:
        """A checkpoint as a teacher, without its weights.

        Args:
            name: how messages and records name it.
            source: its directory (`checkpoint_directory`), or the model and its fast tokeniser.
            labels: the task's labels in the order of the checkpoint's outputs; None = by their names.

        Raises:
            UserError: the checkpoint is of another kind than the task, or its labels do not match.
        """
        if isinstance(source, Path):
            hf = checkpoint_config(source)
            kind = _architecture(source)
            load_named(find_weights, str(source), "teacher")
        else:
            hf, kind = source[0].config, type(source[0]).__name__
        _require_kind(name, kind, hf, task)
        order: tuple[int, ...] = ()
        warning = None
        if not task.type.predicts_spans:
            order, warning = label_order(f"the checkpoint {name}", task, output_names(hf), labels)
        elif labels is not None:
            label_order(f"the checkpoint {name}", task, (), labels)
        config = config_of(hf)
        directory, module = (source, None) if isinstance(source, Path) else (None, source)
        saved = SavedModel(config.model_dump(), [task], ModelInfo(_LONGEST, 0, base=str(directory or name)))
        return CheckpointRef(
            name, saved, config, task=task, order=order, warning=warning, directory=directory, module=module
        )

    @property
    def init_spec(self) -> InitSpec:
        """What a student of this teacher can be initialised from."""
        return replace(super().init_spec, in_memory=self.module is not None)

    @cached_property
    def _tokeniser(self) -> Tokeniser:
        tokeniser = Tokeniser(self.module[1]) if self.module else Tokeniser.load(str(self.directory))
        if tokeniser.hf.padding_side != "right":
            raise UserError(
                f"the tokeniser of {self.name} pads on the {tokeniser.hf.padding_side}",
                expected="a checkpoint that is padded on the right (BERT, RoBERTa, DeBERTa, ELECTRA, ...)",
            )
        return tokeniser

    def tokeniser(self) -> Tokeniser:
        """The checkpoint's own tokeniser."""
        return self._tokeniser

    @cached_property
    def digest(self) -> str:
        """A digest of weights, tokeniser and order of the labels."""
        if self.module:
            weights = [digest_weights(self.module[0])]
        else:
            assert self.directory is not None
            files = sorted(self.directory.glob("*.safetensors")) or [self.directory / BIN]
            weights = [digest_file(file) for file in files]
        return digest_bytes(*weights, self._tokeniser.digest, str(self.order))

    def for_workers(self) -> CheckpointRef:
        """This checkpoint as a process in another directory finds it."""
        if self.directory is None:
            raise in_memory(self.name)
        return replace(self, directory=self.directory.resolve())

    @isolated
    def load(self, max_length: int | None) -> MultiTaskModel:
        """Load the checkpoint.

        Args:
            max_length: maximum number of tokens per row; None = as many as its tokeniser and encoder allow.

        Raises:
            UserError: the weights are damaged, or lack a part such as the head.
        """
        assert self.saved is not None and self.task is not None
        # `attach_capture` changes how attention is called; a copy leaves the model of the caller unchanged
        classifier = copy.deepcopy(self.module[0]) if self.module else self._load_classifier()
        info = replace(self.saved.info, max_length=max_length or 8)
        model = CheckpointModel(classifier, self.task, self._tokeniser, info, self.order)
        if max_length is None:
            limit = self._tokeniser.hf.model_max_length
            if not isinstance(limit, int | float) or not limit > 0:
                raise UserError(
                    f"the tokeniser of {self.name}: model_max_length = {limit!r} is not valid",
                    expected="a number of tokens",
                    hint="correct it in tokenizer_config.json",
                )
            longest = int(min(limit, model.encoder.positions or _LONGEST))
            model.set_max_length(longest if longest < 1 << 20 else _LONGEST)
        return model.eval()

    def _load_classifier(self) -> Any:
        import transformers

        assert self.directory is not None
        kind = f"AutoModel{_READER if _architecture(self.directory).endswith(_READER) else _CLASSIFIER}"
        model, missing = load_pretrained(getattr(transformers, kind), str(self.directory), "teacher")
        if missing:
            raise UserError(
                f"the checkpoint {self.name} has no weights for {shorten(sorted(missing))}",
                expected="a fine-tuned checkpoint with its head",
            )
        return model


def checkpoint_directory(name: str) -> Path | None:
    """The local directory of a fine-tuned transformers checkpoint, downloaded from the hub if needed.

    Args:
        name: a directory, or a name on the hub.

    Returns:
        None if the name stands for something else: an mtkd model, or an encoder without a task head.

    Raises:
        UserError: there is no such directory, and the hub has no such model or cannot be reached.
    """
    path = Path(name)
    if name == DEFAULT_ENCODER or is_saved_model(path):
        return None
    if path.is_file():
        raise UserError(f"{name} is a file", expected=RUN_OR_CHECKPOINT)
    if not path.is_dir():
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
            return None
        try:
            config = load_named(partial(_fetch, ["config.json"]), name, "model")
            if not _architecture(config).endswith((_CLASSIFIER, _READER)):
                return None
            return load_named(partial(_fetch, list(CHECKPOINT_FILES)), name, "teacher")
        except UserError as error:
            hint = error.hint
            if similar_model(name) == DEFAULT_ENCODER:
                hint = f"turn it into a teacher: `mtkd.refine(encoder={DEFAULT_ENCODER!r}, ...)`"
            raise UserError(
                error.problem,
                expected=RUN_OR_CHECKPOINT,
                hint=hint,
            ) from error
    return path if _architecture(path).endswith((_CLASSIFIER, _READER)) else None


def refuse_headless(path: Path) -> None:
    """Raise UserError for the directory of a transformers model for which `checkpoint_directory` is None."""
    if (path / "config.json").is_file() and not is_saved_model(path):
        raise UserError(
            f"{path} has no head for a task that mtkd knows",
            expected=RUN_OR_CHECKPOINT,
            hint="if it is a pretrained encoder, train it on your tasks first: "
            f"`mtkd.refine(encoder={str(path)!r}, ...)`",
        )


def _fetch(patterns: list[str], name: str, local_files_only: bool) -> Path:
    """The hub's files that match the patterns, and the weights unless only config.json is wanted."""
    from huggingface_hub import snapshot_download

    path = Path(snapshot_download(name, local_files_only=local_files_only, allow_patterns=patterns))
    if not (path / "config.json").is_file():
        raise FileNotFoundError("it has no config.json")
    if len(patterns) > 1 and not any(path.glob("*.safetensors")):
        find_weights(name, local_files_only)
    return path


def _architecture(path: Path) -> str:
    """The class that a directory's config.json names; "" if it names none."""
    file = path / "config.json"
    names = read_record(file, dict[str, Any]).get("architectures") if file.is_file() else None
    return str(names[0]) if names and isinstance(names, list) else ""


def _require_kind(name: str, kind: str, hf: Any, task: Task) -> None:
    """Check that a checkpoint is for tasks of this task's type."""
    class_suffix = _READER if task.type.predicts_spans else _CLASSIFIER
    if not kind.endswith(class_suffix):
        raise UserError(
            f"the checkpoint {name} is a {kind}, but the task {task.name!r} is of type {task.kind}",
            expected=f"a checkpoint of the class ...{class_suffix}",
        )
    several = getattr(hf, "problem_type", None) == "multi_label_classification"
    single = getattr(hf, "problem_type", None) == "single_label_classification"
    scores = getattr(hf, "problem_type", None) == "regression" and task.kind in ("classify", "multilabel")
    if scores or (several and task.kind != "multilabel") or (single and task.kind == "multilabel"):
        raise UserError(
            f"the checkpoint {name} was trained for {hf.problem_type}, but the task {task.name!r} is of "
            f"type {task.kind}",
            expected="a checkpoint that was fine-tuned for the same kind of labels",
        )
