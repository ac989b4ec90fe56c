"""Reading GLUE's original release: one folder of tab-separated files per task, with the hub's column names.

The files differ: CoLA's train and dev sets have no header; test sets have no labels and other columns than
train sets; MNLI has two dev and two test sets; MRPC comes either as train.tsv, dev.tsv and test.tsv or as
Microsoft's original files plus a list of dev ids. Labels are kept as written (ids, names or scores) and are
parsed later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError
from tasks.data.raw_table import Level, RawTable, UnreadableLine, check_header, make_table
from tasks.data.text_lines import text_lines

_SPLITS = {"train": ("train.tsv",), "validation": ("dev.tsv",), "test": ("test.tsv",)}


@dataclass(frozen=True)
class Release:
    """The files and columns of one task in the release.

    Attributes:
        folders: possible folder names; the first that exists is used.
        columns: column name in the release -> column name on the hub.
        files: split -> possible file names; the first that exists is used.
        headless: file name -> columns, for files without a header.
        skip_short: leave out lines that a stray line break cut in two, as the hub's copy does.
    """

    folders: tuple[str, ...]
    columns: Mapping[str, str]
    files: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _SPLITS)
    headless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skip_short: bool = False


_PAIR = {"sentence1": "sentence1", "sentence2": "sentence2", "label": "label"}
_COLA_COLUMNS = ("source", "label", "mark", "sentence")
_MSR_IDS = ("#1 ID", "#2 ID")
_MSR = {"train": "msr_paraphrase_train.txt", "validation": "msr_paraphrase_train.txt"}

RELEASES: dict[str, Release] = {
    "cola": Release(
        ("CoLA",),
        {"sentence": "sentence", "label": "label"},
        headless={"train.tsv": _COLA_COLUMNS, "dev.tsv": _COLA_COLUMNS},
    ),
    "sst2": Release(("SST-2",), {"sentence": "sentence", "label": "label"}),
    "mrpc": Release(("MRPC",), {"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"}),
    "stsb": Release(("STS-B",), {"sentence1": "sentence1", "sentence2": "sentence2", "score": "label"}),
    "qqp": Release(
        ("QQP",),
        {"question1": "question1", "question2": "question2", "is_duplicate": "label"},
        skip_short=True,
    ),
    "mnli": Release(
        ("MNLI",),
        {"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
        files={
            "train": ("train.tsv",),
            "validation_matched": ("dev_matched.tsv",),
            "validation_mismatched": ("dev_mismatched.tsv",),
            "test_matched": ("test_matched.tsv",),
            "test_mismatched": ("test_mismatched.tsv",),
        },
    ),
    "qnli": Release(("QNLI",), {"question": "question", "sentence": "sentence", "label": "label"}),
    "rte": Release(("RTE",), _PAIR),
    "wnli": Release(("WNLI",), _PAIR),
    "ax": Release(
        ("diagnostic", "AX"),
        {
            "Premise": "premise",
            "Hypothesis": "hypothesis",
            "Label": "label",
            "sentence1": "premise",
            "sentence2": "hypothesis",
        },
        files={"test": ("diagnostic-full.tsv", "diagnostic.tsv", "AX.tsv")},
    ),
}


def find_release(root: Path, name: str, split: str) -> Path | None:
    """The path of one split of the GLUE task `name` under `root`, or None."""
    release = RELEASES.get(name)
    if release is None:
        return None
    names = release.files.get(split, ())
    if name == "mrpc":
        names = (_MSR.get(split, "msr_paraphrase_test.txt"), *names)
    for folder in release.folders:
        for file in names:
            path = root / folder / file
            if path.is_file() and (path.name != _MSR["train"] or (path.parent / "dev_ids.tsv").is_file()):
                return path
    return None


def read_release(path: Path, name: str, split: str) -> RawTable:
    """Read a file that `find_release` found.

    Returns:
        The rows with the hub's column names and `idx`; test sets may have no label column.

    Raises:
        UserError: the file cannot be read or lacks a text column.
    """
    release = RELEASES[name]
    keep = {*release.columns, *_MSR_IDS}
    raw = _read_tsv(path, release.headless.get(path.name), keep=keep, skip_short=release.skip_short)
    table = raw.table
    renamed = {new: table[old] for old, new in release.columns.items() if old in table.column_names}
    lacking = sorted(set(release.columns.values()) - renamed.keys() - {"label"})
    if path.name == _MSR["train"]:
        lacking += [name for name in _MSR_IDS if name not in table.column_names]
    if lacking:
        raise UserError(
            f"{path} is not GLUE's {name}: it has no column for {lacking[0]!r}",
            expected=f"the columns {', '.join(release.columns)}",
            hint="download the file again, or give the data as parquet, JSON lines or CSV",
        )
    idx = pa.array(np.arange(table.num_rows, dtype=np.int32))
    full = RawTable(pa.table({**renamed, "idx": idx}), raw.path, raw.lines, raw.bad_lines)
    return _mrpc_part(full, table, path, split) if path.name == _MSR["train"] else full


def _mrpc_part(renamed: RawTable, table: pa.Table, path: Path, split: str) -> RawTable:
    """The train or dev part of Microsoft's train file for MRPC, split by the list of dev ids beside it."""
    ids = _read_tsv(path.parent / "dev_ids.tsv", ("first", "second"))
    if ids.bad_lines:
        raise UserError(f"{ids.path}:{ids.bad_lines[0].line}: {ids.bad_lines[0].message}")
    is_dev = pc.is_in(_pair_key(table, _MSR_IDS), value_set=_pair_key(ids.table, ("first", "second")))
    keep = np.flatnonzero(is_dev.to_numpy(zero_copy_only=False) == (split == "validation"))
    lines = None if renamed.lines is None else renamed.lines[keep]
    return RawTable(renamed.table.take(keep), renamed.path, lines, renamed.bad_lines)


def _pair_key(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    first, second = (table[column].combine_chunks() for column in columns)
    return pc.binary_join_element_wise(first, second, "\t")


def _read_tsv(
    path: Path,
    names: Sequence[str] | None = None,
    *,
    keep: Collection[str] | None = None,
    skip_short: bool = False,
) -> RawTable:
    """Read tab-separated lines in which quotes have no special meaning.

    Args:
        names: the columns of a file without a header; None = read them from the first line.
        keep: the columns to keep; None keeps all.
        skip_short: treat lines with too few fields as warnings, not errors.
    """
    bad: list[UnreadableLine] = []
    content = [line.removesuffix("\n").removesuffix("\r") for line in text_lines(path, bad, "\n")]
    while content and not content[-1]:
        content.pop()
    first = 1
    if names is None:
        names = content[0].split("\t") if content else []
        content, first = content[1:], 2
    check_header(path, names)
    kept_indices = [index for index, name in enumerate(names) if keep is None or name in keep]
    rows: list[Sequence[str]] = []
    lines = []
    for number, line in enumerate(content, start=first):
        fields = line.split("\t")
        if len(fields) == len(names):
            rows.append([fields[index] for index in kept_indices])
            lines.append(number)
        else:
            level: Level = "warning" if skip_short and len(fields) < len(names) else "error"
            bad.append(UnreadableLine(number, f"{len(fields)} fields instead of {len(names)}", level))
    return make_table(path, [names[index] for index in kept_indices], rows, lines, bad)
