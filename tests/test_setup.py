"""The set-up: pinned versions are complete, and scripts/setup.py makes the right decisions."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).parents[1]


def load_script():
    spec = importlib.util.spec_from_file_location("setup_script", REPOSITORY / "scripts" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


setup = load_script()


def read_pins(name: str) -> dict[str, Version]:
    """Package -> version, from requirements/NAME.txt; every line must be an exact pin."""
    lines = (REPOSITORY / "requirements" / f"{name}.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            package, version = re.fullmatch(r"([A-Za-z0-9_.-]+)==([0-9][^\s;,]*)", line).groups()
            assert canonicalize_name(package) not in found, f"{package} is pinned twice"
            found[canonicalize_name(package)] = Version(version)
    return found


def project() -> dict:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def all_requirements(roots: list[Requirement]) -> Iterator[Requirement]:
    """Return all direct and indirect requirements of the roots, on this machine."""
    seen, todo = set(), list(roots)
    while todo:
        wanted = todo.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        yield wanted
        if key in seen:
            continue
        seen.add(key)
        for text in requires(wanted.name) or []:
            inner = Requirement(text)
            extras = wanted.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(inner)


def direct_requirements(group: str) -> list[Requirement]:
    if group == "runtime":
        config = project()
        return [
            Requirement(r) for r in config["project"]["dependencies"] + config["build-system"]["requires"]
        ]
    tools = ("pytest", "pytest-xdist", "hypothesis", "ruff", "mypy")
    return [Requirement(name) for name in (*tools, *project()["project"]["optional-dependencies"]["export"])]


@pytest.mark.parametrize("group", ["runtime", "dev"])
def test_pins_are_complete_and_meet_every_requirement(group):
    pinned = read_pins("runtime") | read_pins("torch") | (read_pins("dev") if group == "dev" else {})
    try:
        needed = list(all_requirements(direct_requirements(group)))
    except PackageNotFoundError as error:
        pytest.fail(f"{error} is required but not installed")
    for requirement in needed:
        name = canonicalize_name(requirement.name)
        if name.startswith(("nvidia-", "cuda-")) or name == "triton":
            continue  # PyTorch's CUDA build pins these itself
        assert name in pinned, f"{requirement} has no pin in requirements/"
        assert requirement.specifier.contains(pinned[name], prereleases=True), (
            f"{pinned[name]} is not {requirement}"
        )


def test_no_package_is_pinned_in_two_files():
    names = [name for group in ("runtime", "dev", "torch") for name in read_pins(group)]
    assert len(names) == len(set(names))


def test_cpu_build_comes_first_without_a_gpu_and_last_with_one():
    without = [build.arguments for build in setup.torch_builds("torch==2.13.0", "Linux", gpu=False)]
    assert [arguments[-1] for arguments in without] == [
        "torch==2.13.0+cpu",
        "torch==2.13.0+cpu",
        "torch==2.13.0",
    ]
    with_gpu = [build.arguments[-1] for build in setup.torch_builds("torch==2.13.0", "Linux", gpu=True)]
    first = Requirement(with_gpu[0]).specifier
    assert first.contains("2.13.0") and first.contains("2.13.0+cu130") and not first.contains("2.13.0+cpu")
    assert with_gpu[1:] == ["torch==2.13.0+cpu"] * 2
    assert [b.arguments[-1] for b in setup.torch_builds("torch==2.13.0", "Darwin", gpu=False)] == [
        "torch==2.13.0"
    ]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose set-up only records what it would install and which `.venv` it would create."""
    for names in setup.GROUPS.values():
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(name)
    done: list[str] = []

    def make_venv():
        done.append("venv")
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup, "make_venv", make_venv)
    monkeypatch.setattr(setup, "install_runtime", lambda: done.append("runtime"))
    monkeypatch.setattr(setup, "install_dev", lambda: done.append("dev"))

    def run(*arguments: str) -> list[str]:
        done.clear()
        monkeypatch.setattr(sys, "argv", ["setup.py", *arguments])
        setup.main()
        return list(done)

    run.path = tmp_path
    return run


def test_running_the_set_up_twice_changes_nothing(checkout, capsys):
    assert checkout() == ["venv", "runtime"]
    capsys.readouterr()
    assert checkout() == []
    assert capsys.readouterr().out == ""
    assert checkout("--dev") == ["dev"]
    assert checkout("--dev") == checkout() == []


def test_changed_requirements_are_installed_into_the_same_environment(checkout):
    checkout("--dev")
    (checkout.path / "requirements" / "dev.txt").write_text("another")
    assert checkout() == []
    assert checkout("--dev") == ["dev"]
    (checkout.path / "requirements" / "runtime.txt").write_text("another")
    assert checkout("--dev") == ["runtime", "dev"]


def test_a_changed_pyproject_or_set_up_script_reinstalls_mtkd(checkout):
    """Both decide the metadata and the entry points of the editable install."""
    for name in ("pyproject.toml", "scripts/setup.py"):
        checkout("--dev")
        (checkout.path / name).write_text("another")
        assert checkout() == ["runtime"]
        assert checkout("--dev") == ["dev"] and checkout("--dev") == []


def test_an_interrupted_set_up_starts_over(checkout, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(setup, "install_runtime", interrupted)
        checkout()
    left = checkout.path / ".venv" / "half-installed"
    left.touch()
    assert checkout() == ["venv", "runtime"]
    assert not left.exists()


def test_a_different_python_or_location_starts_over(checkout, monkeypatch):
    checkout()
    monkeypatch.setattr(setup.platform, "python_version", lambda: "3.99.0")
    assert checkout() == ["venv", "runtime"]
    (checkout.path / ".venv" / "bin" / "python").unlink()
    (checkout.path / "requirements" / "runtime.txt").write_text("another")
    assert checkout() == ["venv", "runtime"]


def test_a_set_up_waits_for_another_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    waiting = threading.Thread(target=setup.alone().__enter__, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and "waiting for another set-up" in capsys.readouterr().out
    os.close(other)
    waiting.join(10)
    assert not waiting.is_alive()


def test_an_existing_environment_is_completed_and_not_deleted(checkout):
    setup.make_venv()
    own = checkout.path / ".venv" / "own"
    own.touch()
    assert checkout() == ["runtime"]
    assert own.exists()


def test_the_error_without_venv_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(setup, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"apt install python3\.\d+-venv"):
        setup.make_venv()
    assert not (tmp_path / ".venv").exists()
