"""The inputs that all runs of a grid share (`GridInputs`), and a command with the runs it needs (`Job`)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mtkd.grids import Cell
from mtkd.run_record import RUN_FILE, read_run_record
from mtkd.teachers.label_lists import label_list
from tasks.common.errors import UserError
from tasks.common.records import as_toml, read_record
from tasks.common.sha256 import digest_bytes
from tasks.common.urls import with_urls
from tasks.task import Task
from tasks.task_names import resolve

_EPOCH_LENGTH = re.compile(r"(stages\.[^.]+\.)?train\.steps_per_epoch *=")
_COMMAND, _LOG = "command.json", "log.txt"


@dataclass(frozen=True)
class GridInputs:
    """The inputs that all runs of a grid share.

    Attributes:
        data: one data source, or several; then each split is read from the first source that has it.
        teacher: a run of `mtkd refine`, or another teacher; `{task}` in it is replaced by the task's name.
        out: the directory of the comparison, which holds all its runs.
        text: plain text for cells with a `first` run.
        encoder: the pretrained encoder that teachers are refined from, and the teacher of `first` runs.
        store: a knowledge store instead of the teacher; `{task}` as in `teacher`.
        corpus: an augmented corpus for cells that use one; `{task}` as in `teacher`.
        limit, eval_limit: rows per training and validation split; None = all.
        epochs: the number of epochs of the reference's runs, over all their stages; the other cells are
            trained for as many steps as these runs. None = as in each cell's recipe and settings.
        unlabelled: task -> a file of unlabelled rows, or a list of files, for cells that distil.
        unlabelled_limit: maximum number of unlabelled rows per task; None = all.
        teacher_labels: task -> its labels in the order of the outputs of a transformers checkpoint.
    """

    data: str | Sequence[str]
    teacher: str | None
    out: Path
    text: Path | None = None
    encoder: str | None = None
    store: str | None = None
    corpus: str | None = None
    limit: int | None = None
    eval_limit: int | None = None
    epochs: int | None = None
    unlabelled: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    unlabelled_limit: int | None = None
    teacher_labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def data_options(self, limit: int | None = None) -> list[str]:
        """The options of a command that name its data and limit the number of rows.

        Args:
            limit: used instead of the attribute `limit`; None = use the attribute.
        """
        sources = [self.data] if isinstance(self.data, str) else self.data
        options = [option for source in sources for option in ("--data", source)]
        limits = (("--limit", limit or self.limit), ("--eval-limit", self.eval_limit))
        return options + [option for name, value in limits if value for option in (name, str(value))]

    def corpus_of(self, cell: Cell) -> str | None:
        """The augmented corpus that a cell trains on: its own, or the given one; None if it uses none."""
        return cell.corpus if isinstance(cell.corpus, str) else self.corpus if cell.corpus else None

    def unlabelled_options(self, task_spec: str) -> list[str]:
        """The options of a command that name the unlabelled rows of its tasks, and limit their number."""
        options = []
        tasks = [task.name for task in resolve(task_spec)] if self.unlabelled else []
        for task, files in self.unlabelled.items():
            for file in ([files] if isinstance(files, str) else files) if task in tasks else ():
                options += ["--unlabelled", f"{task}={file}"]
        limit = self.unlabelled_limit
        return options if limit is None else [*options, "--unlabelled-limit", str(limit)]

    def labels_of_teacher(self, tasks: Sequence[Task]) -> dict[str, Sequence[str]]:
        """The entries of `teacher_labels` for these tasks."""
        names = [task.name for task in tasks]
        return {task: labels for task, labels in self.teacher_labels.items() if task in names}

    def teacher_labels_options(self, task_spec: str) -> list[str]:
        """The options of a command that give the order of the teacher's labels for its tasks."""
        labels_by_task = self.labels_of_teacher(resolve(task_spec)) if self.teacher_labels else {}
        options = []
        for task, labels in labels_by_task.items():
            options += ["--teacher-labels", f"{task}={label_list(labels)}"]
        return options


