"""Commands on a GPU; skipped on machines without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_REFINE = ("refine", "--data", "pocket", "--tasks", "sst2,rte", "--limit", "64", "--eval-limit", "32")
_SETTINGS = ("--set", "train.steps=4", "--set", "train.lr=1e-5", "--quiet")


def run(*words: object, gpu: bool = True) -> subprocess.CompletedProcess[str]:
    environment, visible = dict(os.environ), os.environ["MTKD_TEST_GPUS"]
    if gpu and visible == "all":
        del environment["CUDA_VISIBLE_DEVICES"]
    elif gpu:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module", autouse=True)
def on_a_gpu() -> None:
    if (
        not shutil.which("nvidia-smi")
        or run("-c", "import torch; assert torch.cuda.is_available()").returncode
    ):
        pytest.skip("this machine has no GPU")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_on_a_gpu_matches_the_cpu(tmp_path: Path, precision: str) -> None:
    losses = []
    for gpu in (False, True):
        out = tmp_path / str(gpu)
        command = (*_REFINE, *_SETTINGS, "--set", f"train.precision={precision}", "--out", out)
        done = run("-m", "mtkd.cli.main", *command, gpu=gpu)
        assert done.returncode == 0, done.stderr
        history = json.loads((out / "run.json").read_text())["training"]["history"]
        losses.append(history[-1]["train_loss"])
    assert losses[1] == pytest.approx(losses[0], abs=0.1)  # dropout draws other random numbers


def test_two_processes_on_one_gpu_are_one_error(tmp_path: Path) -> None:
    count = run("-c", "import torch; print(torch.cuda.device_count())").stdout
    processes = int(count) + 1
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}")
    done = run(*torchrun, "-m", "mtkd.cli.main", *_REFINE, *_SETTINGS, "--out", tmp_path / "out")
    assert done.returncode != 0
    assert f"{processes} processes were started on a machine with {int(count)} GPU" in done.stderr
    assert "NCCL" not in done.stderr
