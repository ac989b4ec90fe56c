"""Base classes of encoders: a student's settings, the saved configuration and the module itself.

To add one, write a file in this directory with a subclass of each, and a line in `encoder_registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, field_validator
from safetensors.torch import save_file
from torch import Tensor, nn

from mtkd.models.encoders.text_vectors import COMPARED_PARTS
from mtkd.models.tied_weights import tensors_to_save, with_tied_names
from mtkd.outputs import EncoderOutput, EncoderSpec, OutputSpec
from mtkd.strict_settings import StrictSettings
from tasks.common.errors import UserError
from tasks.task import Task
from tasks.tokens.batching import ModelInputs
from tasks.tokens.reader import InputFormat, Reader
from tasks.tokens.tokeniser import Tokeniser

if TYPE_CHECKING:
    from mtkd.models.initialisation import InitContext, InitSpec


class StudentSettings(StrictSettings):
    """The settings that students of every kind have.

    They form the `[student]` table of a recipe. A subclass narrows `kind` and adds one field: the table with
    the settings of that kind.

    Attributes:
        kind: the kind of encoder: `bilstm-biattention`, `bilstm`, `static`, `transformer`, `waldorf`, or one
            that an installed package adds.
        vocabulary: "teacher" uses the teacher's tokeniser; "encoder" uses the tokeniser of the pretrained
            encoder that the student starts from (`student.transformer.init`), for losses that do not compare
            single tokens, such as `logits_mse`; "pruned" keeps only those of the teacher's tokens that occur
            in the training texts (including unlabelled rows and corpora) and all single characters, so that
            other words are split into shorter tokens; "word" builds a vocabulary of the words in the training
            texts.
        vocabulary_size: the maximum number of tokens of a "pruned" or "word" vocabulary, which keeps the most
            frequent ones.
        max_length: the maximum number of tokens per row, or per text for encoders that read texts separately.
        stride: the number of tokens that neighbouring windows of a long context share (span tasks).
        head_hidden_size: the width of the hidden layer of the task heads; 0 = no hidden layer.
        init_heads: what the task heads start from: "random" weights; the heads of the "teacher", which must
            have the same sizes and labels; a "linear-probe", which is fitted to the features of the untrained
            student (only for heads without a hidden layer): to the teacher's logits if these are computed
            before training, and otherwise to the labels; or "auto": the heads of the teacher where they have
            the same sizes and labels, and elsewhere (or for a student that learns from labels alone, or
            starts from another encoder than the teacher) a linear probe, except for pairs of texts that are
            read as one sequence and where there is nothing to fit to: these heads start from random weights.
        dropout: the dropout probability in the heads, and in encoders that have no dropout setting.
    """

    kind: str
    vocabulary: Literal["teacher", "encoder", "pruned", "word"] = "teacher"
    vocabulary_size: int = Field(60_000, gt=10, le=5_000_000)
    max_length: int = Field(128, ge=8)
    stride: int = Field(128, ge=0)
    head_hidden_size: int = Field(512, ge=0, le=32_768)
    init_heads: Literal["random", "linear-probe", "teacher", "auto"] = "random"
    dropout: float = Field(0.1, ge=0, lt=1)

    @field_validator("vocabulary", mode="before")
    @classmethod
    def _earlier_name(cls, value: Any) -> Any:
        """In older recipes and records, the vocabulary of the teacher is called "wordpiece"."""
        return "teacher" if value == "wordpiece" else value

    @property
    def needs_teacher_weights(self) -> bool:
        """True if the student is initialised from weights of the teacher."""
        return self.init_heads in ("teacher", "auto")

    @property
    def needs_importance(self) -> bool:
        """True if building the student requires the importance of the teacher's parts."""
        return False

    def pretrained_encoder(self, init_spec: InitSpec) -> str | None:
        """The name of the pretrained encoder that the student starts from; None if it starts otherwise."""
        return None

    @property
    def embedding_file(self) -> Path | None:
        """The file of word vectors that the embeddings start from; None if they start otherwise."""
        return None

    def check_start(self) -> None:
        """Check that the files that the student starts from exist; called before a teacher is known.

        Raises:
            UserError: one does not exist, or does not suit the other settings.
        """

    def resolved(self, init_spec: InitSpec) -> tuple[StudentSettings, list[str]]:
        """The settings after choosing between alternatives, and warnings about the choice.

        Raises:
            UserError: no alternative can be used.
        """
        self.check_start()
        if self.vocabulary == "encoder":
            raise UserError(
                f"student.vocabulary=encoder cannot be combined with student.kind={self.kind}",
                expected="student.kind=transformer: a student that starts from a pretrained encoder",
                hint="use `student.vocabulary=teacher`, or the recipe `pretrained`",
            )
        return self, []

    def for_tasks(self, tasks: Iterable[Task]) -> StudentSettings:
        """The settings for a run with these tasks.

        Raises:
            UserError: a setting names a task that does not fit it.
        """
        return self


