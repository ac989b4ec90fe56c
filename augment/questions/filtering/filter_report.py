"""What a filter did with a corpus of questions: counts by reason, as JSON, as a table and in the card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from augment.questions.filtering.heuristics import Reason
from augment.questions.filtering.unanswerable import Refusal, Way
from tasks.corpus_reader import MANIFEST, CorpusManifest

REPORT = "filter.json"

_CARD = """\
# {rows} questions of {data}, filtered

Made by mtkd {version}:

    {command}

{about}

Settings: {settings}.

| what | questions | share |
| --- | --- | --- |
{counts}

{labels}

## Files

`data/<task>-<number>.parquet` hold the questions, in the order of the corpus they come from; a question is
followed by the rows without an answer that were made of it. `{manifest}` says how they were made, with the
SHA-256 of every file; `{report}` has the counts above.

| column | type | what |
| --- | --- | --- |
| task | string (dictionary) | the task |
| parent | string | uid of the paragraph the question was asked of |
| copy | int32 | number of the question among the paragraph's |
| text | string | the question |
| text_pair | string | its context |
| label | float64 | always null |
| method | string (dictionary) | how the row was made: "unanswerable-other" = paired with another paragraph, \
"unanswerable-removed" = the sentence of the answer taken out |
| source | string | what the paragraph says of itself, such as its title |
| answer | string | the teacher's answer; "" = none in the context; null = unlabelled |
| answer_start | int32 | its first character in the context; -1 = none; null = unlabelled |
| asked_for | string | the answer that the question was written for; null = for none |
"""


@dataclass(frozen=True)
class Tally:
    """Counts over some questions.

    Attributes:
        read: questions looked at; `kept`: those that passed.
        dropped: questions by the first reason that was found.
        made: rows without an answer; `refused`: contexts that were tried for them and not taken.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[Reason] = field(default_factory=Counter)
    made: Counter[Way] = field(default_factory=Counter)
    refused: Counter[Refusal] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        """Rows of the filtered corpus."""
        return self.kept + self.made.total()

    @property
    def unanswerable(self) -> float:
        """The share of rows without an answer."""
        return self.made.total() / max(self.rows, 1)

    @staticmethod
    def total(tallies: Iterable[Tally]) -> Tally:
        """All of them together."""
        parts = list(tallies)
        return Tally(
            sum(part.read for part in parts),
            sum(part.kept for part in parts),
            sum((part.dropped for part in parts), Counter()),
            sum((part.made for part in parts), Counter()),
            sum((part.refused for part in parts), Counter()),
        )

    def to_json(self) -> dict[str, int | dict[str, int]]:
        """The counts by name, reasons that did not occur included."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": {reason.name.lower(): self.dropped[reason] for reason in Reason},
            "made": {way.name.lower(): self.made[way] for way in Way},
            "refused": {refusal.name.lower(): self.refused[refusal] for refusal in Refusal},
        }

    @staticmethod
    def from_json(value: dict) -> Tally:
        """The counts that `to_json` wrote."""
        return Tally(
            value["read"],
            value["kept"],
            Counter({Reason[name.upper()]: count for name, count in value["dropped"].items()}),
            Counter({Way[name.upper()]: count for name, count in value["made"].items()}),
            Counter({Refusal[name.upper()]: count for name, count in value["refused"].items()}),
        )

    def lines(self) -> list[tuple[str, str, str]]:
        """A table: what, how many, and their share of the questions read (rows made: of the rows written)."""
        read, rows = max(self.read, 1), max(self.rows, 1)
        dropped = [(f"dropped: {reason}", self.dropped[reason], read) for reason in Reason]
        made = [(f"made: {way}", self.made[way], rows) for way in Way]
        refused = [(f"not taken: {refusal}", self.refused[refusal], 0) for refusal in Refusal]
        entries = [("read", self.read, 0), *dropped, ("kept", self.kept, read), *made, *refused]
        entries.append(("written", self.rows, 0))
        return [(what, f"{count:,}", f"{count / of:.1%}" if of else "-") for what, count, of in entries]


def filter_card(manifest: CorpusManifest, tally: Tally, about: str, *, labels: bool) -> str:
    """The text of README.md for a finished corpus."""
    said = (
        "Every row has the teacher's answer."
        if labels
        else "**There are no answers, on purpose**: the teacher "
        "gives them when a student is distilled on these rows (`labels=True` writes them)."
    )
    return _CARD.format(
        rows=manifest.rows,
        data=manifest.data,
        version=manifest.version,
        command=manifest.command,
        about=about,
        settings=", ".join(f"{name} = {value}" for name, value in manifest.settings.items()),
        counts="\n".join(f"| {' | '.join(line)} |" for line in tally.lines()),
        labels=said,
        manifest=MANIFEST,
        report=REPORT,
    )
