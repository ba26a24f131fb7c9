# SPDX-License-Identifier: Apache-2.0
"""A loopback server of bare connections, which knows how many are open; and certificates."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
WAIT_SECONDS = 30.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run_on(loop: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it, and hear of every error that nobody caught."""
    unheard: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unheard.append(context))
        runner.run(main())
    assert unheard == []


async def until(true: Callable[[], bool]) -> None:
    """Let the loop turn until it is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not true():  # noqa: ASYNC110 (sockets tell nobody)
            await asyncio.sleep(0.001)


class Connections:
    """Those that a server has."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.open: set[asyncio.Task[Any]] = set()
        self.count = 0  # ever
        self.port = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        self.count += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            if not writer.is_closing():
                writer.transport.abort()
            self.open.discard(task)

    @contextlib.asynccontextmanager
    async def listening(
        self, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
    ) -> AsyncIterator[Connections]:
        listener = await asyncio.start_server(self.accept, host, 0, ssl=context)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()
            for task in list(self.open):
                task.cancel()
            await until(lambda: not self.open)


async def stays_open(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Serve nothing until the client goes."""
    while await reader.read(65_536):
        pass


class Cancelled:
    """Awaits something and cancels the task at its n-th wait."""

    def __init__(self, inner: Any, at: int, *, as_it_wakes: bool) -> None:
        self._inner = inner
        self._at = at
        self._as_it_wakes = as_it_wakes
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited_for = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            self.waits += 1
            if self.waits == self._at:
                self._cancel(waited_for)
            value, error = None, None
            try:
                value = yield waited_for
            except BaseException as raised:
                error = raised

    def _cancel(self, waited_for: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._as_it_wakes and asyncio.isfuture(waited_for):
            waited_for.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


def certificate(folder: Path) -> Path:
    """A self-signed one for localhost, with its key in the same file."""
    command = shutil.which("openssl")
    if command is None:
        pytest.skip("there is no openssl command to make a certificate with")
    path = folder / "localhost.pem"
    subprocess.run(
        [
            *(command, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(path)),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + (folder / "key.pem").read_text())
    return path


def server_context(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
