# SPDX-License-Identifier: Apache-2.0
"""What happens to a program whose transactions each get another back end?

Like a pooler in transaction mode, but unkind: two transactions of a client in a row never run on
the same back end if that can be helped, and what a session leaves there (settings, prepared
statements, advisory locks, LISTEN) stays there, for whoever comes next.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field

from tests.postgres import wire
from tests.postgres.cluster import Server
from tests.postgres.service import Service
from tests.postgres.wire import GONE, Message, Splitter, Startup

_CHUNK_BYTES = 65_536
_PROTOCOL = 3 << 16
_LOGGED_IN = Message(b"R", struct.pack("!i", 0))
_IDLE = Message(b"Z", b"I")


class _Refused(Exception):
    """The server does not let us in; its own words."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.body)
        self.message = message


@dataclass
class PoolerCounts:
    back_ends: int = 0
    transactions: int = 0
    cancels: int = 0
    lost_notifications: int = 0


@dataclass(eq=False)
class _BackEnd:
    """A connection to the server; `client` is who has it now."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: bytes = b""
    parameters: list[Message] = field(default_factory=list)
    client: _Client | None = None


@dataclass(eq=False)
class _Client:
    """A connection to a program. `unanswered` and `unfinished` say whether its turn may end."""

    writer: asyncio.StreamWriter
    back_end: _BackEnd | None = None
    last: _BackEnd | None = None
    unanswered: int = 0
    unfinished: bool = False


class _Pool:
    """The back ends of one user and database. Owns who is idle."""

    def __init__(self, server: Server, size: int, user: str, database: str) -> None:
        self._server = server
        self._size = size
        body = b"".join(part.encode() + b"\0" for part in ("user", user, "database", database, ""))
        self._startup = Startup(_PROTOCOL, body)
        self._members = 0
        self._idle: list[_BackEnd] = []
        self._changed = asyncio.Condition()

    async def take(self, last: _BackEnd | None) -> tuple[_BackEnd, bool]:
        """An idle back end, another than the last if possible, and whether it is new."""
        async with self._changed:
            while True:
                others = [back_end for back_end in self._idle if back_end is not last]
                if not others and self._members < self._size:
                    self._members += 1
                    break
                if others or self._idle:
                    chosen = (others or self._idle)[0]
                    self._idle.remove(chosen)
                    return chosen, False
                await self._changed.wait()
        try:
            return await self._open(), True
        except BaseException:
            await self.forget()
            raise

    async def give_back(self, back_end: _BackEnd) -> None:
        async with self._changed:
            self._idle.append(back_end)
            self._changed.notify_all()

    async def forget(self, back_end: _BackEnd | None = None) -> None:
        """One is gone, and may be replaced."""
        async with self._changed:
            if back_end in self._idle:
                self._idle.remove(back_end)
            self._members -= 1
            self._changed.notify_all()

    async def _open(self) -> _BackEnd:
        opened = _BackEnd(*await asyncio.open_unix_connection(str(self._server.socket_path)))
        opened.writer.write(self._startup.pack())
        splitter = Splitter()
        while True:
            data = await opened.reader.read(_CHUNK_BYTES)
            if not data:
                raise ConnectionResetError
            for message in splitter.feed(data):
                if message.kind == b"E":
                    opened.writer.close()
                    raise _Refused(message)
                if message.kind == b"S":
                    opened.parameters.append(message)
                elif message.kind == b"K":
                    opened.key = message.body
                elif message.kind == b"Z":
                    return opened


class Pooler(Service):
    """Gives each transaction of its clients one of a few back ends. Owns no server.

    Args:
        size: how many back ends a pair of user and database has at most.
    """

    def __init__(
        self, server: Server, *, size: int = 3, listener: socket.socket | None = None
    ) -> None:
        self.counts = PoolerCounts()
        self._target = server
        self._size = size
        self._pools: dict[tuple[str, str], _Pool] = {}
        self._clients: dict[bytes, _Client] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._keys = 0
        super().__init__(listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await wire.read_startup(reader, writer)
        if startup.code == wire.CANCEL_REQUEST:
            await self._cancel(startup)
            return
        parameters = startup.parameters()
        if "options" in parameters:
            writer.write(wire.error("08P01", "unsupported startup parameter: options").pack())
            return
        name = (parameters["user"], parameters.get("database") or parameters["user"])
        pool = self._pools.setdefault(name, _Pool(self._target, self._size, *name))
        client = _Client(writer)
        self._keys += 1
        key = struct.pack("!ii", self._keys, 7919 * self._keys)
        self._clients[key] = client
        try:
            await self._greet(client, pool, key)
            await self._talk(reader, client, pool)
        except _Refused as refused:
            writer.write(refused.message.pack())
        finally:
            del self._clients[key]
            if client.back_end is not None:
                client.back_end.client = None
                client.back_end.writer.transport.abort()

    async def _greet(self, client: _Client, pool: _Pool, key: bytes) -> None:
        """Answer in the server's place; its parameters are those of any back end."""
        back_end = await self._take(client, pool)
        told = [_LOGGED_IN, *back_end.parameters, Message(b"K", key), _IDLE]
        client.writer.write(b"".join(message.pack() for message in told))
        client.back_end = back_end.client = None
        await pool.give_back(back_end)

    async def _talk(self, reader: asyncio.StreamReader, client: _Client, pool: _Pool) -> None:
        splitter = Splitter()
        while data := await reader.read(_CHUNK_BYTES):
            for message in splitter.feed(data):
                if message.kind == b"X":
                    return
                back_end = client.back_end or await self._take(client, pool)
                if message.kind in b"QFS":
                    client.unanswered += 1
                client.unfinished = message.kind not in b"QFS"
                back_end.writer.write(message.pack())
            if client.back_end is not None:
                await client.back_end.writer.drain()

    async def _take(self, client: _Client, pool: _Pool) -> _BackEnd:
        back_end, new = await pool.take(client.last)
        client.back_end, back_end.client = back_end, client
        if new:
            self.counts.back_ends += 1
            task = asyncio.create_task(self._listen_to(back_end, pool))
            self._readers.add(task)
            task.add_done_callback(self._readers.discard)
        return back_end

    async def _listen_to(self, back_end: _BackEnd, pool: _Pool) -> None:
        """Pass a back end's replies to whoever has it, until it is gone."""
        splitter = Splitter()
        try:
            while data := await back_end.reader.read(_CHUNK_BYTES):
                for message in splitter.feed(data):
                    await self._reply(back_end, pool, message)
        except GONE:
            pass
        finally:
            back_end.writer.transport.abort()
            if back_end.client is not None:
                back_end.client.back_end = None
                wire.reset(back_end.client.writer)
            await pool.forget(back_end)

    async def _reply(self, back_end: _BackEnd, pool: _Pool, message: Message) -> None:
        client = back_end.client
        if client is None:
            self.counts.lost_notifications += message.kind == b"A"
            return
        client.unanswered -= message.kind == b"Z"
        if message != _IDLE or client.unanswered or client.unfinished:
            client.writer.write(message.pack())
            return
        self.counts.transactions += 1
        client.last, client.back_end, back_end.client = back_end, None, None
        client.writer.write(message.pack())
        await pool.give_back(back_end)

    async def _cancel(self, startup: Startup) -> None:
        client = self._clients.get(startup.body)
        if client is None or client.back_end is None:
            return
        self.counts.cancels += 1
        path = str(self._target.socket_path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(Startup(wire.CANCEL_REQUEST, client.back_end.key).pack())
        await reader.read()
        writer.close()

    async def _cut(self) -> None:
        """The back ends go too: what they keep of a session is gone."""
        await super()._cut()
        readers = list(self._readers)
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await asyncio.sleep(0)
