"""The weights of models that transformers saved: safetensors, or an older .bin that is converted to it."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtkd.output_files.safetensors_shards import read_header
from tasks.common.errors import UserError, counted, reason_of, shorten
from tasks.common.hub_loading import load_named
from tasks.common.progress import say
from tasks.common.reading import is_lfs_pointer, require_file
from tasks.common.records import Record, read_record
from tasks.common.temporary import temporary_directory

SAFETENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
BIN = "pytorch_model.bin"
_FILES = (SAFETENSORS, INDEX, BIN)  # the first of them that exists is read
_REFUSED = "the weights in {} cannot be used"
_EXPECTED = f"{SAFETENSORS}, or a {BIN} with nothing but tensors"
_HINT = "if you trust the file, load the model with transformers and call `model.save_pretrained(DIR)` once, "
_HINT += "which writes safetensors"
_OF_ONE_MODEL = "use the config.json and the weights of one model"


def find_weights(name: str, local_files_only: bool) -> Path:
    """The file with a model's weights, or the index of its parts; a file of the hub is downloaded.

    Args:
        name: a directory, or a name on the hub.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: in a directory, a part is missing, or the file is a pointer of Git LFS.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    directory = Path(name)
    if files := pretrained_weight_files(directory):
        return files[0]
    for file_name in () if directory.is_dir() else _FILES:
        with contextlib.suppress(EntryNotFoundError):
            return Path(hf_hub_download(name, file_name, local_files_only=local_files_only))
    raise FileNotFoundError(f"it has neither {SAFETENSORS} nor {BIN}")


def pretrained_weight_files(directory: Path) -> list[Path]:
    """The file with the weights of a model, or an index and the parts that it names; none without weights.

    Raises:
        UserError: a part is missing, a file is a pointer of Git LFS, or the index is damaged.
    """
    file = next((directory / name for name in _FILES if (directory / name).is_file()), None)
    files = [file, *_parts(file)] if file else []
    for part in files:
        if not part.is_file():
            raise UserError(
                f"{part} is missing, which {INDEX} names", hint="copy or download all files of the model"
            )
        if is_lfs_pointer(part):
            raise UserError(
                f"{part} is a Git LFS pointer, not the weights themselves",
                hint="download the weights: run `git lfs pull` in this directory",
            )
    return files


def _parts(file: Path) -> list[Path]:
    """The files that an index names; none if the file is not an index."""
    names = read_record(file, _Index).weight_map.values() if file.name == INDEX else ()
    return [file.with_name(name) for name in dict.fromkeys(names)]


def load_pretrained(
    auto: Any, name: str, what: str, *, fewer_layers: bool = False, **options: Any
) -> tuple[Any, set[str]]:
    """Load a pretrained transformers model; code in its files is never run.

    Args:
        auto: a transformers class with `from_pretrained`, such as AutoModel.
        name: a directory, or a name on the hub.
        what: what is loaded, for error messages ("encoder").
        fewer_layers: the model may have fewer layers than the files.
        options: further arguments of `from_pretrained`.

    Returns:
        The model in float32, and the names of its weights that the files do not have.

    Raises:
        UserError: there is no such model, the hub cannot be reached, or the files are damaged or hold more
            than tensors.
    """

    fixed = {"trust_remote_code": False, "use_safetensors": True, "output_loading_info": True}
    fixed["ignore_mismatched_sizes"] = True  # they are refused below, by an error that names them

    def load(location: str, local_files_only: bool) -> Any:
        file = find_weights(location, local_files_only)
        with temporary_directory() as converted:
            if file.name == BIN:
                save_file(read_bin(file), converted / SAFETENSORS, {"format": "pt"})
                shutil.copy(file.with_name("config.json"), converted)
                location = str(converted)
                file = converted / SAFETENSORS
            loading_options = {"dtype": torch.float32, "local_files_only": local_files_only, **options}
            loaded = auto.from_pretrained(location, **fixed, **loading_options)
            refuse_other_types(loaded[0], file, f"{loaded[0].base_model_prefix}.")
            return loaded

    loaded: tuple[Any, dict[str, Any]] = load_named(load, name, what)
    model, found = loaded
    for key, stored, expected in sorted(found["mismatched_keys"]):
        shapes = f"{key} has the shape {tuple(stored)}, not {tuple(expected)}"
        raise UserError(f"the weights of {name} do not fit its config.json: {shapes}", hint=_OF_ONE_MODEL)
    if not fewer_layers:
        refuse_further_layers(model, found["unexpected_keys"], name)
    refuse_not_finite(model, name)
    return model, set(found["missing_keys"])


