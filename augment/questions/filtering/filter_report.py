"""The report of a filter run: counts by reason, as JSON, as a table and in the dataset card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from augment.dataset_card import hub_metadata
from augment.questions.filtering.heuristics import Reason
from augment.questions.filtering.unanswerable import Rejection, UnanswerableMethod
from tasks.data.corpus_reader import MANIFEST, CorpusManifest

REPORT = "filter.json"

_CARD = """\
# {rows} questions of {data}, filtered

Made by mtkd {version}:

    {command}

{about}

Settings: {settings}.

| outcome | questions | share |
| --- | --- | --- |
{counts}

{labels}

## Files

`data/<task>-<number>.parquet` contain the questions in the order of the source corpus. Each question is
followed by the unanswerable rows that were made from it. `{manifest}` records how they were made and the
SHA-256 of every file; `{report}` contains the counts above.

| column | type | description |
| --- | --- | --- |
| task | string (dictionary) | the task |
| parent | string | uid of the paragraph that the question was generated from |
| copy | int32 | number of the question among those of the paragraph |
| text | string | the question |
| text_pair | string | its context |
| label | float64 | always null |
| method | string (dictionary) | how the row was made: "unanswerable-other" = paired with another paragraph, \
"unanswerable-removed" = the sentence of the answer removed |
| source | string | the paragraph's title or the name of its file |
| answer | string | the teacher's answer; "" = unanswerable; null = unlabelled |
| answer_start | int32 | character offset of the answer in the context; -1 = unanswerable; null = unlabelled |
| asked_for | string | the answer that the question was generated for; null = none |
"""


@dataclass(frozen=True)
class Tally:
    """Counts of questions by outcome.

    Attributes:
        read: questions examined; `kept`: questions that passed all checks.
        dropped: questions dropped, by the first reason found.
        made: unanswerable rows made; `refused`: contexts that were tried for them and rejected.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[Reason] = field(default_factory=Counter)
    made: Counter[UnanswerableMethod] = field(default_factory=Counter)
    refused: Counter[Rejection] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        """Number of rows in the filtered corpus."""
        return self.kept + self.made.total()

    @property
    def unanswerable(self) -> float:
        """The share of unanswerable rows."""
        return self.made.total() / max(self.rows, 1)

    @staticmethod
    def total(tallies: Iterable[Tally]) -> Tally:
        """The sum of several tallies."""
        parts = list(tallies)
        return Tally(
            sum(part.read for part in parts),
            sum(part.kept for part in parts),
            sum((part.dropped for part in parts), Counter()),
            sum((part.made for part in parts), Counter()),
            sum((part.refused for part in parts), Counter()),
        )

    def to_json(self) -> dict[str, int | dict[str, int]]:
        """The counts by name, including those that are 0."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": {reason.name.lower(): self.dropped[reason] for reason in Reason},
            "made": {way.name.lower(): self.made[way] for way in UnanswerableMethod},
            "refused": {refusal.name.lower(): self.refused[refusal] for refusal in Rejection},
        }

    @staticmethod
    def from_json(value: dict) -> Tally:
        """The counts that `to_json` wrote."""
        return Tally(
            value["read"],
            value["kept"],
            Counter({Reason[name.upper()]: count for name, count in value["dropped"].items()}),
            Counter({UnanswerableMethod[name.upper()]: count for name, count in value["made"].items()}),
            Counter({Rejection[name.upper()]: count for name, count in value["refused"].items()}),
        )

    def lines(self) -> list[tuple[str, str, str]]:
        """Table rows of outcome, count, and share of the questions read (for rows made: of those written)."""
        read, rows = max(self.read, 1), max(self.rows, 1)
        dropped = [(f"dropped: {reason}", self.dropped[reason], read) for reason in Reason]
        made = [(f"made: {way}", self.made[way], rows) for way in UnanswerableMethod]
        refused = [(f"rejected: {refusal}", self.refused[refusal], 0) for refusal in Rejection]
        entries = [("read", self.read, 0), *dropped, ("kept", self.kept, read), *made, *refused]
        entries.append(("written", self.rows, 0))
        return [(outcome, f"{count:,}", f"{count / of:.1%}" if of else "-") for outcome, count, of in entries]


def filter_card(manifest: CorpusManifest, tally: Tally, about: str, *, labels: bool) -> str:
    """The text of README.md for a finished corpus."""
    answers = (
        "Every row has the teacher's answer."
        if labels
        else "**The questions deliberately have no answers.** The teacher "
        "provides them when a student is distilled on these rows (`labels=True` writes them)."
    )
    return hub_metadata(manifest) + _CARD.format(
        rows=manifest.rows,
        data=manifest.data,
        version=manifest.version,
        command=manifest.command,
        about=about,
        settings=", ".join(f"{name} = {value}" for name, value in manifest.settings.items()),
        counts="\n".join(f"| {' | '.join(line)} |" for line in tally.lines()),
        labels=answers,
        manifest=MANIFEST,
        report=REPORT,
    )
