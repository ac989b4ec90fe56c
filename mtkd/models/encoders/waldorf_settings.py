"""The settings of WaLDORf students, and the configuration of the encoder that is built from them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mtkd.models.encoders.encoder import EncoderConfig, StudentSettings
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.strict_settings import StrictSettings
from tasks.common.records import Depth, Units, VocabularySize

STRIDE = 4  # tokens per state of a block, after two poolings by 2


class WaldorfSizes(StrictSettings):
    """The sizes of a WaLDORf student.

    The paper gives the numbers of blocks and heads, and "a bit less than a quarter" of the weights of
    BERT-base. The other sizes are our choice, with ALBERT's embedding size; they give a fifth of the weights.

    Attributes:
        embedding_size: the width of the embeddings and the lower convolutions.
        kernel_size: the number of tokens (or states) in the window of a convolution.
        layers: the number of Transformer blocks.
        hidden_size: the width of the hidden states of the Transformer blocks.
        heads: the number of attention heads.
        intermediate_size: the width of the feed-forward layers of the Transformer blocks.
        head_size: the width of an attention head; `heads` times `head_size` can differ from `hidden_size`.
        output_size: the width of the upper convolutions and of the vectors that the task heads read.
        positions: the maximum sequence length.
    """

    embedding_size: Units = 128
    kernel_size: Literal[1, 3, 5, 7] = 3
    layers: Depth = 8
    hidden_size: Units = 512
    heads: Units = 16
    head_size: Units = 32
    intermediate_size: Units = 1024
    output_size: Units = 256
    positions: Units = 512


class WaldorfSettings(WaldorfSizes):
    """The sizes of a WaLDORf student, and its word embeddings.

    Attributes:
        embeddings: what the word embeddings start from: "random" vectors, as in the paper, or those of the
            "teacher", which also determine their width unless `embedding_size` is set.
    """

    embeddings: Literal["random", "teacher"] = "random"

    @property
    def uses_teacher_width(self) -> bool:
        """True if the width of the embeddings is the teacher's."""
        return self.embeddings == "teacher" and "embedding_size" not in self.model_fields_set


class WaldorfStudentSettings(StudentSettings):
    """The settings of a WaLDORf student."""

    kind: Literal["waldorf"] = "waldorf"
    waldorf: WaldorfSettings = WaldorfSettings()

    @property
    def needs_teacher_weights(self) -> bool:
        """True if the student is initialised from weights of the teacher."""
        return super().needs_teacher_weights or self.waldorf.embeddings == "teacher"


class WaldorfConfig(WaldorfSizes, EncoderConfig):
    """The configuration of a WaLDORf encoder: its sizes, and the values from outside `student.waldorf`.

    Attributes:
        vocab_size: the number of token ids.
        dropout: the dropout probability after the embeddings, attention and feed-forward layers.
    """

    gives_sequence: ClassVar[bool] = True
    kind: Literal["waldorf"] = "waldorf"
    vocab_size: VocabularySize
    dropout: float = Field(default=0.1, ge=0, lt=1)

    @property
    def spec(self) -> EncoderSpec:
        """The sizes; hidden states and scores of the blocks have a quarter of the sequence length."""
        blocks = frozenset(range(1, self.layers + 1))
        return EncoderSpec(
            family=self.kind,
            layers=self.layers,
            hidden_size=self.hidden_size,
            attention_size=self.heads * self.head_size,
            heads=self.heads,
            pooled_size=self.output_size,
            offers=OutputSpec(pooled=True, sequence=True, hidden=blocks | {0}, scores=blocks),
            stride=STRIDE,
            embedding_size=self.embedding_size,
            table="waldorf",
            mean_pooled=True,
        )
