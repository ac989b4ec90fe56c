"""Shards as parquet files, written a row group at a time; the key and the counts are in the file's footer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mtkd.storage.sharded_output import Footer

KEY = b"mtkd.corpus"  # of the file's metadata
_GROUP_ROWS = 65_536  # rows of a row group: what is held in memory while a shard is written


@dataclass(frozen=True)
class TableChunk:
    """Some rows of a shard, and counts over them by name."""

    table: pa.Table
    counts: Mapping[str, int]


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files of one schema, whose content is an iterable of `TableChunk`.

    Attributes:
        counts: names of the counts that are summed up in the footer.
        dictionary: columns with few different values. The others get none: texts seldom repeat, so a
            dictionary would only cost time, and zstd finds what is alike.
    """

    schema: pa.Schema
    counts: tuple[str, ...] = ()
    dictionary: tuple[str, ...] = ()

    def write(self, path: Path, content: Iterable[TableChunk], key: str) -> None:
        """Write the chunks in order; memory is bounded by a row group, not by the shard."""
        totals = dict.fromkeys(self.counts, 0)
        group: list[pa.Table] = []
        with pq.ParquetWriter(
            path,
            self.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=list(self.dictionary),
        ) as writer:
            for chunk in content:
                totals = {name: total + chunk.counts[name] for name, total in totals.items()}
                group.append(chunk.table)
                if sum(table.num_rows for table in group) >= _GROUP_ROWS:
                    writer.write_table(pa.concat_tables(group))
                    group = []
            if group:
                writer.write_table(pa.concat_tables(group))
            writer.add_key_value_metadata({KEY.decode(): footer_text(key, totals)})

    def read_footer(self, path: Path) -> Footer | None:
        """The key, the rows and the counts."""
        return read_parquet_footer(path)


def footer_text(key: str, counts: Mapping[str, int]) -> str:
    """What stands in the file's metadata under `KEY`."""
    return json.dumps({"key": key, **counts})


def read_parquet_footer(path: Path) -> Footer | None:
    """The footer of a shard; None if the file is missing, not whole, or not such a shard."""
    try:
        metadata = pq.read_metadata(path)
        said = json.loads(metadata.metadata[KEY])
        return Footer(said.pop("key"), metadata.num_rows, said)
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, AttributeError):
        return None
