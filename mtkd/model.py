"""The one model type: an encoder shared by all tasks, with a head for each. Teachers and students alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtkd.records import LOGITS, Need, Signal
from mtkd.students.build import AnyEncoder, encoder_from_json
from tasks.batching import Inputs, Reader
from tasks.errors import UserError
from tasks.files import atomic_directory, digest_file, read_json, write_json
from tasks.heads import Head
from tasks.task import Task
from tasks.tokenise import Tokeniser

FORMAT = 1


@dataclass
class ModelInfo:
    """What a saved model says of itself, beside its weights.

    Attributes:
        max_length: tokens a row (or, for students that read texts apart, a text) is cut to.
        head_hidden: width of the heads' hidden layer; 0 = a single Linear.
        dropout: in the heads.
        base: the pretrained encoder that training started from; None = random weights.
        scores: task -> recorded validation scores (see `mtkd.engine.evaluate`).
    """

    max_length: int = 128
    head_hidden: int = 512
    dropout: float = 0.1
    base: str | None = None
    scores: dict[str, dict] = field(default_factory=dict)


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
        longest = getattr(encoder, "positions", info.max_length)
        if info.max_length > longest:
            raise UserError(
                f"max_length {info.max_length} is more than the {longest} positions that the encoder has",
                mend=f"--set max_length={longest} (mtkd refine) or --set student.max_length={longest}",
            )
        self.heads = nn.ModuleDict({name: self._new_head(task) for name, task in self.tasks.items()})

    def _new_head(self, task: Task) -> Head:
        return Head(self.encoder.width, task.n_outputs, self.info.head_hidden, self.info.dropout)

    @property
    def reader(self) -> Reader:
        """How this model reads text."""
        return Reader(self.tokeniser, self.encoder.view, self.info.max_length)

    @property
    def offers(self) -> Need:
        """What can be asked of this model."""
        return self.encoder.offers | LOGITS

    def forward(self, inputs: Inputs, head: str, need: Need = LOGITS) -> Signal:
        """Read a batch of one task.

        Args:
            inputs: the batch, as `self.reader` makes it.
            head: whose head answers (`Task.head`).
            need: what to return; nothing else is kept.

        Returns:
            Signal with logits (B, C) and the hidden states asked for.
        """
        out = self.encoder(inputs, need)
        logits: Tensor | None = self.heads[head](out.pooled) if need.logits else None
        mask = inputs.joint.mask if out.hidden and inputs.joint is not None else None
        return Signal(logits, out.hidden, mask)

    def keep(self, tasks: Iterable[Task]) -> None:
        """Keep only the heads of these tasks; give a fresh head to those that have none."""
        wanted = {task.head: task for task in tasks}
        heads = {
            name: self.heads[name] if name in self.heads else self._new_head(t) for name, t in wanted.items()
        }
        self.tasks, self.heads = wanted, nn.ModuleDict(heads)

    def require(self, tasks: Iterable[Task], what: str) -> None:
        """Check that there is a fitting head for each task.

        Args:
            what: how to name this model in the error ("the teacher ...").

        Raises:
            UserError: a head is missing or answers with another number of outputs.
        """
        for task in tasks:
            known = self.tasks.get(task.head)
            has = ", ".join(self.tasks)
            if known is None:
                raise UserError(
                    f"{what} has no head for the task {task.name!r}",
                    allowed=f"tasks it was trained on: {has}",
                    mend="leave the task out with --tasks, or train a model that knows it",
                )
            if (known.kind, known.n_outputs, known.labels) != (task.kind, task.n_outputs, task.labels):
                raise UserError(
                    f"{what} knows {task.name!r} as {known.kind} with labels {list(known.labels)}, "
                    f"the task here is {task.kind} with labels {list(task.labels)}"
                )

    def save(self, directory: Path) -> None:
        """Write the model: `model.json`, `model.safetensors` and the tokeniser, atomically."""
        info = self.info
        with atomic_directory(directory) as place:
            weights = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
            save_file(weights, place / "model.safetensors")
            self.tokeniser.save(place)
            write_json(
                place / "model.json",
                {
                    "format": FORMAT,
                    "encoder": self.encoder.config.model_dump(),
                    "tasks": [task.to_json() for task in self.tasks.values()],
                    **vars(info),
                },
            )

    @classmethod
    def load(cls, directory: Path) -> MultiTaskModel:
        """Read a model written by `save`, from its directory or from the run directory that holds it.

        Raises:
            UserError: there is no model there, or a newer version wrote it.
        """
        place = model_directory(directory)
        said = read_json(place / "model.json")
        if said.pop("format") > FORMAT:
            raise UserError(f"{place} was written by a newer mtkd", mend="upgrade mtkd")
        encoder = encoder_from_json(said.pop("encoder"))
        tasks = [Task.from_json(value) for value in said.pop("tasks")]
        model = cls(encoder, tasks, Tokeniser.load(str(place)), ModelInfo(**said))
        try:
            model.load_state_dict(load_file(place / "model.safetensors"))
        except Exception as error:  # safetensors and torch raise their own kinds for a damaged file
            raise UserError(f"the weights in {place} are damaged: {str(error).splitlines()[0]}") from error
        return model.eval()


def model_directory(directory: Path) -> Path:
    """Where the model lies: `directory` itself or its `model/`.

    Raises:
        UserError: neither holds a model.
    """
    for place in (directory, directory / "model"):
        if (place / "model.json").is_file() and (place / "model.safetensors").is_file():
            return place
    if not directory.is_dir():
        raise UserError(
            f"there is no directory {directory}: an mtkd model is wanted here",
            mend=f"a pretrained encoder becomes one by: mtkd refine --teacher {directory} --out DIR",
        )
    raise UserError(
        f"{directory} holds no mtkd model",
        allowed="a run directory of mtkd refine, distill or finetune, or the model/ inside it",
        mend="if the run there is unfinished, run its command again to finish it",
    )


def digest_model(directory: Path) -> str:
    """The SHA-256 of a model's weights file."""
    return digest_file(model_directory(directory) / "model.safetensors")
