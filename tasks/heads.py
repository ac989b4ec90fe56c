"""Task heads, which map the encoder's vectors to the logits of a task."""

from __future__ import annotations

from torch import Tensor, nn

PADDED = -1e4  # the logit of a padded position: a probability of 0, and finite in half precision


class Head(nn.Module):
    """Dropout, Linear(hidden) + ReLU, Linear (MKD's student); with `hidden=0`, dropout and one Linear.

    Args:
        width: size of the encoder's vector.
        n_outputs: C, the number of classes or 1 (`TaskType.n_outputs`).
        hidden: units of the hidden layer; 0 for none (the teacher's head).
        dropout: dropout probability of the input vector during training.
    """

    def __init__(self, width: int, n_outputs: int, hidden: int = 512, dropout: float = 0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.inner = nn.Sequential(nn.Linear(width, hidden), nn.ReLU()) if hidden else nn.Identity()
        self.output = nn.Linear(hidden or width, n_outputs)

    def forward(self, vector: Tensor) -> Tensor:
        """Logits (B, C) of the vectors (B, width)."""
        return self.output(self.inner(self.dropout(vector)))


class SpanHead(nn.Module):
    """Maps each token's vector to two logits: the answer starts at this token, the answer ends at it.

    Args:
        width: size of the encoder's vectors.
        hidden: units of a hidden layer with ReLU; 0 for none (BERT's head).
        dropout: dropout probability of the input vectors during training.
    """

    def __init__(self, width: int, hidden: int = 0, dropout: float = 0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.inner = nn.Sequential(nn.Linear(width, hidden), nn.ReLU()) if hidden else nn.Identity()
        self.output = nn.Linear(hidden or width, 2)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, 2, L) of starts and ends; padded positions get the logit `PADDED`.

        Args:
            vectors: (B, L, width).
            mask: (B, L) bool, True for real tokens.
        """
        logits = self.output(self.inner(self.dropout(vectors))).transpose(1, 2)
        return logits.masked_fill(~mask.unsqueeze(1), PADDED)
