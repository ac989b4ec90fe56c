"""The files of a saved model: its description, its tokeniser, and where its weights are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mtkd.model_files import EXPORT, FORMAT, ModelInfo, nearby_files, read_export, read_model_file
from mtkd.models.encoders.encoder import AnyEncoder, EncoderConfig
from mtkd.models.encoders.encoder_registry import config_from_json, encoder_from_config
from tasks.common.digests import check_digests, read_digests
from tasks.common.errors import UserError
from tasks.common.files import write_json
from tasks.common.hub_loading import (
    DEFAULT_ENCODER,
    did_you_mean_model,
    from_hub,
    is_hub_name,
    only_contains_models,
    similar_model,
)
from tasks.common.sha256 import digest_bytes, digest_file
from tasks.task import Task
from tasks.tokens.tokeniser import Tokeniser

WEIGHTS, HEADS = "model.safetensors", "heads.safetensors"
TOKENISER = "tokenizer.json"
_TOKENISER_FILES = (TOKENISER, "tokenizer_config.json")
# Regular expression for the names of all files of a model.
MODEL_FILES = (
    r"((model(-\d{5}-of-\d{5})?|heads)\.safetensors(\.index\.json)?|(model|config|digests|generation_config|tokenizer|tokenizer_config|special_tokens_map"
    r"|added_tokens|vocab)\.json|(vocab|merges)\.txt|(spiece|spm|tokenizer|sentencepiece(\.bpe)?)\.model|chat_template\.jinja|README\.md)"
)


@dataclass(frozen=True)
class SavedModel:
    """The description of a saved model, without its weights.

    Attributes:
        encoder_json: the encoder's configuration as plain JSON values.
        file: the model.json that it was read from; None for a transformers checkpoint.
    """

    encoder_json: dict[str, Any]
    tasks: list[Task]
    info: ModelInfo
    file: Path | None = None

    def encoder(self) -> AnyEncoder:
        """Build the encoder with newly initialised weights."""
        with self._errors_name_the_file():
            return encoder_from_config(self.config)

    @property
    def config(self) -> EncoderConfig:
        """The encoder's configuration."""
        with self._errors_name_the_file():
            return config_from_json(self.encoder_json, f"{self.file}, encoder")

    @contextlib.contextmanager
    def _errors_name_the_file(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            if self.file is None or str(self.file) in error.problem:
                raise
            hint = error.hint or "train or export the model again"
            raise UserError(f"{self.file}: {error.problem}", expected=error.expected, hint=hint) from error


def read_saved(directory: Path) -> SavedModel:
    """Read the description of the model in a directory, or in the run directory that contains it.

    Raises:
        UserError: there is no model, or another version of mtkd wrote it.
    """
    return read_description(model_directory(directory))


def write_description(directory: Path, config: EncoderConfig, tasks: Iterable[Task], info: ModelInfo) -> None:
    """Write the description of a model, which `read_description` reads."""
    tasks = list(tasks)
    parts = {
        "format": FORMAT,
        "encoder": config.model_dump(),
        "tasks": [task.to_json() for task in tasks],
    }
    nearby = nearby_files(directory, tasks)
    write_json(directory / "model.json", parts | vars(info) | ({"nearby": nearby} if nearby else {}))


def read_description(directory: Path) -> SavedModel:
    """Read the model.json of a directory.

    Raises:
        UserError: there is none, or another version of mtkd wrote it.
    """
    check_digests(directory, ["model.json"])
    model_file = read_model_file(directory)
    info = ModelInfo(**{part.name: getattr(model_file, part.name) for part in fields(ModelInfo)})
    return SavedModel(model_file.encoder, list(model_file.tasks), info, directory / "model.json")


def saved_tokeniser(directory: Path) -> Tokeniser:
    """Load the tokeniser that was saved next to a model or its description.

    Raises:
        UserError: its file is missing or damaged.
    """
    if not (directory / TOKENISER).is_file():  # transformers would silently create an empty one
        raise UserError(
            f"{directory} has no {TOKENISER}, so the model cannot read text",
            hint="copy the file from the directory in which the model was trained",
        )
    check_digests(directory, _TOKENISER_FILES)
    return Tokeniser.load(str(directory))


def is_saved_model(directory: Path) -> bool:
    """True if the directory is an mtkd model or a run directory that contains one."""
    files = ("model.json", EXPORT, "model/model.json")
    return (
        any((directory / file).is_file() for file in files)
        or from_hub(str(directory), "model.json") is not None
    )


def model_directory(directory: Path) -> Path:
    """The directory of the model: `directory` itself, its subdirectory `model/`, or a model of the hub.

    Raises:
        UserError: none of them contains a model.
    """
    for path in (directory, directory / "model", from_hub(str(directory), "model.json") or directory):
        if (path / "model.json").is_file() and any((path / file).is_file() for file in (WEIGHTS, EXPORT)):
            return path
    if (directory / EXPORT).is_file() or any(directory.glob("model*.onnx")):
        raise UserError(f"the export {directory} lacks model.json or {EXPORT}", hint="export the model again")
    if str(directory) == DEFAULT_ENCODER:
        raise UserError(
            f"{directory} is a pretrained encoder without task heads",
            expected="the directory of an mtkd model, which mtkd refine, distill and finetune write",
            hint=f"train it on your tasks first: `mtkd.refine(encoder={str(directory)!r}, ...)`",
        )
    if not directory.is_dir():
        similar = similar_model(str(directory))
        encoder = similar if similar == DEFAULT_ENCODER else directory
        parent_exists = directory.parent != Path() and directory.parent.is_dir()
        is_local = similar != DEFAULT_ENCODER and (similar or parent_exists)
        hint = (
            "check the path; a pretrained encoder becomes a model by training: "
            f"`mtkd.refine(encoder={str(encoder)!r}, ...)`"
        )
        on_hub = "/" in str(directory) and is_hub_name(str(directory))
        no_name = " and no such mtkd model on the hub" if on_hub else ""
        more = did_you_mean_model(str(directory)) or no_name
        raise UserError(
            f"{directory} is a file" if directory.is_file() else f"there is no directory {directory}{more}",
            expected="the directory of an mtkd model, which mtkd refine, distill and finetune write",
            hint=None if is_local else hint,
        )
    if (directory / "config.json").is_file():
        raise UserError(
            f"{directory} is a transformers checkpoint, not an mtkd model",
            expected="an mtkd model; `teacher`, `mtkd.evaluate` and `mtkd.bench_inference` take checkpoints",
            hint=f"fine-tune it on your tasks: `mtkd.refine(encoder={str(directory)!r}, ...)`, or distil a "
            f"student from it: `teacher={str(directory)!r}`",
        )
    if inside := only_contains_models(directory):
        raise inside
    raise UserError(
        f"{directory} does not contain an mtkd model",
        expected="a run directory of mtkd refine, distill or finetune, or the model/ inside it",
        hint="if the run in this directory is unfinished, run its command again to finish it",
    )


def digest_model(directory: Path) -> str:
    """The SHA-256 of a model's weights, heads included."""
    return digest_bytes(*map(digest_file, weight_files(directory)))


def model_file_digests(directory: Path) -> Mapping[str, str]:
    """The recorded digest of each file of a model, which other files of a model do not have; no file is read.

    Raises:
        UserError: there is no model.
    """
    path = model_directory(directory)
    exported = (path / EXPORT).is_file()
    return read_export(path)["files"] if exported else read_digests(path)


def disk_bytes(directory: Path) -> int:
    """Size of a model's weights on disk, heads included."""
    return sum(file.stat().st_size for file in weight_files(directory))


def weight_files(directory: Path) -> list[Path]:
    """The files with the weights of a model, or with the weights and graphs of an exported one."""
    path = model_directory(directory)
    exported = (path / EXPORT).is_file()
    names = read_export(path)["files"] if exported else (WEIGHTS, HEADS)
    names = [name for name in names if not name.endswith(".json")]
    return [path / name for name in names]
