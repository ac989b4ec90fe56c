"""Classes from entry points: a package on sys.path with nothing but a dist-info directory and a module."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tasks.common.errors import MtkdWarning, UserError
from tasks.common.plugins import load_plugin, load_plugins

GROUP = "mtkd.tests"


def test_no_plugins_are_found_if_none_are_installed() -> None:
    assert load_plugins(GROUP, {}) == {}


def test_plugins_of_several_packages_are_found_by_name(install_plugin: Callable) -> None:
    two = "class Red(dict): ...\nclass Blue(dict): ..."
    install_plugin("one", GROUP, two, "red = {module}:Red", "blue = {module}:Blue")
    install_plugin("two", GROUP, "class Green(dict): ...", "green = {module}:Green")
    found = load_plugins(GROUP, {"black": object}, dict)
    assert list(found) == ["blue", "green", "red"]
    assert found["red"](a=1) == {"a": 1} and found["red"].__name__ == "Red"


@pytest.mark.parametrize(
    ("code", "entry", "message"),
    [
        ("import not_there", "a = {module}:A", "the plugin a = .* package broken .*: ModuleNotFoundError"),
        ("1 / 0", "a = {module}:A", "package broken .* cannot be loaded: ZeroDivisionError"),
        ("", "a = {module}:A", "cannot be loaded: AttributeError"),
        ("class A: ...", "a = {module}:A", "the plugin a = .* is not a subclass of dict"),
        ("A = {}", "a = {module}:A", "the plugin a = .* is not a subclass of dict"),
    ],
)
def test_a_broken_plugin_is_named(install_plugin: Callable, code: str, entry: str, message: str) -> None:
    install_plugin("broken", GROUP, code, entry)
    install_plugin("sound", GROUP, "class B(dict): ...", "b = {module}:B")
    with pytest.raises(UserError, match=message):
        load_plugin(GROUP, "a", dict)
    with pytest.warns(MtkdWarning, match=message):
        assert list(load_plugins(GROUP, {}, dict)) == ["b"], "the others still work"
    assert load_plugin(GROUP, "c", dict) is None


def test_a_plugin_cannot_have_a_reserved_name(install_plugin: Callable) -> None:
    install_plugin("greedy", GROUP, "class A(dict): ...", "black = {module}:A")
    with pytest.warns(MtkdWarning, match="black = .* package greedy .* is not used: .* already taken"):
        assert load_plugins(GROUP, {"black": object}, dict) == {}


def test_two_packages_cannot_share_a_name(install_plugin: Callable) -> None:
    install_plugin("one", GROUP, "class A: ...", "a = {module}:A")
    install_plugin("two", GROUP, "class A: ...", "a = {module}:A")
    with pytest.raises(UserError, match="'a' is already taken"):
        load_plugin(GROUP, "a")
