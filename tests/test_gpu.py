"""Commands on a GPU; skipped on machines without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tasks.common.hub_loading import embedded_encoder

_REFINE = ("refine", "--data", "pocket", "--tasks", "sst2,rte", "--limit", "64", "--eval-limit", "32")
_SETTINGS = ("--set", "train.steps=4", "--set", "train.lr=1e-4", "--set", "dropout=0")
_SETTINGS += ("--set", "train.keep=last", "--quiet")
_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


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


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 2e-2)])
def test_training_on_a_gpu_matches_the_cpu(tmp_path: Path, precision: str, tolerance: float) -> None:
    """Without dropout, which draws other random numbers, the losses and the weights are nearly equal."""
    encoder = tmp_path / "encoder"
    shutil.copytree(embedded_encoder(), encoder)
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(config | _DROPOUT))
    losses, weights = [], [load_file(encoder / "model.safetensors")]
    for gpu in (False, True):
        out = tmp_path / str(gpu)
        command = (*_REFINE, *_SETTINGS, "--encoder", encoder, "--set", f"train.precision={precision}")
        done = run("-m", "mtkd.cli.main", *command, "--out", out, gpu=gpu)
        assert done.returncode == 0, done.stderr
        history = json.loads((out / "run.json").read_text())["training"]["history"]
        losses.append(history[-1]["train_loss"])
        weights.append(load_file(out / "model" / "model.safetensors"))
    assert losses[1] == pytest.approx(losses[0], abs=tolerance)
    initial, of_cpu, of_gpu = (w["encoder.layer.0.output.dense.weight"].float() for w in weights)
    moved = (of_cpu - initial).abs().mean()
    assert moved > 1e-5, "training changes the weights"
    assert (of_gpu - of_cpu).abs().mean() < 0.2 * moved


def test_two_processes_on_one_gpu_are_one_error(tmp_path: Path) -> None:
    count = run("-c", "import torch; print(torch.cuda.device_count())").stdout
    processes = int(count) + 1
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}")
    done = run(*torchrun, "-m", "mtkd.cli.main", *_REFINE, *_SETTINGS, "--out", tmp_path / "out")
    assert done.returncode != 0
    assert f"{processes} processes were started on a machine with {int(count)} GPU" in done.stderr
    assert "NCCL" not in done.stderr


_DRAW_AFTER_TRAINING = """
import sys
import torch
import mtkd

out, used_before, train = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
torch.manual_seed(7)
if used_before:
    torch.rand(3, device="cuda")
if train:
    mtkd.refine(data="pocket", tasks="rte", limit=64, eval_limit=32, steps=2, out=out)
print(torch.rand(3, device="cuda").tolist(), torch.rand(3).tolist())
"""


@pytest.mark.parametrize("used_before", [True, False])
def test_training_keeps_the_random_numbers_of_the_gpu(tmp_path: Path, used_before: bool) -> None:
    done = [run("-c", _DRAW_AFTER_TRAINING, tmp_path / "out", used_before, train) for train in (True, False)]
    assert all(d.returncode == 0 for d in done), done[0].stderr
    trained, untrained = (d.stdout.splitlines()[-1] for d in done)
    assert trained == untrained


_SEED = """
import torch
from mtkd.torch_state import seed_generators

draws = []
for seed in (torch.manual_seed, lambda seed: seed_generators(seed, torch.device("cuda", 0))):
    seed(5)
    draws.append((torch.rand(3, device="cuda:0").tolist(), torch.rand(3).tolist()))
assert draws[0] == draws[1], draws
"""


def test_seeded_generators_draw_what_manual_seed_draws() -> None:
    done = run("-c", _SEED)
    assert done.returncode == 0, done.stderr
