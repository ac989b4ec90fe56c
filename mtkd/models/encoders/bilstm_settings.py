"""The settings of BiLSTM students, and the configuration of the encoder that is built from them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from mtkd.models.encoders.encoder import EncoderConfig, StudentSettings
from mtkd.outputs import POOLED, EncoderSpec
from mtkd.strict_settings import StrictSettings
from tasks.common.errors import UserError
from tasks.common.records import Units, VocabularySize
from tasks.tokens.reader import InputFormat

Kind = Literal["bilstm-biattention", "bilstm"]


class BiLSTMSizes(StrictSettings):
    """The sizes of a BiLSTM student; the defaults are those of MKD, where the paper gives them.

    With seven task heads of 512 units, the default has 9.9M parameters without the embeddings. (The paper
    reports 10.2M, and does not give the sizes of the embeddings, the feed-forward layer and the output.)

    Attributes:
        embedding_size: the width of the word embeddings.
        projection_size: the width of the feed-forward layer between the embeddings and the first BiLSTM.
        hidden_size: the width of each BiLSTM per direction.
        output_size: the width of the vector that the task heads read.
    """

    embedding_size: Units = 300
    projection_size: Units = 256
    hidden_size: Units = 256
    output_size: Units = 768


class BiLSTMSettings(BiLSTMSizes):
    """The sizes of a BiLSTM student, and its word embeddings; the default sizes are those of MKD.

    Attributes:
        embeddings: what the word embeddings start from: "random" vectors, those of the "teacher", or, with
            `student.vocabulary=word`, a text file of word vectors in the format of word2vec or GloVe, which
            may be gzipped. The embeddings then have the width of these vectors, and words that the file
            lacks start from random vectors.
    """

    embeddings: str = "random"


class BiLSTMStudentSettings(StudentSettings):
    """The settings of a BiLSTM student; for `kind` see BiLSTMConfig."""

    kind: Kind = "bilstm-biattention"
    bilstm: BiLSTMSettings = BiLSTMSettings()

    @property
    def needs_teacher_weights(self) -> bool:
        """True if the student is initialised from weights of the teacher."""
        return super().needs_teacher_weights or self.bilstm.embeddings == "teacher"

    @property
    def embedding_file(self) -> Path | None:
        """The file of word vectors that the embeddings start from; None if they start otherwise."""
        start = self.bilstm.embeddings
        return None if start in ("random", "teacher") else Path(start)

    def check_start(self) -> None:
        """Check that a file of word vectors exists, and that the student reads words."""
        if (file := self.embedding_file) and not file.is_file():
            raise UserError(
                f"student.bilstm.embeddings={file} does not exist",
                expected="random, teacher, or a text file of word vectors (word2vec, GloVe)",
            )
        if file and self.vocabulary != "word":
            raise UserError(
                f"student.bilstm.embeddings={file} has vectors of words, but the student reads tokens of the "
                "teacher",
                hint="use `student.vocabulary=word`",
            )


class BiLSTMConfig(BiLSTMSizes, EncoderConfig):
    """The configuration of a BiLSTM encoder: its sizes, and the values from outside `student.bilstm`.

    Attributes:
        kind: `bilstm-biattention` (MKD) or `bilstm` (Tang et al.: final states, no attention).
        vocab_size: the number of token ids.
        dropout: the dropout probability after the feed-forward layer and before the fully connected one.
    """

    input_format: ClassVar[InputFormat] = "separate"
    kind: Kind = "bilstm-biattention"
    vocab_size: VocabularySize
    dropout: float = Field(default=0.1, ge=0, lt=1)

    @property
    def spec(self) -> EncoderSpec:
        """The sizes; a BiLSTM has no layers or heads that could be compared with those of a Transformer."""
        return EncoderSpec(self.kind, pooled_size=self.output_size, offers=POOLED)
