"""Joins the text pairs of several parquet files into one file without labels, for `--unlabelled TASK=FILE`.

    python scripts/join_pairs.py OUT.parquet FILE...

The first two columns of each file are its texts. OUT has the columns sentence1 and sentence2, as STS-B, MRPC
and RTE.
"""

from __future__ import annotations

import argparse

import pyarrow as pa
import pyarrow.parquet as pq


def read_pairs(file: str) -> pa.Table:
    """The texts of a file, with the columns sentence1 and sentence2."""
    first, second = pq.read_table(file).columns[:2]
    return pa.table({"sentence1": first.cast(pa.string()), "sentence2": second.cast(pa.string())})


def main() -> None:
    """Write OUT from FILE..."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("files", nargs="+", metavar="file")
    args = parser.parse_args()
    pairs = pa.concat_tables([read_pairs(file) for file in args.files])
    pq.write_table(pairs, args.out)
    print(f"{len(pairs):,} pairs: {args.out}")


if __name__ == "__main__":
    main()
