"""Write SQuAD's human-written questions as a corpus without labels, to evaluate the question filter.

    python scripts/squad_questions_corpus.py ../shared/data OUT --rows 600 --beside 2500

The rows are disjoint from those that a run with `--limit 2500` trains on, and from those of a file that
scripts/make_unanswerable.py wrote, if it is given by `--without`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from augment.questions.question_rows import QuestionRow, question_table
from mtkd import __version__
from tasks.common.files import atomic_path, write_json
from tasks.common.sha256 import digest_file
from tasks.common.shards import ShardEntry
from tasks.data.corpus_reader import CORPUS_FORMAT, CorpusManifest, CorpusTask
from tasks.data.loading import digest_blocks, load_rows
from tasks.data.sources import open_data
from tasks.glue import TASKS


def main() -> None:
    """Write the corpus."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="squad_v2", help="the task that the corpus is for")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--beside", type=int, default=2500, help="exclude the rows selected by this --limit")
    parser.add_argument("--without", type=Path, help="exclude the questions in this parquet file, by `id`")
    args = parser.parse_args()
    source, task = open_data(args.data), TASKS["squad"]
    rows, trained = load_rows(source, task, "train"), load_rows(source, task, "train", args.beside)
    remaining = np.flatnonzero(~np.isin(rows.uids.to_numpy(zero_copy_only=False), trained.uids.to_pylist()))
    if args.without:
        used = pq.read_table(args.without, columns=["id"])["id"].to_pylist()
        ids = pq.read_table(Path(args.data) / "squad/train.parquet", columns=["id"])["id"].to_pylist()
        excluded = np.isin(ids, [name.removesuffix("-other") for name in used])
        remaining = np.setdiff1d(remaining, np.flatnonzero(excluded))
    chosen = rows.take(np.sort(np.random.default_rng(1).choice(remaining, args.rows, replace=False)))
    titles = source.table(task, "train")["title"].to_pylist()
    question_rows = [
        QuestionRow(
            args.task, uid, 1, question, context, "people", titles[int(uid.split("/")[-1])], None, None
        )
        for uid, question, context in zip(
            chosen.uids.to_pylist(), *(text.to_pylist() for text in chosen.texts), strict=True
        )
    ]
    file = f"data/{args.task}-00000.parquet"
    path = args.out / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        pq.write_table(question_table(question_rows), temporary)
    count, digest = len(question_rows), digest_blocks(chosen)
    shard = ShardEntry(file, args.task, count, digest_file(path), path.stat().st_size)
    entry = CorpusTask(args.task, 2, 1, count, count, digest, 0.0, 0.0)
    manifest = CorpusManifest(
        CORPUS_FORMAT, "people", {}, __version__, "scripts/squad_questions_corpus.py", args.data, digest,
        (entry,), (shard,), "questions",
    )  # fmt: skip
    write_json(args.out / "manifest.json", manifest.to_json())
    print(f"{count} questions: {args.out}")


if __name__ == "__main__":
    main()
