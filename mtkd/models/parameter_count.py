"""Count the parameters of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mtkd.models.exported import ExportedModel
from mtkd.models.multitask import MultiTaskModel


@dataclass(frozen=True)
class Parameters:
    """The number of weights: in total, and in the word embedding table."""

    total: int
    embeddings: int

    @property
    def without_embeddings(self) -> int:
        """The number of weights outside the word embeddings, which papers usually quote."""
        return self.total - self.embeddings

    def to_json(self) -> dict[str, int]:
        """As plain JSON values."""
        return {**asdict(self), "without_embeddings": self.without_embeddings}


def count_parameters(model: MultiTaskModel) -> Parameters:
    """Count a model's weights, heads included."""
    if isinstance(model, ExportedModel):
        return Parameters(**{key: model.runtime.record["parameters"][key] for key in ("total", "embeddings")})
    total = sum(weight.numel() for weight in model.parameters())
    return Parameters(total, sum(weight.numel() for weight in model.encoder.embeddings.parameters()))
