"""Token embeddings whose gradient holds only the rows that a batch reads, in training on a CPU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

_ROWS_PER_TOKEN = 6  # with fewer rows in the table for each token of a batch, a dense gradient is as fast


class Embedding(nn.Embedding):
    """`torch.nn.Embedding`; if `sparse` is True, its gradient is sparse on a CPU, for few ids."""

    def forward(self, input: Tensor) -> Tensor:
        """Look up the rows (..., embedding_dim) of token ids (...)."""
        sparse = self.has_sparse_gradient(input)
        return functional.embedding(input, self.weight, self.padding_idx, sparse=sparse)

    def has_sparse_gradient(self, ids: Tensor) -> bool:
        """True if the gradient of a lookup of these ids is sparse: on a CPU, if they are few."""
        if not self.sparse or ids.device.type != "cpu":
            return False  # before the number of ids is read: an exported model must not depend on it
        return ids.numel() * _ROWS_PER_TOKEN <= self.num_embeddings


def use_embedding(module: nn.Module) -> None:
    """Turn every `torch.nn.Embedding` inside a module into `Embedding`; the weights stay the same tensors.

    Those with `max_norm` or `scale_grad_by_freq` are left alone.
    """
    for child in module.modules():
        if type(child) is nn.Embedding and child.max_norm is None and not child.scale_grad_by_freq:
            child.__class__ = Embedding
