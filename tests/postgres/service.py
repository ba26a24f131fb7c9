# SPDX-License-Identifier: Apache-2.0
"""How does something that listens run beside a test, on a loop in a thread of its own?"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from tests.postgres.cluster import USER, free_port
from tests.postgres.wire import GONE, reset

_ANSWER_SECONDS = 30.0


class Service(ABC):
    """Serves clients on TCP. Its public methods may be called from any thread but its own.

    Args:
        listener: a bound socket to listen on; None is a free port of 127.0.0.1.
    """

    def __init__(self, listener: socket.socket | None = None) -> None:
        self.errors: list[Exception] = []
        self._rebinds = listener is None
        self.host: str = listener.getsockname()[0] if listener else "127.0.0.1"
        self.port: int = listener.getsockname()[1] if listener else free_port()
        self._links: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._wait(self._listen(listener))

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@{self.host}:{self.port}/{quote(database)}"

    def refuse(self) -> None:
        """Refuse new connections; those that are there go on."""
        assert self._rebinds, "a listener that was given cannot be bound again"
        self._do(self._close_listener)

    def accept(self) -> None:
        """Accept connections again, on the same port."""
        self._wait(self._listen(None))

    def cut(self) -> None:
        """Reset every connection."""
        self._wait(self._cut())

    def close(self) -> None:
        """End; an error of ours while it served is raised here."""
        self._do(self._close_listener)
        self._wait(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self.errors:
            raise ExceptionGroup("while serving", self.errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk with one client until it or we have had enough."""

    async def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = writer
        try:
            with contextlib.suppress(*GONE, asyncio.CancelledError):
                await self._serve(reader, writer)
        except Exception as error:
            self.errors.append(error)
        finally:
            del self._links[task]
            writer.close()

    async def _listen(self, listener: socket.socket | None) -> None:
        if self._server is None and listener is not None:
            self._server = await asyncio.start_server(self._begin, sock=listener)
        elif self._server is None:
            self._server = await asyncio.start_server(self._begin, self.host, self.port)

    def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _cut(self) -> None:
        links = dict(self._links)
        for task, writer in links.items():
            reset(writer)
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close

    def _do(self, act: Callable[[], None]) -> None:
        """Run something on the loop, and wait for it."""

        async def acting() -> None:
            act()

        self._wait(acting())

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        future: concurrent.futures.Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(_ANSWER_SECONDS)
