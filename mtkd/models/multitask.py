"""The model class of teachers and students: an encoder shared by all tasks, with one head per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtkd.model_files import EXPORT
from mtkd.models.encoders.encoder import AnyEncoder
from mtkd.models.encoders.pretrained_config import locate
from mtkd.models.encoders.run_encoder import check_embedding_count, run_encoder
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.models.fast_dropout import use_dropout
from mtkd.models.fast_embedding import use_embedding
from mtkd.models.fast_linear import use_linear
from mtkd.models.model_card import SAVED, model_card, usage
from mtkd.models.pretrained_weights import refuse_not_finite, refuse_other_types
from mtkd.models.saved_model import (
    HEADS,
    WEIGHTS,
    ModelInfo,
    model_directory,
    read_saved,
    saved_tokeniser,
    write_description,
)
from mtkd.outputs import LOGITS, EncoderOutput, ModelOutput, OutputSpec
from mtkd.torch_state import isolated
from tasks.common.digests import check_digests, write_digests
from tasks.common.errors import UserError, reason_of
from tasks.common.files import staged_directory
from tasks.common.reading import require_file
from tasks.heads import SANHead
from tasks.model_tasks import recorded_threshold, require_heads
from tasks.task import Task
from tasks.tokens.batching import ModelInputs
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser

_PREFIX = "task_"  # of the keys of `MultiTaskModel.head_modules`; the keys in files do not have it


class MultiTaskModel(nn.Module):
    """A shared encoder with one head per task.

    Attributes:
        tasks: head name -> Task.
        head_modules: the heads as a module. Its keys have a prefix, because a ModuleDict refuses the names of
            its own methods, such as "type", which tasks may have.
        info: see ModelInfo.
        tokeniser: turns text into the encoder's token ids.
    """

    def __init__(self, encoder: AnyEncoder, tasks: Iterable[Task], tokeniser: Tokeniser, info: ModelInfo):
        super().__init__()
        self.encoder = encoder
        self.tokeniser = tokeniser
        self.info = info
        use_dropout(encoder)
        use_linear(encoder)
        use_embedding(encoder)
        self.tasks = {task.head: task for task in tasks}
        check_embedding_count(encoder, tokeniser.vocab_size)
        self.set_max_length(info.max_length)
        self._set_heads({name: self._new_head(task) for name, task in self.tasks.items()})

    @property
    def heads(self) -> dict[str, nn.Module]:
        """Head name -> head."""
        return {name.removeprefix(_PREFIX): head for name, head in self.head_modules.items()}

    def _head(self, name: str) -> nn.Module:
        return self.head_modules[_PREFIX + name]

    def _set_heads(self, heads: Mapping[str, nn.Module]) -> None:
        self.head_modules = nn.ModuleDict({f"{_PREFIX}{name}": head for name, head in heads.items()})

    def set_max_length(self, max_length: int) -> None:
        """Truncate rows to `max_length` tokens from now on.

        Raises:
            UserError: the encoder has fewer positions.
        """
        longest = self.encoder.positions or max_length
        if max_length > longest:
            raise UserError(
                f"max_length {max_length} is more than the {longest} positions that the encoder has",
                hint=f"use `settings={{'max_length': {longest}}}` or, to distil, "
                f"`student.max_length={longest}`",
            )
        self.info.max_length = max_length

    def _new_head(self, task: Task) -> nn.Module:
        if self.info.pair_head == "san" and task.kind == "classify" and len(task.columns) == 2:
            head: nn.Module = SANHead(self.encoder.width, task.type.n_outputs(task), self.info.dropout)
        else:
            pooled_width = self.encoder.head_width(task)
            head = task.type.build_head(task, pooled_width, self.info.head_hidden_size, self.info.dropout)
        use_dropout(head)
        return head

    @property
    def reader(self) -> Reader:
        """How this model reads text; for tasks that share a head under another name, see `reader_of`."""
        return self._reader(*self.tasks.values())

    def reader_of(self, task: Task) -> Reader:
        """How this model reads a task, which may share the head of a task with another name."""
        return self._reader(task).for_task(task.name)

    @property
    def text_reader(self) -> Reader:
        """How this model reads texts that belong to no task."""
        return self._reader()

    def _reader(self, *tasks: Task) -> Reader:
        config, info = self.encoder.config, self.info
        return config.reader(self.tokeniser, tasks, info.max_length, info.stride)

    @property
    def offers(self) -> OutputSpec:
        """The outputs that can be requested from this model."""
        return self.encoder.offers | LOGITS

    def forward(self, inputs: ModelInputs, head: str, need: OutputSpec = LOGITS) -> ModelOutput:
        """Run a batch of one task.

        Args:
            inputs: the batch, tokenised by `self.reader`.
            head: the name of the head to use (`Task.head`).
            need: the outputs to return; nothing else is kept.

        Returns:
            ModelOutput with logits (B, C), or (B, 2, L) for `span` tasks, and the other requested outputs.
        """
        head_inputs = self.head_inputs(head) if need.logits else OutputSpec()
        out = run_encoder(self.encoder, inputs, replace(need, logits=False) | head_inputs)
        return ModelOutput(**vars(out), logits=self.logits(head, inputs, out) if need.logits else None)

    def head_inputs(self, head: str) -> OutputSpec:
        """The encoder's outputs that a head reads."""
        of_tokens = isinstance(self._head(head), SANHead) or self.tasks[head].type.predicts_spans
        return OutputSpec(pooled=not of_tokens, sequence=of_tokens)

    def logits(self, head: str, inputs: ModelInputs, out: EncoderOutput) -> Tensor:
        """Compute the logits of a head from the outputs of the encoder for the batch."""
        module = self._head(head)
        if isinstance(module, SANHead):
            assert inputs.joined is not None, "a Transformer reads both texts in one sequence"
            logits: Tensor = module(out.sequence, *inputs.joined.text_masks)
        else:
            logits = (
                module(out.sequence, out.mask)
                if self.head_inputs(head).sequence
                else module(self._pooled(head, out))
            )
        return logits

    def _pooled(self, head: str, out: EncoderOutput) -> Tensor:
        width = self.encoder.head_width(self.tasks[head])
        if out.pooled is None or out.pooled.shape[-1] != width:
            given = "none" if out.pooled is None else f"of width {out.pooled.shape[-1]}"
            raise UserError(
                f"{type(self.encoder).__name__} must return pooled vectors of width {width}, not {given}",
                hint="its `spec.pooled_size` must be the width of what its `forward` returns",
            )
        return out.pooled

    def threshold(self, task: Task) -> Any:
        """The best threshold on the validation rows of the task that the head was trained on, or None."""
        return recorded_threshold(self.info.known_thresholds, task, self.tasks)

    def set_tasks(self, tasks: Iterable[Task]) -> None:
        """Keep only the heads of these tasks, and add a new head for each task that has none.

        Raises:
            UserError: a task is predicted by a head with other labels.
        """
        tasks = list(tasks)
        for task in tasks:
            if task.map:
                raise UserError(
                    f"the task {task.name!r} has no head of its own: `map` converts those of {task.head!r}",
                    hint=f"name {task.head!r} instead",
                )
        task_of_head = {task.head: task for task in tasks}
        heads = {
            name: self.heads[name] if name in self.heads else self._new_head(t)
            for name, t in task_of_head.items()
        }
        self.tasks = task_of_head
        self._set_heads(heads)

    def require_heads(self, tasks: Iterable[Task], what: str) -> None:
        """Check that there is a matching head for each task; see `tasks.model_tasks.require_heads`."""
        require_heads(self.tasks, tasks, what)

    def save(self, directory: Path) -> None:
        """Write the weights of encoder and heads, the tokeniser, and last `model.json`.

        transformers' `AutoModel.from_pretrained` can load a Transformer encoder from the directory, without
        the heads. README.md is its model card.
        """
        info = self.info
        with staged_directory(directory, "model.json") as temporary:
            self.encoder.save_weights(temporary / WEIGHTS)
            weights = {
                name.removeprefix(_PREFIX): value.detach().cpu().contiguous()
                for name, value in self.head_modules.state_dict().items()
            }
            save_file(weights, temporary / HEADS)
            self.tokeniser.save(temporary)
            write_description(temporary, self.encoder.config, self.tasks.values(), info)
            tasks = list(self.tasks.values())
            use = usage(tasks[0] if tasks else None, 'import mtkd\n\nmodel = mtkd.load("DIR")')
            files = SAVED.format(weights=WEIGHTS, heads=HEADS)
            family = self.encoder.config.spec.family
            card = model_card(family, tasks, info, use, files)
            (temporary / "README.md").write_text(card, encoding="utf-8")
            write_digests(temporary)

    @classmethod
    @isolated
    def load(cls, directory: Path) -> MultiTaskModel:
        """Load a model written by `save`, from its directory or from the run directory that contains it.

        Raises:
            UserError: there is no model, a file is missing or damaged, or another version of mtkd wrote it.
        """
        path = model_directory(directory)
        saved = read_saved(directory)
        if (path / EXPORT).is_file():
            from mtkd.models.exported import ExportedModel

            return ExportedModel(path, saved)
        tokeniser = saved_tokeniser(path)
        check_digests(path)
        model = cls(saved.encoder(), saved.tasks, tokeniser, saved.info)
        try:
            model.encoder.load_weights(load_file(require_file(path / WEIGHTS)))
            weights = load_file(require_file(path / HEADS))
            model.head_modules.load_state_dict({f"{_PREFIX}{name}": weights[name] for name in weights})
        except UserError:
            raise
        except Exception as error:  # safetensors and torch raise their own kinds for a damaged file
            raise UserError(f"the weights in {path} are damaged: {reason_of(error)}") from error
        refuse_other_types(model.encoder, path / WEIGHTS, "body.")
        refuse_other_types(model.head_modules, path / HEADS, _PREFIX)
        refuse_not_finite(model, str(path))
        return model.eval()

    @classmethod
    @isolated
    def without_heads(cls, name: str, max_length: int | None) -> MultiTaskModel:
        """Load a pretrained encoder as a model without any heads.

        Args:
            name: a hub name, a directory, or `minilm`.
            max_length: maximum number of tokens per row; None = 128, or as many as the encoder can read.

        Raises:
            UserError: there is no such encoder, or it cannot read `max_length` tokens.
        """
        encoder = TransformerEncoder.pretrained(name)
        default = ModelInfo().max_length
        max_length = max_length or min(default, encoder.positions or default)
        return cls(encoder, [], Tokeniser.load(locate(name)), ModelInfo(max_length, base=name)).eval()
