"""Code in the documentation: the tutorial runs, commands and options exist, and Python and TOML are valid.

A block is a fenced or an indented one. One in none of these languages is fenced as ```text.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import mtkd as package
from mtkd.cli.main import cli
from mtkd.grids import grid_names
from mtkd.recipes import load_settings, parse_set, recipe_command

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES.remove(ROOT / "docs" / "cli.md")  # usage lines, generated
BLOCK = re.compile(
    r"^```(\w*)\n(.*?)^```$|(?<=\n\n)((?:(?: {4}[^\n]*)?\n)+)(?=\S|\Z)", re.MULTILINE | re.DOTALL
)
TRAINING = {"distill", "refine", "finetune"}
SHELL = ("mtkd", "make", "pip", "python", "accelerate", "scripts/", "source")
# Settings that shrink the tutorial's run to a few seconds per step.
LAYERS = "set.student.transformer.layers=1"
STEPS = {
    "teacher": ("steps=2",),
    "student": ("steps=2", "unlabelled-limit=32", LAYERS),
    "control": (LAYERS,),
}
SHORT = [
    "steps.comparison.limit=16",
    *(
        f"steps.{step}.{option}"
        for step, own in STEPS.items()
        for option in ("limit=32", "eval-limit=16", *own)
    ),
]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Yield (language or "", text) of each code block."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    pairs = [(language, textwrap.dedent(fenced or indented).strip()) for language, fenced, indented in found]
    return [(language, text) for language, text in pairs if text and language != "text"]


def is_shell(text: str) -> bool:
    return text.startswith(SHELL)


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block, without comments."""
    pending = ""
    for line in text.replace("\\\n", " ").split("\n"):
        lexer = shlex.shlex(pending + line, posix=True, punctuation_chars=";&")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quoted string continues on the next line
            pending += line + "\n"
            continue
        pending = ""
        for end, command in itertools.groupby(words, lambda word: word in (";", "&&")):
            if not end:
                yield list(command)
    assert not pending, pending


def check_mtkd(words: list[str], *, whole: bool) -> None:
    """Raise if a command, option, recipe, setting or grid is unknown, or a `whole` one lacks an argument."""
    ctx, rest = click.Context(cli, info_name="mtkd"), [word for word in words if word not in ("...", "…")]
    while isinstance(ctx.command, click.Group) and rest and not rest[0].startswith("-"):
        command = ctx.command.get_command(ctx, rest[0])
        assert command is not None, f"no command {rest[0]!r}"
        ctx, rest = click.Context(command, info_name=rest[0], parent=ctx), rest[1:]
    if not rest and not whole:
        return
    if rest and rest[-1].startswith("--") and not whole:
        rest.append("VALUE")
    parsed, _, _ = ctx.command.make_parser(ctx).parse_args(list(rest))
    values = {name: value for name, value in parsed.items() if isinstance(value, (str, list, tuple))}
    for option in ctx.command.params:
        given = values.get(option.name or "", ())
        if isinstance(option.type, click.Choice) and isinstance(given, str):
            option.type.convert(given, option, ctx)
        assert not (whole and option.required and len(given) == 0), f"{option.name} is missing"
    name, recipe = ctx.info_name or "", values.get("recipe") or ""
    if name != "distill" and name in TRAINING and not recipe:
        recipe = name
    if name in TRAINING and recipe and not recipe.startswith("my-"):
        load_settings(recipe, name, parse_set(values.get("sets") or ()))
    elif name in ("plan", "build") and recipe:
        load_settings(recipe, "distill", parse_set(values.get("sets") or ()))
    elif name == "compare" and (grid := values.get("grid")):
        assert (
            grid in grid_names() or grid in ("GRID", "all", "grid.toml", "VALUE") or (ROOT / grid).is_file()
        ), grid
    elif name == "show":
        assert values["name"] == "NAME" or values["name"].startswith("my-") or recipe_command(values["name"])


def check_command(words: list[str]) -> None:
    """Raise if a command of a shell block names something that does not exist."""
    if "mtkd.cli.main" in words:
        words = ["mtkd", *words[words.index("mtkd.cli.main") + 1 :]]
    program, *rest = words
    if program == "mtkd":
        check_mtkd(rest, whole="..." not in rest)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), rest
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert rest[0] == "install" and set(re.findall(r"\[(\w+)\]", rest[1])) <= set(extras), rest
    elif program not in ("cp", "source"):
        assert (ROOT / (rest[0] if program == "python" else program)).is_file(), words


