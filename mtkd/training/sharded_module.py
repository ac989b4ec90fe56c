"""A module that is sharded across processes while it trains (FSDP), for models that do not fit a GPU."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from mtkd.models.capture import find_layers
from mtkd.models.encoders.transformer import TransformerEncoder
from mtkd.outputs import BY_LAYER, PER_ROW
from mtkd.training.parallel_module import ParallelModule
from mtkd.training.train_step import TrainStep


class ShardedModule(ParallelModule):
    """A copy of a module, with weights, gradients and optimiser state sharded across processes (FSDP).

    Training steps use the copy. The caller's module stays an ordinary module, so evaluation and checkpoints
    need no special code. It stays on the CPU and holds the weights of the last `gather_weights`.

    The layers of a Transformer are gathered one after another. All other weights, such as the embeddings,
    are whole from the forward to the backward pass. All processes must compute gradients for the same
    parameters, so a loss may not leave out one of its projections because of the rows in the batch.

    Args:
        module: the module to train, on any device.
        optimizer: its optimiser, which may have been restored from a checkpoint; its state moves to the copy.
    """

    def __init__(self, accelerator: Accelerator, module: TrainStep, optimizer: torch.optim.Optimizer):
        self._accelerator = accelerator
        self._caller_module, self._original_optimizer = module.cpu(), optimizer
        self.module = _sharded_copy(module, accelerator.device)
        sharded_params = dict(self.module.named_parameters())
        self._shard_of: dict[Tensor, Any] = {
            param: sharded_params[name] for name, param in module.named_parameters()
        }
        self.optimizer = copy.copy(optimizer)
        self.optimizer.param_groups = [
            {**group, "params": [self._shard_of[param] for param in group["params"]]}
            for group in optimizer.param_groups
        ]
        self.optimizer.state = defaultdict(dict)
        for param, state in optimizer.state.items():
            sharded = self._shard_of[param]
            self.optimizer.state[sharded] = {slot: _shard_like(sharded, state[slot]) for slot in state}
        optimizer.state.clear()

    def micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        """No context: gradients are averaged in every micro-batch, so no process accumulates whole ones."""
        return contextlib.nullcontext()

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clip the gradient norm to `max_norm`; returns the norm before clipping, a scalar."""
        return _gathered(nn.utils.clip_grad_norm_(self.module.parameters(), max_norm))

    @torch.no_grad()
    def gather_weights(self) -> None:
        """Copy the current weights to the caller's module; every process must call this."""
        current = self.module.state_dict()
        for name, weight in self._caller_module.state_dict().items():
            weight.copy_(_gathered(current[name]))

    @contextlib.contextmanager
    def gathered_optimizer_state(self) -> Iterator[None]:
        """Inside the block, the caller's optimiser has its whole state, in the main process."""
        for param, sharded in self._shard_of.items():
            for slot, value in self.optimizer.state.get(sharded, {}).items():
                gathered = _gathered(torch.as_tensor(value))
                if self._accelerator.is_main_process:
                    self._original_optimizer.state[param][slot] = gathered.cpu()
        yield
        self._original_optimizer.state.clear()

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        """Inside the block, the caller's module is on the device."""
        self._caller_module.to(self._accelerator.device)
        yield
        self._caller_module.cpu()

    def return_to_device(self) -> None:
        """Move the caller's module back to the device, after the last step."""
        self._caller_module.to(self._accelerator.device)


def _sharded_copy(module: TrainStep, device: torch.device) -> nn.Module:
    """Copy a module, and shard each layer of a Transformer and all other weights across all processes."""
    tokeniser = module.model.tokeniser
    sharded = copy.deepcopy(module, {id(tokeniser): tokeniser})
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    encoder = sharded.model.encoder
    if isinstance(encoder, TransformerEncoder):
        # Stopping a forward pass inside a layer would skip what FSDP does after the layer.
        encoder.stops_early = False
        # FSDP gathers a layer for the backward pass when the gradient of its output arrives. A loss on
        # outputs inside a layer does not produce that gradient, so with it the layers stay whole until then.
        inner_outputs = set(BY_LAYER) - {*PER_ROW, "hidden"}
        stays_whole = any(getattr(sharded.objective.student_need, kind) for kind in inner_outputs)
        found = find_layers(encoder.body, encoder.n_layers)
        for layer in found[1] if found else ():
            fully_shard(layer, mesh=mesh, reshard_after_forward=not stays_whole)
    fully_shard(sharded, mesh=mesh)
    buffers = [buffer for buffer in sharded.buffers() if buffer.is_floating_point()]
    if buffers:
        sharded.register_forward_pre_hook(lambda *_: _broadcast(buffers))
    return sharded


def _broadcast(buffers: list[Tensor]) -> None:
    """Copy the buffers of the main process to the others, as DDP does before each forward pass."""
    for buffer in buffers:
        dist.broadcast(buffer, 0)


def _gathered(tensor: Tensor) -> Tensor:
    """The whole tensor of which each process may have a shard; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _shard_like(param: DTensor, value: Tensor) -> Tensor:
    """Shard a part of an optimiser's state as its parameter is sharded, if it has the same shape."""
    on_device = value.to(param.device)
    if value.shape != param.shape:
        return on_device
    return distribute_tensor(on_device, param.device_mesh, param.placements, src_data_rank=None)
