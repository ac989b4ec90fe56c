# ruff: noqa: E501
"""Wrong values of options and settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wrong_inputs.commands import COMMANDS, distill, hsk, without_option
from wrong_inputs.json_files import BIG, DIGITS
from wrong_inputs.tiny_inputs import Case

NUMBERS = (
    "nan", "inf", "-inf", "-1", "0", "1e300", str(BIG), DIGITS, "99999999999", "x", "", "9223372036854775808",
)  # fmt: skip


TEXTS = ("", ".", "..", "a/b", "x" * 5000, "\udcff", "a\tb", "\x1b[31m")


LONG = ("--steps", "--epochs", "--rounds", "--warmup")  # a large number only means a lot of work


def option_cases() -> Iterator[Case]:
    """Yield cases with wrong numbers and strings for every option of every command."""
    import click

    from mtkd.cli.main import cli

    for name, command in COMMANDS.items():
        subcommand = {
            "mask": "augment mask", "replace": "augment replace", "qgen": "augment questions generate",
            "qtrain": "augment questions train", "store": "store plan", "bench": "bench inference",
            "check": "data check", "report": "report html",
        }.get(name, name)  # fmt: skip
        context = click.Context(cli)
        found: Any = cli
        for word in subcommand.split():
            found = found.get_command(context, word)
        for option in found.params:
            if not isinstance(option, click.Option) or option.is_flag or option.opts[0] == "--quiet":
                continue
            flag, several = option.opts[0], option.multiple
            numeric = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
            for value in (
                NUMBERS if numeric or flag in ("--copies", "--seeds", "--budget", "--words") else TEXTS
            ):
                if flag in LONG and value.isdigit() and len(value) < 9:
                    continue
                yield Case(
                    f"cli {name} {flag} {value[:30]!r}",
                    lambda inputs, directory, command=command, flag=flag, value=value, several=several: [
                        *without_option(
                            command(inputs, directory, directory / "out"), "" if several else flag
                        ),
                        f"{flag}={value}",
                    ],
                    must_fail=False,
                )


SETTINGS = (
    "train.lr", "train.batch_size", "train.seed", "train.weight_decay", "train.warmup", "train.max_grad_norm", "train.eps",
    "student.dropout", "student.bilstm.hidden_size", "student.max_length", "student.head_hidden_size",
    "student.vocabulary_size", "train.betas", "train.epochs", "terms.soft_labels.temperature", "train.micro_batch_size",
    "train.min_confidence", "train.patience", "train.class_weights", "slow_build", "student.stride",
)  # fmt: skip


SET_VALUES = (
    "nan", "inf", "-1", "0", "1e300", "1e-300", str(BIG), DIGITS, "[]", "{}", "''", "true", "[nan]", "[1e300, 1]",
    "[" * 2000, "0x" + "f" * 5000, "99999999999", "none", "1979-05-27", "[[0, 1e300], [1, 0]]",
)  # fmt: skip


def _with_setting(words: list[Any], key: str, value: str) -> list[Any]:
    """Return a command with the value of a setting replaced."""
    return [word for word in words if not str(word).startswith(f"--set={key}=")] + [f"--set={key}={value}"]


def setting_cases() -> Iterator[Case]:
    """Yield cases with wrong values of settings, given as `--set`."""
    for setting in SETTINGS:
        for value in SET_VALUES:
            yield Case(
                f"--set {setting}={value[:30]}",
                lambda inputs, directory, setting=setting, value=value: _with_setting(
                    distill(inputs.teacher, directory / "out"), setting, value
                ),
                must_fail=False,
            )
    for value in (*SET_VALUES, "[-1e-3]", "[1e-3, nan]"):
        yield Case(
            f"--set finetune learning_rates={value[:30]}",
            lambda inputs, directory, value=value: [
                *COMMANDS["finetune"](inputs, directory, directory / "out"),
                f"--set=learning_rates={value}",
            ],
            must_fail=False,
        )
    for key in (
        "student.transformer.embedding_size",
        "student.transformer.layers",
        "student.transformer.hidden_size",
    ):
        for value in SET_VALUES:
            yield Case(
                f"--set tinybert {key}={value[:30]}",
                lambda inputs, directory, key=key, value=value: _with_setting(
                    hsk(inputs, directory / "out"), key, value
                ),
                must_fail=False,
            )
