"""Rewriting the library's messages for the command line: arguments become options.

The library's messages use Python syntax, since a notebook has no options: `out`, `limit=400`,
`overwrite=True`, `teacher='DIR'` and `mtkd.store_info('DIR')`. On the command line these are --out,
--limit 400, --overwrite, --teacher DIR and mtkd store info DIR. A mapping, `teacher={'rte': 'DIR'}`, becomes
--teacher rte=DIR. Settings are `settings={'pairs': 'bi-encoder'}` or their dotted names, `train.lr=1e-4`;
both become --set KEY=VALUE.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

from mtkd.teachers.label_lists import label_list

# Arguments that messages name without a value; other words in backticks are not changed.
NAMED = frozenset(
    word
    for line in (
        "against api_key_env batch beams budget copies corpus data device dtype endpoint_model extra_body",
        "format in int8 json limit max_mb max_output min_confidence min_overlap model out precision",
        "predictions prompt_template spacy store tasks teacher teacher_labels text unlabelled vocab_size",
        "without workers",
    )
    for word in line.split()
)
# Functions of the library, and the commands that do the same; {} stands for the positional arguments.
COMMANDS = {
    "mtkd.augment": "mtkd augment",
    "mtkd.augment.generate_questions": "mtkd augment questions generate",
    "mtkd.augment.mask": "mtkd augment mask",
    "mtkd.augment.train_questions": "mtkd augment questions train",
    "mtkd.bench_inference": "mtkd bench inference",
    "mtkd.build_store": "mtkd store build",
    "mtkd.check_data": "mtkd data check",
    "mtkd.compare": "mtkd compare",
    "mtkd.distill": "mtkd distill",
    "mtkd.evaluate": "mtkd evaluate",
    "mtkd.export": "mtkd export",
    "mtkd.finetune": "mtkd finetune",
    "mtkd.init_pipeline": "mtkd init",
    "mtkd.list_recipes": "mtkd recipes",
    "mtkd.plan_store": "mtkd store plan",
    "mtkd.predict": "mtkd predict",
    "mtkd.push": "mtkd push",
    "mtkd.refine": "mtkd refine",
    "mtkd.repair_store": "mtkd store build --repair --out {}",
    "mtkd.run_pipeline": "mtkd run",
    "mtkd.show_recipe": "mtkd recipes show {} --all",
    "mtkd.store_info": "mtkd store info",
}
_RENAMED = {"source": "in"}  # `in` is a keyword of Python
# The errors of `ast` for text that is not valid Python.
_PARSE_ERRORS = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
_CALL = re.compile(r"`(mtkd(?:\.[a-z_]+)+)(?:\(([^`]*)\))?`")
_ARGUMENT = re.compile(r"`([a-z_]+[0-9]*)(?:=([^`]*))?`")
_SETTING = re.compile(r"`([a-zA-Z_][\w{}-]*(?:\.[\w{}-]+)+)=([^`]*)`")


def as_options(text: str) -> str:
    """Replace arguments and settings in backticks by options, and functions by commands."""

    def option(match: re.Match[str]) -> str:
        name, value = match.group(1), match.group(2)
        if value is None:
            return _flag(name) if name in NAMED else match.group(0)
        return _option(name, value)

    def setting(match: re.Match[str]) -> str:
        return _set(match.group(1), match.group(2))

    return _ARGUMENT.sub(option, _SETTING.sub(setting, _CALL.sub(_command, text)))


def _command(call: re.Match[str]) -> str:
    """The command that does the same as a function, with the arguments of the call, if it has any."""
    command, arguments = COMMANDS.get(call[1]), call[2] or ""
    if command is None:
        return call[0]
    given = arguments.removesuffix("...").rstrip(", ")
    try:
        parsed = ast.parse(f"f({given})", mode="eval").body
    except _PARSE_ERRORS:
        return call[0]
    if not isinstance(parsed, ast.Call):
        return call[0]
    positional = " ".join(_word(ast.unparse(value)) for value in parsed.args)
    words = [command.format(positional)] if "{}" in command else [command, *filter(None, [positional])]
    values = {str(keyword.arg): ast.unparse(keyword.value) for keyword in parsed.keywords}
    words += [_option(name, value) for name, value in values.items() if value != "None"]
    return " ".join(words + ["..."] * (arguments != given))


def _flag(name: str) -> str:
    return f"--{_RENAMED.get(name, name).replace('_', '-')}"


def _option(name: str, text: str) -> str:
    """The option for an argument and its value in Python syntax."""
    flag = _flag(name)
    value = _value(text)
    if value is True:
        return flag
    if value is False:
        return f"--no-{flag.removeprefix('--')}"
    if name == "settings" and isinstance(value, dict):
        return " ".join(_set(key, _toml(part)) for key, part in value.items())
    if isinstance(value, dict):
        return " ".join(f"{flag} {shlex.quote(f'{key}={_joined(part)}')}" for key, part in value.items())
    return f"{flag} {_word(text)}"


def _value(text: str) -> Any:
    """The value of a literal; None for anything else, such as N."""
    try:
        return ast.literal_eval(text)
    except _PARSE_ERRORS:
        return None


def _word(text: str) -> str:
    """A value in Python syntax as a quoted word of the command line."""
    value = _value(text)
    return shlex.quote(_joined(value)) if isinstance(value, str | list) else text


def _joined(value: Any) -> str:
    if isinstance(value, list):
        return label_list(["..." if part is ... else str(part) for part in value])
    return "..." if value is ... else str(value)


def _toml(value: Any) -> str:
    from tasks.common.records import as_toml  # slow to import

    return str(_joined(value) if isinstance(value, str) or value is ... else as_toml(value))


def _set(key: str, value: str) -> str:
    pair = f"{key}={value}"
    return f"--set '{pair}'" if re.search(r"[\s\[\"]", value) else f"--set {pair}"
