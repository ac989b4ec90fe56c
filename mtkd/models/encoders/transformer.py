"""Transformer encoders: any Hugging Face encoder, as a teacher or (cut to some layers) as a student."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mtkd.models.capture import Capture, find_layers, watch
from mtkd.models.encoders.pretrained_config import (
    Pooling,
    TransformerConfig,
    locate,
    pretrained_config,
    quieten,
    with_sizes,
)
from mtkd.models.pruning import FactorisedEmbedding, resize_heads
from mtkd.outputs import EncoderOutput, OutputSpec
from tasks.batching import ModelInputs
from tasks.errors import UserError
from tasks.hub_loading import load_named


class TransformerEncoder(nn.Module):
    """A Hugging Face encoder that gives one vector a row, and whatever else of its inside is asked for.

    Attributes:
        input_format: "joined": both texts in one sequence.
        shape: sizes, and what can be asked for.
        width: D of the pooled vector, the hidden size.
        n_layers: hidden states 0 (embeddings) to n_layers can be asked for.
    """

    input_format: Literal["joined"] = "joined"

    def __init__(self, config: TransformerConfig, body: nn.Module | None = None):
        super().__init__()
        from transformers import AutoModel

        self.config = config
        if body is None:
            hf_config = config.build_hf()
            body = _without_pooler(lambda **more: AutoModel.from_config(hf_config, **more))
        if config.head_size:
            resize_heads(body, config.shape.layers, config.shape.heads, config.head_size)
        if config.embedding_rank:
            words = int(body.config.vocab_size)  # type: ignore[union-attr, arg-type]
            table = FactorisedEmbedding(words, config.embedding_rank, config.shape.width)
            body.set_input_embeddings(table)  # type: ignore[operator]
        self.body = body
        self.shape = config.shape
        self.width, self.n_layers, self.offers = self.shape.width, self.shape.layers, self.shape.offers
        self._segments = getattr(body.config, "type_vocab_size", 0) > 1
        self._watched = watch(body, self.n_layers)

    @classmethod
    def pretrained(
        cls, name: str, pooling: Pooling | None = None, layers: int | None = None
    ) -> TransformerEncoder:
        """Load an encoder by hub name or directory.

        Args:
            name: hub name, directory, or `minilm` (the encoder installed beside mtkd).
            pooling: see TransformerConfig; None = as the directory declares, else `cls`.
            layers: keep only the first so many layers.

        Raises:
            UserError: no such model, or the hub cannot be reached, or too few layers.
        """
        from transformers import AutoModel

        config = pretrained_config(name, pooling)
        if layers is not None:
            there = config.shape.layers
            if not 1 <= layers <= there:
                raise UserError(f"{name!r} has {there} layers, not {layers}", expected=f"1 to {there}")
            config = with_sizes(config, num_hidden_layers=layers)
        if config.head_size or config.embedding_rank:  # a model of ours that transformers cannot describe
            encoder = cls(config)
            encoder.load_weights(load_file(Path(locate(name)) / "model.safetensors"))
            return encoder
        load = partial(
            _load_body,
            AutoModel.from_pretrained,
            config=config.build_hf(),
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
        )
        return cls(config, load_named(load, locate(name), "encoder"))

    @property
    def positions(self) -> int:
        """The longest sequence it can read."""
        table = next((m for n, m in self.body.named_modules() if n.endswith("position_embeddings")), None)
        most = getattr(self.body.config, "max_position_embeddings", 1 << 30)
        # RoBERTa and its kin count positions from behind the padding id.
        offset = getattr(table, "padding_idx", None)
        return most if offset is None else most - offset - 1

    @property
    def embeddings(self) -> nn.Embedding | FactorisedEmbedding:
        """The word embedding table; its `weight` is (V, d)."""
        return self.body.get_input_embeddings()  # type: ignore[operator, return-value]

    def forward(self, inputs: ModelInputs, need: OutputSpec = OutputSpec(pooled=True)) -> EncoderOutput:  # noqa: B008
        """Encode a batch; layers above the highest one that is needed are not run.

        Args:
            inputs: its `joined` tokens, (B, L).
            need: what to return; nothing else is kept.

        Raises:
            UserError: something was not seen that the family should give.
        """
        tokens = inputs.joined
        assert tokens is not None, "a Transformer reads both texts in one sequence"
        top = self.n_layers
        pooled = need.pooled
        of_layers = (
            frozenset(range(1, top + 1)) if pooled and self.config.pooling == "cls-of-layers" else None
        )
        asked = replace(need, cls=need.cls | of_layers) if of_layers else need
        capture = Capture(asked, to_the_end=pooled or need.sequence)
        given: dict[str, Any] = {"token_type_ids": tokens.token_type_ids} if self._segments else {}
        if not self._watched:
            given["output_hidden_states"] = bool(asked.hidden | asked.cls)
        out = capture.run(self.body, input_ids=tokens.ids, attention_mask=tokens.mask.long(), **given)
        if out is not None:
            for layer, hidden in enumerate(getattr(out, "hidden_states", None) or ()):
                capture.offer(layer, hidden)
            capture.offer(top, out.last_hidden_state)
        self._refuse_missing(asked, capture)
        vector = self._pool(out.last_hidden_state, capture.found["cls"], tokens.mask) if pooled else None
        kept = {
            kind: {layer: tensors[layer] for layer in sorted(getattr(need, kind))}
            for kind, tensors in capture.found.items()
        }
        sequence = out.last_hidden_state if need.sequence else None
        return EncoderOutput(pooled=vector, sequence=sequence, mask=tokens.mask, **kept)

    def save_weights(self, path: Path) -> None:
        """Write weights and config.json into the path's directory, as transformers does."""
        quieten()
        self.body.save_pretrained(path.parent)  # type: ignore[operator]

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights that `save_weights` wrote."""
        self.body.load_state_dict(weights)

    def _refuse_missing(self, asked: OutputSpec, capture: Capture) -> None:
        found: dict[str, Any] = {kind: frozenset(tensors) for kind, tensors in capture.found.items()}
        missing = asked.missing_from(OutputSpec(logits=True, pooled=True, sequence=True, **found))
        if missing:
            raise UserError(
                f"the encoder {self.shape.family!r} does not show its {', '.join(missing)}",
                expected="encoders whose attention goes through transformers' attention interface",
                hint="choose another encoder, or a recipe on hidden states or logits",
            )

    def _pool(self, last: Tensor, cls: Mapping[int, Tensor], mask: Tensor) -> Tensor:
        if self.config.pooling == "cls-of-layers":
            return torch.stack([cls[layer] for layer in range(1, self.n_layers + 1)]).mean(0)
        if self.config.pooling == "cls":
            return last[:, 0]
        weight = mask.unsqueeze(-1).to(last.dtype)
        return (last * weight).sum(1) / weight.sum(1).clamp(min=1)


def _load_body(load: Any, place: str, **given: Any) -> nn.Module:
    return _without_pooler(partial(load, place, **given))


def _without_pooler(build: Any) -> nn.Module:
    """Build an encoder without the pooling layer that no head of ours reads, where its family has one."""
    try:
        return build(add_pooling_layer=False)
    except TypeError:
        return build()


def copy_layers(student: TransformerEncoder, source: TransformerEncoder, layers: Sequence[int]) -> None:
    """Give a student the source's embeddings and some of its layers.

    Args:
        layers: for each layer of the student the source's layer, both from 1.

    Raises:
        UserError: a weight has another shape.
    """
    places = find_layers(student.body, student.n_layers), find_layers(source.body, source.n_layers)
    mine, theirs = (f"{place[0]}." if place else None for place in places)
    weights = source.body.state_dict()
    taken = {}
    for name, weight in student.body.state_dict().items():
        origin = name
        if mine and theirs and name.startswith(mine):
            number, _, rest = name.removeprefix(mine).partition(".")
            origin = f"{theirs}{layers[int(number)] - 1}.{rest}"
        there = tuple(weights[origin].shape) if origin in weights else "none"
        if there != tuple(weight.shape):
            raise UserError(
                f"the student's {name} is {tuple(weight.shape)}, there {there} in the encoder it starts from",
                expected="the sizes of the encoder it starts from, but for layers and heads",
                hint="leave out the student's sizes, or --set student.transformer.init=random",
            )
        taken[name] = weights[origin]
    student.body.load_state_dict(taken)
