"""Token vectors that were computed with a teacher, kept on disk for further students."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.common.digests import DIGESTS, damaged_files, read_digests, write_digests
from tasks.common.errors import UserError
from tasks.common.files import staged_directory

_FILE, _TENSOR = "vectors.safetensors", "vectors"
# Regular expression for the relative paths of the files in a run directory.
VECTOR_FILES = rf"token-vectors-[0-9a-f]+/({_FILE.replace('.', '[.]')}|{DIGESTS.replace('.', '[.]')})"


def cached_vectors(directory: Path | None, key: Callable[[], str], compute: Callable[[], Tensor]) -> Tensor:
    """Return the vectors with this key from a cache, or compute them and add them to it.

    A damaged file is replaced. If the cache cannot be written, the vectors are computed every time.

    Args:
        directory: the directory of the cache; None = do not use one.
        key: returns a digest of everything that determines the vectors.
    """
    if directory is None:
        return compute()
    folder = directory / f"token-vectors-{key()[:16]}"
    if _FILE in read_digests(folder) and not damaged_files(folder, [_FILE]):
        return load_file(folder / _FILE)[_TENSOR]
    vectors = compute()
    with contextlib.suppress(UserError), staged_directory(folder, DIGESTS) as temporary:
        save_file({_TENSOR: vectors.contiguous()}, temporary / _FILE)
        write_digests(temporary)
    return vectors
