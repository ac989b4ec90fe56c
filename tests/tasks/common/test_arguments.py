"""Arguments of public functions: valid values, conversions, and the error for other values."""

from __future__ import annotations

import decimal
import sys
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas
import pytest

from tasks.common.argument_checks import lazy_class
from tasks.common.argument_markers import Expected, IsPath
from tasks.common.arguments import PositiveFloat, PositiveInt, check_fields, checked
from tasks.common.errors import UserError

Later = lazy_class("json.decoder", "JSONDecoder")


@checked
def function(
    path: str | Path | Later | Sequence[str | Path] = ".",
    *,
    number: PositiveInt | None = None,
    share: PositiveFloat = 1.0,
    flag: bool = False,
    kind: Literal["alpha", "beta"] = "alpha",
    name: str = "x",
    file: Annotated[str, IsPath()] = "x",
    numbers: Sequence[int] = (),
    pair: tuple[int, str] | None = None,
    settings: Annotated[Mapping[str, Any], Expected("a mapping of settings", "see the guide")] | None = None,
    sizes: Mapping[str, int] | None = None,
    call: Callable[[str], None] | None = None,
    anything: Any = None,
    **options: Any,
) -> Any:
    return {name: value for name, value in locals().items() if name != "options"} | options


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({"number": np.int64(3)}, 3),
        ({"share": np.float32(0.5)}, 0.5),
        ({"share": 2}, 2),
        ({"flag": np.bool_(True)}, True),
        ({"numbers": np.arange(2)}, [0, 1]),
        ({"numbers": (number for number in (1, 2))}, [1, 2]),
        ({"numbers": pandas.Series([4, 5])}, [4, 5]),
        ({"numbers": (np.int8(1), 2)}, (1, 2)),
        ({"pair": [1, "a"]}, (1, "a")),
        ({"sizes": {"a": np.int16(1)}}, {"a": 1}),
        ({"path": {"a": 1, "b": 2}.keys()}, ["a", "b"]),
        ({"anything": {1j}}, {1j}),
        ({"other": 5}, 5),
    ],
)
def test_values_that_stand_for_another_type_are_converted(given: dict[str, Any], used: object) -> None:
    (name,) = given
    found = function(**given)[name]
    assert found == used and type(found) is type(used)
    assert [type(part) for part in found] == [type(part) for part in used] if isinstance(used, list) else True


def test_paths_may_start_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    assert function("~/runs")["path"] == "/home/anna/runs"
    assert function(Path("~"))["path"] == Path("/home/anna")
    assert function(["a", "~/b"])["path"] == ["a", "/home/anna/b"]
    assert function(file="a~")["file"] == "a~" and function(name="~/x")["name"] == "~/x"


def test_other_values_are_passed_on_unchanged() -> None:
    decoder, mapping, listed = sys.modules["json.decoder"].JSONDecoder(), UserDict(a=1), ["a", Path("b")]
    for name, value in {"path": decoder, "settings": mapping, "call": print, "name": np.str_("x")}.items():
        assert function(**{name: value})[name] is value
    assert function(listed)["path"] is listed


LONG = "x" * 300


@pytest.mark.parametrize(
    ("given", "problem", "expected"),
    [
        ({"number": True}, "`number=True` is not valid", "an integer of 1 or more"),
        ({"number": 0}, "`number=0` is not valid", "an integer of 1 or more"),
        (
            {"number": 10**30},
            "`number=1000000000000000000000000000000` is not valid",
            "at most 1,000,000,000",
        ),
        (
            {"number": "8"},
            "`number='8'` is not valid",
            "an integer of 1 or more\n  hint: write",
        ),
        (
            {"number": 8.0},
            "`number=8.0` is not valid",
            "an integer of 1 or more\n  hint: write",
        ),
        ({"number": decimal.Decimal("NaN")}, "`number=Decimal('NaN')` is not valid", "an integer"),
        ({"share": 0}, "`share=0` is not valid", "a number above 0"),
        ({"share": float("nan")}, "`share=nan` is not valid", "a finite number"),
        ({"share": np.array(1.0)}, "`share` cannot be an ndarray", "a number above 0"),
        ({"flag": "no"}, "`flag='no'` is not valid", "True or False"),
        ({"flag": None}, "`flag=None` is not valid", "True or False\n  hint: leave it out for the default"),
        ({"kind": "alpa"}, "`kind='alpa'` is not valid (did you mean 'alpha'?)", "alpha or beta"),
        ({"kind": pandas.DataFrame()}, "`kind` cannot be a DataFrame", "alpha or beta"),
        ({"name": "\ud800"}, "`name='\\ud800'` is not valid", "text without lone surrogates"),
        ({"file": ""}, "`file=''` is not valid", "a name or a path that is not empty"),
        ({"path": ""}, "`path=''` is not valid", "a name or a path that is not empty"),
        ({"file": "a\0"}, "`file='a\\x00'` is not valid", "a path without NUL"),
        ({"path": LONG}, f"`path='{LONG[:89]}... (302 characters)` is not valid", "a path whose parts have"),
        ({"path": Path(LONG)}, f"`path='{LONG[:89]}...", "a path whose parts have at most 255 bytes"),
        ({"path": ["a", 5]}, "`path[1]=5` is not valid", "a name or a path, a JSONDecoder or a list"),
        ({"path": Later}, "`path` cannot be the class JSONDecoder", "a name or a path, a JSONDecoder or"),
        ({"path": b"x"}, "`path=b'x'` is not valid", "a name or a path"),
        ({"numbers": {1, 2}}, "`numbers` cannot be a set", "a list (each value: an integer)"),
        (
            {"numbers": 1},
            "`numbers=1` is not valid",
            "a list (each value: an integer)\n  hint: for one value: [1]",
        ),
        ({"pair": (1,)}, "`pair` cannot be a tuple", "a tuple (an integer, text)"),
        ({"settings": {1: 2}}, "`settings` has the key 1", "a mapping of settings\n  hint: see the guide"),
        ({"sizes": {"a": "b"}}, "`sizes['a']='b'` is not valid", "a mapping (each value: an integer)"),
        ({"call": 5}, "`call=5` is not valid", "a function"),
    ],
)
def test_the_first_value_that_does_not_fit_is_an_error(
    given: dict[str, Any], problem: str, expected: str
) -> None:
    with pytest.raises(UserError) as caught:
        function(**given)
    assert str(caught.value).startswith(f"{problem}")
    assert f"\n  expected: {expected}" in str(caught.value)


def test_unknown_arguments_are_a_type_error() -> None:
    @checked
    def other(*, number: int = 1) -> None: ...

    with pytest.raises(TypeError, match=r"other\(\) .*'numbr' \(did you mean 'number'\?\)"):
        other(numbr=1)  # type: ignore[call-arg]


def test_fields_of_a_dataclass_are_checked_too() -> None:
    @dataclass(frozen=True)
    class Sizes:
        width: int = 1

        def __post_init__(self) -> None:
            check_fields(self)

    assert type(Sizes(np.int32(4)).width) is int
    with pytest.raises(UserError, match=r"`width='4'` is not valid"):
        Sizes("4")  # type: ignore[arg-type]
