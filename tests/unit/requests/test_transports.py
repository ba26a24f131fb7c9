# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpcore2
import httpx
import httpx2
import pytest

from penstock.requests.clients.httpx import KEPT_CONNECTIONS_MAX, ROUTE, Route, RoutedTransport
from penstock.requests.transports import PooledTransport
from tests.connections import (
    LOOPS,
    Cancelled,
    Connections,
    certificate,
    run_on,
    server_context,
    until,
)
from tests.outbound_run import outbound_run
from tests.scripted_server import Call, scripted

on_both_loops = pytest.mark.parametrize("loop", list(LOOPS))

LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS_MAX)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("certificate"))


async def answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a request with a body, and answer in two parts."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\none")
        await writer.drain()
        await asyncio.sleep(0.001)
        writer.write(b"two")
        await writer.drain()


def asked(url: str, body: bytes = b"", **extensions: Any) -> httpx2.Request:
    return httpx2.Request("POST", url, content=body, extensions=extensions)


async def send(wire: PooledTransport, request: httpx2.Request) -> bytes:
    reply = await wire.handle_async_request(request)
    try:
        assert isinstance(reply.stream, AsyncIterator)
        return b"".join([part async for part in reply.stream])
    finally:
        await reply.aclose()


@on_both_loops
def test_a_connection_is_used_again_and_an_unread_one_is_not(loop: str) -> None:
    async def main() -> None:
        async with Connections(answer_each).listening() as server:
            wire = PooledTransport(LIMITS)
            url = f"http://127.0.0.1:{server.port}/"
            for _ in range(3):
                assert await send(wire, asked(url, b"body")) == b"onetwo"
            assert server.count == 1

            reply = await wire.handle_async_request(asked(url))
            async for _part in reply.stream:  # type: ignore[union-attr]
                break
            await reply.aclose()
            await until(lambda: not server.open)
            assert await send(wire, asked(url)) == b"onetwo"
            assert server.count == 2
            await wire.aclose()
            await until(lambda: not server.open)

    run_on(loop, main)


@on_both_loops
def test_an_idle_connection_that_the_server_closed_is_not_used_again(loop: str) -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.answer(200, b"x")
            call.writer.close()

        async with scripted(script) as server, outbound_run(server.url) as run:
            for _ in range(5):
                assert (await run.clients.http.get("/")).content == b"x"

        assert len(server.calls) == 5

    run_on(loop, main)


@on_both_loops
@pytest.mark.parametrize("as_it_wakes", [False, True])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_call_cancelled_at_any_await_leaves_no_open_connection(
    loop: str, as_it_wakes: bool, is_tls: bool, pem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))

    async def main() -> None:
        context = server_context(pem) if is_tls else None
        body = bytes(8 * 1024 * 1024)  # more than the sockets take at once
        async with Connections(answer_each).listening("localhost", context) as server:
            url = f"{'https' if is_tls else 'http'}://localhost:{server.port}/"
            at = cancelled = 0
            while at == 0 or cancelled == at:
                at += 1
                wire = PooledTransport(LIMITS)
                step = Cancelled(send(wire, asked(url, body)), at, as_it_wakes=as_it_wakes)
                task = asyncio.ensure_future(_awaited(step))
                await asyncio.wait([task])
                if task.cancelled():
                    cancelled += 1
                    await until(lambda: not server.open)
                else:
                    assert task.result() == b"onetwo"
                await wire.aclose()
                await until(lambda: not server.open)

            assert cancelled >= 5  # the name, connecting, sending, the head, the body

    run_on(loop, main)


async def _awaited(step: Cancelled) -> Any:
    return await step


