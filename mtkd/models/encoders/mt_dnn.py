"""The encoders in MT-DNN's published checkpoints (Liu et al. 2019), as transformers directories.

A checkpoint is a torch file of {"state": weights, "config": sizes}: a BERT under "bert.", and a head per task
under "scoring_list.N.", which the published files leave out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from mtkd.models.encoders.config_checks import build_configuration, configuration_errors
from mtkd.models.pretrained_weights import read_torch_file
from tasks.common.errors import UserError, brief, shorten
from tasks.common.files import staged_directory
from tasks.common.hub_loading import embedded_encoder, quiet_transformers
from tasks.common.locks import locked
from tasks.common.progress import say
from tasks.common.records import Count, Depth, Share, Size, Units, VocabularySize, check_value
from tasks.tokens.tokeniser import Tokeniser

_Positive = Annotated[float, Field(gt=0, lt=1e6)]

MT_DNN = ".pt"  # the suffix of checkpoint files
_ENCODER = "bert."
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_OPTIONAL: tuple[str, ...] = ("hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps")
_OPTIONAL += ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# The sizes of BERT's vocabularies, each with its tokeniser; the installed encoder has the uncased one.
_TOKENISERS = {30522: None, 28996: "bert-base-cased", 21128: "bert-base-chinese"}
_EXPECTED = "a checkpoint of MT-DNN: a torch file with the tensors `state` and BERT's sizes `config`"
_HINT = "a checkpoint written during MT-DNN's training holds more; its script strip_model.py removes that"


class _Sizes(TypedDict):
    vocab_size: VocabularySize
    hidden_size: Units
    num_hidden_layers: Depth
    num_attention_heads: Depth
    intermediate_size: Size
    hidden_act: NotRequired[str]
    max_position_embeddings: NotRequired[Size]
    type_vocab_size: NotRequired[Count]
    layer_norm_eps: NotRequired[_Positive]
    hidden_dropout_prob: NotRequired[Share]
    attention_probs_dropout_prob: NotRequired[Share]
    initializer_range: NotRequired[_Positive]


def read_mt_dnn(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the encoder of a checkpoint; nothing but tensors and plain values is loaded.

    Returns:
        The arguments of BertConfig, and the weights of a BertModel; task heads are left out.

    Raises:
        UserError: the file is damaged or is not a checkpoint of a BERT.
    """
    checkpoint = read_torch_file(path, _EXPECTED, _HINT)
    parts = checkpoint if isinstance(checkpoint, dict) else {}
    state, config = parts.get("state"), parts.get("config")
    if not isinstance(state, dict) or not isinstance(config, dict):
        raise UserError(f"{path} has no `state` and `config`", expected=_EXPECTED)
    if odd := [name for name, value in state.items() if not _is_weight(name, value)]:
        raise UserError(
            f"the `state` in {path} has {brief(odd[0])}, which is not a weight", expected=_EXPECTED
        )
    weights = {
        name.removeprefix(_ENCODER): value for name, value in state.items() if name.startswith(_ENCODER)
    }
    for old, new in _RENAMED.items():
        weights = {name.replace(old, new): value for name, value in weights.items()}
    if missing := [name for name in _REQUIRED if name not in config]:
        raise UserError(f"the `config` in {path} has no {shorten(missing)}", expected=_EXPECTED)
    sizes = {name: config[name] for name in (*_REQUIRED, *_OPTIONAL) if name in config}
    check_value(sizes, _Sizes, f"the `config` in {path}")
    return sizes, weights


def _is_weight(name: Any, value: Any) -> bool:
    is_tensor = isinstance(name, str) and isinstance(value, Tensor)
    return is_tensor and (value.is_floating_point() or name.endswith("position_ids"))


def convert_mt_dnn(file: Path) -> Path:
    """Write the encoder of a checkpoint as a transformers directory beside it, unless it is there.

    Returns:
        The directory, FILE.converted.

    Raises:
        UserError: see `read_mt_dnn`; also if its weights do not fit its sizes, its vocabulary is not one of
            BERT's or its tokeniser is unavailable, or the directory cannot be written.
    """
    directory = file.with_name(f"{file.name}.converted")
    weights = directory / "model.safetensors"
    if not file.is_file():
        raise UserError(f"no such file: {file}", expected=_EXPECTED)

    def current() -> bool:
        return weights.is_file() and weights.stat().st_mtime >= file.stat().st_mtime

    if not current():
        model, tokeniser = _load(file)
        with locked(directory, wait=True):
            if not current():  # another process may just have written it
                with staged_directory(directory, "model.safetensors") as temporary:
                    with quiet_transformers():
                        model.save_pretrained(temporary)
                    tokeniser.save(temporary)
                say(f"{file} was converted to {directory}")
    return directory


def _load(file: Path) -> tuple[Any, Tokeniser]:
    """The encoder of a checkpoint as a transformers model, and its tokeniser."""
    from transformers import BertModel

    sizes, weights = read_mt_dnn(file)
    if sizes["vocab_size"] not in _TOKENISERS:
        raise UserError(
            f"{file} has a vocabulary of {sizes['vocab_size']} tokens",
            expected="that of BERT: 30522 (uncased), 28996 (cased) or 21128 (Chinese)",
        )
    pooler = "pooler.dense.weight" in weights
    config = build_configuration({"model_type": "bert", **sizes}, str(file))
    with configuration_errors(str(file)):
        model: Any = BertModel(config, add_pooling_layer=pooler)
    weights.pop("embeddings.position_ids", None)  # a constant
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())[:300]
        raise UserError(
            f"the weights in {file} do not fit its sizes: {problem}", expected=_EXPECTED
        ) from error
    tokeniser = Tokeniser.load(_TOKENISERS[sizes["vocab_size"]] or str(embedded_encoder()))
    tokeniser.hf.model_max_length = model.config.max_position_embeddings
    return model, tokeniser