@dataclass(frozen=True)
class Job:
    """One command and its run directory.

    Attributes:
        argv: the command after `mtkd`, without the number of steps that `steps_of` determines.
        out: the run directory.
        needs: jobs that must be finished before this one starts.
        steps_of: train for as many steps as these jobs together, with as many evaluations as the one of them
            that has the most; empty = `argv` determines the number of steps.
        tasks: for `steps_of`, count only the steps on these tasks, in proportion to their rows; empty = all
            steps.
        stages: for `steps_of`, stage of the recipe -> weight by which the steps are divided among stages.
    """

    argv: tuple[str, ...]
    out: Path
    needs: tuple[Job, ...] = field(default=(), compare=False)
    steps_of: tuple[Job, ...] = field(default=(), compare=False)
    tasks: tuple[str, ...] = field(default=(), compare=False)
    stages: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def command(self) -> list[str]:
        """All words of the command; until `steps_of` is finished, with a placeholder for the steps."""
        if not self.steps_of:
            return list(self.argv)
        runs = [job.out for job in self.steps_of]
        if not all(map(_is_finished, runs)):
            return [*self.argv, "--steps", f"STEPS OF {' AND '.join(map(str, runs))}"]
        steps = sum(_steps_of_tasks(run, self.tasks) for run in runs)
        words = [*self.argv, *evaluation_options(runs, steps, self.argv)]
        if len(self.stages) < 2:
            return [*words, "--steps", str(steps)]
        shares = zip(self.stages, apportion(list(self.stages.values()), steps), strict=True)
        settings = {f"stages.{stage}.train.steps": share for stage, share in shares}
        return [*words, *setting_options(settings)]

    @property
    def command_line(self) -> str:
        """The command as it is typed in a shell."""
        return f"mtkd {shlex.join(self.command)}"

    def option(self, name: str) -> str | None:
        """The value of an option of the command; None if it is not given."""
        flag = f"--{name}"
        return self.argv[self.argv.index(flag) + 1] if flag in self.argv else None

    @property
    def finished(self) -> bool:
        """True if the run directory holds a finished run of exactly this command."""
        return self.finished_command == with_urls(self.command)

    @property
    def finished_command(self) -> list[str] | None:
        """The command whose finished run the run directory holds; None if it holds none.

        If the directory of the comparison was moved, or is given by another path now, the paths inside it are
        updated in the recorded command.
        """
        record = self.out / RUN_FILE
        if not (record.is_file() and self.command_file.is_file()) or not _is_finished(self.out):
            return None
        return _with_current_paths(read_record(self.command_file, list[str]), with_urls(self.command))

    @property
    def changed_options(self) -> str | None:
        """How this command differs from that of the finished run in its directory; None if it does not."""
        before, now = self.finished_command, with_urls(self.command)
        if before is None or before == now or self.steps_of:
            return None  # the steps of a `steps_of` run are known only once the other run is finished
        is_same = [word == other for word, other in zip(before, now, strict=False)]
        n_same = (*is_same, False).index(False)  # the number of words before the first difference
        changed = [shlex.join(words[max(0, n_same - 1) : n_same + 3]) or "nothing" for words in (before, now)]
        return f"`... {changed[0]} ...`, not `... {changed[1]} ...`"

    @property
    def command_file(self) -> Path:
        """The file in which the command of the finished run is recorded."""
        return self.out.with_name(f"{self.out.name}.{_COMMAND}")

    @property
    def log(self) -> Path:
        """The file to which the command's output is written."""
        return self.out.with_name(f"{self.out.name}.{_LOG}")


