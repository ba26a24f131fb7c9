# SPDX-License-Identifier: Apache-2.0
"""How does PostgreSQL's wire protocol look, as far as a proxy must know it?"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

CANCEL_REQUEST = 80_877_102
SSL_REQUEST = 80_877_103
GSS_REQUEST = 80_877_104
GONE = (asyncio.IncompleteReadError, OSError)  # how the end of a connection shows


class Message(NamedTuple):
    """One message after the start: its kind, and what follows its length."""

    kind: bytes
    body: bytes

    def pack(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body


class Startup(NamedTuple):
    """The first message of a client; `code` is the protocol's version or a request."""

    code: int
    body: bytes

    def pack(self) -> bytes:
        return struct.pack("!ii", len(self.body) + 8, self.code) + self.body

    def parameters(self) -> dict[str, str]:
        parts = [part.decode() for part in self.body.split(b"\0")]
        return dict(zip(parts[::2], parts[1::2], strict=False))


class Splitter:
    """Cuts a stream of bytes into messages. Holds the beginning of an unfinished one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        data = self._rest + data
        at = 0
        while len(data) - at >= 5:
            end = at + 1 + int.from_bytes(data[at + 1 : at + 5])
            if end > len(data):
                break
            yield Message(data[at : at + 1], data[at + 5 : end])
            at = end
        self._rest = data[at:]


async def read_startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Startup:
    """The first real message of a client; whether it may encrypt is answered with no."""
    while True:
        length, code = struct.unpack("!ii", await reader.readexactly(8))
        body = await reader.readexactly(length - 8)
        if code not in (SSL_REQUEST, GSS_REQUEST):
            return Startup(code, body)
        writer.write(b"N")


def query(statement: str) -> Message:
    return Message(b"Q", statement.encode() + b"\0")


def text(body: bytes) -> tuple[str, bytes]:
    """The text that a body begins with, and what follows it."""
    found, _, rest = body.partition(b"\0")
    return found.decode(errors="replace"), rest


def error(sqlstate: str, message: str, severity: str = "FATAL") -> Message:
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": message}
    body = b"".join(key.encode() + value.encode() + b"\0" for key, value in fields.items())
    return Message(b"E", body + b"\0")


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crash does: without a word, and with what is on its way lost."""
    with contextlib.suppress(OSError):
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def parse_bind_execute(statement: str) -> bytes:
    """Run a statement without parameters, unnamed, in the extended protocol."""
    parse = Message(b"P", b"\0" + statement.encode() + b"\0" + struct.pack("!h", 0))
    bind = Message(b"B", b"\0\0" + struct.pack("!hhh", 0, 0, 0))
    execute = Message(b"E", b"\0" + struct.pack("!i", 0))
    return parse.pack() + bind.pack() + execute.pack()