def check_python(text: str) -> None:
    """Raise if a call of a public function of mtkd names an argument that it does not have."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("mtkd."):
            called: object = package
            for part in ast.unparse(node.func).split(".")[1:]:
                called = getattr(called, part)
            assert callable(called)
            names = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(called).bind_partial(*node.args, **names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_are_valid(page: Path) -> None:
    for language, text in blocks(page):
        try:
            if is_shell(text):
                for words in command_lines(text):
                    check_command(words)
            elif language in ("python", "toml"):
                check_python(text) if language == "python" else tomllib.loads(text)
            else:
                try:
                    tomllib.loads(text)
                except tomllib.TOMLDecodeError:
                    check_python(text)
        except Exception as error:
            pytest.fail(f"{page.name}: {error!r} in\n{text}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for code in re.findall(r"`(mtkd\s[^`]+)`", text):
        try:
            for words in command_lines(" ".join(code.replace("\\|", "|").split())):
                check_mtkd([word.split("|")[0] for word in words[1:]], whole=False)
        except Exception as error:
            pytest.fail(f"{page.name}: {error!r} in `{code}`")


def test_the_student_of_the_python_page_trains_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_encoder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    mood = package.Task(name="mood", kind="classify", columns=("text",), labels=("negative", "positive"))
    words = [(word, int(word == "good")) for word in ("good", "bad")] * 8
    train, rows = (
        [{"text": f"a {word} {noun} {n}", "label": label} for n, (word, label) in enumerate(words)]
        for noun in ("film", "book")
    )
    data = {"mood": {"train": train, "validation": rows}}
    teacher = package.refine(tiny_encoder, data=data, tasks=mood, out="runs/mood", epochs=1)
    names: dict[str, Any] = {"__name__": "__main__", "mood": mood, "data": data, "teacher": teacher}
    (text,) = [text for _, text in blocks(ROOT / "docs" / "python.md") if "nn.GRU" in text]
    exec(compile(text, "python.md", "exec", dont_inherit=True), names)
    loaded = package.load("runs/mood-gru")
    assert type(loaded.module.encoder) is names["GRU"]
    assert loaded.predict("mood", rows) == names["student"].predict("mood", rows)
    short, with_padding = loaded.encode(["a film"]), loaded.encode(["a film", "a good film that is longer"])
    assert abs(short[0] - with_padding[0]).max() < 1e-5
    file = Path("runs/mood-gru/model/model.json")
    (tmp_path / "runs/mood-gru/model/digests.json").unlink()
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({**saved, "encoder": saved["encoder"] | {"kind": "lstm"}}))
    with pytest.raises(package.UserError, match=r"(?s)student.kind\) 'lstm'.*import the module that defines"):
        package.load("runs/mood-gru").encode(["a film"])


@pytest.mark.slow(reason="trains a teacher, a student and a control")
def test_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mtkd: Callable, tiny_encoder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = (*SHORT, f"steps.teacher.encoder={tiny_encoder}")
    shorter = {setting.partition("=")[0]: setting for setting in settings}
    for _, text in blocks(ROOT / "docs" / "tutorial.md"):
        if not is_shell(text):
            exec(compile(text, "tutorial.md", "exec"), {})
            continue
        for program, *words in command_lines(text):
            assert program == "mtkd"
            if words[0] == "run":
                words = [shorter.get(word.partition("=")[0], word) for word in words]
                words += [word for setting in settings for word in ("--set", setting)]
            answered = mtkd(*words)
            assert answered.code == 0, (words, answered)
    header = Path("predictions.csv").read_text().splitlines()[0]
    assert header.startswith("text,label,prediction") and Path("job/runs/report.html").is_file()


def test_the_commands_at_the_start_of_the_readme_run(mtkd: Callable) -> None:
    text = next(text for _, text in blocks(ROOT / "README.md") if text.startswith("mtkd tasks"))
    for _, *words in command_lines(text):
        assert mtkd(*words).code == 0, words
