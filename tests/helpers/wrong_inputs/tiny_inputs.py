# ruff: noqa: E501
"""Builds tiny models, data sets and stores for the tests of wrong inputs, and runs commands in this process."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_endpoint import FakeEndpoint, serve

from tasks.common.records import CHECK, has_check

TIMEOUT_SECONDS = 200


@dataclass(frozen=True)
class Case:
    """A command with one thing wrong.

    Attributes:
        name: what is wrong.
        arguments: called with the tiny inputs and an empty directory; damages an input there, and returns the arguments of
            the command.
        must_fail: False if the command may also succeed.
    """

    name: str
    arguments: Callable[[TinyInputs, Path], list[Any]]
    must_fail: bool = True


@dataclass
class TinyInputs:
    """Tiny inputs of every kind: `inputs.teacher` is the directory of one, which is built when it is first needed."""

    root: Path
    builders: dict[str, Callable[[TinyInputs, Path], None]] = field(default_factory=lambda: dict(BUILDERS))
    running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @functools.cached_property
    def endpoint(self) -> FakeEndpoint:
        """A server, until `running` is closed."""
        return self.running.enter_context(serve())

    def __getattr__(self, name: str) -> Path:
        if name not in self.builders:
            raise AttributeError(name)
        directory = self.root / name
        if not (self.root / f"{name}.finished").exists():
            shutil.rmtree(directory, ignore_errors=True)
            self.builders[name](self, directory)
            (self.root / f"{name}.finished").touch()
        return directory

    def copy(self, name: str, directory: Path) -> Path:
        """Copy an input into a directory by hard links, so `replace` its files and never write into them.

        The copy has no digests, so that the command reads the damaged content.
        """
        left_out = shutil.ignore_patterns("digests.json")
        shutil.copytree(getattr(self, name), directory / name, copy_function=os.link, ignore=left_out)
        for file in (directory / name).rglob("*.json"):
            if has_check(file) and CHECK in (values := json.loads(file.read_text())):
                replace(file, json.dumps({key: value for key, value in values.items() if key != CHECK}))
        return directory / name


def run(words: list[Any]) -> tuple[str, str]:
    """Run a command in this process.

    Returns:
        "refused" (exit code 2 and one error message), "accepted" (exit code 0), "hang", "code N", or "traceback ..."
        with the exception and where it was raised; and what the command printed.
    """
    from mtkd.cli.main import main

    def on_timeout(*_: Any) -> None:
        raise TimeoutError("no answer")

    printed = io.StringIO()
    before, argv, handler = Path.cwd(), sys.argv, signal.signal(signal.SIGALRM, on_timeout)
    sys.argv = ["mtkd", *map(str, words)]
    signal.alarm(TIMEOUT_SECONDS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
        answer = "accepted"
    except SystemExit as left:
        text = printed.getvalue()
        clean_error = left.code == 2 and "error: " in text and "Traceback" not in text
        answer = "refused" if clean_error else "accepted" if not left.code else f"code {left.code}"
    except TimeoutError:
        answer = "hang"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        own_frames = [
            frame
            for frame in where
            if "/site-packages/" not in frame.filename and "helpers" not in frame.filename
        ]
        last = own_frames[-1]
        line = f"{type(error).__name__}: {error}".splitlines()[0][:150]
        answer = f"traceback {line} @ {'/'.join(last.filename.split('/')[-3:])}:{last.lineno} {last.name}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        sys.argv = argv
        os.chdir(before)
    return answer, printed.getvalue()


def run_accepted(*words: Any) -> None:
    answer, printed = run([*words, "--quiet"])
    assert answer == "accepted", (answer, printed)


TINY_TRAINING = ("--limit", 32, "--eval-limit", 16, "--epochs", 1, "--batch", 16)
ONE_STEP = ("--limit", 32, "--eval-limit", 16, "--steps", 1, "--batch", 16)


TINY_BILSTM = [
    f"--set=student.bilstm.{part}_size=8" for part in ("hidden", "output", "projection", "embedding")
]


POCKET = ("--data", "pocket", "--tasks", "rte")


TINY_HSK = [
    f"--set={setting}"
    for setting in (
        "student.max_length=24", "student.transformer.layers=2", "student.transformer.hidden_size=12",
        "student.transformer.heads=2", "student.transformer.intermediate_size=16", "terms.hidden.depth=2",
        "terms.hidden.tokens=4", "terms.hidden.width=0.5",
    )
]  # fmt: skip


TINY_MLM = (
    "--set=student.transformer.hidden_size=16",
    "--set=student.transformer.heads=2",
    "--set=terms.relation.relation_heads=2",
    "--set=student.transformer.layers=2",
)


TINY_T5 = ("--vocab-size", 150, "--d-model", 16, "--layers", 1, "--heads", 2, "--d-ff", 32)


def _encoder(inputs: TinyInputs, directory: Path) -> None:
    """A transformers checkpoint of BERT with random weights, without a head."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from mtkd.models.encoders.pretrained_config import locate

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=30522, max_position_embeddings=128, **sizes)).save_pretrained(directory)
    AutoTokenizer.from_pretrained(locate("minilm")).save_pretrained(directory)


