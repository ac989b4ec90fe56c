"""Task heads, which map the encoder's vectors to the logits of a task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.tokens.encoding import PADDED


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


class SANHead(nn.Module):
    """A stochastic answer network, which reads a pair of texts in K steps (Liu et al. 2018, MT-DNN).

    The state s starts as a self-attended summary of the second text h (the hypothesis). Each step k attends
    to the first text p (the premise) and predicts the class; between the steps, a GRU updates the state:

        s_0 = sum_j softmax_j(w1 h_j) h_j,   s_k = GRU(x_(k-1), s_(k-1))
        x_k = sum_j softmax_j(p_j W2 s_k) p_j
        P_k = softmax(W3 [s_k; x_k; |s_k - x_k|; s_k * x_k])

    The prediction is the mean of P_0 to P_(K-1). In training, each row drops some of them, but never all.

    Args:
        width: size of the encoder's vectors.
        n_outputs: C, the number of classes.
        dropout: dropout probability of vectors, states and the classifier's inputs during training.
        steps: K.
        step_dropout: the probability that a step's prediction is dropped during training.
    """

    def __init__(
        self, width: int, n_outputs: int, dropout: float = 0.1, steps: int = 5, step_dropout: float = 0.1
    ):
        super().__init__()
        self.steps, self.step_dropout = steps, step_dropout
        self.dropout = nn.Dropout(dropout)
        self.summary = nn.Linear(width, 1)
        self.attention = nn.Linear(width, width)
        self.cell = nn.GRUCell(width, width)
        self.output = nn.Linear(4 * width, n_outputs)

    def forward(self, vectors: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Logits (B, C): the logarithms of the mean probabilities.

        Args:
            vectors: (B, L, width).
            first, second: (B, L) bool, True for the tokens of the first and of the second text.
        """
        vectors = self.dropout(vectors)
        state = _attend(self.summary(vectors), second, vectors)
        predictions: list[Tensor] = []
        while True:
            read = _attend(vectors @ self.attention(state).unsqueeze(-1), first, vectors)
            features = torch.cat([state, read, (state - read).abs(), state * read], 1)
            predictions.append(self.output(self.dropout(features)).float().log_softmax(-1))
            if len(predictions) == self.steps:
                break
            state = self.cell(read, self.dropout(state))
        log_probabilities = torch.stack(predictions)
        kept_steps = torch.ones(
            log_probabilities.shape[:2], dtype=torch.bool, device=log_probabilities.device
        )
        if self.training:
            kept_steps = torch.rand_like(log_probabilities[..., 0]) >= self.step_dropout
            kept_steps.scatter_(0, torch.randint_like(kept_steps[:1], self.steps, dtype=torch.long), True)
        log_probabilities = log_probabilities.masked_fill(~kept_steps.unsqueeze(-1), -torch.inf)
        return log_probabilities.logsumexp(0) - kept_steps.sum(0).log().unsqueeze(-1)


def _attend(scores: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
    """(B, width) the mean of the vectors (B, L, width), weighted by the softmax of scores (B, L, 1).

    Only positions where the mask (B, L) is True count; if there are none, the mean is 0.
    """
    real = mask.unsqueeze(-1)
    return (scores.masked_fill(~real, PADDED).softmax(1) * real * vectors).sum(1)
