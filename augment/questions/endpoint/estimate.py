"""The estimated and the actual cost of requests to an endpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.common.errors import counted

# The counts that the shards of a corpus record, besides the number of rows.
REQUEST_COUNTS = ("requests", "input_tokens", "output_tokens", "no_question", "repeated", "failed")
_BYTES_PER_TOKEN = 4
_TEMPLATE_TOKENS = 8  # tokens that a chat template adds to a prompt
_QUESTION = 20  # tokens


@dataclass(frozen=True)
class Prices:
    """US dollars, or any other money, per million tokens; None = unknown."""

    input: float | None = None
    output: float | None = None

    def cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """The cost of some tokens; None without prices."""
        if self.input is None and self.output is None:
            return None
        return (input_tokens * (self.input or 0) + output_tokens * (self.output or 0)) / 1e6


@dataclass(frozen=True)
class CostEstimate:
    """The requests that are still to be sent.

    Attributes:
        requests: their number; `answered`: how many others were answered before an interruption.
        input_tokens: estimated from the prompts' bytes.
        output_tokens: estimated for short questions; `most_output_tokens` is the limit that is sent.
        cost, most_cost: the cost of these tokens; None without prices.
    """

    requests: int
    answered: int
    input_tokens: int
    output_tokens: int
    most_output_tokens: int
    cost: float | None
    most_cost: float | None

    @staticmethod
    def of(prompt_bytes: int, requests: int, answered: int, limit: int, prices: Prices) -> CostEstimate:
        """The estimate for some requests; `limit`: of output tokens."""
        read = prompt_bytes // _BYTES_PER_TOKEN + requests * _TEMPLATE_TOKENS
        written, most_written = requests * min(_QUESTION, limit), requests * limit
        costs = prices.cost(read, written), prices.cost(read, most_written)
        return CostEstimate(requests, answered, read, written, most_written, *costs)

    def to_json(self) -> dict[str, int | float | None]:
        """The estimate by name."""
        return dataclasses.asdict(self)

    def sentence(self) -> str:
        """The estimate as a sentence."""
        before = f" ({self.answered:,} more were answered before)" if self.answered else ""
        cost = ""
        if self.cost is not None and self.most_cost is not None:
            cost = f": about {self.cost:,.2f}, and at most {self.most_cost:,.2f} for the longest answers"
        return (
            f"{counted(self.requests, 'request')}{before}, about {self.input_tokens:,} input tokens (one per "
            f"{_BYTES_PER_TOKEN} bytes) and {self.output_tokens:,} output tokens ({_QUESTION} per question)"
            f"{cost}"
        )


def spent(counts: Mapping[str, int], prices: Prices) -> str:
    """The cost of a corpus as a sentence."""
    read, written = counts["input_tokens"], counts["output_tokens"]
    cost = prices.cost(read, written)
    without = [
        (counts["no_question"], "without a question"),
        (counts["repeated"], "with a question that the paragraph has already"),
    ]
    parts = [f"{number:,} {outcome}" for number, outcome in without if number]
    parts += [f"{counts['failed']:,} more failed"] if counts["failed"] else []
    used = f"{read:,} input and {written:,} output tokens" if read or written else "tokens were not reported"
    return (
        f"{counted(counts['requests'], 'answer')}{', ' if parts else ''}{', '.join(parts)}; {used}"
        f"{f', which cost {cost:,.2f}' if cost is not None else ''}"
    )
