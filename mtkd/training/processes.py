"""Creating the accelerator of a run, and sums over its processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from mtkd.device import find_device
from tasks.errors import UserError

Number = TypeVar("Number", int, float)


def make_accelerator(device: str | None = None) -> Accelerator:
    """Create the accelerator of a run, which handles device and processes. Heads may be unused in a step.

    It does not depend on the precision, so that one process can run jobs of several precisions; the training
    step and evaluation use autocast themselves.

    Args:
        device: "cpu", "cuda", "cuda:1" or "mps"; None = a GPU per process if available.

    Raises:
        UserError: the device does not exist, several processes would share it, this process has already
            used another device, or accelerate was told to shard the model.
    """
    for plugin in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        if os.environ.get(f"ACCELERATE_USE_{plugin}", "false").lower() == "true":
            raise UserError(
                f"accelerate was started with {plugin}, which shards the model over processes",
                expected="data parallelism (DDP), in which each process holds the whole model",
                hint="start it with `accelerate launch --multi_gpu`",
            )
    chosen = None if device is None else find_device(device)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if chosen is not None and several:
        raise UserError(
            f"`device={device}` cannot be used with several processes, since each uses its own device",
            hint="leave `device` out, or choose the GPUs with CUDA_VISIBLE_DEVICES",
        )
    # Accelerate does not find out by itself that several processes run on a CPU.
    cpu = several and not torch.accelerator.is_available() if chosen is None else chosen.type == "cpu"
    with _environment(chosen):
        accelerator = Accelerator(
            cpu=cpu,
            mixed_precision="no",
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
    if chosen is not None and accelerator.device.type != chosen.type:
        raise UserError(
            f"this process already uses {accelerator.device} and cannot change to {device}",
            hint="start a new process, or leave `device` out",
        )
    return accelerator


@contextlib.contextmanager
def _environment(device: torch.device | None) -> Iterator[None]:
    """Set the environment variable from which accelerate reads its device, inside the block."""
    key = "ACCELERATE_TORCH_DEVICE"
    before = os.environ.get(key)
    if device is not None:
        os.environ[key] = str(device)
    try:
        yield
    finally:
        if device is not None:
            os.environ.pop(key)
            os.environ.update({} if before is None else {key: before})


def sum_over_processes(accelerator: Accelerator, numbers: list[Number]) -> list[Number]:
    """Sum each number over all processes; every process must call this."""
    if accelerator.num_processes == 1:
        return numbers
    values = torch.tensor(numbers, device=accelerator.device)
    sums: list[Number] = accelerator.reduce(values, "sum").tolist()  # type: ignore[union-attr]
    return sums
