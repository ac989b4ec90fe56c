"""Interrupt a command at every change that it makes to the disk, and run it again to its end."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from commands import COMMANDS, needed, reset
from fake_endpoint import FakeEndpoint, serve
from fake_hub import FakeHub
from processes import CommandResult, Processes, process_group_store

from tasks.common.files import is_temporary
from tasks.common.locks import LOCK

VICTIM = "thesis.tex"  # a file of the user beside the output
# Times and digests of times, which differ between two runs, wherever they are in a JSON file.
_TIMES = {"seconds", "finished", "after", "mtime", "speed", "ms", "peak", "files", "check"}


@dataclass
class Outcome:
    """Counts of the results of the trials of a command."""

    trials: int = 0
    refused: int = 0  # of the trials with a flipped bit: detected by the command, with exit code 2
    verified: int = 0  # of the trials with a flipped bit: detected by `mtkd verify`
    stuck: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


class Trials:
    """The trials of one command.

    Args:
        directory: for inputs and outputs of all commands.
    """

    def __init__(self, name: str, processes: Processes, directory: Path):
        self.name, self.command, self._processes = name, COMMANDS[name], processes
        self.directory, self.inputs = directory / name.replace(" ", "-"), directory / "inputs"
        self.out = self.directory / self.command.out
        for module in self.command.imports:
            processes.ask({"import": [module]})
        for needs in self.command.needs:
            needed(self.inputs, needs, self._to_end)
        self.outcome = Outcome()
        self._fresh()
        self.uninterrupted = self._run({"log": str(directory / "changes")})
        assert self.uninterrupted.code == 0, self.uninterrupted.err
        self.changes = (directory / "changes").read_text().splitlines()
        self.expected = self.snapshot()
        usual = (self.directory / VICTIM).stat().st_mode
        files = [file for file in self.out.rglob("*") if file.is_file()]
        self.odd = [f"permissions of {file}" for file in files if file.stat().st_mode != usual]

    @property
    def words(self) -> list[str]:
        servers = {"ENDPOINT": lambda: self._endpoint.url, "HUB": lambda: self._hub}
        words = self.command.words(self.inputs, self.out)
        return [servers[word]() if word in servers else word for word in words]

    @cached_property
    def _running(self) -> ExitStack:
        """Servers, which run in threads until this process ends."""
        return ExitStack()

    @cached_property
    def _endpoint(self) -> FakeEndpoint:
        """A fake language model."""
        return self._running.enter_context(serve())

    @cached_property
    def _hub(self) -> str:
        """The address of a fake Hugging Face hub that has the teacher as the model someone/model."""
        hub, model = FakeHub(), self.inputs / "teacher" / "model"
        hub.files["someone/model"] = {file.name: file.read_bytes() for file in model.iterdir()}
        return self._running.enter_context(hub.listen())

    def _to_end(self, *words: object, **more: Any) -> CommandResult:
        done = self._processes.run(*words, **more)
        assert done.code == 0, f"{words}\n{done.out}\n{done.err}"
        return done

    def _run(self, fault: dict[str, Any]) -> CommandResult:
        """Run the command to its end; `fault`: the arguments of `install` in child.py, without `under`."""
        return self._processes.run(*self.words, **self._call, fault=self._placed(fault))

    @property
    def _call(self) -> dict[str, str]:
        """The function that runs the command instead of mtkd itself, if any; see fork_server.py."""
        return {"call": self.command.call} if self.command.call else {}

    def _placed(self, fault: dict[str, Any]) -> dict[str, Any]:
        return fault | {"under": str(self.directory.parent)}

    def _fresh(self) -> None:
        """Restore the state before the command has run."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        reset(self.inputs)
        for name, text in ({VICTIM: "work of years"} | dict(self.command.files or {})).items():
            (self.directory / name).write_text(text)

    def snapshot(self) -> dict[str, Any]:
        """Return the content of all files, without times."""
        found: dict[str, Any] = {}
        for root in (self.directory, self.inputs):
            for file in sorted(root.rglob("*")):
                name = str(file.relative_to(root.parent))
                if "tensorboard" in file.parts or name.endswith(".mtkd.lock"):
                    continue
                if file.is_file():
                    found[name] = _content(file)
                elif not any(file.iterdir()):
                    found[name] = "empty folder"
        return found

    def killed(self, at: int, number: int = signal.SIGKILL) -> None:
        """Kill the command before a change, and run it again."""
        self._fresh()
        where = f"{at}: {self.changes[min(at, len(self.changes) - 1)]}"
        self._run({"at": at, "number": int(number)})
        self._again(where)

    def disk_full(self, size: int) -> None:
        """Let writing files of more than `size` bytes fail; the command must report this, and resume."""
        self._fresh()
        done = self._run({"size": size})
        where = f"files of at most {size} bytes"
        codes = (0, 1, 2) if self.name == "compare" else (0, 2)  # 1: the run of a cell has failed
        if done.code not in codes or "Traceback" in done.err:
            self.outcome.stuck.append(f"{where}: {_last(done)}")
        if done.code:
            self._again(where)
        else:  # all files are smaller
            self._compare(where)

    def doubled(self, at: int) -> None:
        """Stop the command at a change, start it a second time, and let the first one continue."""
        self._fresh()
        fault = self._placed({"at": at, "number": int(signal.SIGSTOP)})
        first = self._processes.start(*self.words, **self._call, fault=fault)
        watched = psutil.Process(first.process)
        _wait_for(watched, psutil.STATUS_STOPPED)
        workers = watched.children(recursive=True)
        for worker in workers:
            worker.suspend()
        before = self.snapshot()
        where = f"two, the second at {at}: {self.changes[min(at, len(self.changes) - 1)]}"
        running = watched.status() == psutil.STATUS_STOPPED
        second = self._processes.run(*self.words, *self.command.second, **self._call)
        if running and second.code != (2 if self.command.locks else 0):
            self.outcome.stuck.append(f"{where}: the second ends with {second.code}: {_last(second)}")
        if running and self.command.locks and self.snapshot() != before:
            self.outcome.foreign.append(f"{where}: {self._difference(before)}")
        for process in (*workers, watched) if running else ():
            process.resume()
        done = self._processes.wait(first)
        if done.code:
            self.outcome.stuck.append(f"{where}: the first ends with {done.code}: {_last(done)}")
        self._compare(where)

    def flipped(self, at: int) -> None:
        """Kill the command before a change, flip a bit of a file that it has written, and run it again.

        The damage must not stay unnoticed: the output is that of an uninterrupted run, the command refuses to
        resume, or `mtkd verify` names a damaged file, where only the cleaning up was interrupted.
        """
        self._fresh()
        self._run({"at": at, "number": int(signal.SIGKILL)})
        files = sorted(file for file in self.out.rglob("*") if _is_flippable(file))
        if not files:
            return
        choose = random.Random(f"{self.name} {at}")
        file = choose.choice(files)
        content = bytearray(file.read_bytes())
        place = choose.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        file.write_bytes(content)
        where = f"{at}: {self.changes[at]}, with bit {place} of {file.relative_to(self.directory)} flipped"
        done = self._run({})
        # `compare` continues with its other runs, and ends with exit code 1.
        refused = done.code == 2 or (done.code == 1 and "failed: error: " in done.err)
        if refused and "Traceback" not in done.err:
            self.outcome.trials += 1
            self.outcome.refused += 1
        elif done.code:
            self.outcome.stuck.append(f"{where}: {_last(done)}")
            self.outcome.trials += 1
        elif self.snapshot() != self.expected and self._processes.run("verify", self.out).code == 2:
            self.outcome.trials += 1
            self.outcome.verified += 1
        else:
            self._compare(where)

    def _again(self, where: str) -> None:
        # without a fault, but processes that the command starts are forked, which is much faster
        done = self._run({})
        if done.code:
            self.outcome.stuck.append(f"{where}: {_last(done)}")
            self.outcome.trials += 1
        else:
            self._compare(where)

    def _compare(self, where: str) -> None:
        self.outcome.trials += 1
        found = self.snapshot()
        victim = f"{self.directory.name}/{VICTIM}"
        if found.get(victim) != self.expected[victim]:
            self.outcome.foreign.append(where)
        if found != self.expected:
            self.outcome.differing.append(f"{where}: {self._difference(self.expected)}")

    def _difference(self, expected: dict[str, Any]) -> str:
        found = self.snapshot()
        parts = []
        for name in sorted(found.keys() | expected.keys()):
            if found.get(name) != expected.get(name):
                how = "more" if name not in expected else "missing" if name not in found else "differs"
                if how == "differs" and isinstance(found[name], dict | list):
                    how += f" ({'; '.join(_unequal(expected[name], found[name])[:3])})"
                parts.append(f"{name} {how}")
        return ", ".join(parts[:4])


