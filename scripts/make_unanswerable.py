"""Make a training split for squad_v2 from SQuAD 1.1.

Some rows are kept unchanged. Other questions are paired with another paragraph of the same article that does
not contain the answer.

    python scripts/make_unanswerable.py ../shared/data/squad/train.parquet OUT/squad_v2/train.parquet
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.common.files import atomic_path
from tasks.scoring.squad import normalise_answer


def main() -> None:
    """Write the training split."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answerable", type=int, default=7000)
    parser.add_argument("--unanswerable", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    table = pq.read_table(args.source)
    rows = table.to_pylist()
    random = np.random.default_rng(args.seed)
    order = random.permutation(len(rows)).tolist()
    paragraphs = defaultdict(set)
    for row in rows:
        paragraphs[row["title"]].add(row["context"])
    chosen = [rows[number] for number in order[: args.answerable]]
    for number in order[args.answerable :]:
        if len(chosen) == args.answerable + args.unanswerable:
            break
        row = rows[number]
        answer = normalise_answer(row["answers"]["text"][0])
        others = sorted(c for c in paragraphs[row["title"]] if answer and answer not in normalise_answer(c))
        if others:
            context = others[int(random.integers(len(others)))]
            empty: dict[str, list[Any]] = {"text": [], "answer_start": []}
            chosen.append(row | {"id": f"{row['id']}-other", "context": context, "answers": empty})
    shuffled = [chosen[i] for i in random.permutation(len(chosen))]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(args.out) as temporary:
        pq.write_table(pa.Table.from_pylist(shuffled, table.schema), temporary, compression="zstd")
    print(f"{args.answerable:,} + {len(chosen) - args.answerable:,} rows: {args.out}")


if __name__ == "__main__":
    main()
