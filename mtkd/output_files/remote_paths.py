"""URLs as arguments of the public functions: inputs are copied before the call, outputs uploaded after it.

An output is written to its local copy, under the rules of `mtkd.output_files.output_directory`, and uploaded
when it is finished. A hidden file (`UPLOADING`) marks the upload until it is complete, and the manifest or
record is uploaded last. An unfinished output stays in the local copy, where the same call resumes it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mtkd.output_files.output_directory import has_claim, visible_files
from mtkd.output_files.path_overlap import OUTPUT_MARKERS, refuse_cycles, refuse_overlap
from tasks.common.errors import UserError, shorten
from tasks.common.launcher import process_rank
from tasks.common.locks import locked
from tasks.common.mirror import UPLOADING, Mirror, remote_errors
from tasks.common.progress import say
from tasks.common.remote import consistent_copies, with_local_paths
from tasks.common.remote_versions import uploaded
from tasks.common.sha256 import digest_bytes, digest_file
from tasks.common.urls import url_of

P = ParamSpec("P")
R = TypeVar("R")

# Scheme of URLs that cannot be written -> hint.
_WRITE_HINTS = {
    "http": "such addresses can only be read",
    "https": "such addresses can only be read",
    "hf": "write to a directory, then upload it: `mtkd.push`",
    "file": "leave out file://",
}


def remote_paths(
    *inputs: str, out: str | None = None, uploads: bool = True, endpoint: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let some arguments of a function be URLs; in the others, a URL is an error.

    Args:
        inputs: the arguments that name inputs.
        out: the argument that names the output, which must not overlap with the inputs (`refuse_overlap`).
        uploads: False if the function only inspects the output's path, and writes nothing.
        endpoint: the input that may also be the address of an endpoint (http://...), which is not copied.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        kinds = {param.kind: name for name, param in signature.parameters.items()}
        var_keyword = kinds.get(inspect.Parameter.VAR_KEYWORD, "")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            values = {name: value for name, value in bound.arguments.items() if name != var_keyword}
            values |= bound.arguments.get(var_keyword, {})
            for name, value in values.items():
                parts = value if isinstance(value, list | tuple) else [value]
                if name not in (*inputs, out) and (urls := list(filter(None, map(url_of, parts)))):
                    raise UserError(f"`{name}={urls[0]!r}` cannot be a URL", expected="a local path")
            mirror = _mirror(values[out]) if out in values else None
            with consistent_copies(), contextlib.ExitStack() as stack:
                for name in [name for name in inputs if name in values]:
                    if name != endpoint or not str(values[name]).startswith("http"):
                        values[name] = _local(name, values[name])
                target = mirror.path if mirror else values.get(out or "")
                if out and uploads and isinstance(target, str | Path):
                    refuse_overlap(out, Path(target), {name: values.get(name) for name in inputs})
                if out in values and mirror:
                    values[out] = stack.enter_context(_staged(mirror)) if uploads else mirror.path
                for name, value in values.items():
                    arguments = bound.arguments if name in bound.arguments else bound.arguments[var_keyword]
                    arguments[name] = value
                return function(*bound.args, **bound.kwargs)

        return call

    return wrap


def _local(name: str, value: Any) -> Any:
    """Replace URLs in an argument by local copies; texts of rows in memory are not read as URLs."""
    with refuse_cycles(name):
        return _with_local_paths(name, value)


def _with_local_paths(name: str, value: Any) -> Any:
    if name == "data":
        if isinstance(value, list | tuple):
            return [_with_local_paths(name, part) for part in value]
        return with_local_paths(value) if isinstance(value, str | Path) else value
    if name == "unlabelled" and isinstance(value, Mapping):
        from tasks.data.unlabelled import names_files

        return {
            task: with_local_paths(files) if names_files(files) else files for task, files in value.items()
        }
    return with_local_paths(value)


def _mirror(out: Any) -> Mirror | None:
    """The local copy of an output at a URL; None for a local path."""
    if (url := url_of(out)) is None:
        return None
    scheme = url.partition("://")[0]
    if scheme in _WRITE_HINTS or "*" in url:
        raise UserError(
            f"cannot write to {url}",
            expected="a local path, or a URL such as s3://bucket/run",
            hint=_WRITE_HINTS.get(scheme),
        )
    return Mirror.of(url, "outputs")


@contextlib.contextmanager
def _staged(mirror: Mirror) -> Iterator[Path]:
    """Yield the local copy of an output, updated from its URL, and upload it after the `with` block.

    A local copy that an interrupted call has left unfinished is not updated.
    """
    with locked(mirror.folder, wait=True):
        _copy_from_url(mirror)
    try:
        yield mirror.path
    except BaseException:
        if has_claim(mirror.path):
            say(f"nothing was uploaded to {mirror.url}; the unfinished output is in {mirror.folder}")
        raise
    if process_rank().rank == 0:
        with locked(mirror.folder, wait=True):
            _upload(mirror)


def _files(mirror: Mirror) -> list[str]:
    """The relative paths of the local copy's files; [""] if it is a single file."""
    return [""] if mirror.path.is_file() else list(visible_files(mirror.path))


