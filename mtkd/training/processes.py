"""Creating the accelerator of a run, and sums over its processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list

from mtkd.device import best_device, find_device
from mtkd.output_files.distributed import disable_ram_efficient_loading, launch_errors
from tasks.common.errors import UserError
from tasks.common.launcher import check_process_rank, process_rank

Number = TypeVar("Number", int, float)
Result = TypeVar("Result")


def make_accelerator(device: str | None = None) -> Accelerator:
    """Create the accelerator of a run, which handles device and processes.

    It does not depend on the precision, so that one process can run jobs of several precisions; the training
    step and evaluation use autocast themselves. DDP looks for unused parameters, because each step uses the
    head of only one task.

    Args:
        device: "cpu", "cuda", "cuda:1" or "mps"; None = a GPU per process if available.

    Raises:
        UserError: the device does not exist, several processes would share it, this process has already
            used another device, or accelerate was told to shard the model in a way that is not supported.
    """
    several = process_rank().count > 1
    _refuse_sharding(several)
    disable_ram_efficient_loading()
    chosen = None if device is None else find_device(device)
    if chosen is not None and several:
        raise UserError(
            f"`device={device!r}` cannot be used with several processes, since each uses its own device",
            hint="leave `device` out, or choose the GPUs with CUDA_VISIBLE_DEVICES",
        )
    # Accelerate does not detect on its own that several processes run on a CPU.
    cpu = several and not torch.accelerator.is_available() if chosen is None else chosen.type == "cpu"
    check_process_rank()
    with _environment(chosen), launch_errors():
        accelerator = Accelerator(
            cpu=cpu,
            mixed_precision="no",
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
    # An earlier call may have chosen the CPU; accelerate then stays there.
    wanted = best_device() if chosen is None and not several and accelerator.device.type == "cpu" else chosen
    if wanted is not None and accelerator.device.type != wanted.type:
        raise UserError(
            f"this process already uses {accelerator.device} and cannot change to {wanted}",
            hint=f"start a new process, or continue with `device={accelerator.device.type!r}`",
        )
    return accelerator


def uses_fsdp() -> bool:
    """True if accelerate was told to shard models across processes (FSDP), which `ShardedModule` does."""
    return _is_true("ACCELERATE_USE_FSDP")


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in ("true", "1", "yes")


def _refuse_sharding(several: bool) -> None:
    """Refuse ways to shard a model that are not supported; `several`: there are several processes."""
    for plugin in ("DEEPSPEED", "MEGATRON_LM"):
        if _is_true(f"ACCELERATE_USE_{plugin}"):
            raise UserError(
                f"accelerate was started with {plugin}, which shards the model over processes",
                expected="data parallelism: DDP, in which each process holds the whole model, or FSDP",
                hint="start it with `accelerate launch --multi_gpu` or `accelerate launch --use_fsdp`",
            )
    if not uses_fsdp():
        return
    if not several:
        raise UserError(
            "accelerate was started with FSDP, but there is only one process",
            expected="two or more processes, across which the model is sharded",
            hint="start more (`accelerate launch --use_fsdp --num_processes 2`), or leave FSDP out",
        )
    for option in ("FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING"):
        if _is_true(option):
            raise UserError(
                f"accelerate was started with {option}=true, which mtkd does not support",
                hint=f"leave `--{option.lower()}` out, or set it to false",
            )


@contextlib.contextmanager
def _environment(device: torch.device | None) -> Iterator[None]:
    """Inside the block, accelerate reads this device from the environment, and shards no models itself."""
    values = {"ACCELERATE_USE_FSDP": "false"}
    if device is not None:
        values["ACCELERATE_TORCH_DEVICE"] = str(device)
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key in values:
            os.environ.pop(key)
        os.environ.update({key: value for key, value in before.items() if value is not None})


def sum_over_processes(accelerator: Accelerator, numbers: list[Number]) -> list[Number]:
    """Sum each number over all processes; every process must call this."""
    if accelerator.num_processes == 1:
        return numbers
    values = torch.tensor(numbers, device=accelerator.device)
    sums: list[Number] = accelerator.reduce(values, "sum").tolist()  # type: ignore[union-attr]
    return sums


def from_main_process(compute: Callable[[], Result]) -> Result:
    """Run a function in the main process, and return its result in all processes, which must all call this.

    Raises:
        UserError: in all processes, the error that the function raised in the main process.
    """
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = compute()
        except UserError as error:
            outcome[1] = vars(error)
    result, refusal = broadcast_object_list(outcome)
    if refusal is not None:
        raise UserError(**refusal)
    returned: Result = result
    return returned
