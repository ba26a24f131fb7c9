# SPDX-License-Identifier: Apache-2.0
"""An address that refuses connections for a minute is told of, once; a drain says what it needs."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx2
import psycopg
import pytest
import requests
import uvloop

from penstock import Context, Penstock
from penstock.errors import UsageError
from penstock.retry.classify import refused_address
from penstock.sentences import repeat_flags
from penstock.testing import harness


class Refusing:
    """A task whose connection is refused, as asyncio says it, until it is not any more."""

    def __init__(self, seconds: float) -> None:
        self.app = Penstock("app")
        self.seconds = seconds
        self.now: Callable[[], float] = lambda: 0.0

        @self.app.task()
        async def call(ctx: Context, n: int) -> None:
            if self.now() < self.seconds:
                raise ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)")

        self.call = call


def lines(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [line for line in caplog.messages if line.startswith(start)]


def test_a_connection_refused_for_a_minute_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Refusing(300.0)
    with caplog.at_level("INFO", "penstock"), harness(refusing.app) as t:
        begin = t.clock.monotonic()
        refusing.now = lambda: t.clock.monotonic() - begin
        t.enqueue_many(refusing.call.job(n=n) for n in range(3))
        t.drain()

    (said,) = lines(caplog, "Connection refused")
    assert said == (
        "Connection refused by 127.0.0.1:9 for 1:00: start what should listen there, or correct "
        "the address; task 'call' is tried again, uncharged, for up to 1 day, 0:00:00 "
        "(tasks.give_up_after)."
    )


def test_a_short_refusal_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Refusing(20.0)
    with caplog.at_level("INFO", "penstock"), harness(refusing.app) as t:
        begin = t.clock.monotonic()
        refusing.now = lambda: t.clock.monotonic() - begin
        t.enqueue(refusing.call.job(n=1))
        t.drain()

    assert lines(caplog, "Connection refused") == []


def test_a_drain_that_waits_only_for_unreachable_hosts_says_so_and_how_to_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing = Refusing(1e9)
    repeat_flags({"--app": "my app.py"})
    with caplog.at_level("INFO", "penstock"), harness(refusing.app) as t:
        t.enqueue(refusing.call.job(n=1), key="k")
        with pytest.raises(UsageError):
            t.drain(within=200)

    (said,) = lines(caplog, "Waiting: hosts cannot be reached")
    assert "1 job waits for them ('k': ConnectionRefusedError: " in said
    assert "penstock queue cancel --task call --yes --app 'my app.py'" in said


def test_a_drain_that_waits_for_a_delayed_job_does_not_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing = Refusing(100.0)
    with caplog.at_level("INFO", "penstock"), harness(refusing.app) as t:
        begin = t.clock.monotonic()
        refusing.now = lambda: t.clock.monotonic() - begin
        t.enqueue(refusing.call.job(n=1))
        t.enqueue(refusing.call.job(n=2), delay=400)
        t.drain()

    assert lines(caplog, "Waiting: hosts cannot be reached") == []


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


async def _with_aiohttp(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        await session.get(f"http://127.0.0.1:{port}/")


async def _with_httpx(port: int) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client:
        await client.get(f"http://127.0.0.1:{port}/")


async def _with_requests(port: int) -> None:
    session = requests.Session()
    session.trust_env = False
    session.get(f"http://127.0.0.1:{port}/", timeout=5)


async def _with_asyncio(port: int) -> None:
    await asyncio.open_connection("127.0.0.1", port)


async def _with_uvloop(port: int) -> None:
    await asyncio.to_thread(uvloop.run, _with_asyncio(port))


async def _with_urllib(port: int) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(f"http://127.0.0.1:{port}/", timeout=5)


async def _with_psycopg(port: int) -> None:
    await psycopg.AsyncConnection.connect(host="127.0.0.1", port=port, connect_timeout=5)


@pytest.mark.parametrize(
    "call",
    [
        *(_with_aiohttp, _with_httpx, _with_requests, _with_asyncio, _with_uvloop, _with_urllib),
        _with_psycopg,
    ],
)
def test_real_clients_tell_which_address_refused(
    call: Callable[[int], Awaitable[None]], closed_port: int
) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 (each its own)
        asyncio.run(call(closed_port))  # type: ignore[arg-type]

    assert refused_address(raised.value) == f"127.0.0.1:{closed_port}"


def test_an_address_that_nobody_tells_is_empty_and_other_errors_have_none() -> None:
    assert refused_address(ConnectionRefusedError(111, "Connection refused")) == ""
    other: Any = ConnectionResetError(104, "reset")
    assert refused_address(other) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (  # psycopg2
            'connection to server at "db.example" (192.0.2.1), port 5432 failed: Connection '
            "refused\n\tIs the server running on that host and accepting TCP/IP connections?",
            "db.example:5432",
        ),
        ("Error 111 connecting to ::1:6379. Connection refused.", "[::1]:6379"),  # redis
        ('server at "db.example", port 5432 failed: FATAL: too many connections', None),
    ],
)
def test_a_text_may_say_which_address_refused(text: str, address: str | None) -> None:
    assert refused_address(RuntimeError(text)) == address
