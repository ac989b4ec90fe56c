"""Shards as parquet files, written one row group at a time, with the key and the counts in the footer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mtkd.output_files.sharded_output import Footer

KEY = b"mtkd.corpus"  # the entry of the file's metadata that holds the footer
_GROUP_ROWS = 65_536  # rows per row group, which are held in memory while a shard is written


@dataclass(frozen=True)
class TableChunk:
    """Some rows of a shard, with named counts."""

    table: pa.Table
    counts: Mapping[str, int]


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files with one schema, written from an iterable of `TableChunk`.

    Attributes:
        counts: names of the counts whose sums are written to the footer.
        dictionary: columns that are dictionary-encoded because they have few distinct values. Texts rarely
            repeat, so a dictionary would only cost time for them.
    """

    schema: pa.Schema
    counts: tuple[str, ...] = ()
    dictionary: tuple[str, ...] = ()

    def write(self, path: Path, content: Iterable[TableChunk], key: str) -> None:
        """Write the chunks in order, holding at most one row group in memory."""
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
        """Read the key, the number of rows and the counts."""
        return read_parquet_footer(path)


def footer_text(key: str, counts: Mapping[str, int]) -> str:
    """The JSON text stored in the file's metadata under `KEY`."""
    return json.dumps({"key": key, **counts})


def read_parquet_footer(path: Path) -> Footer | None:
    """Read the footer of a shard; None if the file is missing, incomplete or not such a shard."""
    try:
        metadata = pq.read_metadata(path)
        values = json.loads(metadata.metadata[KEY])
        return Footer(values.pop("key"), metadata.num_rows, values)
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, AttributeError):
        return None
