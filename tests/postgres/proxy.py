# SPDX-License-Identifier: Apache-2.0
"""How does a test put an unreliable network between a program and PostgreSQL?"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Callable

from tests.postgres import wire
from tests.postgres.cluster import Server
from tests.postgres.service import Service
from tests.postgres.traffic import COMMIT, Counts, Cut, Orders, Rule, Traffic
from tests.postgres.wire import GONE, Message, Splitter

_CHUNK_BYTES = 65_536


class Proxy(Service):
    """Passes connections on to a server, and hurts them when told. Owns no server.

    A pattern is searched in a statement's text, whatever its case. `of` takes only statements of
    transactions in which a statement of that pattern came before. `every` takes each n-th.
    """

    def __init__(self, server: Server, *, listener: socket.socket | None = None) -> None:
        self._target = server
        self._orders = Orders()
        self._delay = 0.0
        self._requests_flow = asyncio.Event()
        self._replies_flow = asyncio.Event()
        self._requests_flow.set()
        self._replies_flow.set()
        super().__init__(listener)

    @property
    def counts(self) -> Counts:
        return self._orders.counts

    @property
    def statements(self) -> Counter[str]:
        """How often each statement was sent since `count_statements`, with single spaces."""
        return Counter(self._orders.statements or {})

    def count_statements(self) -> None:
        """Count from now on, from nothing."""
        self._do(lambda: setattr(self._orders, "statements", Counter()))

    def retarget(self, server: Server) -> None:
        """Lead new connections to another server."""
        self._do(lambda: setattr(self, "_target", server))

    def drop_commit_replies(self, n: int, *, of: str | None = None, every: int = 1) -> None:
        """Let the next n COMMITs happen, and cut the connection in place of their reply."""
        self._rule(Rule("drop reply", _pattern(COMMIT), _perhaps(of), n, every))

    def drop_replies(self, n: int, when: str, *, of: str | None = None, every: int = 1) -> None:
        """The same for any statement: it has been done, and committed if it stood alone."""
        self._rule(Rule("drop reply", _pattern(when), _perhaps(of), n, every))

    def cut_before_commits(self, n: int, *, of: str | None = None, every: int = 1) -> None:
        """Cut the connection in place of passing on the next n COMMITs: nothing is committed."""
        self._rule(Rule("cut before", _pattern(COMMIT), _perhaps(of), n, every))

    def cut_before(self, n: int, when: str, *, of: str | None = None, every: int = 1) -> None:
        """The same for any statement."""
        self._rule(Rule("cut before", _pattern(when), _perhaps(of), n, every))

    def inject_error(
        self,
        sqlstate: str,
        message: str = "injected",
        *,
        when: str = "",
        of: str | None = None,
        n: int = 1,
        every: int = 1,
    ) -> None:
        """Let the server itself fail in place of the next n statements of a pattern.

        It gets another statement that raises, so that the transaction is as after a real error.
        """
        told = message.replace("'", "''")
        raising = f"raise exception using errcode = '{sqlstate}', message = '{told}'"
        block = f"do $injected$ begin {raising}; end $injected$"
        self._rule(Rule("fail", _pattern(when), _perhaps(of), n, every, block))

    def forgive(self) -> None:
        """Forget every rule that is not used up, and every delay; flow."""
        self._do(self._orders.rules.clear)
        self.delay(0.0)
        self.resume()

    def delay(self, seconds: float) -> None:
        """Hold every chunk for some time, in both directions."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def stall(self, *, requests: bool = True, replies: bool = True) -> None:
        """Pass nothing on and close nothing: the other end has vanished."""
        if requests:
            self._do(self._requests_flow.clear)
        if replies:
            self._do(self._replies_flow.clear)

    def resume(self) -> None:
        """Pass on what has waited, and what comes."""
        self._do(self._requests_flow.set)
        self._do(self._replies_flow.set)

    def _rule(self, rule: Rule) -> None:
        self._do(lambda: self._orders.rules.append(rule))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._requests_flow.wait()
        startup = await wire.read_startup(reader, writer)
        try:
            path = str(self._target.socket_path)
            from_server, to_server = await asyncio.open_unix_connection(path)
        except OSError:
            wire.reset(writer)
            return
        to_server.write(startup.pack())
        if startup.code == wire.CANCEL_REQUEST:
            self.counts.cancels += 1
            await from_server.read()
            to_server.close()
            return
        self.counts.connections += 1
        traffic = Traffic(self._orders)
        pumps = [
            asyncio.create_task(
                self._pump(reader, to_server, traffic.request, self._requests_flow)
            ),
            asyncio.create_task(self._pump(from_server, writer, traffic.reply, self._replies_flow)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        except Cut:
            wire.reset(writer)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            to_server.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        passed: Callable[[Message], bytes],
        flow: asyncio.Event,
    ) -> None:
        """Pass messages on until the one end is gone, and this can be known at the other."""
        splitter = Splitter()
        while True:
            try:
                data = await reader.read(_CHUNK_BYTES)
            except GONE:
                data = b""
            await flow.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            if not data:
                return
            for message in splitter.feed(data):
                writer.write(passed(message))
            await writer.drain()


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


def _perhaps(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else _pattern(text)
