"""BiLSTM students: the bi-attentive one of MKD, and the plain one of Tang et al. (2019) for the ablation.

Both read the two texts of a row separately, with the same lower layers (embeddings, a feed-forward layer, and
a BiLSTM over each text), and end in a fully connected layer. They differ in how the two texts are compared. A
single text is compared with itself (Y = X), so one student handles tasks with one and with two texts.

Internally, sequences are time-major, (L, B, d), which nn.LSTM processes without copying.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtkd.models.encoders.bilstm_settings import BiLSTMConfig, BiLSTMStudentSettings
from mtkd.models.encoders.encoder import Encoder
from mtkd.models.initialisation import InitContext, InitSpec, check_embedding_width, teacher_embeddings
from mtkd.models.word_embeddings import word_embeddings
from mtkd.outputs import POOLED, EncoderOutput, OutputSpec
from tasks.common.errors import UserError
from tasks.tokens.batching import ModelInputs, Tokens


@dataclass(frozen=True)
class _Text:
    """One of the texts of each row of a batch.

    Attributes:
        states: (L, B, 2H) BiLSTM states; those of padding are finite but meaningless.
        mask: (B, L) bool, True = real token.
        order: (L * B) the result of `_reversal`.
    """

    states: Tensor
    mask: Tensor
    order: Tensor


class BiLSTMEncoder(Encoder[BiLSTMStudentSettings, BiLSTMConfig]):
    """A BiLSTM encoder that returns one vector per row, independent of the padding.

    Every text must have at least one token, and its padding at the end; `tasks.tokens.reader.Reader` ensures
    this.

    Args:
        config: the sizes and the kind.
        embeddings: (vocab_size, embedding_size) initial word embeddings; None = random.

    Raises:
        UserError: `embeddings` has another shape.
    """

    Settings = BiLSTMStudentSettings
    Config = BiLSTMConfig

    def __init__(self, config: BiLSTMConfig, embeddings: Tensor | None = None):
        super().__init__(config)
        hidden = config.hidden_size
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.projection = nn.Linear(config.embedding_size, config.projection_size)
        self.lstm = _BiLSTM(config.projection_size, hidden)
        self.compare = _BiAttention(hidden) if config.kind == "bilstm-biattention" else _FinalStates()
        self.output = nn.Linear(self.compare.factor * hidden, config.output_size)
        self.dropout = nn.Dropout(config.dropout)
        self._initialise(embeddings)

    @classmethod
    def config_from_settings(
        cls, settings: BiLSTMStudentSettings, init_spec: InitSpec, vocab_size: int
    ) -> BiLSTMConfig:
        """Derive the configuration from a recipe's settings."""
        fixed = {"kind": settings.kind, "vocab_size": vocab_size, "dropout": settings.dropout}
        sizes = settings.bilstm.model_dump(exclude={"embeddings"})
        return BiLSTMConfig.model_validate(sizes | fixed)

    @classmethod
    def build(cls, settings: BiLSTMStudentSettings, context: InitContext) -> BiLSTMEncoder:
        """Build a student with random weights, and the word embeddings of the teacher or a file if requested.

        Raises:
            UserError: there is no teacher, its vocabulary or the width of the embeddings does not match, or
                the file is invalid.
        """
        config = cls.config_from_settings(settings, context.init_spec, context.tokeniser.vocab_size)
        if settings.bilstm.embeddings == "random":
            return cls(config)
        file = settings.embedding_file
        if file:
            table = word_embeddings(file, context.tokeniser)
        else:
            table = teacher_embeddings(context, "student.bilstm.embeddings")
        if "embedding_size" in settings.bilstm.model_fields_set:
            check_embedding_width(config.embedding_size, table, "student.bilstm", str(file or "the teacher"))
        return cls(config.model_copy(update={"embedding_size": table.shape[1]}), table)

    def _initialise(self, embeddings: Tensor | None) -> None:
        for layer in (self.projection, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        if embeddings is None:
            nn.init.normal_(self.embeddings.weight, std=0.1)
            return
        if embeddings.shape != self.embeddings.weight.shape:
            raise UserError(
                f"the initial embeddings have the shape {tuple(embeddings.shape)} (vocabulary, width)",
                expected=f"{tuple(self.embeddings.weight.shape)} for this student",
                hint="set the student's embedding_size to that width, and use the matching tokeniser",
            )
        with torch.no_grad():
            self.embeddings.weight.copy_(embeddings)

    def forward(self, inputs: ModelInputs, need: OutputSpec = POOLED) -> EncoderOutput:
        """Encode a batch.

        Args:
            inputs: the batch; its `texts` are one or two Tokens, (B, Lx) and (B, Ly), padded separately.
            need: only the pooled vector can be requested (see `offers`).

        Returns:
            EncoderOutput with pooled (B, output_size).
        """
        assert inputs.texts is not None, "a BiLSTM student reads texts separately"
        texts = [self._read(tokens) for tokens in inputs.texts]
        features = self.compare(texts[0], texts[-1])
        return EncoderOutput(pooled=torch.relu(self.output(self.dropout(features))))

    def _read(self, tokens: Tokens) -> _Text:
        """Run the embeddings, the feed-forward layer with ReLU, and the first BiLSTM."""
        order = _reversal(tokens.mask)
        projected = torch.relu(self.projection(self.embeddings(tokens.ids.T)))
        return _Text(self.lstm(self.dropout(projected), order), tokens.mask, order)


class _BiLSTM(nn.Module):
    """A bidirectional LSTM whose backward direction starts at the last real token of each text.

    It consists of two nn.LSTMs; the backward one runs over texts reversed within their own lengths. Unlike
    packed sequences, this does not slow down training, and it can be exported.
    """

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.forwards = nn.LSTM(input_size, hidden_size)
        self.backwards = nn.LSTM(input_size, hidden_size)
        for name, weight in self.named_parameters():
            gates = weight.detach().chunk(4)  # input, forget, cell, output
            for number, gate in enumerate(gates):
                if "weight_ih" in name:
                    nn.init.xavier_uniform_(gate)
                elif "weight_hh" in name:
                    nn.init.orthogonal_(gate)
                else:
                    nn.init.constant_(gate, 1.0 if "bias_ih" in name and number == 1 else 0.0)

    def forward(self, inputs: Tensor, order: Tensor) -> Tensor:
        """Compute the states (L, B, 2H) of inputs (L, B, d); `order` (L * B) comes from `_reversal`."""
        forward = self.forwards(inputs)[0]
        backward = _reorder(self.backwards(_reorder(inputs, order))[0], order)
        return torch.cat([forward, backward], -1)


class _BiAttention(nn.Module):
    """MKD's bi-attention (Eq. 3-4), a second BiLSTM shared by both texts, and pooling."""

    factor = 12  # features are 12 * hidden_size: two texts, three poolings, two directions

    def __init__(self, hidden_size: int):
        super().__init__()
        self.lstm = _BiLSTM(6 * hidden_size, hidden_size)
        self.attention = nn.Linear(2 * hidden_size, 1, bias=False)
        nn.init.xavier_uniform_(self.attention.weight)

    def forward(self, x: _Text, y: _Text) -> Tensor:
        """Compute the features (B, 12H) of texts x and y; for a single text (y is x), both halves are equal.

        A = X Yᵀ; C_y = softmax(A over y) Y for every token of x, C_x = softmax(A over x)ᵀ X for every
        token of y; X' = BiLSTM([X; X - C_y; X * C_y]), Y' = BiLSTM([Y; Y - C_x; Y * C_x]).
        """
        affinity = x.states.transpose(0, 1) @ y.states.permute(1, 2, 0)
        of_x = self._summary(x, _context(affinity, y))
        of_y = of_x if y is x else self._summary(y, _context(affinity.transpose(1, 2), x))
        return torch.cat([of_x, of_y], -1)

    def _summary(self, text: _Text, context: Tensor) -> Tensor:
        """Run the second BiLSTM over a text and its context (L, B, 2H), pooled to (B, 6H)."""
        x = text.states
        states = self.lstm(torch.cat([x, x - context, x * context], -1), text.order)
        real = text.mask.T.unsqueeze(-1)
        highest = states.masked_fill(~real, torch.finfo(states.dtype).min).amax(0)
        mean = text.mask / text.mask.sum(1, keepdim=True)
        attention = _masked_softmax(self.attention(states).squeeze(-1).T, text.mask)
        weights = torch.stack([mean.to(states.dtype), attention.to(states.dtype)], 1)
        return torch.cat([highest, (weights @ states.transpose(0, 1)).flatten(1)], -1)


class _FinalStates(nn.Module):
    """Tang et al.'s comparison: [h_x; h_y; h_x * h_y; |h_x - h_y|] of the final states."""

    factor = 8  # features are 8 * hidden_size: four parts, two directions

    def forward(self, x: _Text, y: _Text) -> Tensor:
        """Compute the features (B, 8H) of texts x and y."""
        of_x, of_y = _final_states(x), _final_states(y)
        return torch.cat([of_x, of_y, of_x * of_y, (of_x - of_y).abs()], -1)


def _final_states(text: _Text) -> Tensor:
    """(B, 2H): the forward state of each text's last token and the backward state of its first."""
    forward, backward = text.states.chunk(2, -1)
    last = text.mask.sum(1) - 1
    last_states = forward[last, torch.arange(last.shape[0], device=last.device)]
    return torch.cat([last_states, backward[0]], -1)


def _context(affinity: Tensor, other: _Text) -> Tensor:
    """Compute the context of each token in the other text, (L, B, 2H), from the affinity (B, L, L_other)."""
    weights = _masked_softmax(affinity, other.mask.unsqueeze(1))
    return (weights.to(other.states.dtype) @ other.states.transpose(0, 1)).transpose(0, 1)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where `mask` is True; 0 elsewhere."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


def _reversal(mask: Tensor) -> Tensor:
    """The order (L * B) that reverses each text of a flattened (L, B) batch within its own length.

    Padding stays in place. Applying the order twice restores the batch.
    """
    size, length = mask.shape
    position = torch.arange(length, device=mask.device).unsqueeze(1)
    source = torch.where(mask.T, mask.sum(1) - 1 - position, position)
    return (source * size + torch.arange(size, device=mask.device)).flatten()


def _reorder(values: Tensor, order: Tensor) -> Tensor:
    """Rearrange values (L, B, d) in the order (L * B)."""
    return values.flatten(0, 1).index_select(0, order).view_as(values)
