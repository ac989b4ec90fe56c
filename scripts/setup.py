"""Build `.venv` from the pinned versions in `requirements/`; `make` runs this before every command.

    python3 scripts/setup.py          install mtkd and its dependencies
    python3 scripts/setup.py --dev    also install the developer tools

It uses only the standard library. It returns immediately if nothing has changed since the last run: a state
file in `.venv` records digests of the requirements, of pyproject.toml and of this script. During
installation the state is marked as unfinished, so that an interrupted set-up starts over.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
OLDEST = (3, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
STARTED = time.monotonic()

# The files that each group of packages depends on; a group is reinstalled when one of them changes.
RUNTIME = ("requirements/torch.txt", "requirements/runtime.txt", "pyproject.toml", "scripts/setup.py")
GROUPS = {"runtime": RUNTIME, "dev": (*RUNTIME, "requirements/dev.txt")}


@dataclasses.dataclass(frozen=True)
class State:
    """The interpreter and path that `.venv` was made for, and the digest of each installed group."""

    base: str
    finished: bool
    groups: dict[str, str]


@dataclasses.dataclass(frozen=True)
class TorchBuild:
    """One way to install PyTorch: a label for the user, and the arguments of `pip install`."""

    label: str
    arguments: tuple[str, ...]


def venv_base() -> str:
    """The interpreter version and checkout path; a `.venv` is valid only for these."""
    return f"Python {platform.python_version()} in {ROOT}"


def digest(group: str) -> str:
    """The SHA-256 of the files that a group depends on."""
    return hashlib.sha256(b"\0".join((ROOT / name).read_bytes() for name in GROUPS[group])).hexdigest()


def read_state() -> State | None:
    """Read the state file; None if there is none (no `.venv`, or one that was made manually)."""
    try:
        return State(**json.loads((VENV / "setup.json").read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return State("", False, {})


def write_state(state: State) -> None:
    """Replace the state file atomically."""
    VENV.mkdir(exist_ok=True)
    part = VENV / "setup.json.part"
    part.write_text(json.dumps(dataclasses.asdict(state)))
    part.replace(VENV / "setup.json")


def say(text: str) -> None:
    """Print one line of progress with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def run(*command: str) -> bool:
    """Run a command and log its output to `.venv/setup.log`; prints a line every 20 seconds."""
    with open(VENV / "setup.log", "a") as log:
        print("\n$", *command, file=log, flush=True)
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while True:
            try:
                return process.wait(timeout=20) == 0
            except subprocess.TimeoutExpired:
                say("  ... still running")


def fail(text: str) -> None:
    """Exit with an error message, after printing the last lines of the log if there is one."""
    log = VENV / "setup.log"
    if log.exists():
        lines = log.read_text(errors="replace").splitlines()
        print("\n".join(line for line in lines[-30:] if "is ignored: it is neither" not in line))
        text += f" The lines above are the end of the log, {log.relative_to(ROOT)}."
    sys.exit(f"set-up: {text}")


def pip() -> list[str]:
    """The pip command for `.venv`: its own pip, or this interpreter's if `.venv` has none."""
    python = str(VENV / "bin" / "python")
    if subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0:
        command = [python, "-m", "pip"]
    else:
        command = [sys.executable, "-m", "pip", "--python", python]
    return [*command, "--disable-pip-version-check", "--no-input", "install", "--no-compile"]


def make_venv() -> None:
    """Create an empty environment in `.venv`, which already contains the state file."""
    say(f"making .venv with Python {platform.python_version()} ({sys.executable})")
    with_pip = importlib.util.find_spec("ensurepip") is not None
    if importlib.util.find_spec("venv") is None or not (with_pip or importlib.util.find_spec("pip")):
        shutil.rmtree(VENV)
        version = ".".join(platform.python_version_tuple()[:2])
        fail(
            f"{sys.executable} cannot create virtual environments: its module venv or ensurepip is not "
            f"installed. On Debian and Ubuntu, run: apt install python{version}-venv. To use another "
            "interpreter, run: make PYTHON=/path/to/python3."
        )
    if not run(sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(VENV)):
        fail("could not create the virtual environment.")


def prepare(state: State | None) -> State:
    """Make sure that `.venv` is usable; returns its state, which is also saved as unfinished."""
    works = usable(VENV / "bin" / "python")
    if state is not None and not state.finished:
        say("the last set-up was interrupted; starting over")
    elif state is not None and state.base != venv_base():
        say(f"starting over: .venv was made for {state.base}")
    elif works:
        current = State(venv_base(), False, state.groups if state else {})
        write_state(current)
        return current
    if VENV.exists():
        shutil.rmtree(VENV)
    current = State(venv_base(), False, {})
    write_state(current)
    make_venv()
    return current


def usable(python: Path) -> bool:
    """Whether this interpreter exists, runs and is new enough."""
    try:
        check = f"import sys; sys.exit(sys.version_info[:2] < {OLDEST})"
        return subprocess.run([str(python), "-c", check], capture_output=True).returncode == 0
    except OSError:
        return False


