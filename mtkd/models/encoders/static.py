"""A student without a sequence model: averaged token vectors and a small MLP (model2vec, potion).

The token vectors are initialised by running the teacher's encoder on each token alone, reducing its states by
PCA and weighting them by how rare the token is. They are then trained like all other weights.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional

from mtkd.models.digest import digest_weights
from mtkd.models.encoders.encoder import AnyEncoder, Encoder, EncoderConfig, StudentSettings
from mtkd.models.encoders.text_vectors import COMPARED_PARTS, compare_vectors
from mtkd.models.fast_embedding import Embedding
from mtkd.models.initialisation import InitContext, InitSpec
from mtkd.models.result_cache import cached_result
from mtkd.models.vector_cache import cached_vectors
from mtkd.outputs import POOLED, EncoderOutput, EncoderSpec, OutputSpec
from mtkd.strict_settings import StrictSettings
from tasks.common.errors import UserError
from tasks.common.progress import progress, say
from tasks.common.records import Units, VocabularySize
from tasks.common.sha256 import digest_bytes
from tasks.tokens.batching import Collator, ModelInputs, Tokens
from tasks.tokens.encoding import Encoded
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.reader import InputFormat, Reader

_BATCH = 1024  # student tokens that go through the teacher at once
_LONGEST = 16  # the most teacher tokens per student token, including special tokens


class StaticSettings(StrictSettings):
    """The sizes and the initialisation of a static student.

    Attributes:
        width: the width of the token vectors.
        hidden_size: the width of the MLP's hidden layer.
        output_size: the width of the vector that the task heads read.
        init: how the token vectors are initialised: with the teacher's encoder ("teacher"), or at "random".
        sif: the constant a in the weight a / (a + p) of a token with frequency p (SIF, Arora et al. 2017).
        trainable: whether the token vectors are trained.
    """

    width: Units = 256
    hidden_size: Units = 512
    output_size: Units = 256
    init: Literal["teacher", "random"] = "teacher"
    sif: PositiveFloat = 1e-3
    trainable: bool = True


def width_settings(sizes: StaticSettings, teacher: EncoderSpec) -> dict[str, int]:
    """The override that limits token vectors to the width of the teacher's states; {} if they fit already."""
    too_wide = sizes.init == "teacher" and teacher.offers.sequence and sizes.width > teacher.pooled_size
    return {"student.static.width": teacher.pooled_size} if too_wide else {}


class StaticStudentSettings(StudentSettings):
    """The settings of a static student."""

    kind: Literal["static"] = "static"
    static: StaticSettings = StaticSettings()

    @property
    def needs_teacher_weights(self) -> bool:
        """True if the token vectors are computed with the teacher's encoder."""
        return super().needs_teacher_weights or self.static.init == "teacher"


class StaticConfig(EncoderConfig):
    """The configuration of a static encoder; for the sizes see StaticSettings.

    Attributes:
        vocab_size: the number of token ids.
        dropout: the dropout probability of the features and of the MLP's hidden layer.
    """

    input_format: ClassVar[InputFormat] = "separate"
    kind: Literal["static"] = "static"
    vocab_size: VocabularySize
    width: Units = 256
    hidden_size: Units = 512
    output_size: Units = 256
    trainable: bool = True
    dropout: float = Field(default=0.1, ge=0, lt=1)

    @property
    def spec(self) -> EncoderSpec:
        """The sizes; there are no layers or heads that could be compared with those of a Transformer."""
        return EncoderSpec(self.kind, pooled_size=self.output_size, offers=POOLED)


class StaticEncoder(Encoder[StaticStudentSettings, StaticConfig]):
    """Averages the token vectors of each text; an MLP reads [u; v; |u - v|; u * v] for the texts u and v.

    A single text is compared with itself (v = u), so one student handles tasks with one and with two texts.

    Args:
        config: the sizes.
        vectors: (vocab_size, width) initial token vectors; None = random.
    """

    Settings = StaticStudentSettings
    Config = StaticConfig

    def __init__(self, config: StaticConfig, vectors: Tensor | None = None):
        super().__init__(config)
        self.embeddings = Embedding(config.vocab_size, config.width)
        nn.init.normal_(self.embeddings.weight, std=0.1)
        if vectors is not None:
            with torch.no_grad():
                self.embeddings.weight.copy_(vectors)
        self.embeddings.weight.requires_grad_(config.trainable)
        self.mlp = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Linear(COMPARED_PARTS * config.width, config.hidden_size),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden_size, config.output_size),
            nn.ReLU(),
        )

    @classmethod
    def config_from_settings(
        cls, settings: StaticStudentSettings, init_spec: InitSpec, vocab_size: int
    ) -> StaticConfig:
        """Derive the configuration from a recipe's settings.

        Raises:
            UserError: the token vectors are wider than the teacher's states, from which they are computed.
        """
        sizes = settings.static
        teacher = init_spec.teacher.spec if init_spec.teacher else None
        if teacher and width_settings(sizes, teacher):
            raise UserError(
                f"student.static.width={sizes.width} is wider than the teacher ({teacher.pooled_size})",
                expected=f"1 to {teacher.pooled_size}",
                hint=f"use `student.static.width={teacher.pooled_size}`, or `student.static.init=random`",
            )
        fixed = {"vocab_size": vocab_size, "dropout": settings.dropout}
        return StaticConfig.model_validate(sizes.model_dump(exclude={"init", "sif"}) | fixed)

    @classmethod
    def build(cls, settings: StaticStudentSettings, context: InitContext) -> StaticEncoder:
        """Build a student whose token vectors are computed with the teacher's encoder, or random.

        Raises:
            UserError: there is no teacher, or it does not return a vector per token.
        """
        config = cls.config_from_settings(settings, context.init_spec, context.tokeniser.vocab_size)
        if settings.static.init == "random":
            return cls(config)
        if context.teacher is None or not context.teacher.offers.sequence:
            raise UserError(
                "student.static.init=teacher needs a teacher that returns a vector per token",
                hint="use a Transformer as the teacher, or `student.static.init=random`",
            )
        vectors = _token_vectors(context.teacher, context, config.width)
        weights = rarity_weights(context, settings.static.sif)
        return cls(config, vectors * weights.unsqueeze(1))

    def forward(self, inputs: ModelInputs, need: OutputSpec = POOLED) -> EncoderOutput:
        """Encode a batch.

        Args:
            inputs: the batch; its `texts` are one or two Tokens (B, L), padded separately.
            need: only the pooled vector can be requested.

        Returns:
            EncoderOutput with pooled (B, output_size).
        """
        assert inputs.texts is not None, "a static student reads texts separately"
        u, *second = (self._mean(tokens) for tokens in inputs.texts)
        v = second[0] if second else u
        return EncoderOutput(pooled=self.mlp(compare_vectors(u, v)))

    def _mean(self, tokens: Tokens) -> Tensor:
        """The mean of the real tokens' vectors, (B, width), without a copy of size (B, L, width)."""
        table = self.embeddings.weight
        weights = tokens.mask.to(table.dtype) / tokens.mask.sum(1, keepdim=True)
        if torch.compiler.is_exporting():  # ONNX has no weighted embedding bag
            return (self.embeddings(tokens.ids) * weights.unsqueeze(-1)).sum(1)
        sparse = self.embeddings.has_sparse_gradient(tokens.ids)
        return functional.embedding_bag(
            tokens.ids, table, mode="sum", per_sample_weights=weights, sparse=sparse
        )


