"""Make a task with many classes from SQuAD: which of 77 articles is a question about?

python scripts/squad_topics.py ../shared/data OUT
mtkd refine --tasks OUT/topics.toml --encoder minilm --limit 1000 --out teacher

The classes are the articles with the most questions. The validation rows are questions about paragraphs
that no training row is about.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.common.files import atomic_path

TASK = """# Which article is a question about? Made by scripts/squad_topics.py.
name = "topics"
kind = "classify"
columns = ["question"]
label = "title"
labels = {labels}
metrics = ["accuracy"]

[files]
train = "train.parquet"
validation = "validation.parquet"
"""


def main() -> None:
    """Write both splits and the task file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--classes", type=int, default=77)
    parser.add_argument("--per-class", type=int, default=20, help="validation rows per class")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    table = pq.read_table(args.data / "squad" / "train.parquet", columns=["title", "context", "question"])
    titles = sorted(title for title, _ in Counter(table["title"].to_pylist()).most_common(args.classes))
    random = np.random.default_rng(args.seed)
    train, validation = [], []
    for title in titles:
        rows = table.filter(pc.equal(table["title"], title))
        contexts = random.permutation(rows["context"].unique().to_pylist())
        held_out = rows.filter(pc.is_in(rows["context"], pa.array(contexts[: len(contexts) // 5])))
        chosen = random.permutation(held_out.num_rows)[: args.per_class]
        validation.append(held_out.take(chosen))
        train.append(rows.filter(pc.is_in(rows["context"], pa.array(contexts[len(contexts) // 5 :]))))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, parts in {"train": train, "validation": validation}.items():
        rows = pa.concat_tables(parts).drop_columns("context")
        with atomic_path(args.out / f"{name}.parquet") as temporary:
            pq.write_table(rows.take(random.permutation(rows.num_rows)), temporary, compression="zstd")
        print(f"{rows.num_rows:,} rows: {args.out / name}.parquet")
    with atomic_path(args.out / "topics.toml") as temporary:
        temporary.write_text(TASK.format(labels=json.dumps(titles)), encoding="utf-8")


if __name__ == "__main__":
    main()
