"""The directory of a run and its record, under the policy of `mtkd.output_files.output_directory`."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

from mtkd import __version__
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import MODEL_FILES
from mtkd.models.vector_cache import VECTOR_FILES
from mtkd.output_files.distributed import ALONE, ProcessGroup
from mtkd.output_files.output_directory import (
    CLAIM,
    OutputKind,
    check_directory,
    existing_identity,
    open_directory,
)
from mtkd.output_files.sharded_output import DIGEST
from mtkd.run_record import RUN_FILE, read_run_record
from tasks.common.digests import write_digests
from tasks.common.errors import UserError
from tasks.common.records import has_check, write_record
from tasks.common.urls import with_urls

PREDICTIONS = "predictions"  # what the model predicted for each validation row
# The command line, set if a command starts the run.
recorded_command: ContextVar[str | None] = ContextVar("recorded_command", default=None)
_SHOWN = 6  # differing settings named in an error
_LONGEST = 80  # characters of two values that are shown; of others, only the key is named
_DIGEST_TEXT = re.compile(r"'(?:[0-9a-f]{16}|[0-9a-f]{32,})'")
_OF_RECIPE = {"losses": "those of the recipe", "student": "that of the recipe"}  # if none were passed
_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "datasets",
    "numpy",
    "pyarrow",
    "scikit-learn",
)


def _read_identity(directory: Path) -> Any:
    """The identity of the run in a directory; None if there is no run, or one that mtkd did not write."""
    record = _read_record(directory)
    is_mtkd_run = isinstance(record.get("versions"), dict) and "mtkd" in record["versions"]
    identity = record.get("identity")
    return identity if is_mtkd_run and isinstance(identity, dict) else None


def _read_record(directory: Path) -> dict[str, Any]:
    file = directory / RUN_FILE
    try:
        return read_run_record(file)
    except UserError:
        if file.is_file() and has_check(file):  # a record of mtkd, and damaged
            raise
        return {}


def _listed(directory: Path) -> set[str] | None:
    """The files of the predictions of a finished run; None if it is not finished."""
    record = _read_record(directory)
    if record.get("status") != "finished":
        return None
    return {f"{PREDICTIONS}/{name}.parquet" for name in record.get("scores") or ()}  # by "task/split"


LOOP_FILES = (  # of any training
    r"log\.jsonl",
    r"tensorboard/events\.out\.tfevents\.[^/]+",
    r"checkpoints/(best\.safetensors|step-\d+/((weights|optimizer)\.safetensors|(position|digests)\.json))",
)
_LOGITS = r"logits-[0-9a-f]+/[^/]+/"
_LOGITS_WORK = rf"{_LOGITS}\d{{9}}\.safetensors{re.escape(DIGEST)}"
_PREDICTION_FILES = rf"{PREDICTIONS}/[^/]+/[^/]+\.parquet"
_PART_FILES = (  # of a run, of a stage, and of a learning rate of finetune
    *LOOP_FILES,
    r"result\.json|digests\.json",
    rf"model/{MODEL_FILES}",
    _PREDICTION_FILES,
)
RUN_KIND = OutputKind(
    "run",
    RUN_FILE,
    (
        r"run\.json",
        rf"(stages/[^/]+/|lr-[^/]+/)?({'|'.join(_PART_FILES)})",
        rf"{_LOGITS}(\d{{9}}\.safetensors|digests\.json)",
        _LOGITS_WORK,
        VECTOR_FILES,
    ),
    _read_identity,
    work=(r"(stages/[^/]+/)?checkpoints(/.+)?", r"lr-[^/]+(/.+)?", _LOGITS_WORK),
    is_finished=lambda directory: _read_record(directory).get("status") == "finished",
    tolerant=True,
    variable=(rf"(.+/)?{_PREDICTION_FILES}",),
    listed=_listed,
    records=(r"run\.json|(stages/[^/]+/|lr-[^/]+/)?(log\.jsonl|tensorboard/.+)",),
)


class RunDirectory:
    """The directory of a run: run.json, log.jsonl, tensorboard/, checkpoints/, model/, predictions/.

    Nothing is written before `open`, so an invalid request leaves no files behind.

    Attributes:
        path: the directory.
        identity: everything that determines the result (command, settings, data, teacher, ...). Runs with the
            same identity are the same run.
        resuming: True if the directory already holds this run.
    """

    def __init__(
        self, path: Path, identity: dict[str, Any], *, resume: bool = False, overwrite: bool = False
    ):
        """Inspect the directory; nothing is written.

        Args:
            resume: require that the directory holds this run, to resume it.
            overwrite: replace the run in the directory.

        Raises:
            UserError: the directory holds another run, or files that are not a run.
        """
        self.path = path
        self.identity = with_urls(json.loads(json.dumps(identity)))
        self._overwrite = overwrite
        self.resuming = check_directory(
            path, RUN_KIND, self.identity, overwrite=overwrite, difference=self._difference
        )
        if resume and not self.resuming:
            raise UserError(f"there is no run in {path} to resume", hint="leave `resume=True` out")
        self._before = _read_record(path) if self.resuming else {}

    def _difference(self) -> str:
        before = existing_identity(self.path, RUN_KIND)
        if other := _other_run(before, self.identity):
            return other
        differences = _differences(before, self.identity)
        and_more = f" and {len(differences) - _SHOWN} more settings" if len(differences) > _SHOWN else ""
        return f"it differs in {', '.join(differences[:_SHOWN])}{and_more}"

    @property
    def finished(self) -> bool:
        """True if this run is complete."""
        return self._before.get("status") == "finished"

    @property
    def record(self) -> dict[str, Any]:
        """The current content of run.json."""
        return read_run_record(self.path / RUN_FILE)

    @property
    def scores(self) -> dict[str, Any]:
        """The validation scores of a finished run, "task/split" -> scores (`TaskScores.to_json`)."""
        scores: dict[str, Any] = self.record["scores"]
        return scores

    def model(self) -> MultiTaskModel:
        """The trained model of a finished run."""
        return MultiTaskModel.load(self.path)

    def check_inputs(self, **inputs: Any) -> None:
        """If the run is resumed, check that its inputs (data, teacher, ...) have not changed.

        Args:
            inputs: name -> digests, as recorded by `begin`.

        Raises:
            UserError: an input has changed.
        """
        for name, digest in inputs.items():
            if self._before and self._before.get(name) != digest:
                raise UserError(
                    f"the {name} has changed since the run in {self.path} started",
                    hint="restore it, or start over with `overwrite=True`",
                )

    @contextlib.contextmanager
    def open(self, group: ProcessGroup = ALONE, **values: Any) -> Iterator[None]:
        """Lock the directory, remove the run that is to be overwritten, and write run.json.

        Afterwards, `finished` is True if another process has finished this run in the meantime.

        Args:
            group: the processes that train together; rank 0 writes for all of them.
            values: further values to record (digests of inputs, parameters, warnings, ...).

        Raises:
            UserError: another process is writing there; see also `__init__`.
        """
        with open_directory(
            self.path,
            RUN_KIND,
            self.identity,
            overwrite=self._overwrite,
            group=group,
            difference=self._difference,
        ):
            # Before the directory was locked, another process may have finished the run.
            self._before = _read_record(self.path)
            group.wait()  # every process reads what was there before rank 0 writes
            if group.is_main and not self.finished:
                versions = {name: metadata.version(name) for name in _PACKAGES}
                record = {
                    "status": "running",
                    "identity": self.identity,
                    "command_line": recorded_command.get(),
                    "versions": {"mtkd": __version__, "python": platform.python_version(), **versions},
                    "machine": f"{platform.system()} {platform.machine()}, Python {sys.version.split()[0]}",
                }
                write_record(self.path / RUN_FILE, record | values)
            yield

    def note(self, **values: Any) -> None:
        """Add values to run.json."""
        write_record(self.path / RUN_FILE, {**self.record, **values})

    def finish(self, **values: Any) -> None:
        """Mark the run as complete and add final values; its checkpoints are removed at the end of `open`."""
        write_digests(self.path, "log.jsonl", "stages/*/log.jsonl", f"{PREDICTIONS}/*/*.parquet")
        self.note(status="finished", **values)

    def clean_up(self) -> None:
        """Remove what a process that was killed right after `finish` has left."""
        if (self.path / CLAIM).is_file():
            with open_directory(self.path, RUN_KIND, self.identity):
                pass


def _other_run(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """How a run of another command or recipe differs from this one, in words; None for the same recipe."""
    if old.get("command") != new.get("command"):
        return f"a {old.get('command')} run, not a {new.get('command')} run"
    old_name, new_name = (identity.get("settings", {}).get("name") for identity in (old, new))
    return None if old_name == new_name else f"a run of the recipe {old_name!r}, not of {new_name!r}"


def _differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The dotted keys whose values differ, with the values if these are short and readable."""
    key = prefix.rstrip(".")
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict) and not (key == "losses" and old.keys() != new.keys()):
        keys = sorted(old.keys() | new.keys())
        if key.partition(".")[0] in _OF_RECIPE and old.get("class") != new.get("class"):
            keys = ["class"]  # different classes also have other code and attributes
        return [
            text for name in keys for text in _differences(old.get(name), new.get(name), f"{prefix}{name}.")
        ]
    if key in _OF_RECIPE:
        return [f"{key} ({_passed(key, old)}, now {_passed(key, new)})"]
    values = f"{old!r}, now {new!r}"
    is_short = len(values) <= _LONGEST and not _DIGEST_TEXT.search(values)
    return [f"{key} ({values})" if is_short else key]


def _passed(key: str, value: Any) -> str:
    """The losses or the student of a run, in words.

    Args:
        value: what the run records of the objects that were passed; None if there were none.
    """
    if not isinstance(value, dict):
        return _OF_RECIPE[key]
    return str(value.get("class")) if key == "student" else " and ".join(value) or "none"
