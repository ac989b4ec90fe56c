"""The commands whose interruptions are tried, each on a few rows and with tiny models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Run = Callable[..., None]  # runs a command line to its end

_TRAIN = ["--data", "pocket", "--limit", 24, "--eval-limit", 16, "--device", "cpu", "--quiet"]
_SMALL = ["--set", "train.batch_size=8", "--set", "train.checkpoint_steps=2"]
_STUDENT = {
    "student.max_length": 16,
    "student.transformer.layers": 2,
    "student.transformer.hidden_size": 12,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 16,
    "terms.mha.relation_heads": 2,
}
_SETS = [word for key, value in _STUDENT.items() for word in ("--set", f"{key}={value}")]
_GRID = """
title = "Two cells"
recipe = "mlkd-bert-4"
tasks = ["sst2"]

[set]
"student.max_length" = 16
"student.transformer.layers" = 2
"student.transformer.hidden_size" = 12
"student.transformer.heads" = 2
"student.transformer.intermediate_size" = 16
"terms.mha.relation_heads" = 2
"train.batch_size" = 8
"train.checkpoint_steps" = 2

[cells.one]
[cells.labels]
set = { supervision = "labels" }

[bench]
seq_len = 16
batches = [2]
rounds = 1
"""
_PIPELINE = """
out = "out"
data = "pocket"
tasks = "sst2"
limit = 24
eval-limit = 16

[steps.teacher]
command = "refine"
encoder = "../inputs/encoder"
epochs = 1
set.max_length = 16
set.train.batch_size = 8
set.train.checkpoint_steps = 2

[steps.copies]
command = "augment mask"

