"""The directory of a corpus: which files belong to it, and which corpus it holds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from mtkd.output_files.output_directory import OutputKind
from mtkd.output_files.parquet_shards import read_parquet_footer
from mtkd.output_files.sharded_output import DIGEST
from tasks.common.errors import UserError
from tasks.data.corpus_reader import CORPUS_FORMAT, MANIFEST, read_corpus_manifest

ENDPOINT_ANSWERS = "answers.jsonl"  # the endpoint's answers, kept until the corpus is finished


def _read_key(directory: Path) -> str | None:
    """Read the key of the corpus in a directory, from any complete shard or from the manifest."""
    for path in sorted(directory.glob("data/*.parquet")):
        if footer := read_parquet_footer(path):
            return footer.key
    try:
        return read_corpus_manifest(directory).key
    except UserError:
        return None


_SHARDS = r"data/[^/]+-\d{5,}\.parquet"
_WORK = _SHARDS + re.escape(DIGEST)
CORPUS_KIND = OutputKind(
    "corpus",
    MANIFEST,
    (MANIFEST, "README.md", "filter.json", ENDPOINT_ANSWERS, _SHARDS, _WORK),
    _read_key,
    work=(ENDPOINT_ANSWERS, _WORK),
    variable=(_SHARDS,),
    listed=lambda directory: {shard.file for shard in read_corpus_manifest(directory).shards},
)


def corpus_difference(directory: Path) -> str:
    """How the corpus in a directory differs from the one to be written, for the error."""
    with contextlib.suppress(UserError):
        if (number := read_corpus_manifest(directory).format) < CORPUS_FORMAT:
            return f"it has format {number}, which can be trained on but not resumed"
    return "it was made with other settings or from other data"


def corpus_digests(out: Path) -> Mapping[str, str]:
    """File -> digest of the shards in the manifest of an earlier, finished run; empty if there is none."""
    shards = read_corpus_manifest(out).shards if (out / MANIFEST).is_file() else ()
    return {shard.file: shard.sha256 for shard in shards}
