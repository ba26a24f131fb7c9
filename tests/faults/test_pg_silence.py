# SPDX-License-Identifier: Apache-2.0
"""F39: a peer vanishes without a word. Every call ends, close() ends, and the store goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import StoreClosed, StoreUnavailable
from penstock.stores import group_commit
from penstock.stores.postgres import connection, notify, read, session
from penstock.stores.postgres.open import open_postgres
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.protocol import Store
from penstock.stores.store_future import Reply
from tests.faults.pg_world import (
    SECONDS,
    TTL_SECONDS,
    WORKER,
    Place,
    is_sound,
    new_jobs,
    one_sentence,
    place,
    register,
    states,
)
from tests.postgres import wire
from tests.postgres.cluster import Server
from tests.postgres.service import Service
from tests.postgres.wire import Message
from tests.waiting import wait_until

_CALL_SECONDS = 1.0
_AGAIN_SECONDS = 5.0  # several calls, should a busy machine be slow to answer one
_FEW_SECONDS = 60.0  # far more than a call may take with these settings, and far less than for ever


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (session, read, connection, notify):
        monkeypatch.setattr(module, "CALL_SECONDS", _CALL_SECONDS)
    monkeypatch.setattr(read, "READ_SECONDS", _CALL_SECONDS)
    monkeypatch.setattr(read, "ASK_SECONDS", _AGAIN_SECONDS)
    monkeypatch.setattr(notify, "LISTEN_SECONDS", 0.1)
    monkeypatch.setattr(connection, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(group_commit, "AGAIN_SECONDS", _AGAIN_SECONDS)
    monkeypatch.setattr(session, "AGAIN_SECONDS", _AGAIN_SECONDS)
    monkeypatch.setattr(group_commit, "CLOSE_SECONDS", 1.0)


@pytest.fixture
def found(postgres_server: Server, postgres_url: str) -> Iterator[Place]:
    with place(postgres_server, postgres_url, "?connect_timeout=4") as found:
        register(found.store)
        found.store.beat([WORKER], TTL_SECONDS).result(SECONDS)
        states(found.store)  # every connection is there
        yield found


def _ended_in_time(act: Callable[[], object]) -> None:
    """Do something that must not take for ever."""
    doing = threading.Thread(target=act, daemon=True)
    doing.start()
    doing.join(_FEW_SECONDS)
    assert not doing.is_alive(), "it hangs"


def _begun(store: Store) -> list[Reply[Any]]:
    """A call on each connection."""
    return [
        store.enqueue(new_jobs(2)),
        store.beat([WORKER], TTL_SECONDS),
        store.stats(),
    ]


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_f39_calls_to_a_silent_server_end_and_the_store_goes_on(
    direction: str, found: Place
) -> None:
    found.proxy.stall(requests=direction == "requests", replies=direction == "replies")
    for reply in _begun(found.store):
        one_sentence(_refusal(reply), found.store.url)

    found.proxy.resume()

    found.store.enqueue(new_jobs(2)).result(SECONDS)
    assert found.store.beat([WORKER], TTL_SECONDS).result(SECONDS) == {WORKER}
    assert states(found.store) == {"queued": 2}
    assert is_sound(found.store)


def _refusal(reply: Reply[Any]) -> BaseException:
    """The error of a call, which must come by itself."""
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            reply.result()
        except (StoreUnavailable, StoreClosed) as error:
            raised.append(error)

    _ended_in_time(ask)
    (error,) = raised
    return error


def test_f39_a_call_that_was_stalled_is_done_once_when_the_server_is_back(
    found: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silence is shorter than the patience of a call, longer than that of a statement."""
    monkeypatch.setattr(group_commit, "AGAIN_SECONDS", SECONDS)
    monkeypatch.setattr(session, "AGAIN_SECONDS", SECONDS)
    reply = found.store.enqueue(new_jobs(2))
    reply.result(SECONDS)
    before = found.proxy.counts.connections
    found.proxy.stall(requests=False)

    again = found.store.enqueue(new_jobs(4))
    wait_until(lambda: found.proxy.counts.connections > before)
    found.proxy.resume()

    assert again.result(SECONDS).created == {"k2", "k3"}
    assert states(found.store) == {"queued": 4}
    assert is_sound(found.store)


@pytest.fixture(autouse=True)
def elders() -> frozenset[threading.Thread]:
    """Threads that were there before, of whatever else ran in this process."""
    return frozenset(threading.enumerate())


@pytest.mark.parametrize("busy", [True, False])
def test_f39_closing_does_not_wait_for_a_silent_server(
    busy: bool,
    elders: frozenset[threading.Thread],
    found: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "CALL_SECONDS", 1000.0)
    asyncio.run(_listen(found.store))
    found.proxy.stall()
    replies = _begun(found.store) if busy else []

    _ended_in_time(found.store.close)

    for reply in replies:
        one_sentence(_refusal(reply))
    wait_until(lambda: not _threads(elders), _FEW_SECONDS)


async def _listen(store: Store) -> None:
    await store.wait_for_work(0.1)


def _threads(elders: frozenset[threading.Thread]) -> list[str]:
    new = (thread.name for thread in threading.enumerate() if thread not in elders)
    return [name for name in new if name.startswith("penstock-")]


def test_f39_a_listener_whose_server_is_silent_gives_up_and_listens_again(found: Place) -> None:
    asyncio.run(_listen(found.store))
    assert isinstance(found.store, PostgresStore)
    listener = found.store._listener
    assert listener is not None
    wait_until(lambda: listener.works)
    found.proxy.stall()
    wait_until(lambda: not listener.works)
    found.proxy.resume()

    wait_until(lambda: listener.works)


class _Mute(Service):
    """Lets everybody in, and then says nothing more."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wire.read_startup(reader, writer)
        told = (Message(b"R", bytes(4)), Message(b"K", bytes(8)), Message(b"Z", b"I"))
        writer.write(b"".join(message.pack() for message in told))
        await reader.read()


def test_f39_a_server_that_lets_us_in_and_says_nothing_is_given_up() -> None:
    errors: list[BaseException] = []

    with _Mute() as mute:

        def open_it() -> None:
            try:
                open_postgres(mute.url()).close()
            except StoreUnavailable as error:
                errors.append(error)

        _ended_in_time(open_it)

        (error,) = errors
        one_sentence(error, "cannot be reached")
