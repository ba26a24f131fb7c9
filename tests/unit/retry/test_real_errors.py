# SPDX-License-Identifier: Apache-2.0
"""Errors as libraries really raise them: whose failure are they?

Every one is provoked, on loopback where it needs a peer. Types cannot tell (`socket.timeout` is
`TimeoutError`, and gzip raises the `EOFError` of ftplib), so made-up errors would prove nothing.
"""

from __future__ import annotations

import asyncio
import bz2
import concurrent.futures
import ftplib
import gzip
import http.client
import imaplib
import importlib
import io
import json
import lzma
import marshal
import multiprocessing
import os
import pickle
import queue
import smtplib
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import httpx
import httpx2
import psycopg
import pytest
import requests
import urllib3

from penstock import KeyedLimiter
from penstock.retry.classify import FailureClass, classify

NODE, UNKNOWN = FailureClass.NODE, FailureClass.UNKNOWN
SHORT = 0.05  # seconds that are waited for somebody who never answers
LIMIT_SECONDS = 30.0  # for what ends by itself

Provoke = Callable[[int], object]  # with a port of loopback


class Peers:
    """Ports of loopback: one refuses, one accepts and is silent, the others answer and hang up."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.refusing = self._port(listens=False)
        self.silent = self._port()
        self.full = self._port(backlog=0)
        for _ in range(2):
            filler = socket.socket()
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.full))
            self._sockets.append(filler)

    def _port(self, *, listens: bool = True, backlog: int = 64) -> int:
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        if listens:
            one.listen(backlog)
        self._sockets.append(one)
        return int(one.getsockname()[1])

    @contextmanager
    def answering(self, reply: bytes) -> Iterator[int]:
        """A port whose next callers get these bytes, and then the end."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(LIMIT_SECONDS)

            def serve() -> None:
                with suppress(OSError):
                    for _ in range(4):
                        caller, _ = server.accept()
                        caller.sendall(reply)
                        caller.shutdown(socket.SHUT_WR)
                        caller.settimeout(10 * SHORT)
                        with caller, suppress(OSError):
                            while caller.recv(65_536):
                                pass

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            yield server.getsockname()[1]
            server.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT_SECONDS)

    def close(self) -> None:
        for one in self._sockets:
            one.close()


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    found = Peers()
    yield found
    found.close()


def raised_by(provoke: Callable[[], object]) -> BaseException:
    try:
        provoke()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def on_loop(work: Callable[[int], Coroutine[Any, Any, object]]) -> Provoke:
    return lambda port: asyncio.run(asyncio.wait_for(work(port), LIMIT_SECONDS))


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/"


HANGS_UP = b""
GREETS_ONLY = b"220 hello\r\n"
BREAKS_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly a few"
BREAKS_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nonly a few"
NO_TLS = b"this is no handshake of TLS, whatever it may be"


# ── Connections ───────────────────────────────────────────────────────────────────────────────


def reads(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(SHORT)
        return connection.recv(1)


def reads_file(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), SHORT) as connection:
        return connection.makefile("rb").read(1)


def connects(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), SHORT):
        pass


def connects_itself(port: int) -> None:
    with socket.socket() as one:
        one.settimeout(SHORT)
        one.connect(("127.0.0.1", port))


def shakes_hands(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), SHORT) as connection:
        ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")


