"""The commands that the fault tests interrupt, each on a few rows and with tiny models."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

Run = Callable[..., None]  # runs a command line to its end

_TRAIN = "--data pocket --limit 24 --eval-limit 16 --device cpu --quiet"
_SMALL = "--set train.batch_size=8 --set train.checkpoint_steps=2"
_STUDENT = {
    "student.max_length": 16,
    "student.transformer.layers": 2,
    "student.transformer.hidden_size": 12,
    "student.transformer.heads": 2,
    "student.transformer.intermediate_size": 16,
    "terms.mha.relation_heads": 2,
}
_SETS = " ".join(f"--set {key}={value}" for key, value in _STUDENT.items())
_ROWS = "--data pocket --tasks sst2,rte --limit 24 --copies 2 --quiet --out OUT"
_QUESTIONS = "--text INPUTS/paragraphs.txt --shard-rows 8 --quiet --out OUT"
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

    In its line, OUT stands for its output, INPUTS for a folder of inputs, PLACE for the folder of the output,
    ENDPOINT for the address of a fake language model and HUB for that of a fake Hugging Face hub.

    Attributes:
        needs: names of inputs (see `_INPUTS`).
        imports: modules that it imports late, which the process that forks imports once.
        out: what OUT is, in the folder of the trials.
        files: files beside the output -> their text.
        call: a function of `tests/helpers` that prepares its process, and runs what follows in the line.
        locks: False if it locks no folder: of two copies, the last one to finish replaces the files.
        second: further words of a second copy that is started while the first one runs.
        stride: only every N-th change is tried, because a trial takes long.
    """

    line: str
    needs: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    out: str = "out"
    files: Mapping[str, str] | None = None
    call: str | None = None
    locks: bool = True
    second: tuple[str, ...] = ("--overwrite",)
    stride: int = 1

    def words(self, inputs: Path, out: Path) -> list[str]:
        """The arguments of the command line, with paths filled in."""
        names = {"INPUTS": inputs, "OUT": out, "PLACE": out.parent}
        words = shlex.split(self.line)
        for name, path in names.items():
            words = [word.replace(name, str(path)) for word in words]
        return words


