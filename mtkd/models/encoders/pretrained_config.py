"""Configurations of Hugging Face encoders: find them by name and change their sizes, without any weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from mtkd.model_files import read_model_file, refuse_export
from mtkd.models.encoders.config_checks import build_configuration, check_config_file, refuse_code
from mtkd.models.encoders.encoder import EncoderConfig
from mtkd.models.encoders.mt_dnn import MT_DNN, convert_mt_dnn
from mtkd.models.encoders.text_vectors import Pooling
from mtkd.models.pretrained_weights import pretrained_weight_files
from mtkd.outputs import EncoderSpec, OutputSpec
from tasks.common.errors import UserError
from tasks.common.hub_loading import (
    DEFAULT_ENCODER,
    embedded_encoder,
    find_file,
    load_named,
    not_loaded,
)
from tasks.common.records import Text, Units, check_record, read_record
from tasks.common.remote import with_local_paths
from tasks.common.sha256 import digest_bytes, digest_file
from tasks.task import Task
from tasks.tokens.reader import InputFormat

POOLING = "1_Pooling/config.json"  # of sentence-transformers
# The flags of its versions before 6, and the values of `pooling_mode` that replaced them.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Sizes that some families store under another name without declaring it in their `attribute_map`.
_OTHER_NAMES = {
    "intermediate_size": ("hidden_dim", "ffn_dim"),
    "hidden_dropout_prob": ("dropout", "mlp_dropout"),
    "attention_probs_dropout_prob": ("attention_dropout",),
}
PairEncoding = Literal["cross-encoder", "bi-encoder"] | list[Text]


class TransformerConfig(EncoderConfig):
    """The configuration of a Transformer encoder.

    Attributes:
        hf: the Hugging Face configuration, as a dictionary with `model_type`.
        pooling: the vector of a row: the last layer's first token (`cls`), the same after the pooling layer
            of its family (`pooler`), the mean over real tokens (`mean`), or the mean of the first token over
            all layers (`cls-of-layers`, MKD).
        head_size: the width of an attention head, if heads were pruned; None = the default of the family.
        embedding_rank: the rank of a factorised word embedding table; None = not factorised.
        pairs: how two texts are read: as one sequence (`cross-encoder`), or as two that do not attend to each
            other (`bi-encoder`, as sentence-transformers calls it). A list of heads: their tasks are read by
            a bi-encoder, all others by a cross-encoder.
    """

    gives_sequence: ClassVar[bool] = True
    kind: Literal["transformer"] = "transformer"
    hf: dict[str, Any]
    pooling: Pooling = "cls"
    head_size: Units | None = None
    embedding_rank: Units | None = None
    pairs: PairEncoding = "cross-encoder"

    @field_validator("hf")
    @classmethod
    def _check_hf(cls, hf: dict[str, Any]) -> dict[str, Any]:
        refuse_code(hf, "the configuration of the encoder")
        return hf

    def build_hf(self) -> Any:
        """Build the Hugging Face configuration object of the encoder's family.

        Raises:
            UserError: there is no such family, or a value is not allowed.
        """
        return build_configuration(self.hf)

    @property
    def input_format(self) -> InputFormat:  # type: ignore[override]
        """How the encoder reads the texts of a row; see `tasks.tokens.reader.Reader`."""
        return "side-by-side" if self.pairs == "bi-encoder" else "joined"

    def compares_texts(self, task: Task) -> bool:
        """True if a task's two texts are read side by side, for a head that compares their vectors."""
        chosen = task.head in self.pairs if isinstance(self.pairs, list) else self.pairs == "bi-encoder"
        return chosen and len(task.columns) == 2

    @property
    def spec(self) -> EncoderSpec:
        """The encoder's sizes, and the outputs that it offers."""
        from transformers import MODEL_MAPPING

        hf = self.build_hf()
        layers = hf.num_hidden_layers
        heads = hf.num_attention_heads
        width = hf.hidden_size
        states = frozenset(range(layers + 1))
        # A bi-encoder pools a pair to [u; v; |u - v|; u * v], so terms on pooled vectors are refused.
        pooled = self.pairs == "cross-encoder"
        offers = OutputSpec(pooled=pooled, sequence=True, cls=states, mean=states, hidden=states)
        body = MODEL_MAPPING.get(type(hf), None)
        if getattr(body, "_supports_attention_backend", False):
            blocks = frozenset(range(1, layers + 1))  # without the embeddings
            offers = replace(offers, query=blocks, key=blocks, value=blocks, context=blocks, scores=blocks)
        attention = heads * (self.head_size or getattr(hf, "head_dim", None) or width // heads)
        sizes = (layers, width, attention, heads, width)
        return EncoderSpec(hf.model_type, *sizes, offers, mean_pooled=self.pooling == "mean")

    def spec_for(self, tasks: Iterable[Task]) -> EncoderSpec:
        """The same; a bi-encoder also offers the pooled vectors of tasks with one text."""
        spec = self.spec
        pooled = not any(self.compares_texts(task) for task in tasks)
        return replace(spec, offers=replace(spec.offers, pooled=pooled))


def locate(name: str) -> str:
    """Translate an encoder's name into a hub name or directory that transformers understands.

    `minilm` is the encoder installed with mtkd; a run directory stands for the model inside it, and a file of
    MT-DNN (.pt) for a directory that it is converted to.

    Raises:
        UserError: the encoder `minilm` is not installed, or a file cannot be converted.
    """
    name = with_local_paths(name)  # a URL that a record names
    if name.endswith(MT_DNN) and not Path(name).is_dir():
        return str(convert_mt_dnn(Path(name)))
    if name != DEFAULT_ENCODER:
        inside = Path(name) / "model"
        return str(inside) if (inside / "config.json").is_file() else name
    return str(embedded_encoder())


def own_config(directory: str) -> TransformerConfig | None:
    """The configuration of an mtkd model that is a Transformer; None for anything else."""
    file = Path(directory) / "model.json"
    encoder = read_model_file(file.parent).encoder if file.is_file() else {}
    if encoder.get("kind") != "transformer":
        return None
    return check_record(encoder, TransformerConfig, f"{file}, encoder")


def _declared_pooling(location: str) -> Pooling:
    """The pooling that a model of sentence-transformers declares; `cls` for other models.

    Raises:
        UserError: it is neither the mean nor the first token.
    """
    if (file := find_file(location, POOLING)) is None:
        return "cls"
    declared = read_record(file, dict[str, Any])
    flagged = [mode for flag, mode in _POOLING_FLAGS.items() if declared.get(flag)]
    named = declared.get("pooling_mode") or flagged or "mean"  # the default of sentence-transformers
    modes = named if isinstance(named, list) else [named]
    if modes == ["mean"]:
        return "mean"
    if modes == ["cls"]:
        return "cls"
    raise UserError(
        f"{file}: pooling {' and '.join(map(repr, modes))} is not supported",
        expected="mean or cls",
        hint="choose another pooling: `settings={'pooling': 'mean'}` when you refine this encoder, or "
        "`student.transformer.pooling=mean` for a student that starts from it; for a teacher without heads, "
        "change the file",
    )


def exceeds_default_encoder(spec: EncoderSpec) -> bool:
    """True if the layers of an encoder have more weights than those of the default encoder."""
    default = pretrained_config(DEFAULT_ENCODER).spec
    return spec.layers * spec.hidden_size**2 > default.layers * default.hidden_size**2


def digest_encoder(name: str) -> str | None:
    """The SHA-256 of an encoder's weights in a local directory; None for an encoder from a hub.

    Raises:
        UserError: as for `pretrained_weight_files`.
    """
    digests = [digest_file(file) for file in pretrained_weight_files(Path(locate(name)))]
    return digest_bytes(*digests) if len(digests) > 1 else next(iter(digests), None)


def pretrained_config(name: str, pooling: Pooling | None = None) -> TransformerConfig:
    """Load the configuration of an encoder by hub name or directory, without its weights.

    Raises:
        UserError: there is no such model, the hub cannot be reached, or `pooling` is None and the pooling
            that the model declares is not supported.
    """
    from transformers import AutoConfig

    refuse_export(name, "trained further, or be the start of a student")
    location = locate(name)
    if (saved_config := own_config(location)) is not None:
        saved_config = saved_config.model_copy(update={"pooling": pooling or saved_config.pooling})
        pooler_option(saved_config)
        return saved_config
    if file := find_file(location, "config.json"):
        check_config_file(file)
    elif Path(location).is_dir():
        raise not_loaded("encoder", name, FileNotFoundError("it has no config.json"))
    hf: Any = load_named(partial(AutoConfig.from_pretrained, trust_remote_code=False), location, "encoder")
    config = config_of(hf, pooling or _declared_pooling(location))
    pooler_option(config)
    return config


def pooler_option(config: TransformerConfig) -> dict[str, bool]:
    """The argument that builds an encoder with or without the pooling layer of its family, if there is one.

    Raises:
        UserError: the encoder pools with this layer, but its family has none.
    """
    from transformers import MODEL_MAPPING

    hf, pools = config.build_hf(), config.pooling == "pooler"
    body: Any = MODEL_MAPPING.get(type(hf), None)
    if "add_pooling_layer" in inspect.signature(body.__init__).parameters:
        return {"add_pooling_layer": pools}
    if pools:
        raise UserError(
            f"encoders of the family {hf.model_type!r} have no pooling layer, so they cannot pool with it",
            expected="for pooling=pooler: BERT, RoBERTa, XLM-R, ALBERT and encoders built like them",
            hint="use pooling=cls; `student.head_hidden_size` gives the heads a hidden layer",
        )
    return {}


def config_of(hf: Any, pooling: Pooling = "cls") -> TransformerConfig:
    """The configuration of an encoder, from the Hugging Face configuration of any model around it."""
    settings = {k: v for k, v in hf.to_dict().items() if v is not None and not k.startswith("_")}
    for key in ("torch_dtype", "dtype", "architectures", "transformers_version"):
        settings.pop(key, None)
    return TransformerConfig(hf=settings, pooling=pooling)


def with_sizes(config: TransformerConfig, **sizes: int | float) -> TransformerConfig:
    """Change sizes of an encoder; they are named as in the configuration of BERT."""
    hf = config.build_hf()
    named = {size_name(hf, name): size for name, size in sizes.items()}
    # Some families have lists with one entry per layer, which are wrong for another number of layers.
    per_layer = [k for k, v in config.hf.items() if isinstance(v, list) and len(v) == hf.num_hidden_layers]
    unchanged = {k: v for k, v in config.hf.items() if "num_hidden_layers" not in sizes or k not in per_layer}
    return config.model_copy(update={"hf": {**unchanged, **named}})


def size_name(hf: Any, name: str) -> str:
    """The name that a family's configuration uses for a size that BERT calls `name`.

    Raises:
        UserError: the family has no such size.
    """
    mapped_name = hf.attribute_map.get(name, name)
    settings = hf.to_dict()
    known_name = next((key for key in (mapped_name, *_OTHER_NAMES.get(name, ())) if key in settings), None)
    if known_name is None:
        raise UserError(
            f"encoders of the family {hf.model_type!r} have no setting for the size {name}",
            hint=f"leave out student.transformer.{name}, or start from another encoder",
        )
    return known_name


def factorised(config: TransformerConfig, rank: int) -> TransformerConfig:
    """Give an encoder embeddings of width `rank` and a projection up to the hidden size.

    BERT and RoBERTa have no such projection. ELECTRA is BERT with one, so the family becomes ELECTRA.
    """
    if "embedding_size" in config.hf:
        return with_sizes(config, embedding_size=rank)
    from transformers import ElectraConfig

    hf = config.build_hf()
    keys = ElectraConfig().to_dict().keys() - {"model_type", "embedding_size", "architectures"}
    settings = {key: getattr(hf, key) for key in keys if hasattr(hf, key) and not key.startswith("_")}
    settings["intermediate_size"] = getattr(hf, size_name(hf, "intermediate_size"))
    return config_of(ElectraConfig(**{**settings, "embedding_size": rank}), config.pooling)
