"""`mtkd.augment`: new training text, written to disk as a corpus.

mtkd.augment.mask(data="pocket", tasks="rte", out="corpora/masked", copies={"rte": 20})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd import __version__
from tasks.registry import TaskSpec, resolve
from tasks.sources import load_rows, open_data

if TYPE_CHECKING:
    from augment.augmenter import Augmenter
    from augment.corpus_writer import Written
    from tasks.rows import Rows

Copies = int | Mapping[str, int] | None


def mask(
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    p: float = 0.1,
    copies: Copies = None,
    seed: int = 0,
    mask_token: str = "[MASK]",
    workers: int = 1,
    limit: int | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.mask(...)",
) -> Written:
    """Write copies of every training row in which words are replaced by the mask token (MKD).

    Args:
        data, tasks: the rows; see `mtkd.refine`.
        out: the corpus directory; an unfinished corpus of the same settings is resumed.
        p: probability that a word is masked.
        copies: copies per row, or task -> copies; by default 40 for STS-B, MRPC and RTE, else 10.
        mask_token: of the teacher's tokeniser.
        workers: processes; the output does not depend on their number.
        limit: at most so many rows per task; overwrite: drop another corpus in `out`.
        command: how the corpus's manifest says it was made.

    Returns:
        The manifest, and how many shards were written now and before.
    """
    from augment.masking import Masking

    rows = _rows(data, tasks, limit)
    method = Masking(p=p, seed=seed, mask_token=mask_token)
    return _write(method, _copies(tasks, copies), data, rows, out, workers, overwrite, command)


def replace(
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    p_mask: float = 0.1,
    p_pos: float = 0.1,
    p_ngram: float = 0.25,
    copies: Copies = None,
    tagger: str = "auto",
    seed: int = 0,
    mask_token: str = "[MASK]",
    workers: int = 1,
    limit: int | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.replace(...)",
) -> Written:
    """Write copies with words masked or replaced, and n-grams cut out (Tang et al. 2019).

    Args:
        p_mask: probability that a word is masked; p_pos: that it becomes another word of its part of speech;
            p_ngram: that a text is cut to 1 to 5 consecutive words.
        copies: copies per row, or task -> copies; 20 by default.
        tagger: where parts of speech come from: "auto", "spacy:MODEL" or "nltk"; nothing is downloaded.
        data, tasks, out, seed, mask_token, workers, limit, overwrite, command: see `mask`.
    """
    import dataclasses

    from augment.replacement import COPIES, Replacement
    from augment.tagged_text import tag_rows
    from augment.tagging import NoTagger, open_tagger
    from tasks.progress import progress

    plain = Replacement({}, "", p_mask, p_pos, p_ngram, seed, mask_token)
    numbers = _copies(tasks, COPIES) if copies is None else _copies(tasks, copies)
    chosen = open_tagger(tagger) if p_pos else NoTagger()
    rows = _rows(data, tasks, limit)
    with progress("tagging", sum(len(part.texts) * len(part) for part in rows.values())) as advance:
        texts = {task: tag_rows(part, chosen, advance) for task, part in rows.items()}
    method = dataclasses.replace(plain, texts=texts, tagger=chosen.name)
    return _write(method, numbers, data, rows, out, workers, overwrite, command)


def _rows(data: Any, tasks: TaskSpec, limit: int | None) -> dict[str, Rows]:
    source = open_data(data)
    trained = [task for task in resolve(tasks) if task.train is not None]
    return {task.name: load_rows(source, task, task.train, limit, 0) for task in trained if task.train}


def _copies(tasks: TaskSpec, copies: Copies) -> dict[str, int]:
    from augment.corpus_writer import copies_of

    trained = [task for task in resolve(tasks) if task.train is not None]
    if copies is None:
        return copies_of(trained)
    spec = str(copies) if isinstance(copies, int) else ",".join(f"{k}={v}" for k, v in copies.items())
    return copies_of(trained, spec)


def _write(
    method: Augmenter,
    copies: Mapping[str, int],
    data: Any,
    rows: Mapping[str, Rows],
    out: str | Path,
    workers: int,
    overwrite: bool,
    command: str,
) -> Written:
    from augment.distributed import launched

    from augment.corpus_writer import CorpusJob, total_copies, write_corpus
    from tasks.progress import progress

    job = CorpusJob(method, copies, open_data(data).name, __version__, command)
    ranks = launched()
    with progress("copying", total_copies(job, rows), unit="copies", show=ranks.first) as advance:
        return write_corpus(
            job, rows, Path(out), workers=workers, overwrite=overwrite, advance=advance, ranks=ranks
        )