def _with_current_paths(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Update the paths in a recorded command that lie inside the directory of its comparison.

    The old and the new run directory (`--out`) end with the same names. The parts before these are the old
    and the new directory of the comparison.

    Args:
        before: the recorded command.
        now: the same command as it would be started now.
    """
    if "--out" not in before or "--out" not in now:
        return list(before)
    old, new = (Path(words[words.index("--out") + 1]) for words in (before, now))
    while old.name == new.name and old.name:
        old, new = old.parent, new.parent

    def was_moved(word: str, current: str) -> bool:
        path = Path(word)
        return path.is_relative_to(old) and new / path.relative_to(old) == Path(current)

    pairs = zip_longest(before, now[: len(before)], fillvalue="")
    return [current if was_moved(word, current) else word for word, current in pairs]


def _is_finished(run: Path) -> bool:
    record = run / RUN_FILE
    return record.is_file() and read_run_record(record).get("status") == "finished"


def _steps_of_tasks(run: Path, tasks: Sequence[str]) -> int:
    """The steps of a finished run that count for some of its tasks, in proportion to their training rows.

    Args:
        tasks: names of tasks; those that the run does not train are ignored. Empty = all steps.
    """
    steps: int = total_of_stages(run, "steps")
    rows = read_run_record(run / RUN_FILE).get("rows", {})
    if not tasks or {*rows} <= {*tasks}:
        return steps
    shares = apportion([max(1, counts["train"]) for counts in rows.values()], steps)
    return sum(share for task, share in zip(rows, shares, strict=True) if task in tasks)


def total_of_stages(run: Path, key: str) -> Any:
    """The sum of "steps" or "seconds" over the stages of a finished run.

    Raises:
        UserError: run.json does not record them.
    """
    training = read_run_record(run / RUN_FILE).get("training", {})
    stages = [training] if key in training else training.values()
    if not all(key in stage for stage in stages):
        raise UserError(f"{run / RUN_FILE} lacks the key {key!r} in `training`", hint="train the run again")
    return sum(stage[key] for stage in stages)


def evaluation_options(runs: Sequence[Path], steps: int, words: Sequence[str] = ()) -> list[str]:
    """The option that makes a run have as many evaluations as a finished run.

    Without it, a run with shorter epochs would be evaluated more often, and the best of more evaluations
    scores higher by chance.

    Args:
        runs: finished runs, of which the one with the most evaluations counts.
        steps: the number of steps of the new run.
        words: the other words of the command; if they set the length of an epoch, no option is returned.
    """
    evaluations = max(map(_evaluations, runs))
    if not evaluations or any(_EPOCH_LENGTH.match(word) for word in words):
        return []
    return setting_options({"train.steps_per_epoch": math.ceil(steps / evaluations)})


def _evaluations(run: Path) -> int:
    """The number of evaluations during training in a finished run, without the one before the first step."""
    training = read_run_record(run / RUN_FILE).get("training", {})
    stages = [training] if "steps" in training else training.values()
    history = [record for stage in stages for record in stage.get("history", ())]
    return sum("scores" in record and record.get("epoch") != 0 for record in history)


def setting_options(values: Mapping[str, Any]) -> list[str]:
    """Settings as `--set` options of a command."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={as_toml(value)}")]


def apportion(weights: Sequence[int], total: int) -> list[int]:
    """Divide a total into whole numbers in proportion to weights; each of them is at least 1.

    This is the largest remainder method: the exact shares are rounded down, and what remains is added to the
    shares with the largest remainders.
    """
    exact = [weight / sum(weights) * total for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    while sum(shares) != max(total, len(shares)):
        step = 1 if sum(shares) < total else -1
        adjustable = [i for i in range(len(shares)) if shares[i] + step >= 1]
        shares[max(adjustable, key=lambda i: step * (exact[i] - shares[i]))] += step
    return shares


def safe_file_name(name: str) -> str:
    """A file name for any name; characters that are unsafe in file names are replaced."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-")
    return safe if safe == name else f"{safe}-{digest_bytes(name)[:6]}"