def _copy_from_url(mirror: Mirror) -> None:
    """Copy the files at the URL, unless the local copy has changes that are not uploaded yet.

    Raises:
        UserError: the files at the URL are not an output, or they have changed since the local copy was made.
    """
    versions = mirror.versions(missing=True)
    if UPLOADING in versions:  # left by an interrupted call, whose partial upload is ignored
        finished = not has_claim(mirror.path) and _identity(mirror)
        if finished and finished != _read_mark(mirror)["output"]:
            raise UserError(
                f"the upload of another output to {mirror.url} was interrupted",
                expected="that upload finished first, by the same command on the same machine",
                hint=f"or choose another `out`, or remove {mirror.folder} to replace what is there",
            )
        return
    # File -> its size and time when it was copied; [] if copying it was interrupted.
    before = {file: entry[1:3] for file, entry in mirror.index().items()}
    changed = [file for file in _files(mirror) if before.get(file) not in ([], mirror.stamp(file))]
    if has_claim(mirror.path) or changed:
        _refuse_changes(mirror, versions)
        return
    if versions and not {"", *OUTPUT_MARKERS} & versions.keys():
        raise UserError(
            f"{mirror.url} holds files that do not belong to an output: {shorten(versions)}",
            hint="choose an empty or new directory with `out`",
        )
    mirror.pull(versions)


def _read_mark(mirror: Mirror) -> dict[str, Any]:
    """Read the file that marks an unfinished upload: `files` and `output`, the identity of the output."""
    system, root = mirror.system()
    with remote_errors(f"cannot read {mirror.url}"):
        mark: dict[str, Any] = json.loads(system.cat_file(f"{root}/{UPLOADING}"))
    return mark


def _identity(mirror: Mirror) -> str:
    """A digest of the files by which readers recognise the local output; "" if it has none."""
    files = [mirror.path / name for name in OUTPUT_MARKERS if (mirror.path / name).is_file()]
    return digest_bytes(*(part for file in files for part in (file.name, digest_file(file)))) if files else ""


def _refuse_changes(mirror: Mirror, versions: Mapping[str, str | None]) -> None:
    """Raise UserError if the files at the URL are no longer those that were copied or uploaded."""
    if versions != {file: entry[0] for file, entry in mirror.index().items()}:
        raise UserError(
            f"{mirror.url} has changed since its local copy was made, which has not been uploaded",
            hint=f"choose another `out`, or remove {mirror.folder} to drop the local copy",
        )


def _upload(mirror: Mirror) -> None:
    """Upload the files that the URL does not have, and remove there those that the output no longer has."""
    if has_claim(mirror.path):
        raise UserError(f"another process is writing {mirror.url}; nothing was uploaded")
    hint = f"the finished files are in {mirror.folder}; the same command uploads those that are missing"
    with remote_errors(f"cannot upload to {mirror.url}", hint):
        versions = mirror.versions(missing=True)
        (system, root), known, files = mirror.system(), mirror.known(versions), _files(mirror)
        mark_file = f"{root}/{UPLOADING}"
        if UPLOADING in versions:
            our_files = {*mirror.index(), *_read_mark(mirror)["files"]}
        else:
            _refuse_changes(mirror, versions)
            our_files = set(versions)
        outdated = our_files & versions.keys() - set(files) - {UPLOADING}
        if not outdated and UPLOADING not in versions and known.keys() >= set(files):
            return

        def put(file: str) -> str:
            source = mirror.path / file
            target = f"{root}/{file}" if file else root
            make_folder(target.rpartition("/")[0])
            system.put_file(str(source), target)
            return uploaded(str(source.stat().st_size))

        def make_folder(path: str) -> None:
            if not system.async_impl:  # object stores have no folders
                system.makedirs(path, exist_ok=True)

        if "" in files:
            mirror.copy_each("uploading", put, files, {})
            _record_uploaded(mirror)
            return
        make_folder(root)
        mark_content = {"files": sorted(our_files | set(files)), "output": _identity(mirror)}
        system.pipe_file(mark_file, json.dumps(mark_content).encode())
        markers = [file for file in OUTPUT_MARKERS if file in files]
        for file in sorted(outdated | versions.keys() & set(OUTPUT_MARKERS)):
            system.rm_file(f"{root}/{file}")
        others = [file for file in files if file not in known and file not in markers]
        mirror.copy_each("uploading", put, others, known, last=markers)
        _record_uploaded(mirror)
        system.rm_file(mark_file)


def _record_uploaded(mirror: Mirror) -> None:
    """Write the index of what has been uploaded, with the versions that the file system gives the files."""
    versions = mirror.versions(missing=True)
    unknown = {file: [None, *mirror.stamp(file)] for file, version in versions.items() if version is None}
    mirror.write_index(mirror.known(versions) | unknown)
