"""Make an easier version of SQuAD for small budgets: each context is only the sentence with the answer.

python scripts/squad_sentences.py ../shared/data OUT && mtkd ... --data OUT --tasks squad
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from augment.questions.sentences import sentences
from tasks.common.files import atomic_path


def main() -> None:
    """Write both splits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    for split in ("train", "validation"):
        table = pq.read_table(args.data / "squad" / f"{split}.parquet")
        rows = [short for row in table.to_pylist() if (short := with_one_sentence(row))]
        path = args.out / "squad" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            pq.write_table(pa.Table.from_pylist(rows, table.schema), temporary, compression="zstd")
        print(f"{len(rows):,} of {table.num_rows:,} rows: {path}")


def with_one_sentence(row: dict[str, Any]) -> dict[str, Any] | None:
    """A row of SQuAD with the sentence of the first answer as context; None if no sentence has all of it.

    Other answers are kept if they are in the same sentence.
    """
    context, answers = row["context"], row["answers"]
    answer_start = answers["answer_start"][0]
    position = 0
    for sentence in sentences(context):
        start = context.index(sentence, position)
        position = start + len(sentence)
        if answer_start < position:
            break
    kept = [
        (text, first - start)
        for text, first in zip(answers["text"], answers["answer_start"], strict=True)
        if start <= first and first + len(text) <= position
    ]
    if not kept or kept[0][0] != answers["text"][0]:
        return None
    texts, starts = zip(*kept, strict=True)
    return row | {"context": sentence, "answers": {"text": list(texts), "answer_start": list(starts)}}


if __name__ == "__main__":
    main()
