"""The one model type: an encoder shared by all tasks, with a head for each. Teachers and students alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtkd.models.encoders.base import AnyEncoder, EncoderConfig
from mtkd.models.encoders.pretrained_config import locate
from mtkd.models.encoders.registry import config_from_json, encoder_from_config
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.outputs import LOGITS, ModelOutput, OutputSpec
from tasks.batching import ModelInputs
from tasks.errors import UserError, shorten
from tasks.files import atomic_directory, digest_bytes, digest_file, read_json, write_json
from tasks.reader import Reader
from tasks.task import Task
from tasks.tokeniser import Tokeniser

FORMAT = 2
WEIGHTS, HEADS = "model.safetensors", "heads.safetensors"
TOKENISER = "tokenizer.json"
README = """\
# A model of mtkd

Answers: `mtkd predict --model DIR`, or `mtkd.models.multitask.MultiTaskModel.load(DIR)` in Python.

- model.json: the encoder's configuration, and each task with its labels in the order of the logits
- {weights}: the encoder
- {heads}: one head per task: {tasks}
- tokenizer.json, tokenizer_config.json: the tokeniser

If there is a config.json, `AutoModel.from_pretrained(DIR)` of transformers reads the encoder without heads.
A classifier of transformers (`AutoModelForSequenceClassification`, `pipeline("text-classification")`) would
put a new, random head on it. config.json therefore declares no labels, which makes a pipeline fail. To
fine-tune the encoder with transformers, pass `num_labels`.
"""


@dataclass
class ModelInfo:
    """What a saved model says of itself, beside its weights.

    Attributes:
        max_length: tokens a row (or, for students that read texts apart, a text) is cut to.
        stride: tokens that neighbouring windows of a long context share (`span` tasks).
        head_hidden: width of the heads' hidden layer; 0 = a single Linear.
        dropout: in the heads.
        base: the pretrained encoder that training started from; None = random weights.
        scores: task -> recorded validation scores (see `mtkd.evaluation.scoring`).
    """

    max_length: int = 128
    head_hidden: int = 512
    dropout: float = 0.1
    base: str | None = None
    scores: dict[str, dict] = field(default_factory=dict)
    stride: int = 128


class MultiTaskModel(nn.Module):
    """A shared encoder and one head a task.

    Attributes:
        tasks: head name -> Task.
        info: see ModelInfo.
        tokeniser: what turns text into the encoder's ids.
    """

    def __init__(self, encoder: AnyEncoder, tasks: Iterable[Task], tokeniser: Tokeniser, info: ModelInfo):
        super().__init__()
        self.encoder, self.tokeniser, self.info = encoder, tokeniser, info
        self.tasks = {task.head: task for task in tasks}
        self.read_at_most(info.max_length)
        self.heads = nn.ModuleDict({name: self._new_head(task) for name, task in self.tasks.items()})

    def read_at_most(self, max_length: int) -> None:
        """Cut rows to `max_length` tokens from now on.

        Raises:
            UserError: the encoder has fewer positions.
        """
        longest = self.encoder.positions or max_length
        if max_length > longest:
            raise UserError(
                f"max_length {max_length} is more than the {longest} positions that the encoder has",
                hint=f"`max_length={longest}` (mtkd refine) or `student.max_length={longest}`",
            )
        self.info.max_length = max_length

    def _new_head(self, task: Task) -> nn.Module:
        return task.type.build_head(task, self.encoder.width, self.info.head_hidden, self.info.dropout)

    @property
    def reader(self) -> Reader:
        """How this model reads text."""
        return Reader(self.tokeniser, self.encoder.input_format, self.info.max_length, self.info.stride)

    @property
    def offers(self) -> OutputSpec:
        """What can be asked of this model."""
        return self.encoder.offers | LOGITS

    def forward(self, inputs: ModelInputs, head: str, need: OutputSpec = LOGITS) -> ModelOutput:
        """Read a batch of one task.

        Args:
            inputs: the batch, as `self.reader` makes it.
            head: whose head answers (`Task.head`).
            need: what to return; nothing else is kept.

        Returns:
            ModelOutput with logits (B, C), of a `span` task (B, 2, L), and what else was asked for.
        """
        module = self.heads[head] if need.logits else None
        of_tokens = module is not None and self.tasks[head].type.predicts_spans
        read = OutputSpec(pooled=need.logits and not of_tokens, sequence=need.logits and of_tokens)
        out = self.encoder(inputs, replace(need, logits=False) | read)
        logits: Tensor | None = None
        if module is not None:
            logits = module(out.sequence, out.mask) if of_tokens else module(out.pooled)
        return ModelOutput(**vars(out), logits=logits)

    def threshold(self, task: Task) -> Any:
        """The threshold that was best on the task's validation rows (`TaskType.best_threshold`), or None."""
        known = self.info.scores.values() if task.type.has_threshold(task) else ()
        found = [s.get("threshold") for s in known if s["task"] == task.name]
        return next((value for value in found if value is not None), None)

    def keep(self, tasks: Iterable[Task]) -> None:
        """Keep only the heads of these tasks; give a fresh head to those that have none."""
        wanted = {task.head: task for task in tasks}
        heads = {
            name: self.heads[name] if name in self.heads else self._new_head(t) for name, t in wanted.items()
        }
        self.tasks, self.heads = wanted, nn.ModuleDict(heads)

    def require(self, tasks: Iterable[Task], what: str) -> None:
        """Check that there is a fitting head for each task; see `require_heads`."""
        require_heads(self.tasks, tasks, what)

    def save(self, directory: Path) -> None:
        """Write the model atomically: `model.json`, the encoder's and the heads' weights, and the tokeniser.

        A Transformer's directory is also one as transformers writes it: `AutoModel.from_pretrained` reads
        the encoder from it, without heads. The README.md inside says so.
        """
        info = self.info
        with atomic_directory(directory) as place:
            self.encoder.save_weights(place / WEIGHTS)
            save_file(_plain(self.heads), place / HEADS)
            self.tokeniser.save(place)
            write_description(place, self.encoder.config, self.tasks.values(), info)
            tasks = ", ".join(self.tasks) or "none"
            note = README.format(weights=WEIGHTS, heads=HEADS, tasks=tasks)
            (place / "README.md").write_text(note, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> MultiTaskModel:
        """Read a model written by `save`, from its directory or from the run directory that holds it.

        Raises:
            UserError: there is no model there, a file is missing or damaged, or another version wrote it.
        """
        place = model_directory(directory)
        saved = read_saved(directory)
        model = cls(saved.encoder(), saved.tasks, saved_tokeniser(place), saved.info)
        try:
            model.encoder.load_weights(load_file(place / WEIGHTS))
            model.heads.load_state_dict(load_file(place / HEADS))
        except Exception as error:  # safetensors and torch raise their own kinds for a damaged file
            raise UserError(f"the weights in {place} are damaged: {str(error).splitlines()[0]}") from error
        return model.eval()

    @classmethod
    def without_heads(cls, name: str, max_length: int) -> MultiTaskModel:
        """A pretrained encoder as a model that knows no task.

        Args:
            name: hub name or directory, or `minilm`.

        Raises:
            UserError: no such encoder, or it cannot read so many tokens.
        """
        encoder = TransformerEncoder.pretrained(name)
        return cls(encoder, [], Tokeniser.load(locate(name)), ModelInfo(max_length, base=name)).eval()


def require_heads(known: Mapping[str, Task], tasks: Iterable[Task], what: str) -> None:
    """Check that there is a fitting head for each task.

    Args:
        known: head name -> the task it was made for.
        what: how to name the model in the error ("the teacher ...").

    Raises:
        UserError: a head is missing or answers with another number of outputs.
    """
    for task in tasks:
        there = known.get(task.head)
        if there is None:
            raise UserError(
                f"{what} has no head for the task {task.name!r}",
                expected=f"tasks it was trained on: {shorten(known, task.name) or 'none'}",
                hint="leave the task out with `tasks`, or train a model that knows it",
            )
        if (there.kind, there.labels) != (task.kind, task.labels):
            raise UserError(
                f"{what} knows {task.name!r} as {there.kind} with labels {shorten(there.labels) or 'none'}; "
                f"the task here is {task.kind} with labels {shorten(task.labels) or 'none'}"
            )


@dataclass(frozen=True)
class SavedModel:
    """What a saved model says of itself; no weights.

    Attributes:
        encoder_json: its encoder's configuration.
    """

    encoder_json: dict[str, Any]
    tasks: list[Task]
    info: ModelInfo

    def encoder(self) -> AnyEncoder:
        """Its encoder, with fresh weights."""
        return encoder_from_config(self.config)

    @property
    def config(self) -> EncoderConfig:
        """Its encoder's configuration."""
        return config_from_json(self.encoder_json)


def read_saved(directory: Path) -> SavedModel:
    """What the model in a directory, or in the run directory that holds it, says of itself.

    Raises:
        UserError: there is no model there, or another version wrote it.
    """
    return saved_in(model_directory(directory))


def write_description(place: Path, config: EncoderConfig, tasks: Iterable[Task], info: ModelInfo) -> None:
    """Write what a model says of itself; `saved_in` reads it."""
    said = {"format": FORMAT, "encoder": config.model_dump(), "tasks": [task.to_json() for task in tasks]}
    write_json(place / "model.json", said | vars(info))


def saved_in(place: Path) -> SavedModel:
    """What the model.json of a directory says.

    Raises:
        UserError: there is none, or another version wrote it.
    """
    said = read_json(place / "model.json")
    if (written := said.pop("format")) != FORMAT:
        newer = written > FORMAT
        raise UserError(
            f"{place} was written by {'a newer' if newer else 'an older'} mtkd",
            hint="upgrade mtkd" if newer else "train it anew with this version",
        )
    encoder, tasks = said.pop("encoder"), [Task.from_json(value) for value in said.pop("tasks")]
    return SavedModel(encoder, tasks, ModelInfo(**said))


def saved_tokeniser(place: Path) -> Tokeniser:
    """The tokeniser that was saved beside a model, or beside the description of one.

    Raises:
        UserError: its file is missing or damaged.
    """
    if not (place / TOKENISER).is_file():  # transformers would make up an empty one
        raise UserError(
            f"{place} lacks {TOKENISER}, without which no text can be read",
            hint="copy it from where the model was trained; it belongs to the weights",
        )
    return Tokeniser.load(str(place))


def is_saved_model(directory: Path) -> bool:
    """True if a model of ours lies there, or in the run that lies there."""
    return any((place / "model.json").is_file() for place in (directory, directory / "model"))


def _plain(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}


def model_directory(directory: Path) -> Path:
    """Where the model lies: `directory` itself or its `model/`.

    Raises:
        UserError: neither holds a model.
    """
    for place in (directory, directory / "model"):
        if (place / "model.json").is_file() and (place / WEIGHTS).is_file():
            return place
    if not directory.is_dir():
        raise UserError(
            f"there is no directory {directory}: an mtkd model is wanted here",
            hint=f"a pretrained encoder becomes one by: mtkd refine --teacher {directory} --out DIR",
        )
    raise UserError(
        f"{directory} holds no mtkd model",
        expected="a run directory of mtkd refine, distill or finetune, or the model/ inside it",
        hint="if the run there is unfinished, run its command again to finish it",
    )


def digest_model(directory: Path) -> str:
    """The SHA-256 of a model's weights, heads included."""
    place = model_directory(directory)
    return digest_bytes(*(digest_file(place / name) for name in (WEIGHTS, HEADS)))


def disk_bytes(directory: Path) -> int:
    """Size of a model's weights on disk, heads included."""
    place = model_directory(directory)
    return sum((place / name).stat().st_size for name in (WEIGHTS, HEADS))