def load_pruned(body: nn.Module, directory: Path, name: str, *, all_layers: bool) -> set[str]:
    """Load the weights of an encoder that mtkd has pruned, which transformers cannot load.

    Args:
        body: the encoder with its pruned sizes.
        all_layers: whether the encoder has all layers of the file.

    Returns:
        The names of its weights that the file does not have.

    Raises:
        UserError: there is no such file, it is damaged, or it belongs to another encoder.
    """
    file = require_file(directory / SAFETENSORS)
    try:
        missing, unexpected = body.load_state_dict(load_file(file), strict=False)
    except Exception as error:  # safetensors and torch raise their own kinds for a damaged file
        raise UserError(f"the weights of {name!r} are damaged: {reason_of(error)}") from error
    if all_layers:
        refuse_further_layers(body, unexpected, name)
    refuse_other_types(body, file)
    refuse_not_finite(body, name)
    return set(missing)


def refuse_further_layers(model: Any, unexpected: Iterable[str], name: str) -> None:
    """Check that the file has no layers beyond those of the model, which would be left out silently."""
    lists = {layers: len(part) for layers, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    prefix = f"{model.base_model_prefix}."  # of the encoder in a file of a model with a head
    for key in sorted(unexpected):
        if match := re.match(r"(.+)\.(\d+)\.", key):
            number = lists.get(match[1]) or lists.get(match[1].removeprefix(prefix))
            if number is not None and int(match[2]) >= number:
                raise UserError(
                    f"the weights of {name} have {key}, but its config.json has {counted(number, 'layer')}",
                    hint=_OF_ONE_MODEL,
                )


def refuse_other_types(module: nn.Module, file: Path, prefix: str = "") -> None:
    """Check that the weights that were loaded from a file are floating-point numbers in it.

    Args:
        file: safetensors, or the index of several.
        prefix: a prefix that the names of weights may have in the module but not in the file, or vice versa.

    Raises:
        UserError: they are integers, truth values or complex numbers, which loading would convert silently.
    """
    files = _parts(file) or [file]
    expected = {name for name, weight in module.state_dict().items() if weight.is_floating_point()}
    for part in files:
        for name, stored in read_header(part).tensors.items():
            usual = {name, prefix + name, name.removeprefix(prefix)} & expected
            if usual and not re.match(r"B?F\d", stored.dtype):
                raise UserError(
                    _REFUSED.format(part) + f": {name} holds {stored.dtype}, not floating-point numbers",
                    hint="restore the file from a copy",
                )


@dataclass(frozen=True)
class _Index(Record):
    """The index of several files of weights."""

    __pydantic_config__: ClassVar[dict[str, Any]] = Record.__pydantic_config__ | {"extra": "ignore"}

    weight_map: dict[str, str]


def refuse_not_finite(module: nn.Module, where: str) -> None:
    """Check that all weights are finite numbers; raises UserError."""
    for name, weight in module.named_parameters():
        if not weight.isfinite().all():
            raise UserError(f"the weights in {where} are damaged: {name} is not finite everywhere")


def read_bin(file: Path) -> dict[str, Tensor]:
    """The tensors of a .bin file, without running code; none shares memory with another.

    Raises:
        UserError: the file holds anything else, or is damaged.
    """
    say(f"converting {file} to safetensors; nothing but its tensors is read")
    weights = read_torch_file(file, _EXPECTED, _HINT)
    values = weights.values() if isinstance(weights, dict) else [weights]
    other_types = {type(value).__name__ for value in values if not isinstance(value, Tensor)}
    if other_types or not isinstance(weights, dict):
        problem = f"it is not a table of tensors, but holds {shorten(sorted(other_types)) or 'one tensor'}"
        raise UserError(f"{_REFUSED.format(file)}: {problem}", expected=_EXPECTED, hint=_HINT)
    return {str(name): tensor.contiguous().clone() for name, tensor in weights.items()}


def read_torch_file(file: Path, expected: str, hint: str) -> Any:
    """Load a file that `torch.save` wrote; only tensors and plain values are accepted.

    Args:
        expected, hint: parts of the error; see `UserError`.

    Raises:
        UserError: the file is damaged or holds other objects.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a refused object, or any kind of damage
        problem = "it is damaged, or holds objects whose loading could run code"
        raise UserError(f"{_REFUSED.format(file)}: {problem}", expected=expected, hint=hint) from error
