"""Messages of the library as the command line words them: arguments become options.

The library names its arguments, since a notebook has no options: `out`, `limit=400`, `overwrite=True`, and
settings by their dotted names: `train.lr=1e-4`. On the command line these are --out, --limit 400, --overwrite
and --set train.lr=1e-4. The labels of a task, `teacher_labels={'rte': ['a', 'b']}`, become
--teacher-labels rte=a,b. Functions that hints name, such as `mtkd.list_recipes()`, become commands.
"""

from __future__ import annotations

import ast
import re
import shlex

from mtkd.teachers.label_lists import label_list

# Settings whose names have no dot, so that they look like arguments.
SETTINGS = frozenset(
    (
        "head_hidden_size",
        "learning_rates",
        "max_length",
        "one_stage",
        "pairs",
        "run_stages",
        "stride",
        "supervision",
    )
)
# Arguments that messages name without a value; other words in backticks stay as they are.
NAMED = frozenset(
    word
    for line in (
        "against api_key_env batch beams budget copies corpus data device dtype endpoint_model extra_body",
        "format in json limit max_output min_confidence min_overlap model out precision predictions",
        "prompt_template spacy store tasks teacher teacher_labels text unlabelled vocab_size without workers",
    )
    for word in line.split()
)
# Functions of the library, and the commands that do the same.
COMMANDS = {
    "mtkd.list_recipes()": "mtkd recipes",
    "mtkd.refine": "mtkd refine",
    "mtkd.show_recipe(NAME)": "mtkd recipes show NAME --all",
}
_CALL = re.compile("|".join(re.escape(f"`{call}`") for call in COMMANDS))
_ARGUMENT = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")
_SETTING = re.compile(r"`([a-zA-Z_][\w{}-]*(?:\.[\w{}-]+)+)=([^`]*)`")


def as_options(text: str) -> str:
    """The message with arguments and settings in backticks replaced by options, and functions by commands."""

    def option(match: re.Match[str]) -> str:
        name, value = match.group(1), match.group(2)
        if value is None and name not in NAMED:
            return match.group(0)
        if name in SETTINGS:
            return f"--set {name}={value}" if value else match.group(0)
        flag = f"--{name.replace('_', '-')}"
        if name == "teacher_labels" and value:
            return f"{flag} {_assignments(value)}"
        if value == "False":
            return f"--no-{flag.removeprefix('--')}"
        if value in (None, "True"):
            return flag
        return f"{flag} {value}" if not re.search(r"\s", value) or "'" in value else f"{flag} '{value}'"

    def setting(match: re.Match[str]) -> str:
        value = match.group(2)
        quoted = (
            f"'{match.group(1)}={value}'" if re.search(r"[\s\[\"]", value) else f"{match.group(1)}={value}"
        )
        return f"--set {quoted}"

    text = _CALL.sub(lambda match: COMMANDS[match[0].strip("`")], text)
    return _ARGUMENT.sub(option, _SETTING.sub(setting, text))


def _assignments(mapping: str) -> str:
    """The value of an option for a task and its labels in Python: {'rte': ['a', 'b']} is rte=a,b."""
    try:
        [(task, labels)] = ast.literal_eval(mapping).items()
    except (ValueError, SyntaxError, AttributeError):  # of something else
        return mapping
    return shlex.quote(f"{task}={label_list(['...' if label is ... else str(label) for label in labels])}")
