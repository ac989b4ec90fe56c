"""The distributions: the content and metadata of the wheel and the source distribution."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("mtkd", "augment", "tasks")
FOLDERS = ("tests", "docs", "examples", "requirements", "scripts")
FILES = ("README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "Makefile", "MANIFEST.in", "pyproject.toml")
# Runs in a process of its own, in a copy: the back end changes global state and writes beside the sources.
BUILD = "import setuptools.build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel and a source distribution, built offline from a copy of the repository."""
    copy = tmp_path_factory.mktemp("packaging") / "source"
    for name in (*PACKAGES, *FOLDERS):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(REPOSITORY / name, copy)
    (copy / "mtkd" / "__pycache__").mkdir()
    (copy / "mtkd" / "__pycache__" / "stray.pyc").touch()
    (copy / "tests" / "__pycache__").mkdir()
    (copy / "tests" / "__pycache__" / "stray.pyc").touch()
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return copy / "dist"


def files_of(*folders: str) -> set[str]:
    """Return the files in these folders of the repository, without bytecode."""
    found = (path for folder in folders for path in (REPOSITORY / folder).rglob("*"))
    return {str(p.relative_to(REPOSITORY)) for p in found if p.is_file() and p.parent.name != "__pycache__"}


def test_the_wheel_holds_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        about = {name.split("/", 1)[1] for name in wheel.namelist() if ".dist-info/" in name}
    assert names == files_of(*PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} < names
    expected = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
    assert about == expected


def test_the_source_distribution_contains_the_tests(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    generated = {name for name in names if "egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert names - generated == {*FILES, *files_of(*PACKAGES, *FOLDERS)}


def test_the_metadata_of_the_distributions(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        found = Parser().parsestr(wheel.read(name).decode())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert found["License-Expression"] == "Apache-2.0" and found.get_all("License-File") == ["LICENSE"]
    assert "Typing :: Typed" in found.get_all("Classifier")
    oldest = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in found.get_all("Classifier")
    runtime = [line for line in found.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(runtime) == len(project["dependencies"])
    assert "# mtkd" in found.get_payload()
