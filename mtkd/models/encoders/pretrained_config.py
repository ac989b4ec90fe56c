"""Configurations of Hugging Face encoders: by name, in other sizes; no weights are read here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from mtkd.models.encoders.base import EncoderConfig
from mtkd.outputs import EncoderSpec, OutputSpec
from tasks.errors import UserError
from tasks.files import digest_file, read_json
from tasks.hub_loading import embedded_encoder, load_named

DEFAULT_TEACHER = "minilm"
# Sizes that some families keep under a name of their own without saying so (`attribute_map`).
_OTHER_NAMES = {
    "intermediate_size": ("hidden_dim", "ffn_dim"),
    "hidden_dropout_prob": ("dropout", "mlp_dropout"),
    "attention_probs_dropout_prob": ("attention_dropout",),
}
Pooling = Literal["cls", "mean", "cls-of-layers"]


class TransformerConfig(EncoderConfig):
    """How a Transformer encoder is built.

    Attributes:
        hf: the Hugging Face configuration, as a dictionary with `model_type`.
        pooling: the row's vector: the last layer's first token (`cls`), the mean over real tokens
            (`mean`), or the mean of the first token over all layers (`cls-of-layers`, MKD).
        head_size: width of an attention head, where heads were pruned; None = as the family has it.
        embedding_rank: of a factorised word embedding table; None = it is whole.
    """

    gives_sequence: ClassVar[bool] = True
    kind: Literal["transformer"] = "transformer"
    hf: dict[str, Any]
    pooling: Pooling = "cls"
    head_size: int | None = None
    embedding_rank: int | None = None

    def build_hf(self) -> Any:
        """The Hugging Face configuration as an object of its family's class."""
        from transformers import AutoConfig

        settings = dict(self.hf)
        return AutoConfig.for_model(settings.pop("model_type"), **settings)

    @property
    def shape(self) -> EncoderSpec:
        """Sizes, and what can be asked of the encoder."""
        from transformers import MODEL_MAPPING

        hf = self.build_hf()
        layers, heads, width = hf.num_hidden_layers, hf.num_attention_heads, hf.hidden_size
        states = frozenset(range(layers + 1))
        offers = OutputSpec(pooled=True, sequence=True, cls=states, hidden=states)
        body = MODEL_MAPPING.get(type(hf), None)
        if getattr(body, "_supports_attention_backend", False):
            every = frozenset(range(1, layers + 1))
            offers = replace(offers, query=every, key=every, value=every, context=every, scores=every)
        attention = heads * (self.head_size or getattr(hf, "head_dim", None) or width // heads)
        return EncoderSpec(hf.model_type, layers, width, attention, heads, width, offers)


def locate(name: str) -> str:
    """An encoder's name as transformers understands it.

    `minilm` is the encoder installed beside mtkd; of a run directory it is the model inside.

    Raises:
        UserError: the embedded default is not installed.
    """
    if name != DEFAULT_TEACHER:
        inside = Path(name) / "model"
        return str(inside) if (inside / "config.json").is_file() else name
    return str(embedded_encoder())


def own_config(directory: str) -> TransformerConfig | None:
    """The configuration of a model of ours that is a Transformer, else None."""
    ours = Path(directory) / "model.json"
    said = read_json(ours)["encoder"] if ours.is_file() else {}
    return TransformerConfig(**said) if said.get("kind") == "transformer" else None


def _declared_pooling(directory: str) -> Pooling:
    """What a sentence-transformers directory says of its encoder, else `cls`."""
    declared = Path(directory) / "1_Pooling" / "config.json"
    return "mean" if declared.is_file() and read_json(declared).get("pooling_mode_mean_tokens") else "cls"


def digest_encoder(name: str) -> str | None:
    """The SHA-256 of the weights, where the encoder lies in a directory; None for a hub's."""
    weights = Path(locate(name)) / "model.safetensors"
    return digest_file(weights) if weights.is_file() else None


def pretrained_config(name: str, pooling: Pooling | None = None) -> TransformerConfig:
    """The configuration of an encoder by hub name or directory; no weights are read.

    Raises:
        UserError: no such model, or the hub cannot be reached.
    """
    from transformers import AutoConfig

    quieten()
    place = locate(name)
    if (own := own_config(place)) is not None:
        return own.model_copy(update={"pooling": pooling or own.pooling})
    found: Any = load_named(partial(AutoConfig.from_pretrained, trust_remote_code=False), place, "encoder")
    settings = {k: v for k, v in found.to_dict().items() if v is not None and not k.startswith("_")}
    for key in ("torch_dtype", "dtype", "architectures", "transformers_version"):
        settings.pop(key, None)
    return TransformerConfig(hf=settings, pooling=pooling or _declared_pooling(place))


def quieten() -> None:
    """No reports and bars of transformers' own."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def with_sizes(config: TransformerConfig, **sizes: int | float) -> TransformerConfig:
    """The same encoder in other sizes, which are named as in BERT's configuration."""
    hf = config.build_hf()
    named = {size_name(hf, name): size for name, size in sizes.items()}
    # What some families say layer by layer does not hold for another number of layers.
    of_layers = [k for k, v in config.hf.items() if isinstance(v, list) and len(v) == hf.num_hidden_layers]
    kept = {k: v for k, v in config.hf.items() if "num_hidden_layers" not in sizes or k not in of_layers}
    return config.model_copy(update={"hf": {**kept, **named}})


def size_name(hf: Any, name: str) -> str:
    """What a family's configuration calls a size that BERT's calls `name`.

    Raises:
        UserError: the family has no such size.
    """
    own = hf.attribute_map.get(name, name)
    known = hf.to_dict()
    found = next((key for key in (own, *_OTHER_NAMES.get(name, ())) if key in known), None)
    if found is None:
        raise UserError(
            f"the size {name} of the encoder family {hf.model_type!r} cannot be set",
            hint=f"leave student.transformer.{name} out, or start from another encoder",
        )
    return found


def factorised(config: TransformerConfig, rank: int) -> TransformerConfig:
    """The same encoder with embeddings of `rank` and a projection up to the hidden size.

    BERT and RoBERTa have no such projection; ELECTRA is BERT with one, so that becomes the family.
    """
    if "embedding_size" in config.hf:
        return with_sizes(config, embedding_size=rank)
    from transformers import ElectraConfig

    hf = config.build_hf()
    known = ElectraConfig().to_dict().keys() - {"model_type", "embedding_size", "architectures"}
    same = {key: getattr(hf, key) for key in known if hasattr(hf, key) and not key.startswith("_")}
    same["intermediate_size"] = getattr(hf, size_name(hf, "intermediate_size"))
    settings = ElectraConfig(**{**same, "embedding_size": rank}).to_dict()
    kept = {k: v for k, v in settings.items() if v is not None and not k.startswith("_")}
    for key in ("torch_dtype", "dtype", "architectures", "transformers_version"):
        kept.pop(key, None)
    return TransformerConfig(hf=kept, pooling=config.pooling)