class PairTrials(Trials):
    """The trials of a training command that runs in two processes on the CPU.

    Args:
        fsdp: True to shard the weights across the two processes, False for DDP.
    """

    def __init__(self, name: str, processes: Processes, directory: Path, fsdp: bool):
        self._variables = {"ACCELERATE_USE_FSDP": str(fsdp).lower()}
        super().__init__(name, processes, directory)

    @property
    def words(self) -> list[str]:
        words = super().words
        position = words.index("--device")  # refused with several processes, which use the CPU anyway
        return words[:position] + words[position + 2 :]

    def second_killed(self, at: int) -> None:
        """Kill the second process while the first is at a change, and run both again."""
        self._fresh()
        where = f"{at}, the second: {self.changes[at]}"
        done = self._run({"at": at, "number": int(signal.SIGSTOP)}, kill_second=True)
        if not done.code or "Traceback" in done.err:
            self.outcome.stuck.append(f"{where}: the first ends with {done.code}: {_last(done)}")
        self._again(where)

    def _run(self, fault: dict[str, Any], kill_second: bool = False) -> CommandResult:
        """Run the command in both processes; the fault is that of the first, which alone writes."""
        with process_group_store() as shared:
            started = [
                self._processes.start(
                    *self.words,
                    env={
                        **shared,
                        **self._variables,
                        **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
                        **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    },
                    fault=self._placed(fault if rank == 0 else {}),
                )
                for rank in range(2)
            ]
            if kill_second:
                first, second = (psutil.Process(one.process) for one in started)
                _wait_for(first, psutil.STATUS_STOPPED)
                second.kill()
                _wait_for(second, psutil.STATUS_ZOMBIE)
                first.resume()
            return self._processes.wait(*started)