def has_gpu() -> bool:
    """Whether nvidia-smi finds a GPU."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except OSError:
        return False
    return listing.returncode == 0 and "GPU" in listing.stdout


def torch_builds(pin: str, system: str, gpu: bool) -> list[TorchBuild]:
    """The builds of PyTorch to try, in order. `pin` is "torch==X"; `system` is from `platform.system`.

    Except on Linux, the registry's build is for CPU. On Linux it needs gigabytes of CUDA libraries, so
    machines without a GPU try the CPU build first.
    """
    constraint = ("-c", "requirements/runtime.txt")
    registry = TorchBuild("the build from the package registry", (*constraint, pin))
    if system != "Linux":
        return [registry]
    version = pin.removeprefix("torch==")
    cpu = f"{pin}+cpu"
    quick = ("--retries", "0", "--timeout", "10")
    cpu_builds = [
        TorchBuild("the CPU build from pip's default package index", ("--no-deps", cpu)),
        TorchBuild(f"the CPU build from {CPU_INDEX}", ("--no-deps", *quick, "--index-url", CPU_INDEX, cpu)),
    ]
    if gpu:
        return [
            TorchBuild("the CUDA build (several gigabytes)", (*constraint, f"{pin},!={version}+cpu")),
            *cpu_builds,
        ]
    return [
        *cpu_builds,
        dataclasses.replace(
            registry, label="the build from the package registry (with CUDA, several gigabytes)"
        ),
    ]


def install_torch() -> None:
    """Install the first available build of PyTorch."""
    lines = (ROOT / "requirements" / "torch.txt").read_text().splitlines()
    pin = next(line.strip() for line in lines if line.startswith("torch=="))
    gpu = has_gpu()
    say(f"installing PyTorch ({pin}): {'found an NVIDIA GPU' if gpu else 'no NVIDIA GPU, so the CPU build'}")
    for build in torch_builds(pin, platform.system(), gpu):
        say(f"  trying {build.label}")
        if run(*pip(), *build.arguments):
            return
        say("  unavailable")
    fail("PyTorch could not be installed.")


def install_runtime() -> None:
    """Install PyTorch, the other pinned packages, and mtkd itself in editable mode."""
    install_torch()
    say("installing the other packages from requirements/runtime.txt")
    if not run(*pip(), "--no-deps", "-r", "requirements/runtime.txt"):
        fail("a package from requirements/runtime.txt could not be installed.")
    say("installing mtkd in editable mode")
    if not run(*pip(), "--no-deps", "--no-build-isolation", "-e", "."):
        fail("mtkd could not be installed.")


def install_dev() -> None:
    """Install the developer tools and compile all packages to bytecode.

    Without bytecode, syntax warnings of a package would appear when it is first imported, and the tests treat
    warnings as errors.
    """
    say("installing the developer tools from requirements/dev.txt")
    if not run(*pip(), "--no-deps", "-r", "requirements/dev.txt"):
        fail("a package from requirements/dev.txt could not be installed.")
    say("compiling the packages to bytecode")
    # Ignore the exit status: some packages contain templates that are not valid Python.
    run(str(VENV / "bin" / "python"), "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", str(VENV / "lib"))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process sets up this directory, and keep others waiting inside the block."""
    directory = os.open(ROOT, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another set-up of .venv to finish")
                fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)  # ends the lock


def newer_python() -> str | None:
    """Find an interpreter that is new enough by its versioned name."""
    for name in ("python3.13", "python3.12", "python3.11", "python3.14"):
        path = shutil.which(name)
        if path and usable(Path(path)):
            return path
    return None


def main() -> None:
    """Bring `.venv` up to date; silent if there is nothing to do."""
    if sys.version_info[:2] < OLDEST:
        other = newer_python()
        if other is None:
            sys.exit(
                f"set-up: mtkd needs Python 3.11 or newer; {sys.executable} is {platform.python_version()}. "
                "Install one, or run: make PYTHON=/path/to/python3."
            )
        os.execv(other, [other, *sys.argv])
    parser = argparse.ArgumentParser(description="Build .venv from pinned versions.")
    parser.add_argument("--dev", action="store_true", help="also install the developer tools")
    groups = ["runtime", "dev"] if parser.parse_args().dev else ["runtime"]

    with alone():
        set_up(groups)


def set_up(groups: list[str]) -> None:
    """Install what is missing or out of date in `.venv`."""
    digests = {group: digest(group) for group in groups}
    state = read_state()
    ready = state is not None and state.finished and state.base == venv_base()
    if state and ready and digests.items() <= state.groups.items():
        return
    say("setting up .venv (this takes a minute or more the first time)")
    state = prepare(state)
    installers = {"runtime": install_runtime, "dev": install_dev}
    for group in groups:
        if state.groups.get(group) != digests[group]:
            installers[group]()
    write_state(State(state.base, True, {**state.groups, **digests}))
    say("ready")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nset-up: interrupted; the next run starts over.")
