# SPDX-License-Identifier: Apache-2.0
"""Does a worker process obey its supervisor, even when it is nearly gone?"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any, cast

import pytest

from penstock.processes import worker as worker_process
from penstock.processes.worker import CommandRelay
from penstock.supervisor import protocol
from penstock.worker.parts import Stopping
from penstock.worker.worker import Worker


class _Stopped:
    """Stands in for a worker and notes how it is told to stop."""

    def __init__(self) -> None:
        self.told: list[Stopping] = []

    def stop(self, how: Stopping) -> None:
        self.told.append(how)


class _Gone(Exception):
    """Stands in for the end of the process."""


def listen(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> list[Stopping]:
    """Let a supervisor say Abort and die, and the worker's process listen to it."""
    worker, relay = _Stopped(), CommandRelay()
    relay.take(cast(Worker, worker))
    ours, theirs = socket.socketpair()

    def leave(code: int) -> Any:
        raise _Gone(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(worker_process, "ORPHAN_SECONDS", 0.0)
    with ours, theirs:
        protocol.send(theirs, protocol.Abort())
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(_Gone):
            worker_process._listen(ours, protocol.Lines(), [], loop, relay)
    return worker.told


def test_an_order_reaches_the_worker_on_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    told = listen(loop, monkeypatch)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()

    assert told == [Stopping.NOW, Stopping.NOW]


def test_an_order_that_comes_after_the_loop_was_closed_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    assert listen(loop, monkeypatch) == []


def test_what_is_said_with_the_word_to_begin_is_not_lost() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for word in (protocol.Go(), protocol.Drain()):
            protocol.send(theirs, word)

        words = worker_process._first_commands(ours, protocol.Lines())

    assert words == [protocol.Go(), protocol.Drain()]


@pytest.mark.parametrize("word", [protocol.Stop(), protocol.Abort()])
def test_a_worker_that_is_stopped_before_it_could_begin_does_not(word: protocol.ToWorker) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for said in (protocol.Go(), word):
            protocol.send(theirs, said)

        assert worker_process._first_commands(ours, protocol.Lines()) is None


def test_a_supervisor_that_dies_before_its_first_word_is_the_end_and_no_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            ours.sendall(b"hello\n")  # nobody reads it: then the death is a reset of the channel
        assert worker_process._first_commands(ours, protocol.Lines()) is None
