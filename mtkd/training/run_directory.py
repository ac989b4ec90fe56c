"""The directory of a run: its record, and the rules for resuming and overwriting it."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from mtkd import __version__
from mtkd.models.multitask import MultiTaskModel
from tasks.errors import UserError
from tasks.files import drop_directory, is_temporary, read_json, write_json

RUN_FILE = "run.json"
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


class RunDirectory:
    """The directory of a run: run.json, log.jsonl, tensorboard/, checkpoints/, model/.

    Nothing is written before `begin`, so an invalid request leaves no files behind.

    Attributes:
        path: the directory.
        identity: everything that determines the result (stage, settings, data, teacher, ...). Runs with the
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
        self.identity = json.loads(json.dumps(identity))
        self._overwrite = overwrite
        self._before: dict[str, Any] | None = None
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, not a directory", hint="choose another `out`")
        if (path / RUN_FILE).is_file():
            self._before = None if overwrite else read_json(path / RUN_FILE)
            self._refuse_another(resume)
        elif path.is_dir() and any(not is_temporary(file) for file in path.iterdir()):
            raise UserError(
                f"{path} is not empty and is not an mtkd run",
                hint="choose another `out`, or empty it yourself",
            )
        elif resume:
            raise UserError(f"there is no run in {path} to resume", hint="leave `resume=True` out")
        self.resuming = self._before is not None

    def _refuse_another(self, resume: bool) -> None:
        if self._before is None or self._before["identity"] == self.identity:
            return
        differs = ", ".join(_differences(self._before["identity"], self.identity))
        problem = f"{self.path} holds another run, which differs in {differs}"
        if resume:
            raise UserError(
                problem, hint="`resume=True` needs the settings of that run; or choose another `out`"
            )
        raise UserError(
            problem,
            hint="resume it with its own settings (`resume=True`), replace it with `overwrite=True`, "
            "or choose another `out`",
        )

    @property
    def finished(self) -> bool:
        """True if this run is complete."""
        return self._before is not None and self._before["status"] == "finished"

    @property
    def record(self) -> dict[str, Any]:
        """The current content of run.json."""
        return read_json(self.path / RUN_FILE)

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
        for name, digest in (inputs if self._before else {}).items():
            if self._before is not None and self._before.get(name) != digest:
                raise UserError(
                    f"the {name} has changed since the run in {self.path} started",
                    hint="restore it, or start over with `overwrite=True`",
                )

    def begin(self, **facts: Any) -> None:
        """Create the directory and write run.json.

        Args:
            facts: further values to record (digests of inputs, parameters, warnings, ...).
        """
        if self._before is None and self.path.is_dir():
            drop_directory(self.path)
        write_json(
            self.path / RUN_FILE,
            {
                "status": "running",
                "identity": self.identity,
                "versions": {"mtkd": __version__, "python": platform.python_version(), **_versions()},
                "machine": f"{platform.system()} {platform.machine()}, Python {sys.version.split()[0]}",
                **facts,
            },
        )

    def note(self, **facts: Any) -> None:
        """Add values to run.json."""
        write_json(self.path / RUN_FILE, {**self.record, **facts})

    def finish(self, **facts: Any) -> None:
        """Mark the run as complete, add final values, and delete its checkpoints."""
        self.note(status="finished", **facts)
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}


def _differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The dotted keys whose values differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [f"{prefix.rstrip('.')} ({old!r}, now {new!r})"]
    keys = sorted(old.keys() | new.keys())
    return [found for key in keys for found in _differences(old.get(key), new.get(key), f"{prefix}{key}.")]
