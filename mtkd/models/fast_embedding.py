"""Token embeddings whose gradient holds only the rows that a batch reads, in training on a CPU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

_ROWS_PER_TOKEN = 6  # with fewer rows in the table for each token of a batch, a dense gradient is as fast


class Embedding(nn.Embedding):
    """`torch.nn.Embedding`; if `sparse` is True, its gradient is sparse only where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """Look up the rows (..., embedding_dim) of token ids (...)."""
        if self.max_norm is not None or self.scale_grad_by_freq:
            return super().forward(input)
        sparse = self.has_sparse_gradient(input)
        return functional.embedding(input, self.weight, self.padding_idx, sparse=sparse)

    def has_sparse_gradient(self, ids: Tensor) -> bool:
        """True if the gradient of a lookup of these ids is sparse: on a CPU, if they are few."""
        if (
            not self.sparse or ids.device.type != "cpu"
        ):  # first, since an exported model must not depend on sizes
            return False
        return ids.numel() * _ROWS_PER_TOKEN <= self.num_embeddings


def use_embedding(module: nn.Module) -> None:
    """Turn every `torch.nn.Embedding` inside a module into `Embedding`; the weights stay the same tensors."""
    for child in module.modules():
        if type(child) is nn.Embedding:
            child.__class__ = Embedding
