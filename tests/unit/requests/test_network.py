# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore2
import pytest

from penstock.requests.transports import HELD_BYTES_MAX, AsyncioBackend, AsyncioStream
from tests.connections import (
    LOOPS,
    Connections,
    certificate,
    run_on,
    server_context,
    stays_open,
    until,
)

LOOP_CHUNK_BYTES = 262_144  # what either loop reads at once
BODY_BYTES = 50 * 1024 * 1024
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER

on_both_loops = pytest.mark.parametrize("loop", list(LOOPS))


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("certificate"))


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port where new connections are neither accepted nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):  # fill its line
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def connect(port: int, host: str = "127.0.0.1", **options: Any) -> AsyncioStream:
    stream = await AsyncioBackend().connect_tcp(host, port, **options)
    assert isinstance(stream, AsyncioStream)
    return stream


async def read_all(stream: httpcore2.AsyncNetworkStream) -> bytes:
    parts = []
    while part := await stream.read(65_536):
        parts.append(part)
    return b"".join(parts)


async def echo_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))
    await writer.drain()
    writer.close()
    await writer.wait_closed()


@on_both_loops
def test_what_is_sent_comes_back_and_the_end_is_empty(loop: str) -> None:
    async def main() -> None:
        async with Connections(echo_once).listening() as server:
            stream = await connect(server.port)
            await stream.write(b"hello")

            assert await stream.read(2) == b"he"
            assert await stream.read(100) == b"llo"
            assert await stream.read(100) == b""
            assert await stream.read(100) == b""
            await stream.aclose()

    run_on(loop, main)


@on_both_loops
def test_it_tells_its_addresses_and_has_no_delay(loop: str) -> None:
    async def main() -> None:
        async with Connections(stays_open).listening() as server:
            stream = await connect(
                server.port,
                local_address="127.0.0.1",
                socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
            )
            sock = stream.get_extra_info("socket")

            assert stream.get_extra_info("server_addr") == ("127.0.0.1", server.port)
            assert stream.get_extra_info("client_addr")[0] == "127.0.0.1"
            assert stream.get_extra_info("ssl_object") is None
            assert stream.get_extra_info("something else") is None
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
            await stream.aclose()
            await until(lambda: not server.open)

    run_on(loop, main)


@on_both_loops
def test_a_refused_option_closes_the_connection(loop: str) -> None:
    async def main() -> None:
        async with Connections(stays_open).listening() as server:
            with pytest.raises(httpcore2.ConnectError):
                await connect(server.port, socket_options=[(socket.SOL_SOCKET, 9_999, 1)])
            await until(lambda: server.count == 1 and not server.open)

    run_on(loop, main)


@on_both_loops
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_refused_connection_is_an_error_of_connecting(loop: str, host: str) -> None:
    async def main() -> None:
        with pytest.raises(httpcore2.ConnectError) as raised:
            await connect(free_port(), host)
        assert isinstance(raised.value.__cause__, OSError)

    run_on(loop, main)


@on_both_loops
def test_a_name_without_an_address_is_an_error_of_connecting(loop: str) -> None:
    async def main() -> None:
        for host in ("nobody.invalid", "a" * 70 + ".invalid"):
            with pytest.raises(httpcore2.ConnectError):
                await connect(80, host)

    run_on(loop, main)


@on_both_loops
def test_connecting_ends_in_time(loop: str) -> None:
    async def main() -> None:
        with deaf_port() as port, pytest.raises(httpcore2.ConnectTimeout):
            await connect(port, timeout=0.05)

    run_on(loop, main)