def sends(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.sendall(b"x")


def reads_in_thread(port: int) -> bytes:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(reads, port).result()


def wraps(port: int) -> None:
    try:
        reads(port)
    except OSError as error:
        raise RuntimeError("the service cannot be read") from error


async def streams(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.readexactly(100)
    finally:
        writer.close()


async def streams_until(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.readuntil(b"the end")
    finally:
        writer.close()


async def opens_by_two_ways(port: int) -> None:
    loop = asyncio.get_running_loop()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in _HOSTS]

    async def both(*_args: object, **_kwargs: object) -> list[Any]:
        return found

    loop.getaddrinfo = both  # type: ignore[method-assign]
    await asyncio.open_connection("two-ways.invalid", port)


_HOSTS = ("127.0.0.1", "127.0.0.2")


async def aiohttp_gets(port: int, **limits: float) -> None:
    timeout = aiohttp.ClientTimeout(**limits)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url(port)) as reply:
        await reply.read()


def mail(port: int) -> None:
    with suppress(smtplib.SMTPResponseException):
        smtplib.SMTP("127.0.0.1", port, timeout=LIMIT_SECONDS).sendmail("a@b", ["c@d"], "hello")


def ftp_connects(port: int, timeout: float = LIMIT_SECONDS) -> None:
    client = ftplib.FTP()
    try:
        client.connect("127.0.0.1", port, timeout)
    finally:
        client.close()


def sdk(module: str, client: str) -> Provoke:
    def provoke(port: int) -> None:
        make = getattr(importlib.import_module(module), client)
        with make(api_key="none", base_url=url(port), max_retries=0) as one:
            one.models.list()

    return provoke


def urllib3_gets(port: int, *, retries: bool = False, timeout: float = LIMIT_SECONDS) -> object:
    with urllib3.PoolManager(retries=1 if retries else False) as pool:
        return pool.request("GET", url(port), timeout=timeout).data


def http_reads(port: int, timeout: float = LIMIT_SECONDS) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def urllib_reads(port: int, timeout: float = LIMIT_SECONDS) -> bytes:
    with urllib.request.urlopen(url(port), timeout=timeout) as reply:
        return bytes(reply.read())


def psycopg_connects(port: int) -> None:
    psycopg.connect(f"host=127.0.0.1 port={port} user=x dbname=x connect_timeout=2")


@pytest.mark.parametrize(
    "provoke",
    [
        connects,
        on_loop(streams),
        on_loop(opens_by_two_ways),
        urllib_reads,
        http_reads,
        ftp_connects,
        lambda port: smtplib.SMTP("127.0.0.1", port),
        lambda port: imaplib.IMAP4("127.0.0.1", port),
        lambda port: httpx.get(url(port)),
        lambda port: httpx2.get(url(port)),
        lambda port: requests.get(url(port), timeout=LIMIT_SECONDS),
        lambda port: asyncio.run(aiohttp_gets(port)),
        urllib3_gets,
        lambda port: urllib3_gets(port, retries=True),
        psycopg_connects,
        sdk("openai", "OpenAI"),
        sdk("anthropic", "Anthropic"),
    ],
)
def test_a_port_that_refuses_is_the_networks(provoke: Provoke, peers: Peers) -> None:
    error = raised_by(lambda: provoke(peers.refusing))

    assert classify(error, now=0.0).category is NODE, repr(error)


@pytest.mark.parametrize(
    "provoke",
    [
        reads,
        reads_file,
        reads_in_thread,
        wraps,
        shakes_hands,
        lambda port: urllib_reads(port, SHORT),
        lambda port: http_reads(port, SHORT),
        lambda port: ftp_connects(port, SHORT),
        lambda port: smtplib.SMTP("127.0.0.1", port, timeout=SHORT),
        lambda port: imaplib.IMAP4("127.0.0.1", port, SHORT),
        lambda port: httpx.get(url(port), timeout=SHORT),
        lambda port: httpx2.get(url(port), timeout=SHORT),
        lambda port: requests.get(url(port), timeout=SHORT),
        lambda port: asyncio.run(aiohttp_gets(port, total=SHORT)),
        lambda port: asyncio.run(aiohttp_gets(port, sock_read=SHORT)),
        lambda port: urllib3_gets(port, timeout=SHORT),
    ],
)
def test_a_peer_that_is_silent_is_the_networks(provoke: Provoke, peers: Peers) -> None:
    error = raised_by(lambda: provoke(peers.silent))

    assert classify(error, now=0.0).category is NODE, repr(error)


@pytest.mark.parametrize("provoke", [connects, connects_itself])
def test_a_peer_that_does_not_accept_is_the_networks(provoke: Provoke, peers: Peers) -> None:
    error = raised_by(lambda: provoke(peers.full))

    assert isinstance(error, TimeoutError)
    assert classify(error, now=0.0).category is NODE


@pytest.mark.parametrize(
    ("reply", "provoke"),
    [
        (HANGS_UP, on_loop(streams)),
        (HANGS_UP, on_loop(streams_until)),
        (HANGS_UP, shakes_hands),
        (HANGS_UP, sends),
        (HANGS_UP, urllib_reads),
        (HANGS_UP, ftp_connects),
        (HANGS_UP, lambda port: smtplib.SMTP("127.0.0.1", port)),
        (HANGS_UP, lambda port: imaplib.IMAP4("127.0.0.1", port)),
        (HANGS_UP, lambda port: httpx.get(url(port))),
        (HANGS_UP, lambda port: httpx2.get(url(port))),
        (HANGS_UP, lambda port: asyncio.run(aiohttp_gets(port))),
        (GREETS_ONLY, mail),
        (NO_TLS, shakes_hands),
        (BREAKS_OFF, http_reads),
        (BREAKS_OFF, lambda port: httpx.get(url(port))),
        (BREAKS_OFF, lambda port: httpx2.get(url(port))),
        (BREAKS_OFF, lambda port: asyncio.run(aiohttp_gets(port))),
        (BREAKS_OFF, lambda port: requests.get(url(port), timeout=LIMIT_SECONDS)),
        (BREAKS_OFF, urllib3_gets),
        (BREAKS_CHUNK, lambda port: requests.get(url(port), timeout=LIMIT_SECONDS)),
    ],
)
def test_a_connection_that_breaks_off_is_the_networks(
    reply: bytes, provoke: Provoke, peers: Peers
) -> None:
    with peers.answering(reply) as port:
        error = raised_by(lambda: provoke(port))

    assert classify(error, now=0.0).category is NODE, repr(error)


def test_a_name_that_nobody_knows_is_the_networks() -> None:
    error = raised_by(lambda: socket.getaddrinfo("nobody.invalid", 80))

    assert classify(error, now=0.0).category is NODE


# ── The task's own ────────────────────────────────────────────────────────────────────────────

TRUNCATED = gzip.compress(os.urandom(1_000))[:-20]


def reads_truncated_gzip(_: int) -> bytes:
    return gzip.GzipFile(fileobj=io.BytesIO(TRUNCATED)).read()


def reads_truncated_lzma(_: int) -> bytes:
    return lzma.LZMAFile(io.BytesIO(lzma.compress(b"x" * 1_000)[:-20])).read()


def reads_truncated_bz2(_: int) -> bytes:
    return bz2.BZ2File(io.BytesIO(bz2.compress(b"x" * 1_000)[:-5])).read()


async def limits_itself(_: int) -> None:
    async with asyncio.timeout(SHORT):
        await asyncio.Event().wait()


async def waits_for(_: int) -> None:
    await asyncio.wait_for(asyncio.Event().wait(), SHORT)


async def limits_a_call(port: int) -> None:
    async with asyncio.timeout(SHORT), httpx2.AsyncClient() as client:
        await client.get(url(port), timeout=LIMIT_SECONDS)


async def limits_a_stream(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(SHORT):
            await reader.read(1)
    finally:
        writer.close()


async def limits_by_anyio(_: int) -> None:
    with anyio.fail_after(SHORT):
        await anyio.sleep_forever()


async def wants_a_slot(_: int) -> None:
    limiter = KeyedLimiter(1)
    await limiter.acquire("one")
    await limiter.acquire("one", timeout=SHORT)


def waits_for_a_future(_: int) -> object:
    return concurrent.futures.Future[None]().result(SHORT)


def waits_for_all(_: int) -> object:
    return list(concurrent.futures.as_completed([concurrent.futures.Future[None]()], SHORT))


def raises_after_a_call(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), LIMIT_SECONDS) as connection:
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.recv(1)
        raise TimeoutError("the report is not there after three days")


def raises(error: BaseException) -> Provoke:
    def provoke(_: int) -> None:
        raise error

    return provoke


def program_is_late(_: int) -> None:
    subprocess.run(["sleep", "30"], check=False, timeout=SHORT)


def reads_dead_child(_: int) -> object:
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with ours:
        return ours.recv()


async def reads_program(_: int) -> None:
    program = await asyncio.create_subprocess_exec("true", stdout=subprocess.PIPE)
    assert program.stdout is not None
    try:
        await program.stdout.readexactly(100)
    finally:
        await program.wait()


async def feeds_program(_: int) -> None:
    program = await asyncio.create_subprocess_exec("true", stdin=subprocess.PIPE)
    await program.wait()
    assert program.stdin is not None
    for _ in range(100):
        program.stdin.write(b"x" * 65_536)
        await program.stdin.drain()


def reads_line(_: int) -> None:
    before = sys.stdin
    sys.stdin = io.StringIO("")
    try:
        input()
    finally:
        sys.stdin = before


def reads_bad_memory(_: int) -> bytes:
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        return memory.read(1)  # EIO


def binds_twice(port: int) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", port))


def opens_no_database(_: int) -> None:
    sqlite3.connect("/nowhere/at.all")


def loads_no_certificate(_: int) -> None:
    ssl.create_default_context().load_cert_chain(__file__)


@pytest.mark.parametrize(
    "provoke",
    [
        reads_truncated_gzip,
        reads_truncated_lzma,
        reads_truncated_bz2,
        lambda _: pickle.load(io.BytesIO(b"")),
        lambda _: marshal.loads(b""),
        lambda _: json.loads("{"),
        on_loop(limits_itself),
        on_loop(waits_for),
        on_loop(limits_a_call),
        on_loop(limits_a_stream),
        on_loop(limits_by_anyio),
        on_loop(wants_a_slot),
        waits_for_a_future,
        waits_for_all,
        raises_after_a_call,
        raises(TimeoutError()),
        raises(TimeoutError("timed out")),
        raises(EOFError("the file ends too early")),
        raises(OSError("no number")),
        program_is_late,
        reads_dead_child,
        on_loop(reads_program),
        on_loop(feeds_program),
        reads_line,
        reads_bad_memory,
        binds_twice,
        opens_no_database,
        loads_no_certificate,
        lambda _: ssl.create_default_context(cafile=__file__),
        lambda _: ssl.create_default_context().set_ciphers("none"),
        lambda _: Path("/nowhere/at.all").read_text(),
        lambda _: Path("/").read_text(),
        lambda _: queue.Queue[None]().get(timeout=SHORT),
        lambda _: threading.Barrier(2).wait(SHORT),
        lambda _: urllib.request.urlopen("file:///nowhere/at.all"),
    ],
)
def test_f85_what_the_task_does_itself_is_its_own_fault(provoke: Provoke, peers: Peers) -> None:
    error = raised_by(lambda: provoke(peers.silent))

    assert classify(error, now=0.0).category is UNKNOWN, repr(error)
