# SPDX-License-Identifier: Apache-2.0
"""The display of a run, and the keyboard commands of the person who looks at it."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Protocol

from penstock.errors import StoreError
from penstock.stores.protocol import Store
from penstock.stores.store_future import Question
from penstock.supervisor.protocol import Checking

KEYS = "keys"  # what the selector calls them

log = logging.getLogger("penstock.supervisor")


class RunCommand(StrEnum):
    """A command that a person may give to a run while it goes."""

    PAUSE = "pause"  # nobody gets further jobs
    RESUME = "resume"
    DRAIN = "drain"  # end when nothing is left
    STOP = "stop"  # as SIGINT does


class Course(StrEnum):
    """What a run is doing, as it is shown."""

    CHECKING = "checking"  # preflights run, or schedules are armed: no work yet
    PLANNING = "planning"  # a build waits for its datasets, or is planned: no work yet
    WORKING = "working"  # until somebody stops it
    DRAINING = "draining"  # until nothing is left
    STOPPING = "stopping"


class Display(Protocol):
    """A face of the supervisor; it only looks, and passes commands on."""

    @property
    def pipes_workers(self) -> bool:
        """True if what workers write must come through `line`."""
        ...

    def started(self, store: Store, run_id: str, course: Course = Course.WORKING) -> None: ...

    def tick(self, store: Store, course: Course, checking: Checking | None = None) -> None:
        """Called a few times a second; `checking`: how far the preflights are, if they run."""
        ...

    def line(self, text: str) -> None:
        """A line that a worker wrote."""
        ...

    def keys(self) -> int | None:
        """The descriptor that a person types on; None: nobody can, now."""
        ...

    def typed(self) -> Sequence[RunCommand]:
        """The commands that were typed; called when there is something to read."""
        ...

    def close(self, run_id: str | None) -> None:
        """Say what the run did; nothing without a name: it failed, or its store is unreachable."""
        ...


class KeyboardCommands:
    """Owns the commands that were typed and are not done yet."""

    def __init__(
        self,
        display: Display,
        selector: selectors.BaseSelector,
        drain: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._display = display
        self._selector = selector
        self._drain = drain
        self._stop = stop
        self._fd: int | None = None
        self._pausing: list[tuple[bool, Question[None]]] = []

    def listen(self) -> None:
        """Hear whoever can type now; a terminal comes and goes with its job control."""
        fd = self._display.keys()
        if fd == self._fd:
            return
        self.forget()
        if fd is not None:
            self._selector.register(fd, selectors.EVENT_READ, KEYS)
            self._fd = fd

    def forget(self) -> None:
        if self._fd is not None:
            self._selector.unregister(self._fd)
            self._fd = None

    def hear(self, store: Store | None) -> None:
        """Do what was typed."""
        for command in self._display.typed():
            if command is RunCommand.STOP:
                self._stop()
            elif command is RunCommand.DRAIN:
                self._drain()
            elif store is not None:
                paused = command is RunCommand.PAUSE
                self._pausing.append((paused, Question(partial(store.set_paused, paused))))
        self.go_on()

    def go_on(self) -> None:
        """Look whether the store has done what was typed, in that order."""
        while self._pausing:
            paused, question = self._pausing[0]
            try:
                if not question.settled():
                    return
            except StoreError as error:
                log.warning("The queue could not be %s: %s", _done(paused), error)
            else:
                log.info("The queue was %s by a key.", _done(paused))
            self._pausing.pop(0)


def _done(paused: bool) -> str:
    return "paused" if paused else "resumed"