def _token_vectors(teacher: AnyEncoder, context: InitContext, width: int) -> Tensor:
    """The principal components of the teacher's states, (V, width); they are computed once and cached."""

    @functools.cache  # reading all weights takes long, and both caches ask for it
    def key() -> str:
        device = str(next(teacher.parameters()).device)
        tokenisers = (context.tokeniser.digest, context.teacher_tokeniser.digest)
        kept = b"" if context.kept is None else context.kept.tobytes()
        # Hidden states do not depend on the pooler, which is loaded for a student but not for its control.
        model = (teacher.config.model_dump_json(), digest_weights(teacher, without="pooler"), device)
        parts = ("token vectors", *model, *tokenisers, str(width))
        return digest_bytes(*parts, kept)

    def compute() -> Tensor:
        size = context.tokeniser.vocab_size
        say(f"running the teacher on each of the {size:,} tokens for the student's vectors")
        return principal_components(teacher_states(teacher, context), width)

    return cached_result(key, lambda: cached_vectors(context.cache, key, compute))


@torch.inference_mode()
def teacher_states(teacher: AnyEncoder, context: InitContext) -> Tensor:
    """For each token of the student's vocabulary, the mean of the teacher's last hidden states, (V, d).

    The teacher reads each token alone, between its special tokens: [CLS] token [SEP].
    """
    token_ids = _teacher_token_ids(context)
    collate = Collator(Reader(context.teacher_tokeniser, "joined", _LONGEST))
    tokens = Encoded("", pa.nulls(len(token_ids), pa.string()), np.zeros(len(token_ids)), None, (token_ids,))
    order = np.argsort(token_ids.lengths, kind="stable")
    states = torch.empty(len(token_ids), teacher.width)
    training, device = teacher.training, next(teacher.parameters()).device
    teacher.eval()
    with progress("token vectors from the teacher", len(order), unit="tokens") as advance:
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            inputs = collate(tokens, rows).inputs.to(device)
            assert inputs.joined is not None
            last = teacher(inputs, OutputSpec(sequence=True)).sequence
            weight = inputs.joined.mask.unsqueeze(-1).to(last.dtype)
            states[torch.from_numpy(rows)] = ((last * weight).sum(1) / weight.sum(1)).cpu()
            advance(len(rows))
    teacher.train(training)
    return states.clone()


def _teacher_token_ids(context: InitContext) -> RaggedArray:
    """The teacher's token ids for each token of the student's vocabulary."""
    size = context.tokeniser.vocab_size
    if context.kept is not None or not context.own_vocabulary:
        return RaggedArray(np.arange(size) if context.kept is None else context.kept, np.arange(size + 1))
    tokens = [str(context.tokeniser.hf.convert_ids_to_tokens(token)) for token in range(size)]
    return context.teacher_tokeniser.token_ids(pa.array(tokens))


def principal_components(states: Tensor, width: int) -> Tensor:
    """Project states (V, d) onto their first principal components, (V, width).

    This equals sklearn.decomposition.PCA; the sign of a component makes its largest entry positive.
    """
    centred = (states - states.mean(0)).double()
    _, directions = torch.linalg.eigh(centred.T @ centred)
    directions = directions.flip(1)[:, :width]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return (centred @ (directions * largest.sign())).float()


def rarity_weights(context: InitContext, sif: float) -> Tensor:
    """The weight of each token in the mean of a text, (V,).

    It is a / (a + p) for a token with frequency p in the training texts (SIF, Arora et al. 2017). Without
    training texts it is log(1 + rank) divided by its maximum, assuming that the vocabulary is sorted by
    frequency (Zipf's law, as in the first model2vec).
    """
    size = context.tokeniser.vocab_size
    counts = np.zeros(size)
    for texts in context.texts:
        counts += np.bincount(context.tokeniser.token_ids(texts).values, minlength=size)
    if not counts.any():
        return torch.log1p(torch.arange(1.0, size + 1)) / np.log1p(size)
    return torch.from_numpy(sif / (sif + counts / counts.sum())).float()
