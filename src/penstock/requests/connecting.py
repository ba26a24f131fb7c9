# SPDX-License-Identifier: Apache-2.0
"""Which address of a host answers first?

A name may have several addresses, and some of them may be dead: the next one is tried when the one
before has failed, or has not answered within its head start. The first connection wins; the others
are closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import TypeVar, cast

HEAD_START_SECONDS = 0.25

P = TypeVar("P", bound=asyncio.Protocol)
Address = tuple[socket.AddressFamily, str]
Pair = tuple[asyncio.Transport, P]


class Connector:
    """Connects to one port of a host."""

    def __init__(self, host: str, port: int, local_address: str | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._port = port
        self._local = None if local_address is None else (local_address, 0)

    async def connect(self, make: Callable[[], P]) -> P:
        """A protocol that is connected.

        Raises:
            OSError: no address of the host can be reached.
        """
        if _is_address(self._host):
            return (await self._attempt(make, (socket.AF_UNSPEC, self._host)))[1]
        found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = in_turns((info[0], cast("str", info[4][0])) for info in found)
        if not addresses:
            raise OSError(f"The name {self._host!r} has no address.")
        if len(addresses) == 1:
            return (await self._attempt(make, addresses[0]))[1]
        return await self._race(make, addresses)

    async def _attempt(self, make: Callable[[], P], address: Address) -> Pair[P]:
        family, ip = address
        return await self._loop.create_connection(
            make, ip, self._port, family=family, local_addr=self._local
        )

    async def _race(self, make: Callable[[], P], addresses: list[Address]) -> P:
        waiting = addresses[::-1]
        running: set[asyncio.Task[Pair[P]]] = set()
        errors: list[BaseException] = []
        try:
            while waiting or running:
                if waiting:
                    running.add(self._loop.create_task(self._attempt(make, waiting.pop())))
                ended, _ = await asyncio.wait(
                    running,
                    timeout=HEAD_START_SECONDS if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in ended:
                    running.discard(task)
                    error = task.exception()
                    if error is None:
                        return task.result()[1]
                    errors.append(error)
        finally:
            for task in running:
                task.cancel()
                task.add_done_callback(_close_loser)
        said = "; ".join(dict.fromkeys(map(str, errors)))
        raise OSError(f"No address of {self._host!r} can be reached: {said}")


def in_turns(addresses: Iterable[Address]) -> list[Address]:
    """Each once; the families take turns, so that a dead one costs one head start."""
    families: dict[socket.AddressFamily, list[Address]] = {}
    for address in dict.fromkeys(addresses):
        families.setdefault(address[0], []).append(address)
    return [one for one in chain.from_iterable(zip_longest(*families.values())) if one is not None]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _close_loser(task: asyncio.Task[Pair[P]]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[0].abort()
