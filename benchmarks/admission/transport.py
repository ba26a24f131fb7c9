# SPDX-License-Identifier: Apache-2.0
"""What does admission add to a call: beside a bare client of httpx2, on loopback?

The server has a process of its own and answers at once. The clients call it one after the other
and take turns, so that a drifting load falls on all; all run on the loop that runs use. Providers
have a leaner wire than httpx2: what admission itself adds is told by the client that has only that.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import statistics
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import httpx2
import uvloop

from benchmarks.measuring import Answer, fresh, paired_ratio, pick, stopwatch
from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.admission.requests.adaptive.limit import Adaptive
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.policy import ProviderPolicy
from penstock.clock import SystemClock
from penstock.model.provider import RequestResourceKey
from penstock.requests.admission import RequestAdmissionController
from penstock.requests.clients.provider_clients import ProviderClients
from penstock.requests.exchange import ACCEPTED
from penstock.requests.executor import ModelRequestExecutor, RequestFacts
from penstock.requests.transports import PooledTransport

OVERHEAD = 0.10  # of a bare call
CALLS = 50  # in one turn: short ones, so that both have the same neighbours
TURNS, SMOKE_TURNS = 160, 12
WARM_UP = 100
BODY = b'{"answer": "' + b"x" * 1_000 + b'"}'
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"date: Mon, 16 Nov 2026 00:00:00 GMT\r\nserver: loopback\r\n"
) % len(BODY)
QUOTA = (
    b"x-ratelimit-limit-requests: 600000\r\nx-ratelimit-remaining-requests: 599999\r\n"
    b"x-ratelimit-reset-requests: 1ms\r\n"
)
PLAIN, TOKEN_DOMAINS = "/works/1", "/counted/1"  # the second is answered with rate-limit headers
COLUMNS = ("client", "wall, µs", "CPU, µs", "added to the wall, part")


def measure(setup: Setup) -> Outcome:
    """Compare them, turn by turn."""
    answer = fresh(calls, setup.folder, turns=setup.size(TURNS, SMOKE_TURNS))
    added = {path: _added(answer, path) for path in (PLAIN, TOKEN_DOMAINS)}
    lean = _added(answer, PLAIN, "lean")
    return Outcome(
        (
            Check(
                "transport: time that it adds to a bare call of httpx2, part of that call",
                added[PLAIN],
                Sense.AT_MOST,
                OVERHEAD,
            ),
        ),
        (
            Table(
                "One GET of 1 KB on loopback, after each other",
                COLUMNS,
                (
                    ("bare httpx2", *_medians(answer[f"bare{PLAIN}"]), ""),
                    ("bare httpx2 on our wire", *_medians(answer[f"lean{PLAIN}"]), lean),
                    ("provider.http", *_medians(answer[f"ours{PLAIN}"]), added[PLAIN]),
                    (
                        "bare httpx2, rate-limit headers",
                        *_medians(answer[f"bare{TOKEN_DOMAINS}"]),
                        "",
                    ),
                    (
                        "provider.http, rate-limit headers",
                        *_medians(answer[f"ours{TOKEN_DOMAINS}"]),
                        added[TOKEN_DOMAINS],
                    ),
                ),
            ),
        ),
    )


def _added(answer: Answer, path: str, client: str = "ours") -> float:
    bare, ours = answer[f"bare{path}"], answer[f"{client}{path}"]
    return paired_ratio(pick(ours, "wall"), pick(bare, "wall")) - 1.0


def _medians(turns: list[dict[str, float]]) -> tuple[float, float]:
    return statistics.median(pick(turns, "wall")), statistics.median(pick(turns, "cpu"))


def calls(turns: int) -> Answer:
    """A probe: microseconds of one call, by each client in turns."""
    with _server() as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_calls(f"http://127.0.0.1:{port}", turns))


async def _calls(url: str, turns: int) -> Answer:
    answer: Answer = {}
    wire = PooledTransport(httpx2.Limits(max_connections=None))
    lean = _bare(url, wire)  # its wire is no context manager, and ends with the probe
    async with _bare(url) as bare, _ours(url) as ours:
        for path in (PLAIN, TOKEN_DOMAINS):
            clients = [("bare", bare), ("lean", lean), ("ours", ours)]
            for name, client in clients:
                answer[f"{name}{path}"] = []
                await _turn(client, path, WARM_UP)
            for _ in range(turns):
                clients.append(clients.pop(0))
                for name, client in clients:
                    answer[f"{name}{path}"].append(await _turn(client, path, CALLS))
    return answer


async def _turn(client: httpx2.AsyncClient, path: str, count: int) -> dict[str, float]:
    with stopwatch() as spent:
        for _ in range(count):
            reply = await client.get(path)
            assert reply.content == BODY
    return {"wall": spent.wall / count * 1e6, "cpu": spent.cpu / count * 1e6}


def _bare(url: str, wire: Any = None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=wire,
        base_url=url,
        headers={"accept-encoding": ACCEPTED},
        timeout=httpx2.Timeout(None, connect=10.0),
        follow_redirects=True,
    )


@contextlib.asynccontextmanager
async def _ours(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    clock, chance = SystemClock(), Random(1)
    core = AdaptiveRequestAdmissionController(
        [ProviderPolicy("loopback")],
        lambda policy, key, most, now: Adaptive(most, now, chance.random),
    )
    admission = RequestAdmissionController(core, clock)
    clients = ProviderClients(
        "loopback", ModelRequestExecutor(admission, _key, clock), base_url=url
    )
    try:
        yield clients.http
    finally:
        await clients.aclose()
        admission.shut()


def _key(facts: RequestFacts) -> RequestResourceKey:
    return RequestResourceKey("loopback", facts.host, "http")


class _Answering(asyncio.Protocol):
    """Answers every head that comes in; they come one by one."""

    transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        quota = QUOTA if TOKEN_DOMAINS.encode() in data else b""
        self.transport.write(HEAD + quota + b"\r\n" + BODY)


@contextlib.contextmanager
def _server() -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def _serve(there: Any) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
        there.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())
