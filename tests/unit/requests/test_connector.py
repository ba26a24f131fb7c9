# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from penstock.requests import transports
from penstock.requests.transports import Connector, interleave_families
from tests.connections import Connections, stays_open, until

FOUR, SIX = socket.AF_INET, socket.AF_INET6


class _Names:
    """Every name has these addresses."""

    addresses: tuple[str, ...] = ()

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(FOUR, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in self.addresses]


class NamingLoop(_Names, asyncio.SelectorEventLoop):
    pass


class NamingUvloop(_Names, uvloop.Loop):  # type: ignore[misc]
    pass


class _Ties:
    """Two connections are there in the same turn of the loop."""

    line: asyncio.Barrier
    on_tie: Callable[[], object] | None = None

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        made = await super().create_connection(*args, **options)  # type: ignore[misc]
        if await self.line.wait() == 0 and self.on_tie is not None:
            self.on_tie()
        return made


class TyingLoop(_Ties, NamingLoop):
    pass


class TyingUvloop(_Ties, NamingUvloop):  # type: ignore[misc]
    pass


on_both_loops = pytest.mark.parametrize("kind", [NamingLoop, NamingUvloop])


def run_with(
    kind: Callable[[], Any], addresses: tuple[str, ...], main: Coroutine[Any, Any, None]
) -> None:
    with asyncio.Runner(loop_factory=kind) as runner:
        loop: Any = runner.get_loop()
        loop.addresses = addresses
        runner.run(main)


class Seen(asyncio.Protocol):
    """Is made for every attempt."""

    made = 0
    peer = ""

    def __init__(self) -> None:
        Seen.made += 1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peer = transport.get_extra_info("peername")[0]


def test_families_take_turns_and_each_address_comes_once() -> None:
    found = [(SIX, "a"), (SIX, "b"), (SIX, "a"), (FOUR, "c"), (SIX, "d")]

    assert interleave_families(found) == [(SIX, "a"), (FOUR, "c"), (SIX, "b"), (SIX, "d")]


@on_both_loops
def test_an_address_that_refuses_is_passed_over(kind: Any) -> None:
    async def main() -> None:
        async with Connections(stays_open).listening("127.0.0.3") as server:
            got = await Connector("api.test", server.port).connect(Seen)
            assert got.peer == "127.0.0.3"
            got.transport.abort()
            await until(lambda: not server.open)

    run_with(kind, ("127.0.0.1", "127.0.0.2", "127.0.0.3"), main())


@on_both_loops
def test_an_address_that_does_not_answer_has_a_head_start_only(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "HEAD_START_SECONDS", 0.01)

    async def main() -> None:
        with contextlib.ExitStack() as stack:
            async with Connections(stays_open).listening("127.0.0.2") as server:
                deaf = stack.enter_context(socket.socket())
                deaf.bind(("127.0.0.1", server.port))
                deaf.listen(0)
                for _ in range(8):
                    one = stack.enter_context(socket.socket())
                    one.setblocking(False)
                    one.connect_ex(deaf.getsockname())

                got = await Connector("api.test", server.port).connect(Seen)

                assert got.peer == "127.0.0.2"
                others = asyncio.all_tasks() - {asyncio.current_task()} - server.open
                await until(lambda: all(task.done() for task in others))
                got.transport.abort()
                await until(lambda: not server.open)

    run_with(kind, ("127.0.0.1", "127.0.0.2"), main())


@pytest.mark.parametrize("kind", [TyingLoop, TyingUvloop])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_of_two_that_connect_at_once_one_is_kept(
    kind: Any, is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "HEAD_START_SECONDS", 0.0)

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        loop.line = asyncio.Barrier(2)
        server = Connections(stays_open)
        async with server.listening("0.0.0.0"):
            task = asyncio.ensure_future(Connector("api.test", server.port).connect(Seen))
            if is_cancelled:
                loop.on_tie = task.cancel
            await asyncio.wait([task])
            assert server.count == 2
            if not task.cancelled():
                await until(lambda: len(server.open) == 1)
                task.result().transport.abort()
            await until(lambda: not server.open)
            assert task.cancelled() == is_cancelled

    run_with(kind, ("127.0.0.1", "127.0.0.2"), main())


@on_both_loops
def test_when_nobody_answers_every_reason_is_told(kind: Any) -> None:
    async def main() -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        with pytest.raises(OSError, match=r"No address of 'api.test' can be reached: .+"):
            await Connector("api.test", port).connect(Seen)

    run_with(kind, ("127.0.0.1", "127.0.0.2"), main())


@on_both_loops
def test_a_name_without_an_address_is_an_error(kind: Any) -> None:
    async def main() -> None:
        with pytest.raises(OSError, match=r"'api.test' has no address"):
            await Connector("api.test", 80).connect(Seen)

    run_with(kind, (), main())
