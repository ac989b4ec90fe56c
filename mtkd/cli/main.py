"""The command `mtkd`. Its subcommands are imported when they are called, so that --help appears at once."""

from __future__ import annotations

import errno
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import click

from mtkd import __version__
from mtkd.cli.flags import as_options
from mtkd.cli.lazy_group import LazyGroup
from mtkd.cli.usage_errors import usage_error
from mtkd.training.interrupts import Terminated, die_with_parent, sigterm_exits
from tasks.common.errors import MtkdWarning, UserError, plain

_AGAIN = "  hint: run the same command again; with --out it resumes from its last checkpoint, if there is one"

_NO_MEMORY = r"can't allocate memory|out of memory|not enough memory"  # torch raises a plain RuntimeError
_CONNECTION_LOST = r"Connection (closed|reset) by peer"  # the message of gloo; NCCL has an error class
# Not needed to run exported models.
_TRAINING_PACKAGES = (
    *("torch", "transformers", "safetensors", "accelerate", "datasets", "huggingface_hub", "sklearn"),
    *("scipy", "psutil", "matplotlib", "spacy", "nltk", "tensorboard"),
)


@click.group(
    cls=LazyGroup,
    lazy={
        "demo": ("mtkd.cli.demo:demo", "run the whole workflow on built-in data"),
        "init": ("mtkd.cli.pipeline:init", "guess a task from data, and write a pipeline to start from"),
        "run": ("mtkd.cli.pipeline:run", "run a whole job from one file"),
        "tasks": ("mtkd.cli.info:tasks", "list the built-in tasks"),
        "recipes": ("mtkd.cli.info:recipes", "list the recipes; `recipes show NAME` prints one"),
        "data": ("mtkd.cli.data_check:data", "`data check`: find problems in data before training"),
        "augment": (
            "mtkd.cli.augment_group:augment",
            "`augment mask|replace|run|questions`: generate training text",
        ),
        "refine": ("mtkd.cli.train:refine", "fine-tune the teacher on all tasks"),
        "store": (
            "mtkd.cli.knowledge_store:store",
            "`store plan|build|info`: keep a teacher's outputs on disk",
        ),
        "distill": ("mtkd.cli.train:distill", "train a student from a teacher"),
        "compare": ("mtkd.cli.comparison:compare", "run a grid of recipes and settings and print one table"),
        "report": ("mtkd.cli.reports:report", "`report html|knowledge|plot`: a page or plots of runs"),
        "finetune": ("mtkd.cli.train:finetune", "fine-tune a student on one task"),
        "evaluate": ("mtkd.cli.measure:evaluate", "score a model on labelled data"),
        "predict": ("mtkd.cli.prediction:predict", "predict labels for a file, or write a GLUE submission"),
        "export": ("mtkd.cli.export:export", "write a model as ONNX graphs, which run without torch"),
        "push": ("mtkd.cli.hub:push", "upload a model or corpus to the Hugging Face hub"),
        "pull": ("mtkd.cli.hub:pull", "download a model or corpus from the hub"),
        "verify": ("mtkd.cli.verification:verify", "find damaged files in what mtkd wrote"),
        "suggest": ("mtkd.cli.suggestion:suggest", "time students against a teacher, to choose one"),
        "bench": ("mtkd.cli.measure:bench", "`bench inference`: compare the speed of models"),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, prog_name="mtkd")
def cli() -> None:
    """Distil large language-understanding models into small, fast ones, for many tasks at once.

    The usual order: refine a teacher, distil a student from it, fine-tune the student per task, evaluate.
    """


def main() -> None:
    """Run the command line; for invalid usage or data, print one error and exit with code 2."""
    die_with_parent()
    try:
        with sigterm_exits(), warnings.catch_warnings():
            warnings.simplefilter("always", MtkdWarning)
            warnings.showwarning = _show_warning(warnings.showwarning)
            cli.main(prog_name="mtkd", standalone_mode=False)
    except UserError as error:
        _fail([as_options(line) for line in error.lines()], 2)
    except click.exceptions.Abort:
        _fail(["interrupted", _AGAIN], 130)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
    except click.ClickException as error:
        _fail([*usage_error(error).lines(), *_see_help(error)], 2)
    except KeyboardInterrupt:
        _fail(["interrupted", _AGAIN], 130)
    except Terminated:
        _fail(["interrupted", _AGAIN], 143)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except ModuleNotFoundError as error:
        if error.name not in _TRAINING_PACKAGES:
            raise
        _fail(
            [
                f"this command needs the package {_first_missing(error.name)!r}, which is not installed",
                "  hint: pip install mtkd with its dependencies; without them, `mtkd predict` runs exported "
                "models",
            ],
            2,
        )
    except OSError as error:
        _fail_for_os_error(error)
    except (MemoryError, RuntimeError) as error:
        if type(error).__name__ == "DistBackendError" or re.search(_CONNECTION_LOST, str(error)):
            _fail(
                [
                    "lost the connection to another process of this run",
                    "  hint: see the error of that process",
                ],
                1,
            )
        if not isinstance(error, MemoryError) and not re.search(_NO_MEMORY, str(error)):
            raise
        _fail(["there is not enough memory for this", "  hint: use smaller sizes or batches"], 2)


def _fail_for_os_error(error: OSError) -> None:
    """Exit with an error about the disk or a file; raises the error itself if it names no file."""
    if error.errno == errno.ENOSPC:
        _fail([f"the disk is full: could not write {error.filename or 'the output'}"], 2)
    if "No usable temporary directory" in str(error):  # raised by another library
        from tasks.common.temporary import no_temporary_root

        _fail(no_temporary_root().lines(), 2)
    if error.filename is None:
        raise error
    _fail([f"cannot use {str(error.filename)[:200]}: {error.strerror}"], 2)


def _first_missing(name: str) -> str:
    """The package to name in the error: torch if it is missing, since others are then missing with it."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        return "torch"
    return name


def _show_warning(otherwise: Callable[..., None]) -> Callable[..., None]:
    """A replacement for `warnings.showwarning`: prints the library's warnings as panels, each text once.

    The steps of a pipeline, which read the same rows, would otherwise repeat the warnings about them.

    Args:
        otherwise: the function that shows all other warnings.
    """
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *where: Any, **keywords: Any) -> None:
        if not issubclass(category, MtkdWarning):
            otherwise(message, category, *where, **keywords)
            return
        from mtkd.cli.options import warn

        if str(message) not in shown:
            shown.add(str(message))
            warn(as_options(str(message)))

    return show


def _see_help(error: click.ClickException) -> list[str]:
    context = getattr(error, "ctx", None)
    return [f"  hint: {context.command_path} --help"] if context else []


def _fail(lines: list[str], code: int) -> None:
    print(plain("error: " + "\n".join(lines)), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
