# SPDX-License-Identifier: Apache-2.0
"""Is what a person types done, once, in order, and without holding anybody up?"""

from __future__ import annotations

import logging
import os
import selectors
from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from penstock.errors import StoreUnavailable
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from penstock.supervisor.display import KEYS, Display, KeyboardCommands, RunCommand


class Typing:
    """A display on which a test types."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self.wishes: list[RunCommand] = []

    def keys(self) -> int | None:
        return self.fd

    def typed(self) -> Sequence[RunCommand]:
        wishes, self.wishes = self.wishes, []
        return wishes


class SlowStore:
    """Answers when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, Reply[None]]] = []

    def set_paused(self, paused: bool) -> Reply[None]:
        self.asked.append((paused, Reply()))
        return self.asked[-1][1]


class World:
    def __init__(self, fd: int) -> None:
        self.display = Typing(fd)
        self.selector = selectors.DefaultSelector()
        self.done: list[str] = []
        self.store = SlowStore()
        self.wishes = KeyboardCommands(
            cast(Display, self.display),
            self.selector,
            lambda: self.done.append("drain"),
            lambda: self.done.append("stop"),
        )

    def type(self, *wishes: RunCommand) -> None:
        self.display.wishes += wishes
        self.wishes.hear(cast(Store, self.store))


@pytest.fixture
def world() -> Iterator[World]:
    reading, writing = os.pipe()
    world = World(reading)
    yield world
    world.selector.close()
    os.close(reading)
    os.close(writing)


def test_keys_are_heard_only_while_there_is_a_terminal_to_type_on(world: World) -> None:
    world.wishes.listen()
    world.wishes.listen()
    heard = [key.data for key in world.selector.get_map().values()]
    world.display.fd = None  # it was put into the background
    world.wishes.listen()

    assert heard == [KEYS]
    assert not world.selector.get_map()


def test_draining_and_stopping_are_done_at_once(world: World) -> None:
    world.type(RunCommand.DRAIN, RunCommand.STOP)

    assert world.done == ["drain", "stop"]


def test_pauses_are_done_one_after_the_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.supervisor")

    world.type(RunCommand.PAUSE, RunCommand.RESUME)
    first = [paused for paused, _ in world.store.asked]
    world.store.asked[0][1].resolve(None)
    world.wishes.go_on()
    world.store.asked[1][1].resolve(None)
    world.wishes.go_on()
    world.wishes.go_on()

    assert first == [True]  # the second waits for the answer to the first
    assert [paused for paused, _ in world.store.asked] == [True, False]
    assert [record.getMessage() for record in caplog.records] == [
        "The queue was paused by a key.",
        "The queue was resumed by a key.",
    ]


def test_a_store_that_cannot_pause_costs_a_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.type(RunCommand.PAUSE)

    world.store.asked[0][1].refuse(StoreUnavailable("It is away."))
    world.wishes.go_on()
    world.type(RunCommand.DRAIN)

    assert [record.getMessage() for record in caplog.records] == [
        "The queue could not be paused: It is away."
    ]
    assert world.done == ["drain"]


def test_before_there_is_a_store_nothing_is_paused(world: World) -> None:
    world.display.wishes = [RunCommand.PAUSE, RunCommand.STOP]

    world.wishes.hear(None)

    assert world.done == ["stop"]
