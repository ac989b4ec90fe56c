"""WaLDORf (Tian et al. 2019): a Transformer over a quarter of the sequence length, between convolutions.

The layers are: small embeddings, two [convolution, max-pooling by 2], a linear map to a larger width,
Transformer blocks (post-norm, as in BERT), and two [upsampling by 2, convolution]. Every resolution has its
own mask: a pooled state is real if at least one of its tokens is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mtkd.models.encoders.encoder import Encoder
from mtkd.models.encoders.waldorf_settings import STRIDE, WaldorfConfig, WaldorfStudentSettings
from mtkd.models.fast_dropout import dropout_attention, dropout_attention_is_faster
from mtkd.models.initialisation import InitContext, InitSpec, check_embedding_width, teacher_embeddings
from mtkd.outputs import EncoderOutput, OutputSpec
from tasks.tokens.batching import ModelInputs, Tokens

TOKEN_TYPES = 2


class WaldorfEncoder(Encoder[WaldorfStudentSettings, WaldorfConfig]):
    """A WaLDORf encoder, which returns one vector per token (`sequence`) and one per row (`pooled`).

    The vectors per token come from the upper convolutions. The vector of a row is tanh(W m), where m is the
    mean of the last block's states, so tasks on rows do not need the upper convolutions. Layer 0 of `hidden`
    is the output of the embeddings at full length.
    """

    Settings = WaldorfStudentSettings
    Config = WaldorfConfig

    def __init__(self, config: WaldorfConfig):
        super().__init__(config)
        small = config.embedding_size
        hidden = config.hidden_size
        out = config.output_size
        self.embeddings = nn.Embedding(config.vocab_size, small)
        self.position_embeddings = nn.Embedding(config.positions, small)
        self.token_type_embeddings = nn.Embedding(TOKEN_TYPES, small)
        self.norm = nn.LayerNorm(small)
        self.downsample = nn.ModuleList(_Convolution(small, small, config.kernel_size) for _ in range(2))
        self.up = nn.Linear(small, hidden)
        self.up_norm = nn.LayerNorm(hidden)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.upsample = nn.ModuleList(_Convolution(size, out, config.kernel_size) for size in (hidden, out))
        self.pool = nn.Linear(hidden, out)
        self.dropout = nn.Dropout(config.dropout)
        _initialise(self)

    @classmethod
    def config_from_settings(
        cls, settings: WaldorfStudentSettings, init_spec: InitSpec, vocab_size: int
    ) -> WaldorfConfig:
        """Derive the configuration from a recipe's settings."""
        fixed = {"vocab_size": vocab_size, "dropout": settings.dropout}
        if settings.waldorf.uses_teacher_width and init_spec.teacher:
            fixed["embedding_size"] = init_spec.teacher.spec.width_of(0)
        return WaldorfConfig.model_validate(settings.waldorf.model_dump(exclude={"embeddings"}) | fixed)

    @classmethod
    def build(cls, settings: WaldorfStudentSettings, context: InitContext) -> WaldorfEncoder:
        """Build a student with random weights, and the teacher's word embeddings if requested.

        Raises:
            UserError: there is no teacher, or its vocabulary or the width of its embeddings does not match.
        """
        config = cls.config_from_settings(settings, context.init_spec, context.tokeniser.vocab_size)
        if settings.waldorf.embeddings == "random":
            return cls(config)
        table = teacher_embeddings(context, "student.waldorf.embeddings")
        check_embedding_width(config.embedding_size, table, "student.waldorf", "the teacher")
        encoder = cls(config)
        encoder.embeddings = nn.Embedding.from_pretrained(table, freeze=False)
        return encoder

    @property
    def positions(self) -> int:
        """The maximum sequence length."""
        return self.config.positions

    def forward(self, inputs: ModelInputs, need: OutputSpec = OutputSpec(pooled=True)) -> EncoderOutput:  # noqa: B008
        """Encode a batch; layers above the highest one that is needed are not run.

        Args:
            inputs: the batch; its `joined` tokens are (B, L), with any L up to `positions`.
            need: the outputs to return.

        Returns:
            EncoderOutput with sequence (B, L, D); hidden (B, L, E) for layer 0 and (B, ceil(L / 4), H) for
            the blocks; scores (B, heads, ceil(L / 4), ceil(L / 4)); mask (B, L).
        """
        tokens = inputs.joined
        assert tokens is not None, "WaLDORf reads both texts in one sequence"
        embedded = self._embed(tokens)
        hidden: dict[int, Tensor] = {0: embedded} if 0 in need.hidden else {}
        scores: dict[int, Tensor] = {}
        run_all_layers = need.pooled or need.sequence
        top = self.n_layers if run_all_layers else max(need.hidden | need.scores, default=0)
        if not (run_all_layers or top):
            return EncoderOutput(hidden=hidden, mask=tokens.mask)
        masks = masks_by_halving(tokens.mask)
        states = self._downsampled(embedded, masks)
        for number, block in enumerate(self.blocks[:top], 1):
            states, block_scores = block(states, masks[-1], number in need.scores)
            if block_scores is not None:
                scores[number] = block_scores
            if number in need.hidden:
                hidden[number] = states
        return EncoderOutput(
            pooled=self._pool_row(states, masks[-1]) if need.pooled else None,
            sequence=self._upsampled(states, masks)[:, : tokens.mask.shape[1]] if need.sequence else None,
            hidden=hidden,
            scores=scores,
            mask=tokens.mask,
        )

    def _embed(self, tokens: Tokens) -> Tensor:
        """Embed token ids, positions and token type ids, (B, L, E)."""
        positions = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
        summed = (
            self.embeddings(tokens.ids)
            + self.position_embeddings(positions)
            + self.token_type_embeddings(tokens.token_type_ids)
        )
        return self.dropout(self.norm(summed))

    def _downsampled(self, embedded: Tensor, masks: list[Tensor]) -> Tensor:
        """Downsample the embeddings (B, L, E) to (B, ceil(L / 4), H)."""
        states = functional.pad(embedded, (0, 0, 0, masks[0].shape[1] - embedded.shape[1]))
        for convolution, mask, pooled in zip(self.downsample, masks, masks[1:], strict=False):
            convolved = convolution(states, mask)
            low = torch.finfo(convolved.dtype).min
            maximum = convolved.masked_fill(~mask.unsqueeze(-1), low).unflatten(1, (-1, 2)).amax(2)
            states = functional.gelu(maximum.masked_fill(~pooled.unsqueeze(-1), 0.0))
        return self.dropout(self.up_norm(self.up(states)))

    def _upsampled(self, states: Tensor, masks: list[Tensor]) -> Tensor:
        """Upsample the last block's states to (B, 4 ceil(L / 4), D)."""
        for convolution, mask in zip(self.upsample, reversed(masks[:-1]), strict=True):
            states = functional.gelu(convolution(states.repeat_interleave(2, 1), mask))
        return states

    def _pool_row(self, states: Tensor, mask: Tensor) -> Tensor:
        """The vector per row, (B, D), from the last block's real states."""
        weight = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weight).sum(1) / weight.sum(1).clamp(min=1)
        return torch.tanh(self.pool(mean))