def _checkpoint(inputs: TinyInputs, directory: Path) -> None:
    """A fine-tuned transformers checkpoint for RTE."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    labels = {
        "id2label": {0: "entailment", 1: "not_entailment"},
        "label2id": {"entailment": 0, "not_entailment": 1},
    }
    config = BertConfig.from_pretrained(inputs.encoder, **labels)
    BertForSequenceClassification(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(inputs.encoder).save_pretrained(directory)


def _unfinished(inputs: TinyInputs, directory: Path) -> None:
    """A run that stopped after its first checkpoint."""
    import mtkd

    class Stop(mtkd.Callback):
        def on_save(self, state: mtkd.TrainingState, control: mtkd.TrainingControl) -> None:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        mtkd.refine(
            inputs.encoder,
            data="pocket",
            tasks="rte",
            limit=8,
            eval_limit=4,
            steps=4,
            out=directory,
            callbacks=[Stop()],
            settings={"train.checkpoint_steps": 2, "train.batch_size": 4, "max_length": 16},
        )


def _rows(inputs: TinyInputs, directory: Path) -> None:
    """The rows of two splits, and topics.toml, the task that reads them."""
    directory.mkdir()
    rows = [{"text": f"row {n} is {'good' if n % 2 else 'bad'}", "label": "ab"[n % 2]} for n in range(40)]
    for split in ("train", "validation"):
        (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = 'name = "topics"\nkind = "classify"\ncolumns = ["text"]\nlabels = ["a", "b"]\n'
    files = 'train = "train.jsonl"\nvalidation = "validation.jsonl"\n'
    (directory / "topics.toml").write_text(f"{task}[files]\n{files}")


def _grid(inputs: TinyInputs, directory: Path) -> None:
    directory.mkdir()
    (directory / "grid.toml").write_text(
        'title = "t"\nrecipe = "mkd-lstm"\ntasks = ["rte"]\nseeds = [0]\n[set]\n"train.epochs" = 1\n[cells.a]\n[cells.b]\n'
    )


def _pipeline(inputs: TinyInputs, directory: Path) -> None:
    """A pipeline of one step, and its finished output."""
    directory.mkdir()
    (directory / "job.toml").write_text(
        f'data = "pocket"\ntasks = "rte"\nlimit = 32\nout = "out"\n[steps.teacher]\ncommand = "refine"\n'
        f'encoder = "{inputs.encoder}"\nepochs = 1\n'
    )
    run_accepted("run", directory / "job.toml")


def teacher_command(inputs: TinyInputs, out: Path) -> list[Any]:
    """The arguments that train the input `teacher`."""
    words = ("--tasks", "sst2,rte,stsb", "--encoder", inputs.encoder, "--out", out, "--set", "max_length=32")
    return ["refine", "--data", "pocket", *words, *TINY_TRAINING]


BUILDERS: dict[str, Callable[[TinyInputs, Path], None]] = {
    "encoder": _encoder,
    "checkpoint": _checkpoint,
    "unfinished": _unfinished,
    "rows": _rows,
    "grid": _grid,
    "pipeline": _pipeline,
    "teacher": lambda inputs, out: run_accepted(*teacher_command(inputs, out)),
    "student": lambda inputs, out: run_accepted(
        "distill", "mkd-lstm", *POCKET, "--teacher", inputs.teacher, "--out", out, *TINY_TRAINING, *TINY_BILSTM
    ),
    "knowledge": lambda inputs, out: run_accepted(
        "distill", "hsk-tinybert-4", *POCKET, "--teacher", inputs.teacher, "--out", out, *TINY_TRAINING, *TINY_HSK
    ),
    "corpus": lambda inputs, out: run_accepted("augment", "mask", *POCKET, "--limit", 32, "--copies", 2, "--out", out),
    "store": lambda inputs, out: run_accepted(
        "store", "build", "--recipe", "hsk-tinybert-4", *POCKET, "--limit", 32, "--teacher", inputs.teacher,
        "--out", out, *TINY_HSK,
    ),
    "export": lambda inputs, out: run_accepted("export", "--model", inputs.student, "--out", out),
    "compared": lambda inputs, out: run_accepted(
        "compare", inputs.grid / "grid.toml", "--data", "pocket", "--teacher", inputs.teacher, "--out", out, *TINY_TRAINING[:4], *TINY_BILSTM
    ),
    "generator": lambda inputs, out: run_accepted(
        "augment", "questions", "train", "--data", "pocket", "--task", "squad", "--model", "scratch",
        "--out", out, "--limit", 16, "--steps", 2, "--batch", 8, "--max-input", 64, "--max-output", 12, *TINY_T5,
    ),
    "texts": lambda inputs, out: (out.mkdir(), (out / "text.txt").write_text("Anna was born in Rome in 1990 . " * 12 + "\n")),
}  # fmt: skip


def remove(directory: Path) -> None:
    """Remove the files that a case has made, and leave their directory: no command runs in a removed one."""
    os.chdir(directory.parent)
    shutil.rmtree(directory, ignore_errors=True)


def replace(file: Path, content: str | bytes) -> None:
    """Replace a file without changing other hard links to the old content."""
    file.unlink(missing_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def write_file(directory: Path, name: str, content: str | bytes) -> Path:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    replace(directory / name, content)
    return directory / name
