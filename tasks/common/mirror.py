"""The local copy of a file or directory that a URL names, made through fsspec (docs/scale.md).

Only what changed is copied again: the index of a copy has the version (size, and checksum or time of the last
change) of every file, and the digest of its copy, which is checked when a process first uses it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.common.digests import quick_digest
from tasks.common.errors import UserError, counted, did_you_mean, reason_of
from tasks.common.files import atomic_path, is_plain_path, write_json
from tasks.common.progress import progress, say
from tasks.common.records import read_record
from tasks.common.remote_versions import uploaded, version_of
from tasks.common.urls import cache_directory

UPLOADING = ".mtkd.upload.json"  # beside the files of an upload that is not finished: their names
_INDEX = "index.json"
_Entry = Annotated[list[Any], Field(min_length=1, max_length=4)]
_AT_ONCE = 8  # files copied at the same time
_INDEX_SECONDS = 5.0  # seconds between two writes of an index
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
_SECRET = r"(?<=//).*@|(?<=\?).*"
_HAS_PASSWORD = r"[^/]*:(?!\d+(/|$))"  # a password: a colon that no port follows
_MANY_THREADS = ("memory://", "hf://")  # like asynchronous ones, these may be used by several threads
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_verified: set[tuple[Path, int, int]] = set()  # copies found intact by this process: path, size, time


@dataclass(frozen=True)
class Mirror:
    """The local copy of what a URL names.

    Attributes:
        url: the URL.
        folder: the directory of the copy, its index and its lock.
        root: the URL; for a pattern, the part before the first component with a `*`.
        path: the path of the copy; for a pattern, the pattern of the copies.
    """

    url: str
    folder: Path
    root: str
    path: Path

    @staticmethod
    def of(url: str, kind: Literal["inputs", "outputs"]) -> Mirror:
        """The copy of a URL, which may not exist yet.

        Raises:
            UserError: the URL is not that of a file or directory, or holds a password.
        """
        scheme, _, rest = url.partition("://")
        scheme, rest = scheme.lower(), rest.rstrip("/")
        token = scheme in ("http", "https") and "@" in rest.partition("/")[0]
        secret = token or re.match(_HAS_PASSWORD, rest)
        if not is_plain_path(rest) or re.search(r"::|\?", rest) or re.match(r"[^/]*\*", rest) or secret:
            raise UserError(
                f"{re.sub(_SECRET, '...', url)[:200]!r} is not the URL of a file or directory",
                expected="SCHEME://BUCKET/PATH, such as s3://bucket/data",
                hint="passwords and queries are not allowed, since outputs record their inputs; set the "
                "credentials where the package for such URLs looks for them",
            )
        fixed = rest if "*" not in rest else rest[: rest.index("*")].rpartition("/")[0]
        folder = cache_directory() / kind / hashlib.sha256(f"{scheme}://{rest}".encode()).hexdigest()[:16]
        return Mirror(f"{scheme}://{rest}", folder, f"{scheme}://{fixed}", folder / scheme / rest)

    @property
    def base(self) -> Path:
        """Where the copy of `root` is."""
        return self.folder / self.root.replace("://", "/", 1)

    def system(self) -> tuple[Any, str]:
        """The file system, and the name of `root` in it."""
        import fsspec

        scheme = self.url.partition("://")[0]
        if scheme not in fsspec.available_protocols():
            schemes = ["s3", "gs", "hf", "http", "https", "file"]
            raise UserError(
                f"{self.url}: unknown scheme {scheme!r}{did_you_mean(scheme, schemes)}",
                expected=f"{', '.join(schemes)}, or another one that fsspec knows",
            )
        package = _PACKAGES.get(scheme, scheme)
        logging.getLogger(package).setLevel(logging.CRITICAL)  # what it logs is also raised
        try:
            with remote_errors(f"cannot use {self.url}"):
                system, root = fsspec.url_to_fs(self.root)
        except ImportError as error:
            hint = f"pip install {package}" if scheme in _PACKAGES else str(error)
            raise UserError(f"{self.url} needs the package {package}", hint=hint) from error
        return system, str(root).rstrip("/")

    def versions(self, missing: bool = False) -> dict[str, str | None]:
        """The files: relative path ("" for a single file) -> version; None if it cannot be known.

        Args:
            missing: True if there may be none.
        """
        system, root = self.system()
        with remote_errors(f"cannot read {self.url}"):
            system.invalidate_cache()
            try:
                if self.root != self.url:
                    listing = system.glob(root + self.url.removeprefix(self.root), detail=True)
                else:
                    about = system.info(root)
                    single = about["type"] != "directory"
                    listing = {root: about} if single else system.find(root, detail=True)
            except FileNotFoundError as error:
                if missing:
                    return {}
                near = did_you_mean(root, _beside(system, root))
                lost = " or cannot be reached" if root.startswith("http") else ""
                raise UserError(f"{self.url} does not exist{lost}{near}") from error
        files = {
            name.removeprefix(root).lstrip("/"): about
            for name, about in listing.items()
            if about["type"] == "file"
        }
        for file in files:
            if file and not is_plain_path(file):
                raise UserError(f"{self.url} has a file that cannot be copied: {file[:200]!r}")
        if UPLOADING in files and not missing:
            raise UserError(
                f"{self.url} is incomplete: it is being uploaded, or its upload was interrupted",
                hint="wait, or run the command that writes it again",
            )
        shown = [file for file in files if file == UPLOADING or "/." not in f"/{file}"]
        return {file: version_of(files[file]) for file in sorted(shown)}

    def pull(self, versions: Mapping[str, str | None]) -> None:
        """Update the copy to these versions: copy what differs, remove copies of other files; resumable."""
        system, root = self.system()
        base, known = self.base, self.known(versions)
        unchanged = {file: entry for file, entry in known.items() if self.is_intact(file, entry)}
        if base.is_file() is not ("" in versions):
            shutil.rmtree(base) if base.is_dir() else base.unlink(missing_ok=True)
        for file in self.index().keys() - versions.keys():  # others, such as cached logits, are kept
            (base / file).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # until one that is not empty
                for folder in (base / file).parents:
                    if folder.is_relative_to(base):
                        folder.rmdir()

        def get(file: str) -> str | None:
            with atomic_path(base / file) as temporary, remote_errors(f"cannot read {self.url}"):
                system.get_file(f"{root}/{file}" if file else root, str(temporary))
                size = str(versions[file]).split()[0]
                if size not in ("None", str(temporary.stat().st_size)):
                    raise UserError(f"{self.url}/{file} changed while it was copied", hint="run this again")
            return versions[file]

        outdated = [file for file in versions if file not in unchanged]
        self.copy_each("copying", get, outdated, unchanged | {file: [versions[file]] for file in outdated})

    def copy_each(
        self,
        what: str,
        copy: Callable[[str], str | None],
        files: Sequence[str],
        known: dict[str, Any],
        last: Sequence[str] = (),
    ) -> None:
        """Copy files in either direction, several at a time, and note in the index which are finished.

        Args:
            what: "copying" or "uploading".
            copy: copies a file; returns its version.
            known: the index before copying.
            last: files that are copied after the others, in this order.
        """
        self.write_index(known)
        if not files and not last:
            return
        system = self.system()[0]
        at_once = _AT_ONCE if system.async_impl or self.url.startswith(_MANY_THREADS) else 1
        count, saved = len(files) + len(last), time.monotonic()
        say(f"{what} {counted(count, 'file')}: {self.url}")

        def finish(file: str) -> None:
            version, (size, changed) = copy(file), self.stamp(file)
            known[file] = [version, size, changed, quick_digest(self.base / file)]
            _verified.add((self.base / file, size, changed))

        try:
            with progress(what, count, unit="files") as advance, ThreadPoolExecutor(at_once) as pool:
                for _ in chain(pool.map(finish, files), map(finish, last)):
                    advance()
                    if time.monotonic() - saved > _INDEX_SECONDS:
                        self.write_index(dict(known))  # a copy, since the threads continue
                        saved = time.monotonic()
        finally:
            self.write_index(known)

    def write_index(self, index: Mapping[str, Any]) -> None:
        """Write the index."""
        write_json(self.folder / _INDEX, index)

    def index(self) -> dict[str, list[Any]]:
        """The files as they were copied last: relative path -> version; size, time and digest of the copy.

        There is only the version for files whose copying did not finish.

        Raises:
            UserError: the index is damaged, or names a file outside the copy.
        """
        path = self.folder / _INDEX
        entries = read_record(path, dict[str, _Entry]) if path.is_file() else {}
        for file in entries:
            if file and not is_plain_path(file):
                raise UserError(
                    f"{path} names a file outside its directory: {file[:200]!r}",
                    hint=f"remove {self.folder}, and the files of {self.url} are copied again",
                )
        return entries

    def known(self, versions: Mapping[str, str | None]) -> dict[str, list[Any]]:
        """The entries of the index for files that have these versions, and that were not changed here."""
        unchanged = {}
        for file, entry in self.index().items():
            stamp, version = self.stamp(file), versions.get(file)
            if stamp and version and entry[1:3] == stamp and entry[0] in (version, uploaded(version)):
                unchanged[file] = [version, *entry[1:]]
        return unchanged

    def is_intact(self, file: str, entry: Sequence[Any]) -> bool:
        """Whether a copy has the digest in its entry of the index, if any; each is read once in a process."""
        path, (size, changed) = self.base / file, entry[1:3]
        if (path, size, changed) not in _verified:
            if entry[3:] not in ([], [quick_digest(path)]):
                say(f"the local copy of {path} is damaged and is copied again")
                return False
            _verified.add((path, size, changed))
        return True

    def stamp(self, file: str) -> list[int]:
        """The size and time of a local file; empty if there is none."""
        path = self.base / file
        return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else []


@contextlib.contextmanager
def remote_errors(
    problem: str, hint: str = "check the address, the credentials and the connection"
) -> Iterator[None]:
    """Turn whatever a file system raises into a UserError."""
    try:
        yield
    except (UserError, ImportError):
        raise
    except Exception as error:  # each package has its own classes
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise
        raise UserError(f"{problem}: {reason_of(error)}", hint=hint) from error


def _beside(system: Any, root: str) -> list[str]:
    """The names beside a missing one."""
    with contextlib.suppress(Exception):
        return [str(name).rstrip("/") for name in system.ls(root.rpartition("/")[0], detail=False)]
    return []
