"""Messages name Python arguments in the library, and options on the command line."""

import ast
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

import mtkd
from mtkd.cli.flags import COMMANDS, as_options

ROOT = Path(mtkd.__file__).parents[1]
# These write files about commands.
DOCUMENTS = (
    "augment/dataset_card.py",
    "mtkd/models/model_card.py",
    "mtkd/pipelines/init_files.py",
    "mtkd/recipes/settings_reference.py",
)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("name another directory with `out`", "name another directory with --out"),
        ("start over with `overwrite=True`", "start over with --overwrite"),
        ("`eval_limit=400` keeps fewer", "--eval-limit 400 keeps fewer"),
        ("a lower `train.lr=1e-5`", "a lower --set train.lr=1e-5"),
        ('`terms.kd.task_types=["classify"]`', "--set 'terms.kd.task_types=[\"classify\"]'"),
        ("the column `label` and `mtkd recipes`", "the column `label` and `mtkd recipes`"),
        ("`round_trip=False` keeps more", "--no-round-trip keeps more"),
        ("`mtkd.show_recipe('NAME')` lists all settings", "mtkd recipes show NAME --all lists all settings"),
        ("`mtkd.list_recipes()` lists all recipes", "mtkd recipes lists all recipes"),
        ("a run of `mtkd.refine` as `teacher='DIR'`", "a run of mtkd refine as --teacher DIR"),
        ("`mtkd.refine(encoder='a b', limit=4, ...)`", "mtkd refine --encoder 'a b' --limit 4 ..."),
        ("`mtkd.repair_store('stores/a')` does", "mtkd store build --repair --out stores/a does"),
        ("`mtkd.init_pipeline('DATA', ...)`", "mtkd init DATA ..."),
        ("leave out `without='+ questions'`", "leave out --without '+ questions'"),
        ("`settings={'pairs': 'cross-encoder'}`", "--set pairs=cross-encoder"),
        ("`settings={'learning_rates': [1e-05]}`", "--set 'learning_rates=[1e-05]'"),
        ("`teacher={'rte': 'DIR'}`", "--teacher rte=DIR"),
        ("`unlabelled=['FILE']` or `steps=N`", "--unlabelled FILE or --steps N"),
        ("`source='-'` is read", "--in - is read"),
        ("`limit` of `train.lr`", "--limit of `train.lr`"),
        ("`teacher_labels={'rte': ['a', 'b', ...]}`", "--teacher-labels rte=a,b,..."),
        ("`teacher_labels={'x': ['not good', \"isn't\"]}`", """--teacher-labels 'x=not good,isn'"'"'t'"""),
        ("`teacher_labels={'x': ['a, b', 'c']}`", """--teacher-labels 'x=["a, b", "c"]'"""),
    ],
)
def test_python_arguments_are_shown_as_command_line_options(message: str, shown: str) -> None:
    assert as_options(message) == shown


def messages() -> Iterator[tuple[str, str]]:
    """Yield the location and text of each message of the library; f-string values become 0 or 'text'."""
    for file in (file for package in ("mtkd", "augment", "tasks") for file in (ROOT / package).rglob("*.py")):
        if ROOT / "mtkd" / "cli" in file.parents:
            continue
        nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
        others = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        others |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if id(node) in others:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value
            elif isinstance(node, ast.JoinedStr):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", "".join(map(filled, node.values))


def filled(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return "'text'" if part.conversion == ord("r") else "0"
    return str(ast.literal_eval(part))


def test_messages_of_the_library_contain_no_command_line_options() -> None:
    for place, text in messages():
        for name, value in re.findall(r"`([a-z_]+)=([^`]*)`", text):
            if value not in ("N", "..."):
                try:
                    ast.literal_eval(value)
                except (SyntaxError, ValueError):
                    pytest.fail(f"{place}: `{name}={value}` is not Python")
        for function in re.findall(r"`(mtkd(?:\.[a-z_]+)+)[`(]", text):
            assert attrgetter(function.removeprefix("mtkd."))(mtkd), place
            assert function in COMMANDS or function == "mtkd.losses", f"{place}: {function} is no command"
        if not place.startswith(DOCUMENTS):
            assert not re.search(r"\bmtkd [a-z ]+ --[a-z]", text), f"{place}: {text}"


@pytest.mark.parametrize("inner", ["((", "x) + f(", "'", "[" * 500, "{[]: 1}", "**{'a': 1}"])
def test_text_of_the_user_in_a_message_is_not_converted(inner: str) -> None:
    assert "mtkd" in as_options(f"unknown `mtkd.distill({inner})` and `out={inner}`")
