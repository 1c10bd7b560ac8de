"""What signals do to a process: the first waits, the second does not, and handlers are put back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from badm.processes import signals


def send(number: int = signal.SIGINT) -> None:
    signal.raise_signal(number)  # in this thread, and its handler runs before the next line


@pytest.fixture
def no_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)


class Left(BaseException):
    """Instead of the end of the process."""


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(os, "_exit", leave)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_and_says_how_to_exit(number: signal.Signals) -> None:
    with signals.handle_signals():
        with pytest.raises(signals.Stopped):
            send(number)
        assert signals.stop_requested()
        assert signals.exit_code() == 128 + number
    assert not signals.stop_requested()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("no_repeats")
def test_the_first_signal_waits_and_the_second_does_not(number: signal.Signals) -> None:
    with signals.handle_signals(), signals.defer_stop():
        send(number)
        assert signals.stop_requested()
        with pytest.raises(signals.Stopped):
            send(number)


def test_signals_that_come_together_are_one() -> None:
    """As `timeout` sends them: to the process, and to its group."""
    with signals.handle_signals(), signals.defer_stop():
        for _ in range(5):
            send(signal.SIGTERM)
        assert signals.stop_requested()


@pytest.mark.usefixtures("no_repeats", "leaving")
def test_the_third_signal_ends_what_swallows_the_others() -> None:
    with signals.handle_signals(), signals.defer_stop():
        for _ in range(2):
            with suppress(signals.Stopped):
                send()
        with pytest.raises(Left, match="130"):
            send()


@pytest.mark.usefixtures("leaving")
def test_where_nothing_is_at_stake_the_first_signal_ends_the_process() -> None:
    with signals.handle_signals(), signals.exit_on_signal(), pytest.raises(Left, match="143"):
        send(signal.SIGTERM)


def test_a_signal_that_is_to_be_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.handle_signals():
            send()
            assert not signals.stop_requested()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_the_usual_handlers() -> None:
    """One that loads data is ended with SIGTERM, and its parent is not to take that for its own."""
    with signals.handle_signals():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert not signals.stop_requested()


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with signals.handle_signals():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