@on_both_loops
def test_certificates_of_the_environment_are_believed_and_others_are_not(
    loop: str, pem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Connections(answer_each).listening(context=server_context(pem)) as server:
            url = f"https://localhost:{server.port}"
            monkeypatch.setenv("SSL_CERT_FILE", str(pem))
            async with outbound_run(url) as run:
                for _ in range(2):
                    assert (await run.clients.http.post("/", content=b"x")).content == b"onetwo"
            assert server.count == 1
            monkeypatch.delenv("SSL_CERT_FILE")
            async with outbound_run(url) as run:
                with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                    await run.clients.http.post("/", content=b"x")

    run_on(loop, main)


@on_both_loops
def test_errors_are_those_of_httpx2_with_their_cause(loop: str) -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            if call.path == "/nothing":
                call.reset()
            elif call.path == "/half":
                await call.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
                call.writer.close()
            elif call.path == "/nonsense":
                await call.write(b"what?\r\n\r\n")
            else:
                await asyncio.Event().wait()

        async with scripted(script) as server:
            wire = PooledTransport(LIMITS)
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                refusing = f"http://127.0.0.1:{one.getsockname()[1]}/"
            expected: list[tuple[str, type[Exception], type[Exception]]] = [
                (refusing, httpx2.ConnectError, httpcore2.ConnectError),
                ("ftp://x/", httpx2.UnsupportedProtocol, httpcore2.UnsupportedProtocol),
                (
                    f"{server.url}/nothing",
                    httpx2.RemoteProtocolError,
                    httpcore2.RemoteProtocolError,
                ),
                (f"{server.url}/half", httpx2.RemoteProtocolError, httpcore2.RemoteProtocolError),
                (
                    f"{server.url}/nonsense",
                    httpx2.RemoteProtocolError,
                    httpcore2.RemoteProtocolError,
                ),
                (f"{server.url}/silent", httpx2.ReadTimeout, httpcore2.ReadTimeout),
            ]
            for url, kind, cause in expected:
                with pytest.raises(kind) as raised:
                    await send(wire, asked(url, timeout={"read": 0.5, "connect": 5.0}))
                assert type(raised.value) is kind
                assert type(raised.value.__cause__) is cause
            await wire.aclose()

    run_on(loop, main)


def test_an_error_of_a_body_that_is_sent_stays_what_it_is() -> None:
    async def main() -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"x"
            raise ZeroDivisionError

        async def script(call: Call) -> None: ...

        async with scripted(script) as server:
            wire = PooledTransport(LIMITS)
            with pytest.raises(ZeroDivisionError) as raised:
                await wire.handle_async_request(
                    httpx2.Request("POST", server.url, content=broken())
                )
            assert raised.value.__cause__ is None
            await wire.aclose()

    asyncio.run(main())


def test_a_body_that_somebody_reads_can_be_closed_beside() -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.begin()
            await call.chunk(b"one")
            await asyncio.Event().wait()

        async with scripted(script) as server:
            wire = PooledTransport(LIMITS)
            reply = await wire.handle_async_request(asked(server.url))
            chunks = reply.stream.__aiter__()  # type: ignore[union-attr]
            assert await chunks.__anext__() == b"one"
            reading = asyncio.ensure_future(chunks.__anext__())
            await asyncio.sleep(0.01)
            await reply.aclose()
            with pytest.raises(httpx2.ReadError):
                await reading
            await wire.aclose()

    asyncio.run(main())


def test_only_httpx2_without_a_way_of_its_own_has_our_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    async def main() -> None:
        ours, theirs = RoutedTransport(httpx2), RoutedTransport(httpx)
        assert isinstance(ours._transport(Route()), PooledTransport)
        assert isinstance(theirs._transport(Route()), httpx.AsyncHTTPTransport)
        for route in (Route(proxy="http://127.0.0.1:1"), Route(verify=False)):
            assert isinstance(ours._transport(route), httpx2.AsyncHTTPTransport)
        request = asked("http://127.0.0.1:9/")
        request.extensions[ROUTE] = Route(verify=False)
        with pytest.raises(httpx2.ConnectError):
            await ours.handle_async_request(request)
        await ours.aclose()
        await theirs.aclose()

    asyncio.run(main())
