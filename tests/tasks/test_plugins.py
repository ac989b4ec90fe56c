"""Classes from entry points: a package on sys.path with nothing but a dist-info directory and a module."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tasks.errors import UserError
from tasks.plugins import load_plugins

_NUMBERS = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package whose module has some code; `{module}` in the entry points is the module's name."""

    def write(package: str, code: str, entries: str) -> None:
        module = f"plugin_{next(_NUMBERS)}"
        site = tmp_path / module
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(code, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[mtkd.tests]\n{entries.format(module=module)}\n", "utf-8")
        monkeypatch.syspath_prepend(site)

    return write


def test_without_plugins_there_is_nothing() -> None:
    assert load_plugins("mtkd.tests", {}) == {}


def test_classes_of_several_packages_by_name(install) -> None:
    install("one", "class Red(dict): ...\nclass Blue(dict): ...", "red = {module}:Red\nblue = {module}:Blue")
    install("two", "class Green(dict): ...", "green = {module}:Green")
    found = load_plugins("mtkd.tests", {"black": object}, dict)
    assert list(found) == ["blue", "green", "red"]
    assert found["red"](a=1) == {"a": 1} and found["red"].__name__ == "Red"


@pytest.mark.parametrize(
    ("code", "entries", "complaint"),
    [
        (
            "class A(dict): ...",
            "black = {module}:A",
            "black = .* of the package broken .*'black' is already taken",
        ),
        ("import not_there", "a = {module}:A", "the plugin a = .* package broken .*: ModuleNotFoundError"),
        ("1 / 0", "a = {module}:A", "package broken .* cannot be loaded: ZeroDivisionError"),
        ("", "a = {module}:A", "cannot be loaded: AttributeError"),
        ("class A: ...", "a = {module}:A", "the plugin a = .* is not a subclass of dict"),
        ("A = {}", "a = {module}:A", "the plugin a = .* is not a subclass of dict"),
    ],
)
def test_a_plugin_that_does_not_work_is_named(install, code: str, entries: str, complaint: str) -> None:
    install("broken", code, entries)
    with pytest.raises(UserError, match=complaint):
        load_plugins("mtkd.tests", {"black": object}, dict)


def test_two_packages_cannot_share_a_name(install) -> None:
    install("one", "class A: ...", "a = {module}:A")
    install("two", "class A: ...", "a = {module}:A")
    with pytest.raises(UserError, match="'a' is already taken"):
        load_plugins("mtkd.tests", {})
