"""Effects of Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import weakref
from collections.abc import Callable

import pytest

from mtkd.training.interrupts import Interrupted, SignalWatch, sigterm_exits


class Thing:
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sigterm_is_not_lost_in_a_callback() -> None:
    def callback(reference: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # Python ignores an exception that is raised here
            pass
        raise AssertionError("the signal did not arrive")

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    thing = Thing()
    _reference = weakref.ref(thing, callback)
    with pytest.raises(SystemExit) as caught, sigterm_exits():
        del thing
        returned = time.monotonic()
        time.sleep(30)
    assert caught.value.code == 143 and time.monotonic() - returned < 20
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_clean_up_after_sigterm_may_take_a_long_time() -> None:
    cleaned = False
    with pytest.raises(SystemExit), sigterm_exits():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        finally:
            time.sleep(1.5)
            cleaned = True
    assert cleaned


def test_the_third_ctrl_c_ends_code_that_does_not_return() -> None:
    watch, before = SignalWatch(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), watch.active():
        for count in (1, 2, 3):
            assert count < 3 or watch.number == signal.SIGINT
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        raise AssertionError("the third signal was ignored")
    assert signal.getsignal(signal.SIGINT) is before


def test_except_exception_does_not_catch_ctrl_c() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt) and not issubclass(Interrupted, Exception)


@pytest.mark.parametrize("terminated", [False, True])
def test_an_alarm_set_by_the_caller_is_kept(terminated: bool) -> None:
    def ignore(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGALRM, ignore)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with contextlib.suppress(SystemExit), sigterm_exits():
            if terminated:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)
        assert signal.getsignal(signal.SIGALRM) is ignore
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_command_that_sigterm_ends_says_so(mtkd: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*given: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    monkeypatch.setattr("mtkd.evaluate", kill)
    done = mtkd("evaluate", "--model", "x", "--data", "pocket")
    assert done.code == 143 and done.err.startswith("error: interrupted\n  hint: run the same command again")