[steps.scores]
command = "evaluate"
model = "@teacher"
"""


@dataclass(frozen=True)
class Command:
    """A command that writes.

    In its words, OUT stands for its output, INPUTS for a folder of inputs, PLACE for the folder of the output
    and ENDPOINT for the address of a fake language model.

    Attributes:
        needs: names of inputs (see `INPUTS`).
        imports: modules that it imports late, which the process that forks imports once.
        out: what OUT is, in the folder of the trials.
    """

    words: tuple[object, ...]
    needs: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    out: str = "out"
    files: Mapping[str, str] | None = None  # files beside the output -> their text

    def line(self, inputs: Path, out: Path) -> list[str]:
        """The words with paths."""
        return [str(word).replace("INPUTS", str(inputs)).replace("OUT", str(out)) for word in self.words]


COMMANDS = {
    "refine": Command(
        (
            "refine",
            *_TRAIN,
            *_SMALL,
            "--tasks",
            "sst2",
            "--encoder",
            "INPUTS/encoder",
            "--epochs",
            2,
            "--set",
            "max_length=16",
            "--out",
            "OUT",
        ),
        ("encoder",),
    ),
    "distill": Command(
        (
            "distill",
            "mlkd-bert-4",
            *_TRAIN,
            *_SMALL,
            *_SETS,
            "--epochs",
            1,
            "--tasks",
            "sst2",
            "--teacher",
            "INPUTS/teacher",
            "--out",
            "OUT",
        ),
        ("teacher",),
    ),
    "finetune": Command(
        (
            "finetune",
            *_TRAIN,
            *_SMALL,
            "--epochs",
            1,
            "--task",
            "sst2",
            "--model",
            "INPUTS/teacher",
            "--set",
            "learning_rates=[1e-3, 1e-5]",
            "--out",
            "OUT",
        ),
        ("teacher",),
    ),
    "store build": Command(
        (
            "store",
            "build",
            "--recipe",
            "mlkd-bert-4",
            *_SETS,
            "--data",
            "pocket",
            "--tasks",
            "sst2,rte",
            "--limit",
            24,
            "--teacher",
            "INPUTS/teacher2",
            "--quiet",
            "--out",
            "OUT",
        ),
        ("teacher2",),
    ),
    "augment mask": Command(
        (
            "augment",
            "mask",
            "--data",
            "pocket",
            "--tasks",
            "sst2,rte",
            "--limit",
            24,
            "--copies",
            2,
            "--quiet",
            "--out",
            "OUT",
        )
    ),
    "augment replace": Command(
        (
            "augment",
            "replace",
            "--data",
            "pocket",
            "--tasks",
            "sst2",
            "--limit",
            24,
            "--copies",
            2,
            "--tagger",
            "none",
            "--quiet",
            "--out",
            "OUT",
        )
    ),
    "augment questions train": Command(
        (
            "augment",
            "questions",
            "train",
            "--data",
            "pocket",
            "--task",
            "squad_v2",
            "--model",
            "scratch",
            "--steps",
            4,
            "--batch",
            8,
            "--max-input",
            48,
            "--max-output",
            12,
            "--vocab-size",
            150,
            "--d-model",
            16,
            "--layers",
            1,
            "--heads",
            2,
            "--d-ff",
            32,
            "--limit",
            24,
            "--eval-limit",
            4,
            "--quiet",
            "--out",
            "OUT",
        ),
        imports=(
            "augment.questions.training.train_generator",
            "transformers.models.t5.modeling_t5",
            "mtkd.api.augmentation",
        ),
    ),
    "augment questions generate": Command(
        (
            "augment",
            "questions",
            "generate",
            "--model",
            "INPUTS/generator",
            "--text",
            "INPUTS/paragraphs.txt",
            "--sample",
            "--temperature",
            "2",
            "--shard-rows",
            8,
            "--quiet",
            "--out",
            "OUT",
        ),
        ("generator", "paragraphs.txt"),
        imports=(
            "augment.questions.generation.generate",
            "transformers.models.t5.modeling_t5",
            "mtkd.api.augmentation",
        ),
    ),
    "augment questions generate, endpoint": Command(
        (
            "augment",
            "questions",
            "generate",
            "--model",
            "ENDPOINT",
            "--endpoint-model",
            "tiny",
            "--concurrency",
            1,
            "--text",
            "INPUTS/paragraphs.txt",
            "--shard-rows",
            8,
            "--quiet",
            "--out",
            "OUT",
        ),
        ("paragraphs.txt",),
        imports=("augment.questions.endpoint.prepare_endpoint", "mtkd.api.augmentation"),
    ),
    "augment questions filter": Command(
        (
            "augment",
            "questions",
            "filter",
            "--corpus",
            "INPUTS/questions",
            "--teacher",
            "INPUTS/reader",
            "--any-form",
            "--no-round-trip",
            "--shard-rows",
            8,
            "--labels",
            "--min-overlap",
            0.01,
            "--quiet",
            "--out",
            "OUT",
        ),
        ("questions", "reader"),
    ),
    "export": Command(
        ("export", "--model", "INPUTS/teacher", "--quiet", "--out", "OUT"),
        ("teacher",),
        imports=("torch.onnx", "onnxscript", "onnxruntime", "onnx"),
    ),
    "compare": Command(
        (
            "compare",
            "PLACE/grid.toml",
            "--data",
            "pocket",
            "--teacher",
            "INPUTS/teacher",
            "--limit",
            24,
            "--eval-limit",
            16,
            "--epochs",
            2,
            "--out",
            "OUT",
        ),
        ("teacher",),
        files={"grid.toml": _GRID},
        imports=("matplotlib.pyplot",),
    ),
    "run": Command(("run", "PLACE/pipeline.toml"), ("encoder",), files={"pipeline.toml": _PIPELINE}),
    "predict": Command(
        (
            "predict",
            "--model",
            "INPUTS/teacher",
            "--in",
            "PLACE/rows.csv",
            "--out",
            "OUT/predicted.csv",
            "--quiet",
        ),
        ("teacher",),
        files={"rows.csv": "sentence\n" + "".join(f"a fine film of {n} minutes\n" for n in range(60))},
    ),
    "init": Command(
        ("init", "PLACE/rows.csv", "--out", "OUT"),
        files={
            "rows.csv": "text,label\n"
            + "".join(f"a row of number {n},{'yes' if n % 3 else 'no'}\n" for n in range(60))
        },
    ),
}


def _encoder(path: Path, run: Run) -> None:
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from mtkd.models.encoders.pretrained_config import locate

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(path)
    AutoTokenizer.from_pretrained(locate("minilm")).save_pretrained(path)


def _teacher(tasks: str) -> Callable[[Path, Run], None]:
    def make(path: Path, run: Run) -> None:
        run(
            "refine",
            *_TRAIN,
            "--tasks",
            tasks,
            "--encoder",
            needed(path.parent, "encoder", run),
            "--epochs",
            1,
            "--set",
            "max_length=24",
            "--set",
            "train.batch_size=8",
            "--set",
            "stride=8",
            "--out",
            path,
        )

    return make


def _generator(path: Path, run: Run) -> None:
    run(*COMMANDS["augment questions train"].line(path.parent, path))


def _paragraphs(path: Path, run: Run) -> None:
    path.write_text(
        "\n".join(
            f"Anna was born in Rome in {1900 + n}. The river is {n} miles long and the city of Oslo is near."
            for n in range(24)
        )
    )


def _questions(path: Path, run: Run) -> None:
    for name in COMMANDS["augment questions generate"].needs:
        needed(path.parent, name, run)
    run(*COMMANDS["augment questions generate"].line(path.parent, path))


_INPUTS: dict[str, Callable[[Path, Run], None]] = {
    "encoder": _encoder,
    "teacher": _teacher("sst2"),
    "teacher2": _teacher("sst2,rte"),
    "reader": _teacher("squad"),
    "generator": _generator,
    "paragraphs.txt": _paragraphs,
    "questions": _questions,
}


def needed(inputs: Path, name: str, run: Run) -> Path:
    """An input, which is made when it is needed first."""
    path = inputs / name
    if not path.exists():
        inputs.mkdir(parents=True, exist_ok=True)
        _INPUTS[name](path, run)
    return path


def reset(inputs: Path) -> None:
    """Remove what commands keep beside their inputs."""
    for kept in inputs.glob("*/logits-*"):
        shutil.rmtree(kept)
