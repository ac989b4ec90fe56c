"""What every encoder is: the settings of its student, its saved configuration, and the module itself.

A new encoder is one file beside this one with a subclass of each, and one line in `registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn

from mtkd.losses.term_settings import Strict
from mtkd.outputs import EncoderOutput, EncoderSpec, OutputSpec
from tasks.batching import ModelInputs
from tasks.reader import InputFormat

if TYPE_CHECKING:
    from mtkd.models.init import InitContext, InitSpec


class StudentSettings(Strict):
    """The `[student]` table of a recipe: what is set for students of every kind.

    A subclass narrows `kind` and adds one field, a table with the settings of its own.

    Attributes:
        kind: which encoder; see `mtkd.models.encoders.registry`.
        vocabulary: "wordpiece" is the teacher's own tokeniser; "word" builds a word-level vocabulary of at
            most `vocabulary_size` words from the training texts.
        embeddings: "teacher" starts the word embeddings from the teacher's.
        max_length: tokens per row; for encoders that read texts separately, per text.
        stride: tokens that neighbouring windows of a long context share (span tasks).
        head_hidden: width of the hidden layer of the task heads; 0 = none.
        dropout: in the heads, and in the encoder unless it has a setting of its own.
    """

    kind: str
    vocabulary: Literal["wordpiece", "word"] = "wordpiece"
    vocabulary_size: int = Field(60_000, gt=10)
    embeddings: Literal["random", "teacher"] = "random"
    max_length: int = Field(128, ge=8)
    stride: int = Field(128, ge=0)
    head_hidden: int = Field(512, ge=0)
    dropout: float = Field(0.1, ge=0, lt=1)

    @property
    def needs_teacher_weights(self) -> bool:
        """True if the student starts from weights of the teacher."""
        return self.embeddings == "teacher"

    @property
    def needs_importance(self) -> bool:
        """True if the importance of the teacher's parts must be measured before the student is built."""
        return False


class EncoderConfig(Strict):
    """What is saved of an encoder in model.json: enough to build it again, without its weights.

    Attributes:
        kind: what `mtkd.models.encoders.registry` finds the encoder by.
        input_format: "joined": the texts of a row in one sequence; "separate": each in a sequence of its own.
        gives_sequence: True if it gives a vector per token, which span tasks need.
    """

    input_format: ClassVar[InputFormat] = "joined"
    gives_sequence: ClassVar[bool] = False
    kind: str

    @property
    @abstractmethod
    def shape(self) -> EncoderSpec:
        """Sizes, and what can be asked of the encoder."""


SettingsT = TypeVar("SettingsT", bound=StudentSettings)
ConfigT = TypeVar("ConfigT", bound=EncoderConfig)


class Encoder(nn.Module, ABC, Generic[SettingsT, ConfigT]):
    """Turns a batch of token ids into vectors; what it gives must not depend on the padding.

    Attributes:
        Settings: what a recipe may set.
        Config: what is saved.
        config: how this encoder was built.
        shape: its sizes, and what can be asked of it.
        embeddings: the word embeddings, a module whose `weight` is (V, d).
    """

    Settings: ClassVar[type[StudentSettings]]
    Config: ClassVar[type[EncoderConfig]]

    config: ConfigT
    shape: EncoderSpec
    embeddings: Any

    def __init__(self, config: ConfigT):
        super().__init__()
        self.config, self.shape = config, config.shape

    @classmethod
    @abstractmethod
    def config_from_settings(cls, settings: SettingsT, init_spec: InitSpec, vocab_size: int) -> ConfigT:
        """The student's configuration; no weights are loaded.

        Args:
            vocab_size: ids of the student's tokeniser; 1 while that is not known yet.

        Raises:
            UserError: sizes that do not go together, or not with what the student starts from.
        """

    @classmethod
    @abstractmethod
    def build(cls, settings: SettingsT, context: InitContext) -> Encoder[SettingsT, ConfigT]:
        """The student with its first weights; the caller seeds torch.

        Raises:
            UserError: something is wanted that the teacher cannot give.
        """

    @abstractmethod
    def forward(self, inputs: ModelInputs, need: OutputSpec = ...) -> EncoderOutput:
        """Encode a batch.

        Args:
            inputs: `joined` tokens (B, L), or one or two `texts`, as `input_format` says.
            need: what to return; nothing else is computed.
        """

    @property
    def input_format(self) -> InputFormat:
        """How it reads the texts of a row; see EncoderConfig."""
        return self.config.input_format

    @property
    def width(self) -> int:
        """D of the vectors that the task heads read."""
        return self.shape.pooled

    @property
    def n_layers(self) -> int:
        """Hidden states 1 to n_layers can be asked for; 0 is the embeddings."""
        return self.shape.layers

    @property
    def offers(self) -> OutputSpec:
        """What can be asked of it."""
        return self.shape.offers

    @property
    def positions(self) -> int | None:
        """The longest sequence it can read; None = any length."""
        return None

    def save_weights(self, path: Path) -> None:
        """Write the weights as one safetensors file."""
        save_file({name: w.detach().cpu().contiguous() for name, w in self.state_dict().items()}, path)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights that `save_weights` wrote."""
        self.load_state_dict(weights)


AnyEncoder = Encoder[Any, Any]
