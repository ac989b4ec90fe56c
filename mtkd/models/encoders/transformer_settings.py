"""The sizes and the initialisation of Transformer students, as settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mtkd.strict_settings import StrictSettings
from tasks.common.records import Depth, Units


class TransformerSettings(StrictSettings):
    """The sizes and the initialisation of a Transformer student.

    Attributes:
        layers: the number of Transformer layers; None = as in the encoder that the student starts from.
        hidden_size: the width of hidden states; None = as in the encoder that the student starts from.
        heads: the number of attention heads; None = as in the encoder that the student starts from.
        intermediate_size: the width of the feed-forward layers; None = as in the encoder that the student
            starts from.
        embedding_size: the rank of factorised word embeddings, which are projected up to `hidden_size`;
            None = as in the encoder that the student starts from.
        init: what the student starts from: the pretrained encoder that the teacher was refined from
            ("encoder"; a transformers checkpoint does not name it, so the checkpoint itself is used), the
            "teacher" itself, "random" weights, or another encoder, given as a hub name, a directory in the
            transformers format or an mtkd run; of a list, the first that is available and has the student's
            sizes and (unless `student.vocabulary` is "encoder") the teacher's vocabulary.
        init_layers: which layers of that encoder to copy: "first", "last", "uniform", "skip", a list of layer
            numbers from 1, or "importance" (only with `prune`).
        prune: whether to prune the teacher into the student, which keeps the most important heads and
            feed-forward units of each layer and reduces the embeddings to rank `embedding_size` by SVD
            (ROSITA); this needs init = "teacher".
        dropout: the dropout probability of attention and hidden states inside the encoder.
        pooling: the vector of a row: "cls" = the last layer's first token; "pooler" = the same after BERT's
            pooling layer (a linear map and tanh), whose weights come from the encoder that the student starts
            from, if it has them; "mean" = the mean over real tokens; "cls-of-layers" = the mean of the first
            token over all layers (MKD); "auto" = as in the encoder that the student starts from.
        pairs: how tasks with two texts are read: "cross-encoder" = both texts as one sequence; "bi-encoder" =
            each text by itself, with a head that compares their vectors; a list of tasks = these by a
            bi-encoder, all others by a cross-encoder; "auto" = as a Transformer teacher reads each task, if
            the student's pooling allows it.
    """

    layers: Depth | None = None
    hidden_size: Units | None = None
    heads: Units | None = None
    intermediate_size: Units | None = None
    embedding_size: Units | None = None
    init: str | Annotated[list[str], Field(min_length=1)] = "encoder"
    init_layers: Literal["first", "last", "uniform", "skip", "importance"] | list[int] = "first"
    prune: bool = False
    dropout: float | None = Field(None, ge=0, lt=1)
    pooling: Literal["auto", "cls", "pooler", "mean", "cls-of-layers"] = "cls"
    pairs: Literal["auto", "cross-encoder", "bi-encoder"] | list[str] = "auto"
