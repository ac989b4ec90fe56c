"""`mtkd.push` and `mtkd.pull`: models and corpora on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import checked


@checked
@remote_paths("source")
def push(source: str | Path, name: str, *, private: bool = False) -> str:
    """Upload a model, an export or a corpus with its card to the Hugging Face hub.

    First log in with `hf auth login`, or set HF_TOKEN. Only weights, JSON, parquet, ONNX and text files are
    uploaded.

    Args:
        source: a run or model directory, an export, or a corpus (which becomes a data set).
        name: the name of the repository, such as `owner/model`; it is created if it does not exist.
        private: if the repository is created, make it private.

    Returns:
        The URL of the repository.

    Raises:
        UserError: the directory holds no model or corpus, the name is invalid, you are not logged in,
            or the hub cannot be reached.
    """
    from mtkd.jobs.hub import push as push_directory

    return push_directory(Path(source), name, private=private)


@checked
@remote_paths(out="out")
def pull(name: str, *, out: str | Path, revision: str | None = None) -> Path:
    """Download a model, an export or a corpus that `push` uploaded.

    Functions that take a model also take its name on the hub, without a download beforehand.

    Args:
        name: the name of the repository, such as `owner/model`.
        out: the directory to write.
        revision: a branch, tag or commit; None = the newest.

    Returns:
        The directory.

    Raises:
        UserError: there is no such model or corpus, mtkd did not write it, `out` is not empty, or the hub
            cannot be reached.
    """
    from mtkd.jobs.hub import pull as pull_directory

    return pull_directory(name, Path(out), revision=revision)