_IMPORTS_OF_T5 = ("transformers.models.t5.modeling_t5", "mtkd.api.augmentation")
_IMPORTS_OF_ONNX = ("torch.onnx", "onnxscript", "onnxruntime", "onnx")
COMMANDS = {
    "refine": Command(
        f"refine {_TRAIN} {_SMALL} --tasks sst2 --encoder INPUTS/encoder --epochs 2 --set max_length=16 "
        "--out OUT",
        ("encoder",),
    ),
    "distill": Command(
        f"distill mlkd-bert-4 {_TRAIN} {_SMALL} {_SETS} --epochs 1 --tasks sst2 --teacher INPUTS/teacher "
        "--out OUT",
        ("teacher",),
    ),
    "finetune": Command(
        f"finetune {_TRAIN} {_SMALL} --epochs 1 --task sst2 --model INPUTS/teacher "
        "--set learning_rates=[1e-3,1e-5] --out OUT",
        ("teacher",),
    ),
    "store build": Command(
        f"store build --recipe mlkd-bert-4 {_SETS} --data pocket --tasks sst2,rte --limit 24 "
        "--teacher INPUTS/teacher2 --quiet --out OUT",
        ("teacher2",),
    ),
    "augment mask": Command(f"augment mask {_ROWS}"),
    "augment replace": Command(
        "augment replace --data pocket --tasks sst2 --limit 24 --copies 2 --tagger none --quiet --out OUT"
    ),
    "augment contextual": Command(
        f"augment contextual --model INPUTS/masked-lm --device cpu {_ROWS}",
        ("masked-lm",),
        ("augment.masked_lm", "transformers.models.bert.modeling_bert", "mtkd.api.augmentation"),
    ),
    "augment run": Command(f"augment run mask --set p=0.3 {_ROWS}"),
    "augment run, plugin": Command(
        f"INPUTS/plugin augment run reverse --set start=7 {_ROWS}",
        ("plugin",),
        call="prepared_commands:with_site",
    ),
    "augment questions train": Command(
        "augment questions train --data pocket --task squad_v2 --model scratch --steps 4 --batch 8 "
        "--max-input 48 --max-output 12 --vocab-size 150 --d-model 16 --layers 1 --heads 2 --d-ff 32 "
        "--limit 24 --eval-limit 4 --quiet --out OUT",
        imports=("augment.questions.training.train_generator", *_IMPORTS_OF_T5),
    ),
    "augment questions generate": Command(
        f"augment questions generate --model INPUTS/generator --sample --temperature 2 {_QUESTIONS}",
        ("generator", "paragraphs.txt"),
        ("augment.questions.generation.generate", *_IMPORTS_OF_T5),
    ),
    "augment questions generate, rules": Command(
        f"augment questions generate --model rules {_QUESTIONS}",
        ("paragraphs.txt",),
        ("augment.questions.generation.generate", "mtkd.api.augmentation"),
    ),
    "augment questions generate, endpoint": Command(
        f"augment questions generate --model ENDPOINT --endpoint-model tiny --concurrency 1 {_QUESTIONS}",
        ("paragraphs.txt",),
        ("augment.questions.endpoint.prepare_endpoint", "mtkd.api.augmentation"),
    ),
    "augment questions filter": Command(
        "augment questions filter --corpus INPUTS/questions --teacher INPUTS/reader --any-form "
        "--no-round-trip --shard-rows 8 --labels --min-overlap 0.01 --quiet --out OUT",
        ("questions", "reader"),
    ),
    "export": Command(
        "export --model INPUTS/teacher --quiet --out OUT",
        ("teacher",),
        _IMPORTS_OF_ONNX,
    ),
    "export, int8": Command(
        "export --model INPUTS/teacher --int8 --max-drop 100 --full-range --data pocket --limit 16 "
        "--quiet --out OUT",
        ("teacher",),
        (*_IMPORTS_OF_ONNX, "mtkd.onnx_export.int8"),
    ),
    "export, transformers": Command(
        "export --model INPUTS/classifier --format transformers --data pocket --limit 16 --quiet --out OUT",
        ("classifier",),
        second=(),
    ),
    "compare": Command(
        "compare PLACE/grid.toml --data pocket --teacher INPUTS/teacher --limit 24 --eval-limit 16 "
        "--epochs 2 --json PLACE/table.json --out OUT",
        ("teacher",),
        ("matplotlib.pyplot",),
        files={"grid.toml": _GRID},
        second=(),
    ),
    "run": Command("run PLACE/pipeline.toml", ("encoder",), files={"pipeline.toml": _PIPELINE}),
    "demo": Command("demo --tiny --quiet --out OUT", imports=("mtkd.reporting.page",), stride=60),
    "evaluate": Command(
        "evaluate --model INPUTS/teacher2 --data pocket --limit 16 --device cpu --quiet --predictions OUT "
        "--json PLACE/scores.json",
        ("teacher2",),
        locks=False,
        second=(),
    ),
    "predict": Command(
        "predict --model INPUTS/teacher --in PLACE/rows.csv --out OUT/predicted.csv --quiet",
        ("teacher",),
        files={"rows.csv": "sentence\n" + "".join(f"a fine film of {n} minutes\n" for n in range(60))},
        locks=False,
        second=(),
    ),
    "predict, submission": Command(
        "predict --model INPUTS/teacher --data pocket --device cpu --quiet --glue-submission OUT",
        ("teacher",),
        second=(),
    ),
    "report html": Command(
        "report html INPUTS/teacher INPUTS/student --quiet --out OUT/page.html",
        ("teacher", "student"),
        ("mtkd.reporting.page",),
        locks=False,
    ),
    "report knowledge": Command(
        "report knowledge INPUTS/hidden --json PLACE/points.json --quiet --out OUT",
        ("hidden",),
        ("matplotlib.figure", "matplotlib.backends.backend_agg", "mtkd.reporting.knowledge_curve"),
        locks=False,
        second=(),
    ),
    "report plot": Command(
        "report plot INPUTS/comparison --quiet --out OUT/plot.png",
        ("comparison",),
        ("matplotlib.figure", "matplotlib.backends.backend_agg", "mtkd.reporting.plot_comparisons"),
        locks=False,
    ),
    "pull": Command(
        "HUB pull someone/model --out OUT",
        ("teacher",),
        ("huggingface_hub._snapshot_download",),
        call="prepared_commands:with_hub",
        second=(),
    ),
    "init": Command(
        "init PLACE/rows.csv --out OUT",
        files={
            "rows.csv": "text,label\n"
            + "".join(f"a row of number {n},{'yes' if n % 3 else 'no'}\n" for n in range(60))
        },
        second=(),
    ),
}
COMMANDS |= {
    f"{name}, workers": replace(COMMANDS[name], line=f"{COMMANDS[name].line} --workers 2", stride=3)
    for name in ("augment mask", "augment run, plugin", "augment questions generate, rules", "store build")
}