def masks_by_halving(mask: Tensor) -> list[Tensor]:
    """The masks at full, half and quarter length; the full length is first padded to a multiple of 4.

    Args:
        mask: (B, L) bool, True = real token.
    """
    masks = [functional.pad(mask, (0, -mask.shape[1] % STRIDE))]
    for _ in range(2):
        masks.append(masks[-1].unflatten(1, (-1, 2)).any(2))
    return masks


class _Convolution(nn.Module):
    """A convolution along the sequence; padding counts as zeros.

    Treating the sequence as a flat image with channels last avoids copying (B, L, C) and is fastest on a CPU.
    """

    def __init__(self, width: int, out: int, kernel: int):
        super().__init__()
        self.image = nn.Conv2d(width, out, (1, kernel), padding=(0, kernel // 2))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Convolve states (B, L, width) with mask (B, L) to (B, L, out)."""
        real = states.masked_fill(~mask.unsqueeze(-1), 0.0)
        convolved: Tensor = self.image(real.transpose(1, 2).unsqueeze(2))
        return convolved.squeeze(2).transpose(1, 2)


class _Block(nn.Module):
    """A Transformer block as in BERT: attention and feed-forward, each with a residual and a LayerNorm."""

    def __init__(self, config: WaldorfConfig):
        super().__init__()
        width, attention = config.hidden_size, config.heads * config.head_size
        self.heads, self.dropout_p = config.heads, config.dropout
        self.attend = nn.Linear(width, 3 * attention)
        self.output = nn.Linear(attention, width)
        self.attention_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, config.intermediate_size)
        self.outer = nn.Linear(config.intermediate_size, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: Tensor, mask: Tensor, with_scores: bool) -> tuple[Tensor, Tensor | None]:
        """Compute the next states (B, L, d), and on request the scores (B, heads, L, L) before softmax."""
        query, key, value = self.attend(states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT * query.shape[-1] ** -0.5 if with_scores else None
        dropout_p = self.dropout_p if self.training else 0.0
        keys = mask[:, None, None]
        if dropout_attention_is_faster(query, dropout_p):
            context = dropout_attention(query, key, value, keys, None, dropout_p)
        else:
            context = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=keys, dropout_p=dropout_p
            )
        attended = self.dropout(self.output(context.transpose(1, 2).flatten(2)))
        states = self.attention_norm(states + attended)
        wider = functional.gelu(self.inner(states))
        return self.norm(states + self.dropout(self.outer(wider))), scores


def _initialise(encoder: nn.Module) -> None:
    """Initialise weights as in BERT, and convolutions by Xavier's method to preserve the scale."""
    for name, weight in encoder.named_parameters():
        if weight.ndim == 4:
            nn.init.xavier_uniform_(weight)
        elif weight.ndim == 2:
            nn.init.normal_(weight, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
