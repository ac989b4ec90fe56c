"""The options of question generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from augment.questions.endpoint.estimate import Prices
from augment.questions.generation.paragraphs import Words
from augment.questions.rules.rule_augmenter import RULES
from tasks.common.argument_markers import Range
from tasks.common.arguments import PositiveInt, check_fields

_Price = Annotated[float, Range(0, 1_000_000)]  # per million tokens


@dataclass(frozen=True)
class GenerationConfig:
    """The options of `mtkd augment questions generate`; see its help for their meaning."""

    text: str
    model: str = RULES
    words: Words | None = None
    text_column: str = "text"
    title_column: str = "title"
    split: str = "train"
    per_paragraph: PositiveInt = 1
    beams: int = 1
    sample: bool = False
    top_p: float = 0.95
    temperature: float = 1.0
    form: str | None = None
    max_input: int | None = None
    max_output: PositiveInt | None = None
    spacy: str | None = None
    backend: Literal["native", "ctranslate2"] = "native"
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    batch: PositiveInt | Literal["auto"] = 32
    shard_rows: PositiveInt = 1000
    limit: PositiveInt | None = None
    seed: int = 0
    endpoint_model: str | None = None
    api_key_env: str | None = None
    prompt_template: str | None = None
    extra_body: dict[str, Any] | None = None
    concurrency: Annotated[int, Range(1, 256)] = 8
    requests_per_minute: Annotated[float, Range(0.001, 1_000_000)] | None = None
    timeout: Annotated[float, Range(0.001, 86_400)] = 60.0
    retries: Annotated[int, Range(0, 100)] = 5
    price_in: _Price | None = None
    price_out: _Price | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def asks_endpoint(self) -> bool:
        """Whether the model is the address of an endpoint."""
        return "://" in self.model

    @property
    def prices(self) -> Prices:
        """What the tokens of an endpoint cost."""
        return Prices(self.price_in, self.price_out)