_SIZES: dict[str, int] = {
    "vocab_size": 30522,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}


def _encoder(path: Path, run: Run) -> None:
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from mtkd.models.encoders.pretrained_config import locate

    torch.manual_seed(0)
    BertModel(BertConfig(**_SIZES)).save_pretrained(path)
    AutoTokenizer.from_pretrained(locate("minilm")).save_pretrained(path)


def _teacher(tasks: str, settings: str = "") -> Callable[[Path, Run], None]:
    def make(path: Path, run: Run) -> None:
        encoder = needed(path.parent, "encoder", run)
        line = (
            f"refine {_TRAIN} --tasks {tasks} --encoder {encoder} --epochs 1 --set max_length=24 "
            f"--set train.batch_size=8 --set stride=8 {settings} --out {path}"
        )
        run(*shlex.split(line))

    return make


def _made_by(name: str) -> Callable[[Path, Run], None]:
    """The output of one of the commands."""

    def make(path: Path, run: Run) -> None:
        command = COMMANDS[name]
        for needs in command.needs:
            needed(path.parent, needs, run)
        for file, text in (command.files or {}).items():
            (path.parent / file).write_text(text)
        run(*command.words(path.parent, path))

    return make


def _paragraphs(path: Path, run: Run) -> None:
    path.write_text(
        "\n".join(
            f"Anna was born in Rome in {1900 + n}. The river is {n} miles long and the city of Oslo is near."
            for n in range(24)
        )
    )


def _hidden(path: Path, run: Run) -> None:
    teacher = needed(path.parent, "teacher", run)
    sizes = {**_STUDENT, "terms.hidden.depth": 2, "terms.hidden.tokens": 4, "terms.hidden.width": 0.5}
    del sizes["terms.mha.relation_heads"]
    sets = " ".join(f"--set {key}={value}" for key, value in sizes.items())
    run(
        *shlex.split(
            f"distill hsk-tinybert-4 {_TRAIN} {sets} --epochs 1 --tasks sst2 --teacher {teacher} --out {path}"
        )
    )


def _masked_lm(path: Path, run: Run) -> None:
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    from mtkd.models.encoders.pretrained_config import locate

    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**_SIZES)).save_pretrained(path)
    AutoTokenizer.from_pretrained(locate("minilm")).save_pretrained(path)


def _plugin(path: Path, run: Run) -> None:
    """Write the metadata of an installed package with the augmenter `reverse`."""
    info = path / "reversing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reversing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mtkd.augmenters]\nreverse = reversing_plugin:Reverse\n")


_INPUTS: dict[str, Callable[[Path, Run], None]] = {
    "encoder": _encoder,
    "teacher": _teacher("sst2"),
    "teacher2": _teacher("sst2,rte"),
    "reader": _teacher("squad"),
    "classifier": _teacher("sst2", "--set pooling=pooler --set pairs=cross-encoder"),
    "student": _made_by("distill"),
    "hidden": _hidden,
    "comparison": _made_by("compare"),
    "masked-lm": _masked_lm,
    "plugin": _plugin,
    "generator": _made_by("augment questions train"),
    "paragraphs.txt": _paragraphs,
    "questions": _made_by("augment questions generate"),
}


def needed(inputs: Path, name: str, run: Run) -> Path:
    """Return an input, which is made when it is first needed."""
    path = inputs / name
    if not path.exists():
        inputs.mkdir(parents=True, exist_ok=True)
        _INPUTS[name](path, run)
    return path


def reset(inputs: Path) -> None:
    """Remove the files that commands keep beside their inputs."""
    for kept in inputs.glob("*/logits-*"):
        shutil.rmtree(kept)