class EncoderConfig(StrictSettings):
    """The configuration that model.json stores: enough to rebuild the encoder, without its weights.

    Attributes:
        kind: the name of the encoder in `mtkd.models.encoders.encoder_registry`.
        gives_sequence: True if the encoder returns a vector per token, which span tasks need.
        input_format: how the encoder reads the texts of a row; see `tasks.tokens.reader.Reader`.
    """

    gives_sequence: ClassVar[bool] = False
    input_format: ClassVar[InputFormat] = "joined"
    kind: str

    def compares_texts(self, task: Task) -> bool:
        """True if a task's two texts are read side by side, for a head that compares their vectors."""
        return False

    def reader(
        self, tokeniser: Tokeniser, tasks: Iterable[Task], max_length: int, stride: int = 128
    ) -> Reader:
        """How a model with this encoder reads the rows of its tasks."""
        apart = frozenset(task.name for task in tasks if self.compares_texts(task))
        joined = self.input_format == "joined"
        return Reader(tokeniser, self.input_format, max_length, stride, apart if joined else frozenset())

    @property
    @abstractmethod
    def spec(self) -> EncoderSpec:
        """The encoder's sizes, and the outputs that it offers."""

    def spec_for(self, tasks: Iterable[Task]) -> EncoderSpec:
        """The same, with the outputs that the encoder offers for the rows of some tasks."""
        return self.spec


SettingsT = TypeVar("SettingsT", bound=StudentSettings)
ConfigT = TypeVar("ConfigT", bound=EncoderConfig)


class Encoder(nn.Module, ABC, Generic[SettingsT, ConfigT]):
    """Base class of encoders, which turn a batch of token ids into vectors.

    The outputs must not depend on the amount of padding. Recipes use `Settings`, `config_from_settings` and
    `build` to build a student of this class. A student that is passed as an object can do without them.

    Attributes:
        Settings: the settings that a recipe can change.
        Config: the configuration that is saved.
        config: the configuration of this encoder.
        spec: the encoder's sizes, and the outputs that it offers.
        embeddings: the word embeddings, a module whose `weight` is (V, d).
    """

    Settings: ClassVar[type[StudentSettings]]
    Config: ClassVar[type[EncoderConfig]]

    config: ConfigT
    spec: EncoderSpec
    embeddings: Any

    def __init__(self, config: ConfigT):
        super().__init__()
        self.config, self.spec = config, config.spec

    @classmethod
    def config_from_settings(cls, settings: SettingsT, init_spec: InitSpec, vocab_size: int) -> ConfigT:
        """Derive the student's configuration, without loading any weights.

        Args:
            vocab_size: the number of token ids of the student's tokeniser; 1 if it is not known yet.

        Raises:
            UserError: the sizes do not fit together, or do not fit the encoder that the student starts from.
        """
        raise cls._cannot_be_built("config_from_settings")

    @classmethod
    def build(cls, settings: SettingsT, context: InitContext) -> Encoder[SettingsT, ConfigT]:
        """Build the student with its initial weights; the caller seeds torch.

        Raises:
            UserError: the settings require something that the teacher cannot provide.
        """
        raise cls._cannot_be_built("build")

    @classmethod
    def _cannot_be_built(cls, method: str) -> UserError:
        return UserError(
            f"a recipe cannot build a student of the class {cls.__name__}: it has no method `{method}`",
            hint="write the method (docs/add-a-student.md), or, in Python, pass an object of the class "
            "as the argument `student` of mtkd.distill",
        )

    @abstractmethod
    def forward(self, inputs: ModelInputs, need: OutputSpec = ...) -> EncoderOutput:
        """Encode a batch.

        Args:
            inputs: `joined` tokens (B, L), or one or two `texts`, depending on `input_format`.
            need: the outputs to return; nothing else is computed.
        """

    @property
    def input_format(self) -> InputFormat:
        """How the encoder reads the texts of a row; see EncoderConfig."""
        return self.config.input_format

    @property
    def width(self) -> int:
        """The width D of the vectors that the task heads read."""
        return self.spec.pooled_size

    def head_width(self, task: Task) -> int:
        """The width of the vectors that the head of a task reads: D, or 4 D if it compares two texts."""
        return self.width * (COMPARED_PARTS if self.config.compares_texts(task) else 1)

    @property
    def n_layers(self) -> int:
        """The number of layers; hidden states exist for layers 1 to n_layers, and 0 for the embeddings."""
        return self.spec.layers

    @property
    def offers(self) -> OutputSpec:
        """The outputs that can be requested."""
        return self.spec.offers

    @property
    def positions(self) -> int | None:
        """The maximum sequence length; None = unlimited."""
        return None

    def save_weights(self, path: Path) -> None:
        """Write the weights to one safetensors file."""
        save_file(tensors_to_save(self), path)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights that `save_weights` wrote."""
        self.load_state_dict(with_tied_names(self, weights))


AnyEncoder = Encoder[Any, Any]
