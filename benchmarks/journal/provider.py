# SPDX-License-Identifier: Apache-2.0
"""Who answers the calls that are measured? A process of its own, at once."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import uvloop

MODEL = "gpt-5"
PATH = "/v1/chat/completions"
TEXT_BYTES = 1_000  # of one answer
BODY = msgspec.json.encode(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * (TEXT_BYTES // 5)},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 30, "completion_tokens": 200, "total_tokens": 230},
    }
)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"x-request-id: req_1\r\ndate: Mon, 16 Nov 2026 00:00:00 GMT\r\n\r\n"
) % len(BODY)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The URL of a provider that answers every request with the same completion."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()


class _Answering(asyncio.Protocol):
    """Answers a request when all of it is there."""

    transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < whole:
                return
            self._buffer = self._buffer[whole:]
            self.transport.write(HEAD + BODY)


def _serve(there: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Answering, "127.0.0.1", 0, backlog=1_024)
        there.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())
