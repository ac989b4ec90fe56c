"""Join the text pairs of several parquet files into one file without labels, for `--unlabelled TASK=FILE`.

    python scripts/join_pairs.py OUT.parquet FILE... [--columns question1,question2]

The first two columns of each file are its texts. OUT has the columns sentence1 and sentence2, as STS-B, MRPC
and RTE, or those that --columns names.
"""

from __future__ import annotations

import argparse

import pyarrow as pa
import pyarrow.parquet as pq


def read_pairs(file: str, columns: list[str]) -> pa.Table:
    """The texts of a file as two columns with these names."""
    texts = pq.read_table(file).columns[:2]
    return pa.table({name: text.cast(pa.string()) for name, text in zip(columns, texts, strict=True)})


def main() -> None:
    """Write OUT from FILE..."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("files", nargs="+", metavar="file")
    parser.add_argument("--columns", default="sentence1,sentence2")
    args = parser.parse_args()
    columns = args.columns.split(",")
    if len(columns) != 2:
        parser.error(f"--columns {args.columns} does not name two columns")
    pairs = pa.concat_tables([read_pairs(file, columns) for file in args.files])
    pq.write_table(pairs, args.out)
    print(f"{len(pairs):,} pairs: {args.out}")


if __name__ == "__main__":
    main()
