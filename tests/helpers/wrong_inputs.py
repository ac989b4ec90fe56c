# ruff: noqa: E501
"""Wrong inputs of every command: what each test damages, and how the command is run."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.records import CHECK, has_check

BIG, DEEP = 10**30, 100_000
DIGITS = "9" * 5000
SURROGATE = "\\ud800"  # as JSON writes it
# What stands in place of each value of a JSON file.
WRONG: dict[str, Any] = {
    "null": None, "list": [], "table": {}, "text": "x", "empty": "", "-1": -1, "0": 0, "1e300": 1e300,
    "big": BIG, "nan": float("nan"), "true": True, "dots": "..", "dotted": "a.b", "long": "x" * 5000,
    "nested": [[{}]],
}  # fmt: skip
MISSING = object()
SECONDS = 40


@dataclass(frozen=True)
class Case:
    """A command with something wrong.

    Attributes:
        name: what is wrong.
        words: lab, empty directory -> the words of the command, after what they name was damaged.
        refused: False if the command may also accept the input.
    """

    name: str
    words: Callable[[Lab, Path], list[Any]]
    refused: bool = True


@dataclass
class Lab:
    """Tiny inputs of every kind, each made once, when a case needs it."""

    root: Path
    make: dict[str, Callable[[Lab, Path], None]] = field(default_factory=lambda: dict(MAKERS))

    def __getattr__(self, name: str) -> Path:
        if name not in self.make:
            raise AttributeError(name)
        place = self.root / name
        if not (self.root / f"{name}.finished").exists():
            shutil.rmtree(place, ignore_errors=True)
            self.make[name](self, place)
            (self.root / f"{name}.finished").touch()
        return place

    def copy(self, name: str, to: Path) -> Path:
        """A copy of an input whose files may be replaced, but not written into; without digests of them."""
        left_out = shutil.ignore_patterns("digests.json")
        shutil.copytree(getattr(self, name), to / name, copy_function=os.link, ignore=left_out)
        for file in (to / name).rglob("*.json"):
            if has_check(file):
                replace(
                    file, json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != CHECK})
                )
        return to / name


def run(words: list[Any]) -> tuple[str, str]:
    """Run a command in this process.

    Returns:
        "refused" (exit code 2 with one error), "accepted" (0), "hang", or "code N" or the traceback's last
        line; and what the command printed.
    """
    from mtkd.cli.main import main

    def late(*_: Any) -> None:
        raise TimeoutError("no answer")

    printed = io.StringIO()
    before, argv, handler = Path.cwd(), sys.argv, signal.signal(signal.SIGALRM, late)
    sys.argv = ["mtkd", *map(str, words)]
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
        answer = "accepted"
    except SystemExit as left:
        text = printed.getvalue()
        whole = left.code == 2 and "error: " in text and "Traceback" not in text
        answer = "refused" if whole else "accepted" if not left.code else f"code {left.code}"
    except TimeoutError:
        answer = "hang"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        ours = [f for f in where if "/site-packages/" not in f.filename and "wrong_inputs" not in f.filename]
        last = ours[-1]
        line = f"{type(error).__name__}: {error}".splitlines()[0][:150]
        answer = f"traceback {line} @ {'/'.join(last.filename.split('/')[-3:])}:{last.lineno} {last.name}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        sys.argv = argv
        os.chdir(before)
    return answer, printed.getvalue()


def _do(*words: Any) -> None:
    answer, printed = run([*words, "--quiet"])
    assert answer == "accepted", (answer, printed)


TINY = ("--limit", 32, "--eval-limit", 16, "--epochs", 1, "--batch", 16)
BILSTM = [f"--set=student.bilstm.{part}_size=8" for part in ("hidden", "output", "projection", "embedding")]
POCKET = ("--data", "pocket", "--tasks", "rte")
HSK = [
    f"--set={setting}"
    for setting in (
        "student.max_length=24", "student.transformer.layers=2", "student.transformer.hidden_size=12",
        "student.transformer.heads=2", "student.transformer.intermediate_size=16", "terms.hidden.depth=2",
        "terms.hidden.tokens=4", "terms.hidden.width=0.5",
    )
]  # fmt: skip
MLM = (
    "--set=student.transformer.hidden_size=16",
    "--set=student.transformer.heads=2",
    "--set=terms.relation.splits=2",
    "--set=student.transformer.layers=2",
)
T5 = ("--vocab-size", 150, "--d-model", 16, "--layers", 1, "--heads", 2, "--d-ff", 32)


def _encoder(lab: Lab, place: Path) -> None:
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from mtkd.models.encoders.pretrained_config import locate

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=30522, max_position_embeddings=128, **sizes)).save_pretrained(place)
    AutoTokenizer.from_pretrained(locate("minilm")).save_pretrained(place)


def _rows(lab: Lab, place: Path) -> None:
    place.mkdir()
    rows = [{"text": f"row {n} is {'good' if n % 2 else 'bad'}", "label": "ab"[n % 2]} for n in range(40)]
    for split in ("train", "validation"):
        (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = 'name = "topics"\nkind = "classify"\ncolumns = ["text"]\nlabels = ["a", "b"]\n'
    files = 'train = "train.jsonl"\nvalidation = "validation.jsonl"\n'
    (place / "topics.toml").write_text(f"{task}[files]\n{files}")


def _grid(lab: Lab, place: Path) -> None:
    place.mkdir()
    (place / "grid.toml").write_text(
        'title = "t"\nrecipe = "mkd-lstm"\ntasks = ["rte"]\nseeds = [0]\n[set]\n"train.epochs" = 1\n[cells.a]\n'
    )


def _pipeline(lab: Lab, place: Path) -> None:
    place.mkdir()
    (place / "job.toml").write_text(
        f'data = "pocket"\ntasks = "rte"\nlimit = 32\nout = "out"\n[steps.teacher]\ncommand = "refine"\n'
        f'encoder = "{lab.encoder}"\nepochs = 1\n'
    )
    _do("run", place / "job.toml")


MAKERS: dict[str, Callable[[Lab, Path], None]] = {
    "encoder": _encoder,
    "rows": _rows,
    "grid": _grid,
    "pipeline": _pipeline,
    "teacher": lambda lab, out: _do(
        "refine", "--data", "pocket", "--tasks", "sst2,rte,stsb", "--encoder", lab.encoder, "--out", out,
        *TINY, "--set", "max_length=32",
    ),
    "student": lambda lab, out: _do(
        "distill", "mkd-lstm", *POCKET, "--teacher", lab.teacher, "--out", out, *TINY, *BILSTM
    ),
    "knowledge": lambda lab, out: _do(
        "distill", "hsk-tinybert-4", *POCKET, "--teacher", lab.teacher, "--out", out, *TINY, *HSK
    ),
    "corpus": lambda lab, out: _do("augment", "mask", *POCKET, "--limit", 32, "--copies", 2, "--out", out),
    "store": lambda lab, out: _do(
        "store", "build", "--recipe", "hsk-tinybert-4", *POCKET, "--limit", 32, "--teacher", lab.teacher,
        "--out", out, *HSK,
    ),
    "export": lambda lab, out: _do("export", "--model", lab.student, "--out", out),
    "compared": lambda lab, out: _do(
        "compare", lab.grid / "grid.toml", "--data", "pocket", "--teacher", lab.teacher, "--out", out, *TINY[:4], *BILSTM
    ),
    "generator": lambda lab, out: _do(
        "augment", "questions", "train", "--data", "pocket", "--task", "squad", "--model", "fresh",
        "--out", out, "--limit", 16, "--steps", 2, "--batch", 8, "--max-input", 64, "--max-output", 12, *T5,
    ),
    "texts": lambda lab, out: (out.mkdir(), (out / "text.txt").write_text("Anna was born in Rome in 1990 . " * 12 + "\n")),
}  # fmt: skip


def remove(place: Path) -> None:
    """Remove what a case made."""
    shutil.rmtree(place, ignore_errors=True)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value of a JSON file; of a list, only those of its first two entries."""
    yield path
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, part in inner:
        yield from leaves(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """The value of a JSON file with a part replaced, or left out (`MISSING`)."""
    if not path:
        return None if wrong is MISSING else wrong
    value = copy.deepcopy(value)
    part = value
    for key in path[:-1]:
        part = part[key]
    if wrong is MISSING:
        del part[path[-1]]
    else:
        part[path[-1]] = wrong
    return value


def replace(file: Path, content: str | bytes) -> None:
    """Write a file anew, without touching other links to it."""
    file.unlink(missing_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


RAW = {  # contents of a JSON file that are no JSON, or hardly
    "nothing": "", "not JSON": "{", "latin-1": b'{"a": "\xe9"}', "NULs": b"\x00" * 64, "deep": "[" * DEEP,
    "digits": f'{{"format": {DIGITS}}}', "surrogate": f'{{"format": "{SURROGATE}"}}', "bool": "true",
}  # fmt: skip


def _evaluate(place: Path, out: Path) -> list[Any]:
    return ["evaluate", "--model", place, "--data", "pocket", "--tasks", "rte", "--limit", 4]


def _distill(place: Path, out: Path, *more: Any) -> list[Any]:
    small = ("--limit", 8, "--eval-limit", 4, "--steps", 1, "--batch", 4, *BILSTM)
    return ["distill", "mkd-lstm", *POCKET, "--teacher", place, "--out", out, *small, *more]


def _hsk(lab: Lab, out: Path, *more: Any) -> list[Any]:
    words = [
        "--teacher",
        lab.teacher,
        "--out",
        out,
        "--limit",
        32,
        "--eval-limit",
        4,
        "--steps",
        1,
        *HSK,
        *more,
    ]
    return ["distill", "hsk-tinybert-4", *POCKET, *words]


def _refine(encoder: Path, out: Path, *more: Any) -> list[Any]:
    return ["refine", *POCKET, "--encoder", encoder, "--out", out, *TINY, "--steps", 1, *more]


def _predict(model: Path, out: Path, source: Path | None = None) -> list[Any]:
    if source is None:
        source = out.with_name("rows.jsonl")
        source.write_text('{"sentence1": "A man sleeps.", "sentence2": "A man rests."}\n')
    return ["predict", "--model", model, "--task", "rte", "--in", source, "--out", out.with_suffix(".jsonl")]


def _generate(model: Path, text: Path, out: Path, *more: Any) -> list[Any]:
    return ["augment", "questions", "generate", "--model", model, "--text", text, "--out", out, *more]


# JSON files: the input, the file in it, and the commands that read it.
Command = Callable[["Lab", Path, Path], list[Any]]
JSON_FILES: list[tuple[str, str, dict[str, Command]]] = [
    ("teacher", "model/model.json", {
        "evaluate": lambda lab, place, out: _evaluate(place, out),
        "distill": lambda lab, place, out: _distill(place, out),
    }),
    ("teacher", "run.json", {
        "report": lambda lab, place, out: ["report", "html", place, "--out", out.with_suffix(".html")],
        "distill": lambda lab, place, out: _distill(place, out),
        "out": lambda lab, place, out: _refine(lab.encoder, place),
    }),
    ("teacher", "model/tokenizer_config.json", {"evaluate": lambda lab, place, out: _evaluate(place, out)}),
    ("student", "model/model.json", {"evaluate": lambda lab, place, out: _evaluate(place, out)}),
    ("student", "run.json", {
        "report": lambda lab, place, out: ["report", "html", lab.teacher, place, "--out", out.with_suffix(".html")],
    }),
    ("knowledge", "run.json", {"report": lambda lab, place, out: ["report", "knowledge", place, "--out", out]}),
    ("encoder", "config.json", {"refine": lambda lab, place, out: _refine(place, out)}),
    ("encoder", "tokenizer_config.json", {"refine": lambda lab, place, out: _refine(place, out)}),
    ("corpus", "manifest.json", {
        "distill": lambda lab, place, out: _distill(lab.teacher, out, "--corpus", place, "--limit", 32),
        "out": lambda lab, place, out: [
            "augment", "mask", *POCKET, "--limit", 32, "--copies", 2, "--out", place
        ],
    }),
    ("store", "manifest.json", {
        "distill": lambda lab, place, out: _hsk(lab, out, "--store", place),
        "info": lambda lab, place, out: ["store", "info", place],
        "verify": lambda lab, place, out: ["store", "verify", place],
        "repair": lambda lab, place, out: ["store", "build", "--repair", "--out", place],
    }),
    ("export", "export.json", {"predict": lambda lab, place, out: _predict(place, out)}),
    ("export", "model.json", {"predict": lambda lab, place, out: _predict(place, out)}),
    ("generator", "questions.json", {
        "generate": lambda lab, place, out: _generate(place, lab.texts, out),
    }),
    ("generator", "config.json", {"generate": lambda lab, place, out: _generate(place, lab.texts, out)}),
    ("pipeline", "out/pipeline.json", {
        "run": lambda lab, place, out: ["run", place / "job.toml", "--dry-run"],
    }),
]  # fmt: skip


def json_cases() -> Iterator[Case]:
    """Every value of every JSON file that commands read, replaced by each wrong one."""

    def damage(lab: Lab, at: Path, item: str, file: str, content: Callable[[Path], str | bytes]) -> Path:
        place = lab.copy(item, at)
        replace(place / file, content(place / file))
        return place

    for item, file, commands in JSON_FILES:
        for command, words in commands.items():
            for name, raw in RAW.items():
                yield Case(
                    f"{item}/{file} ({command}) {name}",
                    lambda lab, at, i=item, f=file, w=words, r=raw: w(
                        lab, damage(lab, at, i, f, lambda _: r), at / "out"
                    ),
                    refused=name != "surrogate",  # it is JSON, and some records may have further keys
                )
    # the values depend on the file, which only the lab has: `value_cases`


def value_cases(lab: Lab, only: str = "") -> Iterator[Case]:
    for item, file, commands in JSON_FILES:
        if only not in f"{item}/{file}":
            continue
        value = json.loads((getattr(lab, item) / file).read_text())
        value.pop(CHECK, None)
        for path in leaves(value):
            for kind, wrong in (*WRONG.items(), ("missing", MISSING)):
                for command, words in commands.items():
                    name = f"{item}/{file} ({command}) {'.'.join(map(str, path))} = {kind}"
                    text = json.dumps(changed(value, path, wrong))

                    def make(lab: Lab, at: Path, i=item, f=file, w=words, t=text) -> list[Any]:
                        place = lab.copy(i, at)
                        replace(place / f, t)
                        return w(lab, place, at / "out")

                    yield Case(name, make, refused=False)


def _in(at: Path, name: str, content: str | bytes) -> Path:
    (at / name).parent.mkdir(parents=True, exist_ok=True)
    replace(at / name, content)
    return at / name


NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e300",
    str(BIG),
    DIGITS,
    "99999999999",
    "x",
    "",
    "9223372036854775808",
)
TEXTS = ("", ".", "..", "a/b", "x" * 5000, "\udcff", "a\tb", "\x1b[31m")
COMMANDS: dict[str, Command] = {
    "refine": lambda lab, at, out: _refine(lab.encoder, out),
    "distill": lambda lab, at, out: _distill(lab.teacher, out),
    "finetune": lambda lab, at, out: [
        "finetune", "--model", lab.student, "--task", "rte", "--data", "pocket", "--out", out, "--limit", 8,
        "--eval-limit", 4, "--steps", 1,
    ],
    "evaluate": lambda lab, at, out: _evaluate(lab.student, out),
    "predict": lambda lab, at, out: _predict(lab.student, out),
    "mask": lambda lab, at, out: ["augment", "mask", *POCKET, "--limit", 8, "--out", out],
    "replace": lambda lab, at, out: ["augment", "replace", *POCKET, "--limit", 8, "--out", out],
    "qgen": lambda lab, at, out: _generate(lab.generator, lab.texts, out),
    "qtrain": lambda lab, at, out: [
        "augment", "questions", "train", "--data", "pocket", "--task", "squad", "--out", out, "--limit", 16,
        "--steps", 1, "--batch", 8, "--max-input", 64, "--max-output", 12, *T5,
    ],
    "compare": lambda lab, at, out: [
        "compare", lab.grid / "grid.toml", "--data", "pocket", "--teacher", lab.teacher, "--out", out, "--dry-run",
    ],
    "store": lambda lab, at, out: [
        "store", "plan", "--recipe", "hsk-tinybert-4", *POCKET, "--limit", 32, "--teacher", lab.teacher, *HSK,
    ],
    "bench": lambda lab, at, out: ["bench", "inference", "--model", lab.student, "--rounds", 1, "--batch", 2, "--seq-len", 8],
    "suggest": lambda lab, at, out: ["suggest", "--teacher", lab.encoder, "--seq-len", 8, "--batch", 2, "--rounds", 1, "--target-speedup", 2],
    "check": lambda lab, at, out: ["data", "check", *POCKET],
    "init": lambda lab, at, out: ["init", lab.rows / "train.jsonl", "--out", out],
    "report": lambda lab, at, out: ["report", "html", lab.teacher, "--out", out.with_suffix(".html")],
}  # fmt: skip
LONG = ("--steps", "--epochs", "--rounds", "--warmup")  # a large number is only a lot of work


def option_cases() -> Iterator[Case]:
    """Every option of every command, with wrong numbers and texts."""
    import click

    from mtkd.cli.main import cli

    for name, words in COMMANDS.items():
        command = {
            "mask": "augment mask", "replace": "augment replace", "qgen": "augment questions generate",
            "qtrain": "augment questions train", "store": "store plan", "bench": "bench inference",
            "check": "data check", "report": "report html",
        }.get(name, name)  # fmt: skip
        context = click.Context(cli)
        found: Any = cli
        for word in command.split():
            found = found.get_command(context, word)
        for option in found.params:
            if not isinstance(option, click.Option) or option.is_flag or option.opts[0] == "--quiet":
                continue
            flag = option.opts[0]
            numeric = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
            for value in (
                NUMBERS if numeric or flag in ("--copies", "--seeds", "--budget", "--words") else TEXTS
            ):
                if flag in LONG and value.isdigit() and len(value) < 9:
                    continue
                yield Case(
                    f"cli {name} {flag} {value[:30]!r}",
                    lambda lab, at, w=words, f=flag, v=value: [*w(lab, at, at / "out"), f"{f}={v}"],
                    refused=False,
                )


SETTINGS = (
    "train.lr", "train.batch_size", "train.seed", "train.weight_decay", "train.warmup", "train.clip", "train.eps",
    "student.dropout", "student.bilstm.hidden_size", "student.max_length", "student.head_hidden",
    "student.vocabulary_size", "train.betas", "train.epochs", "terms.soft_labels.temperature", "train.micro_batch",
    "train.min_confidence", "train.patience", "train.class_weights", "slow_build", "student.stride",
)  # fmt: skip
SET_VALUES = (
    "nan", "inf", "-1", "0", "1e300", "1e-300", str(BIG), DIGITS, "[]", "{}", "''", "true", "[nan]", "[1e300, 1]",
    "[" * 2000, "0x" + "f" * 5000, "99999999999", "none", "1979-05-27", "[[0, 1e300], [1, 0]]",
)  # fmt: skip


def setting_cases() -> Iterator[Case]:
    for setting in SETTINGS:
        for value in SET_VALUES:
            yield Case(
                f"--set {setting}={value[:30]}",
                lambda lab, at, s=setting, v=value: _distill(lab.teacher, at / "out", f"--set={s}={v}"),
                refused=False,
            )
    for value in (*SET_VALUES, "[-1e-3]", "[1e-3, nan]"):
        yield Case(
            f"--set finetune learning_rates={value[:30]}",
            lambda lab, at, v=value: [
                *COMMANDS["finetune"](lab, at, at / "out"),
                f"--set=learning_rates={v}",
            ],
            refused=False,
        )
    for key in (
        "student.transformer.embedding_size",
        "student.transformer.layers",
        "student.transformer.hidden_size",
    ):
        for value in SET_VALUES:
            yield Case(
                f"--set tinybert {key}={value[:30]}",
                lambda lab, at, k=key, v=value: _hsk(lab, at / "out", f"--set={k}={v}"),
                refused=False,
            )


TASK_VALUES = (
    "''", "'keys'", "'train'", "'..'", "'a.b'", "'a/b'", "[]", "{}", "1", "-1", "true", "nan", "inf", str(BIG), DIGITS,
    "[0, inf]", "[0, 1e308]", "[1, 0]", f"[0, {BIG}]", "[1e16, 1.0000000000000002e16]", "'text'", "'" + "x" * 5000 + "'",
    "['a', 'a']", "[1, 2]", "[" * 3000, "[" * 3000 + "]" * 3000, "{a = 1}", "'\\u001b'", "\"\\u001b[31m\"", "0x" + "f" * 5000,
    "['']", "'.'", "{train = '.'}", "{train = ''}", "{train = 'train.jsonl.gz'}", "{train = 1}", "1979-05-27",
)  # fmt: skip
TASK_KEYS = (
    "name", "kind", "columns", "labels", "label", "range", "group", "positive", "metrics", "groups", "head", "map",
    "copies", "unanswerable", "languages", "soft_labels", "soft_labels_kind", "extends", "files", "other",
)  # fmt: skip


def task_cases() -> Iterator[Case]:
    base = {"name": "'topics'", "kind": "'classify'", "columns": "['text']", "labels": "['a', 'b']"}
    files = {"train": "'train.jsonl'", "validation": "'validation.jsonl'"}
    for key in TASK_KEYS:
        for value in TASK_VALUES:
            for command in ("check", "refine"):

                def make(lab: Lab, at: Path, k=key, v=value, c=command) -> list[Any]:
                    place = lab.copy("rows", at)
                    kind = {"kind": "'regress'"} if k == "range" else {}
                    tables = base | kind | ({k: v} if k != "files" else {})
                    if kind:
                        tables.pop("labels")
                    text = "".join(f"{name} = {given}\n" for name, given in tables.items())
                    text += (
                        f"files = {v}\n"
                        if k == "files"
                        else "[files]\n" + "".join(f"{split} = {file}\n" for split, file in files.items())
                    )
                    task = _in(place, "topics.toml", text)
                    if c == "check":
                        return ["data", "check", "--tasks", task]
                    return [
                        "refine",
                        "--tasks",
                        task,
                        "--encoder",
                        lab.encoder,
                        "--out",
                        at / "out",
                        *TINY,
                        "--steps",
                        1,
                    ]

                yield Case(f"task file ({command}) {key} = {value[:30]}", make, refused=False)
    for name, raw in {**RAW, "BOM": b"\xef\xbb\xbfname = 'a'"}.items():
        yield Case(
            f"task file {name}", lambda lab, at, r=raw: ["data", "check", "--tasks", _in(at, "t.toml", r)]
        )
        yield Case(
            f"grid {name}",
            lambda lab, at, r=raw: [
                "compare",
                _in(at, "g.toml", r),
                "--data",
                "pocket",
                "--teacher",
                lab.teacher,
                "--out",
                at / "out",
                "--dry-run",
            ],
        )
        yield Case(f"pipeline {name}", lambda lab, at, r=raw: ["run", _in(at, "p.toml", r), "--dry-run"])


GRID_KEYS = (
    "title",
    "source",
    "recipe",
    "tasks",
    "seeds",
    "set",
    "cells",
    "bench",
    "refine",
    "reference",
    "baselines",
    "cells.a",
    "cells.a.recipe",
    "cells.a.tasks",
    "cells.a.set",
    "cells.a.first",
    "cells.a.corpus",
    "cells.a.then",
    "cells.a.steps_of",
    "cells.a.limit",
    "bench.seq_len",
    "bench.batches",
    "refine.seed",
    "cells.a.set.train",
    "set.x",
)
PIPE_KEYS = (
    "title",
    "out",
    "data",
    "tasks",
    "seed",
    "device",
    "precision",
    "limit",
    "eval-limit",
    "steps",
    "steps.teacher",
    "steps.teacher.command",
    "steps.teacher.out",
    "steps.teacher.epochs",
    "steps.teacher.set",
    "steps.teacher.encoder",
    "steps.teacher.tasks",
    "steps.teacher.lr",
    "steps.teacher.title",
    "steps.a.command",
    "steps.teacher.quiet",
    "steps.teacher.json",
    "steps.teacher.data",
)


def toml_cases() -> Iterator[Case]:
    for key in GRID_KEYS:
        for value in TASK_VALUES:

            def make(lab: Lab, at: Path, k=key, v=value) -> list[Any]:
                base = {
                    "title": "'t'",
                    "recipe": "'mkd-lstm'",
                    "tasks": "['rte']",
                    "cells.a.recipe": "'mkd-lstm'",
                }
                text = "".join(
                    f"{name} = {given}\n"
                    for name, given in (base | {k: v}).items()
                    if not name.startswith(f"{k}.")
                )
                return [
                    "compare",
                    _in(at, "g.toml", text),
                    "--data",
                    "pocket",
                    "--teacher",
                    lab.teacher,
                    "--out",
                    at / "out",
                    "--dry-run",
                ]

            yield Case(f"grid {key} = {value[:30]}", make, refused=False)
    for key in PIPE_KEYS:
        for value in TASK_VALUES:

            def make(lab: Lab, at: Path, k=key, v=value) -> list[Any]:
                base = {
                    "data": "'pocket'",
                    "tasks": "'rte'",
                    "limit": "32",
                    "steps.teacher.command": "'refine'",
                    "steps.teacher.encoder": f"'{lab.encoder}'",
                }
                text = "".join(
                    f"{name} = {given}\n"
                    for name, given in (base | {k: v}).items()
                    if not name.startswith(f"{k}.")
                )
                return ["run", _in(at, "p.toml", text), "--dry-run"]

            yield Case(f"pipeline {key} = {value[:30]}", make, refused=False)


def _line(**values: Any) -> str:
    return json.dumps(values) + "\n"


def _table(columns: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    names, arrays = list(columns), list(columns.values())
    pq.write_table(
        pa.table([pa.array(values) for values in arrays], names=[n.rstrip("2") for n in names]), sink
    )
    return bytes(sink.getvalue())


WHOLE = "".join(_line(text=f"row {n}", label="ab"[n % 2]) for n in range(20))
# Files of rows with a text and a label: suffix, content, whether they must be refused.
TABLES: dict[str, tuple[str, Any, bool]] = {
    "empty": (".jsonl", "", True),
    "NULs": (".jsonl", b"\x00" * 100, True),
    "deep": (".jsonl", WHOLE + "[" * DEEP + "\n", True),
    "deep field": (".jsonl", _line(text="a", label="a", more=1) + '{"text": "a", "label": "a", "more": ' + "[" * DEEP + "}\n", True),
    "digits": (".jsonl", WHOLE + f'{{"text": "a", "label": {DIGITS}}}\n', True),
    "digits more": (".jsonl", f'{{"text": "a", "label": "a", "more": {DIGITS}}}\n', True),
    "long int": (".jsonl", WHOLE + f'{{"text": "a", "label": {10**400}}}\n', True),
    "surrogate text": (".jsonl", WHOLE + f'{{"text": "{SURROGATE}", "label": "a"}}\n', True),
    "surrogate label": (".jsonl", WHOLE + f'{{"text": "a", "label": "{SURROGATE}"}}\n', True),
    "surrogate name": (".jsonl", f'{{"text": "a", "label": "a", "{SURROGATE}": 1}}\n', True),
    "surrogate more": (".jsonl", f'{{"text": "a", "label": "a", "more": "{SURROGATE}"}}\n', True),
    "ints": (".jsonl", _line(text=1, label="a") * 3, True),
    "mixed": (".jsonl", WHOLE + _line(text=[1], label="a"), True),
    "label list": (".jsonl", WHOLE + _line(text="a", label=[1]), True),
    "label table": (".jsonl", WHOLE + _line(text="a", label={"a": {}}), True),
    "label nan": (".jsonl", WHOLE + '{"text": "a", "label": NaN}\n', True),
    "label escape": (".jsonl", WHOLE + _line(text="a", label="\x1b[31mred"), True),
    "name escape": (".jsonl", WHOLE + _line(text="a", label="a", **{"\x1b[31m": 1}), True),
    "csv quotes": (".csv", 'text,label\n"a,b\n', True),
    "csv field": (".csv", "text,label\n" + "x" * 200_000 + ",a\n", False),
    "csv NUL": (".csv", "text,label\na\x00,a\n", False),
    "csv twice": (".csv", "text,text,label\na,b,a\n", True),
    "csv header": (".csv", "\n\n", True),
    "csv utf16": (".csv", "text,label\na,a\n".encode("utf-16")[:-1], False),
    "tsv empty": (".tsv", "", True),
    "parquet not": (".parquet", "x", True),
    "parquet cut": (".parquet", b"PAR1" + b"\x00" * 40 + b"PAR1", True),
    "parquet ints": (".parquet", lambda: _table({"text": [1, 2], "label": ["a", "b"]}), True),
    "parquet twice": (".parquet", lambda: _table({"text": ["a"], "text2": ["b"], "label": ["a"]}), True),
    "parquet label twice": (".parquet", lambda: _table({"text": ["a"], "label": ["b"], "label2": ["a"]}), True),
    "parquet null": (".parquet", lambda: _table({"text": [None], "label": ["a"]}), True),
    "parquet list": (".parquet", lambda: _table({"text": [["a"]], "label": ["a"]}), True),
    "parquet bytes": (".parquet", lambda: _table({"text": [b"\xff"], "label": ["a"]}), True),
    "parquet label struct": (".parquet", lambda: _table({"text": ["a"], "label": [{"a": 1}]}), True),
    "parquet label bytes": (".parquet", lambda: _table({"text": ["a"], "label": [b"\xff"]}), True),
    "parquet label inf": (".parquet", lambda: _table({"text": ["a"], "label": [float("inf")]}), True),
    "parquet empty": (".parquet", lambda: _table({}), True),
    "gz not": (".jsonl.gz", WHOLE, True),
    "gz cut": (".jsonl.gz", gzip.compress(WHOLE.encode())[:-12], True),
    "gz trailing": (".jsonl.gz", gzip.compress(WHOLE.encode()) + b"xx", True),
    "gz damaged": (".jsonl.gz", gzip.compress(WHOLE.encode())[:20] + b"\x00\xff" * 20, True),
    "gz crc": (".jsonl.gz", gzip.compress(WHOLE.encode())[:-8] + b"\x00" * 8, True),
    "gz csv": (".csv.gz", b"", True),
}  # fmt: skip


def table_cases() -> Iterator[Case]:
    """Files of rows, read by `data check`, refine, predict and init."""

    def write(at: Path, entry: tuple[Any, Any, bool]) -> Path:
        content = entry[1]() if callable(entry[1]) else entry[1]
        return _in(at, f"in{entry[0]}", content)

    def task(lab: Lab, at: Path, file: str) -> Path:
        lab.copy("rows", at)
        text = (lab.rows / "topics.toml").read_text().replace('"train.jsonl"', f'"{file}"')
        return _in(at, "rows/topics.toml", text)

    for name, entry in TABLES.items():

        def check(lab: Lab, at: Path, e=entry) -> list[Any]:
            return ["data", "check", "--tasks", task(lab, at, str(write(at, e)))]

        def refine(lab: Lab, at: Path, e=entry) -> list[Any]:
            words = ["--encoder", lab.encoder, "--out", at / "out", *TINY, "--steps", 1]
            return ["refine", "--tasks", task(lab, at, str(write(at, e))), *words]

        def unlabelled(lab: Lab, at: Path, e=entry) -> list[Any]:
            return [
                "data",
                "check",
                "--tasks",
                lab.rows / "topics.toml",
                "--unlabelled",
                f"topics={write(at, e)}",
            ]

        def predict(lab: Lab, at: Path, e=entry) -> list[Any]:
            task = _in(
                at,
                "p.toml",
                'name = "p"\nkind = "classify"\ncolumns = ["text"]\nlabels = ["a", "b"]\nhead = "sst2"\n',
            )
            return [
                "predict",
                "--model",
                lab.teacher,
                "--task",
                task,
                "--in",
                write(at, e),
                "--out",
                at / "out.jsonl",
            ]

        def init(lab: Lab, at: Path, e=entry) -> list[Any]:
            return ["init", write(at, e), "--out", at / "out"]

        def text(lab: Lab, at: Path, e=entry) -> list[Any]:
            return _generate(lab.generator, write(at, e), at / "out")

        def mlm(lab: Lab, at: Path, e=entry) -> list[Any]:
            file = write(at, e)
            return [
                "distill", "minilm-6", "--text", file, "--teacher", lab.encoder, *MLM, "--out", at / "out", "--steps", 1,
                "--set=student.max_length=8", "--batch", 2, "--eval-limit", 2,
            ]  # fmt: skip

        yield Case(f"data check {name}", check, entry[2])
        yield Case(f"data refine {name}", refine, entry[2])
        of_labels = "label" in name or name in ("ints", "parquet list")
        yield Case(f"unlabelled {name}", unlabelled, False)
        yield Case(f"predict {name}", predict, entry[2] and not of_labels and "more" not in name)
        yield Case(f"init {name}", init, False)
        yield Case(f"qgen text {name}", text, False)
        yield Case(f"distill text {name}", mlm, False)
    for name, file in {
        "dir": ".",
        "missing": "none.jsonl",
        "long": "x" * 300 + ".jsonl",
        "gz": "train.jsonl.gz",
        "odd": "train.xyz",
    }.items():
        for command in ("check", "refine"):
            words = (
                ["--encoder", "ENCODER", "--out", "OUT", *TINY, "--steps", 1] if command == "refine" else []
            )

            def make(lab: Lab, at: Path, f=file, c=command, w=words) -> list[Any]:
                path = task(lab, at, f)
                if f == "train.xyz":
                    _in(at, "rows/train.xyz", WHOLE)
                named = {"ENCODER": lab.encoder, "OUT": at / "out"}
                return [
                    *(["data", "check"] if c == "check" else ["refine"]),
                    "--tasks",
                    path,
                    *(named.get(x, x) for x in w),
                ]

            yield Case(f"data {command} file {name}", make)


SPANS = {
    "start text": {"text": ["Anna"], "answer_start": ["0"]},
    "start float": {"text": ["Anna"], "answer_start": [0.5]},
    "start null": {"text": ["Anna"], "answer_start": [None]},
    "start huge": {"text": ["Anna"], "answer_start": [BIG]},
    "text int": {"text": [1], "answer_start": [0]},
    "text list": {"text": [["Anna"]], "answer_start": [0]},
    "scalars": {"text": "Anna", "answer_start": 0},
    "lengths": {"text": ["Anna", "a"], "answer_start": [0]},
    "nested": {"text": [[["Anna"]]], "answer_start": [[0]]},
    "null": {"text": None, "answer_start": None},
    "empty": {},
    "list": [],
    "text": "Anna",
    "tables": {"text": [{}], "answer_start": [{}]},
}


def span_cases() -> Iterator[Case]:
    for name, answers in SPANS.items():
        for identity in ("1", {"a": 1}, [1], None):
            for suffix in (".jsonl", ".parquet"):

                def make(lab: Lab, at: Path, a=answers, i=identity, s=suffix) -> list[Any]:
                    row = {"id": i, "question": "Who?", "context": "Anna was born in Rome.", "answers": a}
                    rows = [row] * 2 if i == "1" else [row]
                    if s == ".parquet":
                        try:
                            content: Any = _table({key: [r[key] for r in rows] for key in row})
                        except Exception:
                            content = "not parquet"
                    else:
                        content = "".join(_line(**r) for r in rows)
                    files = "".join(f'{split} = "{split}{s}"\n' for split in ("train", "validation"))
                    for split in ("train", "validation"):
                        _in(at, f"{split}{s}", content)
                    text = (
                        'name = "qa"\nkind = "span"\ncolumns = ["question", "context"]\nlabel = "answers"\n'
                    )
                    return ["data", "check", "--tasks", _in(at, "qa.toml", f"{text}[files]\n{files}")]

                yield Case(f"span{suffix} {name} id {identity}", make)


MODEL_FILES = (
    "model.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "heads.safetensors",
    "config.json",
)
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda raw: None, "empty": lambda raw: b"", "cut": lambda raw: raw[: len(raw) // 2],
    "NULs": lambda raw: b"\x00" * len(raw), "JSON": lambda raw: b"{}", "list": lambda raw: b"[]",
    "deep": lambda raw: b"[" * DEEP, "longer": lambda raw: raw + b"\x00" * 8, "header": lambda raw: b"\xff" * 8 + raw[8:],
}  # fmt: skip


def model_cases() -> Iterator[Case]:
    """Files of models, encoders and generators that are missing or damaged."""
    users: dict[str, tuple[str, Command]] = {
        "teacher": ("model/", lambda lab, at, out: _evaluate(at / "teacher", out)),
        "student": ("model/", lambda lab, at, out: _evaluate(at / "student", out)),
        "encoder": ("", lambda lab, at, out: _refine(at / "encoder", out)),
        "generator": ("", lambda lab, at, out: _generate(at / "generator", lab.texts, out)),
        "export": ("", lambda lab, at, out: _predict(at / "export", out)),
    }
    for item, (folder, words) in users.items():
        for file in (*MODEL_FILES, "weights.bin", "model-2-texts.onnx", "generation_config.json"):
            for damage, change in DAMAGES.items():

                def make(lab: Lab, at: Path, i=item, f=folder + file, c=change, w=words) -> list[Any]:
                    path = lab.copy(i, at) / f
                    if path.exists():
                        raw = path.read_bytes()
                        path.unlink()
                        if (new := c(raw)) is not None:
                            path.write_bytes(new)
                    return w(lab, at, at / "out")

                yield Case(f"{item} {file} {damage}", make, refused=False)
    for item, (folder, words) in users.items():
        for kind in ("nan", "inf", "extra", "shape", "lost"):

            def weights(lab: Lab, at: Path, i=item, f=folder, k=kind, w=words) -> list[Any]:
                import torch
                from safetensors.torch import load_file, save_file

                path = lab.copy(i, at) / f / "model.safetensors"
                if path.exists():
                    found = load_file(path)
                    name = next(n for n, value in found.items() if value.ndim == 2)
                    if k in ("nan", "inf"):
                        found[name][0, 0] = float(k)
                    elif k == "shape":
                        found[name] = torch.zeros(3, 3)
                    elif k == "lost":
                        found = {n: value for n, value in found.items() if ".0." not in n and n != name}
                    else:
                        found["other"] = torch.zeros(3)
                    path.unlink()
                    save_file(found, path, {"format": "pt"})
                return w(lab, at, at / "out")

            yield Case(f"{item} weights {kind}", weights, refused=kind != "extra" and item != "export")
    for key, value in {
        "attn_implementation": "kernels-community/flash-attn", "_attn_implementation": "flash_attention_2",
        "auto_map": {"AutoModel": "evil.Model"}, "quantization_config": {"quant_method": "fp8"},
        "num_hidden_layers": 5, "model_type": "roberta", "hidden_act": "__import__('os')", "hidden_size": 10**9,
        "num_attention_heads": 3, "pad_token_id": 10**6, "vocab_size": 5, "type_vocab_size": 0, "dtype": "float16",
        "return_dict": False, "max_position_embeddings": 2, "layer_norm_eps": -1, "initializer_range": "x",
    }.items():  # fmt: skip
        harmless = key in ("dtype", "return_dict", "initializer_range", "layer_norm_eps")
        for place in ("encoder", "model"):

            def config(lab: Lab, at: Path, k=key, v=value, p=place) -> list[Any]:
                if p == "encoder":
                    file = lab.copy("encoder", at) / "config.json"
                    replace(file, json.dumps(json.loads(file.read_text()) | {k: v}))
                    return _refine(at / "encoder", at / "out")
                file = lab.copy("teacher", at) / "model/model.json"
                values = json.loads(file.read_text())
                values["encoder"]["hf"][k] = v
                replace(file, json.dumps(values))
                return _evaluate(at / "teacher", at / "out")

            # the weights of BERT fit RoBERTa: only the digests, which this copy lacks, tell them apart
            fits = harmless or (place, key) == ("model", "model_type")
            yield Case(f"{place} config {key}", config, refused=not fits)


def text_cases() -> Iterator[Case]:
    """Plain text without anything to learn from."""
    for name, content in {
        "empty": "", "blank": "\n \n\t\n", "control": "\x01\x02\x03\n" * 100, "zero-width": "\u200b\u200c\n" * 100,
        "NULs": b"\x00" * 1000, "one long line": "a" * 2_000_000, "latin-1": b"caf\xe9\n" * 10, "BOM": "\ufeff" * 50,
    }.items():  # fmt: skip

        def mlm(lab: Lab, at: Path, c=content) -> list[Any]:
            return [
                "distill", "minilm-6", "--text", _in(at, "t.txt", c), "--teacher", lab.encoder, *MLM, "--out", at / "out",
                "--steps", 1, "--set=student.max_length=8", "--batch", 2, "--eval-limit", 2,
            ]  # fmt: skip

        yield Case(f"distill text only {name}", mlm, refused=False)
        yield Case(
            f"qgen text only {name}",
            lambda lab, at, c=content: _generate(lab.generator, _in(at, "t.txt", c), at / "out"),
            refused=False,
        )


OUTS = (
    "x" * 300,
    "d/" * 2500,
    "/dev/null/x",
    "/etc/passwd",
    "/etc/passwd/x",
    ".",
    "..",
    "/",
    "\udcff",
    "a\nb",
    "file/x",
    "file",
)


def out_cases() -> Iterator[Case]:
    for name in (
        "refine",
        "distill",
        "finetune",
        "mask",
        "qgen",
        "qtrain",
        "compare",
        "init",
        "evaluate",
        "predict",
        "report",
    ):
        for out in OUTS:

            def make(lab: Lab, at: Path, n=name, o=out) -> list[Any]:
                _in(at, "work/file", "x")
                words = COMMANDS[n](lab, at, at / "out")
                if n == "evaluate":
                    return [*words, "--json", o]
                place = words.index("--out") + 1
                return [*words[:place], o, *words[place + 1 :]]

            yield Case(f"out {name} {out[:20]!r}", make, refused=False)


def cases() -> Iterator[Case]:
    yield from option_cases()
    yield from setting_cases()
    yield from task_cases()
    yield from toml_cases()
    yield from table_cases()
    yield from span_cases()
    yield from model_cases()
    yield from text_cases()
    yield from out_cases()