@on_both_loops
def test_it_reaches_the_loopback_of_ipv6(loop: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")

    async def main() -> None:
        async with Connections(echo_once).listening("::1") as server:
            stream = await connect(server.port, "::1")
            await stream.write(b"six")
            assert await read_all(stream) == b"six"
            await stream.aclose()

    run_on(loop, main)


@on_both_loops
def test_reading_ends_in_time_and_can_go_on(loop: str) -> None:
    async def main() -> None:
        async with Connections(echo_once).listening() as server:
            stream = await connect(server.port)
            with pytest.raises(httpcore2.ReadTimeout):
                await stream.read(100, timeout=0.01)
            await stream.write(b"late", timeout=10)
            assert await stream.read(100, timeout=10) == b"late"
            await stream.aclose()

    run_on(loop, main)


@on_both_loops
def test_writing_waits_for_a_slow_reader_and_ends_in_time(loop: str) -> None:
    async def main() -> None:
        may_read = asyncio.Event()
        taken = 0

        async def slow(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            nonlocal taken
            await may_read.wait()
            while part := await reader.read(262_144):
                taken += len(part)

        async with Connections(slow).listening() as server:
            stream = await connect(server.port)
            with pytest.raises(httpcore2.WriteTimeout):
                await stream.write(bytes(16 * 1024 * 1024), timeout=0.01)
            more = asyncio.create_task(stream.write(b"x"))
            await asyncio.sleep(0)
            may_read.set()
            await more
            await until(lambda: taken == 16 * 1024 * 1024 + 1)
            await stream.aclose()

    run_on(loop, main)


@on_both_loops
def test_a_reset_is_an_error_of_whoever_reads_or_writes(loop: str) -> None:
    async def main() -> None:
        async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(3)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

        async with Connections(breaks).listening() as server:
            stream = await connect(server.port)
            await stream.write(b"abc")
            with pytest.raises(httpcore2.ReadError):
                await stream.read(100)
            with pytest.raises(httpcore2.WriteError):
                await stream.write(b"abc")

            stuck = await connect(server.port)
            with pytest.raises(httpcore2.WriteError):
                await stuck.write(bytes(16 * 1024 * 1024))
            await stream.aclose()
            await stuck.aclose()

    run_on(loop, main)


@on_both_loops
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_closing_wakes_whoever_reads_and_what_was_written_leaves(
    loop: str, is_tls: bool, pem: Path
) -> None:
    async def main() -> None:
        got = b""

        async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            nonlocal got
            while part := await reader.read(100):
                got += part

        context = server_context(pem) if is_tls else None
        async with Connections(serve).listening(context=context) as server:
            stream: Any = await connect(server.port)
            if is_tls:
                client = ssl.create_default_context(cafile=pem)
                stream = await stream.start_tls(client, "localhost")
            reading = asyncio.create_task(stream.read(100))
            await asyncio.sleep(0)
            await stream.write(b"good-bye")
            await stream.aclose()
            with pytest.raises(httpcore2.ReadError):
                await reading
            await until(lambda: got == b"good-bye" and not server.open)
            await stream.aclose()

    run_on(loop, main)


@on_both_loops
def test_what_the_other_side_ended_while_we_sent_can_be_closed(loop: str) -> None:
    async def main() -> None:
        size = 16 * 1024 * 1024
        with socket.create_server(("127.0.0.1", 0)) as listener:
            stream = await connect(listener.getsockname()[1])
            other, _ = listener.accept()
            with other:
                sending = asyncio.create_task(stream.write(bytes(size)))
                await asyncio.sleep(0.01)
                other.shutdown(socket.SHUT_WR)
                assert await stream.read(100) == b""
                await asyncio.to_thread(_drain, other, size)
                await sending
                await until(lambda: stream._is_lost)
                await stream.aclose()

    run_on(loop, main)


def _drain(sock: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(sock.recv(1_048_576)) or size


@on_both_loops
def test_an_idle_connection_is_readable_once_the_other_side_has_closed(loop: str) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            stream = await connect(listener.getsockname()[1])
            other, _ = listener.accept()
            assert not stream.get_extra_info("is_readable")
            other.close()
            assert stream.get_extra_info("is_readable")  # the loop has not turned since
            await asyncio.sleep(0.01)
            assert stream.get_extra_info("is_readable")
            await stream.aclose()
            assert stream.get_extra_info("is_readable")

    run_on(loop, main)


@on_both_loops
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_slow_reader_holds_little_of_a_large_body(loop: str, is_tls: bool, pem: Path) -> None:
    async def main() -> None:
        piece = bytes(range(256)) * 4096

        async def pours(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _i in range(BODY_BYTES // len(piece)):
                writer.write(piece)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        context = server_context(pem) if is_tls else None
        async with Connections(pours).listening(context=context) as server:
            stream: Any = await connect(server.port)
            if is_tls:
                client = ssl.create_default_context(cafile=pem)
                stream = await stream.start_tls(client, "localhost")
            read = most = 0
            while part := await stream.read(65_536):
                offset = read % 256
                assert part[:256] == (piece * 2)[offset : offset + min(256, len(part))]
                read += len(part)
                if read % 37 == 0 or read < 4 * LOOP_CHUNK_BYTES:
                    await asyncio.sleep(0.001)  # the loop may take what it likes
                most = max(most, stream._held_bytes)

            assert read == BODY_BYTES
            assert most <= HELD_BYTES_MAX + 2 * LOOP_CHUNK_BYTES
            await stream.aclose()

    run_on(loop, main)


@on_both_loops
def test_tls_is_verified_and_tells_its_object(loop: str, pem: Path) -> None:
    async def main() -> None:
        async with Connections(echo_once).listening(context=server_context(pem)) as server:
            trusting = ssl.create_default_context(cafile=pem)
            stream = await (await connect(server.port)).start_tls(trusting, "localhost", 10)
            assert stream.get_extra_info("ssl_object").version().startswith("TLS")
            assert not stream.get_extra_info("is_readable")
            await stream.write(b"secret")
            assert await read_all(stream) == b"secret"
            await stream.aclose()

            strict = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            with pytest.raises(httpcore2.ConnectError, match="certificate verify failed"):
                await (await connect(server.port)).start_tls(strict, "localhost", 10)
            with pytest.raises(httpcore2.ConnectError, match="certificate verify failed"):
                await (await connect(server.port)).start_tls(trusting, "elsewhere", 10)
            await until(lambda: not server.open)

    run_on(loop, main)


@on_both_loops
def test_a_handshake_that_is_not_answered_ends_in_time_and_closes(loop: str) -> None:
    async def main() -> None:
        async with Connections(stays_open).listening() as server:
            plain = await connect(server.port)
            with pytest.raises(httpcore2.ConnectTimeout):
                await plain.start_tls(ssl.create_default_context(), "localhost", 0.05)
            await until(lambda: server.count == 1 and not server.open)

    run_on(loop, main)


@on_both_loops
def test_a_handshake_with_something_else_is_an_error_of_connecting(loop: str) -> None:
    async def main() -> None:
        async def hangs_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read(1)

        async with (
            Connections(hangs_up).listening() as server,
            Connections(echo_once).listening() as mirror,
        ):
            for port in (server.port, mirror.port):
                plain = await connect(port)
                with pytest.raises(httpcore2.ConnectError):
                    await plain.start_tls(ssl.create_default_context(), "localhost", 10)
            await until(lambda: not server.open and not mirror.open)

    run_on(loop, main)


@on_both_loops
def test_tls_that_ends_without_a_good_bye_is_an_end(loop: str, pem: Path) -> None:
    async def main() -> None:
        async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"all there is")
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.transport.abort()

        async with Connections(leaves).listening(context=server_context(pem)) as server:
            client = ssl.create_default_context(cafile=pem)
            stream = await (await connect(server.port)).start_tls(client, "localhost")
            await stream.write(b"x")
            assert await read_all(stream) == b"all there is"
            await stream.aclose()

    run_on(loop, main)
