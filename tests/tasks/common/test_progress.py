"""Progress of long jobs: what is printed and when, tested with a fake clock."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tasks.common import progress as module
from tasks.common.progress import progress, say, set_quiet


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    set_quiet(False)
    yield clock
    set_quiet(False)


@pytest.mark.parametrize("closed", [False, True])
def test_standard_error_may_be_closed_or_a_log(closed: bool, clock: Clock, monkeypatch) -> None:
    class Log:
        """What `logging` adapters put in place of standard error."""

        def __init__(self) -> None:
            self.text, self.closed = "", closed

        def write(self, text: str) -> None:
            if closed:
                raise ValueError("I/O operation on closed file.")
            self.text += text

        def flush(self) -> None:
            pass

    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    with progress("predicting", None) as advance:
        clock.now += 16
        advance(10)
    say("done")
    assert log.text == ("" if closed else "predicting: 10 rows\ndone\n")


def test_a_job_of_unknown_length_shows_a_count(clock: Clock, capsys) -> None:
    with progress("predicting", None) as advance:
        clock.now += 16
        advance(10)
        advance(10)
    assert capsys.readouterr().err == "predicting: 10 rows\n"


def test_a_plain_line_every_fifteen_seconds_with_the_remaining_time(clock: Clock, capsys) -> None:
    with progress("encoding", 100, done=20, unit="batches") as advance:
        clock.now += 14
        advance(10)
        assert capsys.readouterr().err == ""
        clock.now += 6  # 20 s for 20 of the 80 remaining items: 60 more take a minute
        advance(10, note="loss 0.5")
        assert capsys.readouterr().err == "encoding: 40/100 batches loss 0.5 ETA 1:00\n"
        clock.now += 14
        advance(1)
        assert capsys.readouterr().err == "", "the 15 seconds start at the last line"
        clock.now += 7200
        advance(1)
        (line,) = capsys.readouterr().err.splitlines()
        # 7,234 s for 22 of them, and 58 left: 19,071.5 s
        assert line.endswith("ETA 5:17:51")
        clock.now += 60
        advance(58)
    assert capsys.readouterr() == ("", ""), "nothing after the last piece, and nothing on standard output"


def test_quiet_jobs_and_silent_processes_print_nothing(clock: Clock, capsys) -> None:
    with progress("encoding", 10, show=False) as advance:
        clock.now += 100
        advance(5)
    set_quiet(True)
    with progress("encoding", 10) as advance:
        clock.now += 100
        advance(5, note="loss 1")
    module.say("nothing")
    assert capsys.readouterr() == ("", "")


def test_nothing_is_printed_if_standard_error_is_closed(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress("encoding", 10) as advance:
        advance(5)
    module.say("nothing")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_only_the_first_of_several_processes_prints(rank: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    module.say("training on all tasks")
    assert bool(capsys.readouterr().err) == (rank == "0")


def test_a_terminal_gets_a_bar(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("encoding", 10, done=2) as advance:
        advance(3)
        advance(note="loss 0.5")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(r"encoding .* 6/10 rows ETA .* loss 0\.5", shown)


def test_an_error_ends_the_progress_and_is_raised(clock: Clock, capsys) -> None:
    with pytest.raises(KeyboardInterrupt), progress("encoding", 10) as advance:
        advance(1)
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
