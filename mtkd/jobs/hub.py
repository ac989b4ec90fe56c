"""Upload models and corpora to the Hugging Face hub, and download them from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtkd.models.saved_model import is_saved_model, model_directory, read_saved
from mtkd.output_files.output_directory import OutputKind, open_directory
from tasks.common.errors import UserError, reason_of
from tasks.common.files import staged_directory
from tasks.common.hub_loading import SAFE
from tasks.data.corpus_reader import MANIFEST, read_corpus_manifest

# An unfinished download may be resumed; a finished one is a model or a corpus.
_DOWNLOAD = OutputKind(
    "download",
    MANIFEST,
    (r".+",),
    lambda directory: None,
    is_finished=lambda directory: (directory / MANIFEST).is_file() or is_saved_model(directory),
)
_EXPECTED_NAME = "a name such as `owner/model`"


def push(directory: Path, name: str, *, private: bool = False) -> str:
    """Upload a model, an export or a corpus with its card; see `mtkd.push`."""
    from huggingface_hub import HfApi

    if name.count("/") > 1 or not name.strip("/ "):
        raise UserError(f"{name!r} is not the name of a repository", expected=_EXPECTED_NAME)
    if (directory / MANIFEST).is_file() and not is_saved_model(directory):
        read_corpus_manifest(directory)
        uploaded_directory, kind = directory, "dataset"
    else:
        read_saved(directory)
        uploaded_directory, kind = model_directory(directory), "model"
    hub = HfApi()
    with _hub_errors(f"upload {directory} as {name}"):
        created = hub.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=created.repo_id,
            folder_path=uploaded_directory,
            repo_type=kind,
            allow_patterns=list(SAFE),
            commit_message="Upload by mtkd",
        )
    return str(commit.repo_url if hasattr(commit, "repo_url") else created)


def pull(name: str, out: Path, *, revision: str | None = None) -> Path:
    """Download a model, an export or a corpus; see `mtkd.pull`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    with open_directory(out, _DOWNLOAD, [name, revision]), staged_directory(out) as directory:
        with _hub_errors(f"download {name}"):
            options: dict[str, Any] = {
                "revision": revision,
                "local_dir": directory,
                "allow_patterns": list(SAFE),
            }
            try:
                snapshot_download(name, **options)
            except RepositoryNotFoundError:  # there is no such model
                snapshot_download(name, repo_type="dataset", **options)
        shutil.rmtree(directory / ".cache", ignore_errors=True)  # records of the hub client
        if (directory / MANIFEST).is_file():
            read_corpus_manifest(directory)
        elif is_saved_model(directory):
            read_saved(directory)
        else:
            raise UserError(
                f"{name} is neither an mtkd model nor an mtkd corpus",
                hint="transformers models need no download: name them as `encoder` or `teacher`",
            )
    return out


@contextmanager
def _hub_errors(action: str) -> Iterator[None]:
    """Turn errors of the hub client inside the block into a UserError that says which action failed."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except UserError:
        raise
    except HFValidationError as error:
        raise UserError(f"cannot {action}: {reason_of(error)}", expected=_EXPECTED_NAME) from error
    except Exception as error:  # the HTTP client raises different classes
        code = getattr(getattr(error, "response", None), "status_code", None)
        login = code in (401, 403) or isinstance(error, LocalTokenNotFoundError)
        hint = (
            "log in with `hf auth login`, or set HF_TOKEN" if login else "check the name and the connection"
        )
        raise UserError(f"cannot {action}: {reason_of(error)}", hint=hint) from error
