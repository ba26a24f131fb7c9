# SPDX-License-Identifier: Apache-2.0
"""The app of a campaign, twice under two names: what its tasks do, and what they tell the ledger.

Everything that a job does follows from its key, so whoever judges knows what had to come of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NotRequired, Self, TypedDict
from zlib import crc32

from penstock import Context, JobRequest, Penstock, Skip, finished

SEATS = {"a": 1, "b": 2, "c": 4}  # keyed limits, over both apps and all runs
DOOMED_ATTEMPTS = 2
FOLDER = "CAMPAIGN_FOLDER"
RUN = "CAMPAIGN_RUN"


class Result(TypedDict):
    """What a body returns: which execution it was, and what it has enqueued or bought."""

    execution: str
    kids: NotRequired[list[str]]
    answers: NotRequired[dict[str, int]]


def ports() -> tuple[int, int]:
    """Of the paid service, and of the visits."""
    with open(os.path.join(os.environ[FOLDER], "ports")) as file:
        shop, visits = json.load(file)
    return int(shop), int(visits)


def share(key: str, what: str) -> float:
    """A number from 0 to 1 that a key has for a purpose; always the same."""
    return crc32(f"{what}:{key}".encode()) / 2**32


def kids_of(key: str) -> int:
    return int(3 * share(key, "kids"))


def shared_kid(key: str) -> str | None:
    """A child that several parents of one batch have in common."""
    return f"{key.split('.')[0]}.shared" if share(key, "shared") < 0.4 else None


class Line:
    """A connection to the ledger: each line is answered when it has been written down."""

    def __init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", ports()[1]), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def tell(self, **line: Any) -> str:
        self._socket.sendall(json.dumps(line).encode() + b"\n")
        answer = self._file.readline()
        if not answer:
            raise SystemExit("The ledger is gone.")
        return answer.decode().strip()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Visit:
    """One execution of a body, as the ledger sees it: from its first line to its last.

    Told without waiting on the loop's own sockets: loopback answers within microseconds, and a
    body that has told its end has nothing left to be interrupted in.
    """

    def __init__(self, app: str, owner: str, ctx: Context, seat: str | None) -> None:
        self.execution = secrets.token_hex(6)
        self._line = Line()
        self._line.tell(
            visit=self.execution,
            app=app,
            owner=owner,
            key=ctx.job.key,
            task=ctx.job.task,
            attempt=ctx.job.attempt,
            seat=seat,
            pid=os.getpid(),
            run=os.environ[RUN],
        )

    def tell(self, **line: Any) -> None:
        self._line.tell(**line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.tell(end="done")
        elif issubclass(kind, Skip):
            self.tell(end="skipped")
        elif issubclass(kind, Exception):
            self.tell(end=kind.__name__)
        self._line.close()


def question(app: str, key: str, n: int) -> dict[str, Any]:
    """A paid call; its name comes first, what follows makes prompts of different lengths."""
    name = f"{app}/{key}/{n}"
    padding = "x" * int(400 * share(name, "padding"))
    return {
        "model": "m",
        "max_tokens": 20 + int(80 * share(name, "tokens")),
        "messages": [{"role": "user", "content": f"{name}|{padding}"}],
    }


def make_app(name: str) -> Penstock:
    """The app under this name; its tasks are the same under each."""
    app = Penstock(name)
    prices = {"usd_per_million_tokens": {"input": 10, "output": 100}}
    llm = app.provider(
        "llm",
        base_url=f"http://127.0.0.1:{ports()[0]}/v1",
        paid=True,
        max_parallel=12,
        idempotency_header="Idempotency-Key",
        models={"m": prices},
    )

    @app.task(limits={"seat": lambda seat: seat})
    async def fetch(ctx: Context, owner: str, seat: str) -> Result:
        """Sit for a while, then let children be enqueued with the end."""
        with Visit(name, owner, ctx, seat) as visit:
            key = ctx.job.key
            await asyncio.sleep(0.01 + 0.1 * share(key, "seconds") ** 2)
            kids = [
                ctx.enqueue(leaf.job(owner=owner), key=f"{key}.{visit.execution}.{n}")
                for n in range(kids_of(key))
            ]
            if shared := shared_kid(key):
                ctx.enqueue(leaf.job(owner=owner), key=shared)
            if len(kids) == 2:
                ctx.enqueue(join.job(owner=owner), key=f"{key}.{visit.execution}.join", after=kids)
                kids.append(f"{key}.{visit.execution}.join")
            return {"execution": visit.execution, "kids": kids}

    @app.task()
    async def leaf(ctx: Context, owner: str) -> Result:
        with Visit(name, owner, ctx, None) as visit:
            await asyncio.sleep(0.02 * share(ctx.job.key, "seconds"))
            return {"execution": visit.execution}

    @app.task()
    async def join(ctx: Context, owner: str) -> Result:
        """Tell which execution of each job that it comes after has won."""
        with Visit(name, owner, ctx, None) as visit:
            if hasattr(ctx, "upstream_async"):  # which versions that others bring may not have
                upstream = await ctx.upstream_async()
                visit.tell(saw={key: result["execution"] for key, result in upstream.items()})
            return {"execution": visit.execution}

    @app.task(uses=llm, timeout=120)
    async def ask(ctx: Context, owner: str, calls: int) -> Result:
        """Pay for answers, one after the other."""
        with Visit(name, owner, ctx, None) as visit:
            answers = {}
            for n in range(calls):
                asked = question(owner, ctx.job.key, n)
                headers = {"x-visit": visit.execution}
                reply = await llm.http.post("/chat/completions", json=asked, headers=headers)
                reply.raise_for_status()
                call = f"{owner}/{ctx.job.key}/{n}"
                answers[call] = reply.json()["id"]
                visit.tell(got=call, send=answers[call])
            return {"execution": visit.execution, "answers": answers}

    @app.task(uses=llm, timeout=120, limits={"seat": lambda seat: seat})
    def ask_in_thread(ctx: Context, owner: str, seat: str) -> Result:
        """The same in a thread, on a seat."""
        with Visit(name, owner, ctx, seat) as visit:
            asked = question(owner, ctx.job.key, 0)
            headers = {"x-visit": visit.execution}
            reply = llm.http_sync.post("/chat/completions", json=asked, headers=headers)
            reply.raise_for_status()
            call = f"{owner}/{ctx.job.key}/0"
            visit.tell(got=call, send=reply.json()["id"])
            return {"execution": visit.execution, "answers": {call: reply.json()["id"]}}

    @app.task(executor="process", timeout=60, limits={"seat": lambda seat: seat})
    def crunch(ctx: Context, owner: str, seat: str) -> Result:
        """Compute in a process of its own, and in a program that this one starts."""
        with Visit(name, owner, ctx, seat) as visit:
            facts = {"key": ctx.job.key, "app": name, "of": visit.execution}
            command = [sys.executable, "-S", "-m", "tests.campaign.program", json.dumps(facts)]
            subprocess.run(command, check=True)
            return {"execution": visit.execution}

    @app.task(max_attempts=3)
    async def flaky(ctx: Context, owner: str) -> Result:
        """Fail once by a fault of its own."""
        with Visit(name, owner, ctx, None) as visit:
            if ctx.job.attempt == 1:
                raise ValueError("not the first time")
            return {"execution": visit.execution}

    @app.task(max_attempts=DOOMED_ATTEMPTS)
    def doomed(ctx: Context, owner: str) -> Result:
        with Visit(name, owner, ctx, None):
            time.sleep(0.02 * share(ctx.job.key, "seconds"))
            raise ValueError("never")

    @app.task()
    async def skipper(ctx: Context, owner: str) -> Result:
        with Visit(name, owner, ctx, None):
            raise Skip("as it does")

    return app


class Batch:
    """The jobs that a producer hands over in one call, as they follow from a number."""

    def __init__(self, app: Penstock, name: str, number: int) -> None:
        self._tasks = app.tasks
        self._name = name
        self._stem = f"{number}"
        self.requests: list[JobRequest[Any]] = []
        self.counted: list[str] = []
        self._roots()
        self._paid()
        self._faults()
        if number % 4 == 0:
            self._add("crunch", "crunch", seat="b")

    def keys(self) -> list[str]:
        return [str(request.key) for request in self.requests]

    def _add(self, task: str, key: str, after: Iterable[Any] = (), **more: Any) -> str:
        key = f"{self._stem}.{key}"
        request = self._tasks[task].job(owner=self._name, **more)
        self.requests.append(request.with_options(key=key, after=list(after)))
        return key

    def _roots(self) -> None:
        fetches = [self._add("fetch", f"fetch{n}", seat=seat) for n, seat in enumerate("abbccccc")]
        self.counted = fetches
        self._add("join", "join", after=fetches[:4])
        self._add("fetch", "late", after=fetches[4:6], seat="c")

    def _paid(self) -> None:
        asks = [self._add("ask", f"ask{n}", calls=1 + n) for n in range(3)]
        self._add("ask", "follow-up", after=[f"{self._stem}.fetch1"], calls=2)
        self._add("ask_in_thread", "thread", seat="c")
        self._add("join", "paid", after=asks)

    def _faults(self) -> None:
        flaky = self._add("flaky", "flaky")
        doomed = self._add("doomed", "doomed")
        skipper = self._add("skipper", "skipper")
        self._add("leaf", "after-doomed", after=[doomed])
        lost = self._add("leaf", "after-skipper", after=[flaky, skipper])
        self._add("leaf", "far-behind", after=[lost])
        self._add("join", "whatever", after=[finished(doomed), finished(skipper), flaky])