def _wait_for(process: psutil.Process, status: str) -> None:
    """Wait until a process has a status, or has ended."""
    while process.status() not in (status, psutil.STATUS_ZOMBIE):
        time.sleep(0.01)


def _is_flippable(file: Path) -> bool:
    """Return whether a file is compared, and a command may read it when it resumes.

    When training resumes with a damaged log, it warns and continues the log.
    """
    others = "tensorboard" in file.parts or file.name in (LOCK, "README.md", "log.jsonl")
    temporary = any(map(is_temporary, (file, *file.parents)))
    return file.is_file() and not others and not temporary and file.stat().st_size > 0


def _last(done: CommandResult) -> str:
    return " | ".join(done.err.strip().splitlines()[-3:])[-300:]


def _content(file: Path) -> Any:
    """Return the part of a file that is compared: values without times, or a digest."""
    raw = file.read_bytes()
    if file.suffix in (".json", ".jsonl"):
        try:
            return _timeless(
                [json.loads(line) for line in raw.splitlines()]
                if file.suffix == ".jsonl"
                else json.loads(raw)
            )
        except ValueError:
            return "damaged"
    if file.name in ("compare.md", "compare.png", "report.html") or file.name.endswith(".log.txt"):
        return "times"
    return hashlib.sha256(raw).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _timeless(inner)
            for key, inner in value.items()
            if key not in _TIMES and not (key == "steps" and isinstance(inner, dict))  # of demo.json
        }
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def _unequal(old: Any, new: Any, path: str = "") -> Iterable[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in old.keys() | new.keys()
            for line in _unequal(old.get(key), new.get(key), f"{path}.{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for n, pair in enumerate(zip(old, new, strict=True))
            for line in _unequal(*pair, f"{path}[{n}]")
        ]
    return [] if old == new else [f"{path}: {str(old)[:60]} -> {str(new)[:60]}"]
