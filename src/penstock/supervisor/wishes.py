# SPDX-License-Identifier: Apache-2.0
"""How does a run follow what a person types?"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable
from functools import partial

from penstock.errors import StoreError
from penstock.stores.asking import Question
from penstock.stores.protocol import Store
from penstock.supervisor.display import Display, Wish

KEYS = "keys"  # what the selector calls them

log = logging.getLogger("penstock.supervisor")


class Wishes:
    """Owns what was wished for and is not done yet. Nobody has to wish for anything."""

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
        for wish in self._display.typed():
            if wish is Wish.STOP:
                self._stop()
            elif wish is Wish.DRAIN:
                self._drain()
            elif store is not None:
                paused = wish is Wish.PAUSE
                self._pausing.append((paused, Question(partial(store.set_paused, paused))))
        self.go_on()

    def go_on(self) -> None:
        """Look whether the store has done what was wished for, in the order of wishes."""
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
