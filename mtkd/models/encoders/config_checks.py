"""Checks of transformers configurations: no code would be run, and models of their sizes can be built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.common.errors import UserError, brief, reason_of
from tasks.common.records import read_record

# Keys of a configuration that would load code, or weights of another form than plain tensors.
_CODE = ("auto_map", "custom_pipelines", "quantization_config", "compression_config", "adapter_config")
_ATTENTION = ("eager", "sdpa")  # other implementations may be kernels of the hub
_MAX_DEPTH, _MAX_NUMBER = 8, 10**9  # nesting of tables and lists; size of numbers
_LABELS, _MAX_LABELS = ("num_labels", "_num_labels", "id2label", "label2id"), 100_000
# Keys that mtkd sets itself: how a model returns its outputs, and the dtype of its weights.
_OUTPUT_KEYS = (
    *("return_dict", "use_return_dict", "output_hidden_states", "output_attentions", "torchscript"),
    *("chunk_size_feed_forward", "dtype", "torch_dtype", "attn_implementation", "_attn_implementation"),
)
# Families whose weights have the same names, sizes and meaning, so that one may be saved as another.
_INTERCHANGEABLE = ({"roberta", "xlm-roberta", "camembert", "data2vec-text"}, {"bert", "ernie"})
_SIZES = {
    "num_hidden_layers": 1000,
    "num_attention_heads": 1000,
    "hidden_size": 32_768,
    "intermediate_size": 131_072,
    "vocab_size": 5_000_000,
    "max_position_embeddings": 10_000_000,
    "type_vocab_size": 1000,
}


def build_configuration(values: Mapping[str, Any], where: str = "the encoder") -> Any:
    """The configuration object of an encoder's family.

    Args:
        values: with `model_type`; checked by `refuse_code`.
        where: the model or file that the configuration belongs to, for error messages.

    Raises:
        UserError: there is no such family, or a value is not allowed.
    """
    from transformers import MODEL_MAPPING, AutoConfig

    settings = {key: value for key, value in values.items() if key not in _OUTPUT_KEYS}
    with configuration_errors(where):
        hf = AutoConfig.for_model(settings.pop("model_type"), **settings)
        if type(hf) not in MODEL_MAPPING or hf.sub_configs or not hasattr(hf, "vocab_size"):
            raise ValueError(f"{hf.model_type} is not an encoder of text")
        for name, highest in _SIZES.items():
            lowest = 0 if name == "type_vocab_size" else 1
            if not lowest <= (size := getattr(hf, name, 1)) <= highest:
                raise ValueError(f"{name} = {brief(size)}, not {lowest} to {highest:,}")
    return hf


def check_config_file(file: Path) -> None:
    """Check a config.json of transformers, before anything is built from it.

    Raises:
        UserError: it is no table of values, names code, or contradicts itself.
    """
    values = read_record(file, dict[str, Any])
    refuse_code(values, str(file))
    refuse_other_family(values, str(file))


def refuse_code(values: Any, where: str, depth: int = 0) -> None:
    """Check that a transformers configuration names no code, kernels or quantised weights.

    Raises:
        UserError: it names one, a number is too large or not finite, or the values are nested too deeply.
    """
    if isinstance(values, Mapping) and depth < _MAX_DEPTH:
        for key, value in values.items():
            attention = str(key).endswith("attn_implementation") or key == "experts_implementation"
            if (key in _CODE and value) or (attention and value not in (None, *_ATTENTION)):
                raise UserError(
                    f"{where}: {key} = {brief(value)} is not allowed",
                    expected=" or ".join(_ATTENTION) if attention else "no such key",
                    hint="mtkd runs no code of models and reads no quantised weights",
                )
            if key in _LABELS and not _few_labels(value):
                raise UserError(
                    f"{where}: {key} = {brief(value)} is not allowed",
                    expected=f"up to {_MAX_LABELS:,} labels",
                )
            refuse_code(value, f"{where}, {key}" if isinstance(value, Mapping) else where, depth + 1)
    elif isinstance(values, list) and depth < _MAX_DEPTH:
        for value in values:
            refuse_code(value, where, depth + 1)
    elif isinstance(values, Mapping | list):
        raise UserError(
            f"{where}: {brief(values)} is nested too deeply", expected=f"at most {_MAX_DEPTH} levels"
        )
    elif isinstance(values, int | float) and not abs(values) <= _MAX_NUMBER:
        raise UserError(f"{where}: {brief(values)} is not allowed", expected=f"numbers up to {_MAX_NUMBER:,}")


def refuse_other_family(values: Mapping[str, Any], where: str) -> None:
    """Check that the `model_type` and the `architectures` of a transformers configuration do not contradict.

    Raises:
        UserError: the first of the architectures is a class of another family, whose weights differ in form
            or meaning. An architecture that transformers does not know is no contradiction.
    """
    from transformers.models.auto import modeling_auto

    family, names = values.get("model_type"), values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    tables = [table for key, table in vars(modeling_auto).items() if key.endswith("_MAPPING_NAMES")]
    families = {
        known
        for table in tables
        for known, classes in table.items()
        if name in (classes if isinstance(classes, tuple) else (classes,))
    }
    if not isinstance(family, str) or not families:
        return
    alike = next((group for group in _INTERCHANGEABLE if family in group), {family})
    if not families & alike:
        raise UserError(
            f"{where}: model_type = {brief(family)} contradicts architectures = {brief(names)}",
            expected=" or ".join(sorted(families)),
            hint="restore the config.json that was saved with the weights",
        )


def _few_labels(value: Any) -> bool:
    """True if a number or table of labels is small enough; transformers creates a name for each label."""
    if isinstance(value, Mapping | list):
        return len(value) <= _MAX_LABELS
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value <= _MAX_LABELS)


@contextlib.contextmanager
def configuration_errors(where: str = "the encoder") -> Iterator[None]:
    """Turn exceptions of transformers and torch about an unusable configuration into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] if isinstance(error, ValueError) else reason_of(error)
        raise UserError(f"the configuration of {where} cannot be used: {reason}") from error
