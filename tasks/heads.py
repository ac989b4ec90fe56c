"""Task heads: from the encoder's vector of a row to the task's logits."""

from __future__ import annotations

from torch import Tensor, nn


class Head(nn.Module):
    """Dropout, Linear(hidden) + ReLU, Linear (MKD's student); with `hidden=0` dropout and one Linear.

    Args:
        width: size of the encoder's vector.
        n_outputs: C, classes of the task or 1 (`Task.n_outputs`).
        hidden: units of the inner layer, 0 for none (the teacher's head).
        dropout: probability of dropping a unit of the vector while training.
    """

    def __init__(self, width: int, n_outputs: int, hidden: int = 512, dropout: float = 0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.inner = nn.Sequential(nn.Linear(width, hidden), nn.ReLU()) if hidden else nn.Identity()
        self.output = nn.Linear(hidden or width, n_outputs)

    def forward(self, vector: Tensor) -> Tensor:
        """Logits (B, C) of the vectors (B, width)."""
        return self.output(self.inner(self.dropout(vector)))
