# SPDX-License-Identifier: Apache-2.0
"""How far does pure Python go? A bare drain of no-op jobs on SQLite with synchronous=FULL.

Group commit in one writer thread, batched lease and acknowledgement, a fair heap over groups, an
asyncio task per job, typed decoding, six in-memory events per job. No admission, no heartbeats, no
error handling: a yardstick for the engine's own overhead, not a design to copy.

    python -m benchmarks.yardstick 50000
"""

from __future__ import annotations

import asyncio
import collections
import heapq
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import Any

import apsw
import msgspec
import uvloop

from benchmarks.measuring import Answer, stopwatch

GROUPS = 8
SLOTS = 64
WINDOW = 512  # jobs of one lease, and jobs on hand below which the next is asked for
EVENTS_PER_JOB = 6

SCHEMA = """
pragma journal_mode = wal;
create table jobs (
    id integer primary key, key text unique, task text, grp text, payload text, state int,
    attempts int, token int, worker text, expires real, available real, priority int, result text,
    finished real) strict;
create index ready on jobs (priority desc, available, id) where state = 0;
create index leases on jobs (worker) where state = 1;
"""
INSERT = """
insert into jobs (key, task, grp, payload, state, attempts, token, available, priority)
values (?, ?, ?, ?, 0, 0, 0, 0, 0)
"""
LEASE = """
update jobs set state = 1, attempts = attempts + 1, token = token + 1, worker = 'w', expires = ?
where id in (
    select id from jobs where state = 0 and available <= ?
    order by priority desc, available, id limit ?)
returning id, key, task, grp, payload, attempts, token
"""
ACK = """
update jobs set state = 2, result = ?, finished = ? where id = ? and token = ? and state = 1
"""

Row = tuple[Any, ...]
Answers = list[tuple["asyncio.Future[Any]", Any]]


class Arguments(msgspec.Struct):
    """What a job is called with."""

    n: int


class _Group:
    """One group's place in the fair order, and its leased jobs."""

    __slots__ = ("finish", "rows")

    def __init__(self) -> None:
        self.finish = 0.0
        self.rows: collections.deque[Row] = collections.deque()


def connect(path: str) -> apsw.Connection:
    """Open a database in which a commit survives power loss."""
    connection = apsw.Connection(path)
    pragmas = "pragma synchronous = full; pragma busy_timeout = 5000"
    connection.execute(pragmas).fetchall()  # fetchall: run every statement
    return connection


def create(path: str) -> apsw.Connection:
    """Make a database with the yardstick's schema."""
    connection = connect(path)
    connection.execute(SCHEMA).fetchall()
    return connection


def insert(connection: apsw.Connection, rows: Iterable[Row]) -> None:
    """Insert rows (key, task, group, payload) in one transaction."""
    connection.execute("begin immediate")
    connection.executemany(INSERT, rows)
    connection.execute("commit")


class Writer(threading.Thread):
    """Merges whatever is waiting into one transaction; futures resolve when it is durable."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.loop = loop
        self.inbox: queue.SimpleQueue[tuple[str, Any, asyncio.Future[Any]]] = queue.SimpleQueue()

    def submit(self, kind: str, argument: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        self.inbox.put((kind, argument, future))
        return future

    def run(self) -> None:
        connection = connect(self.path)
        while True:
            batch = [self.inbox.get()]
            while not self.inbox.empty():
                batch.append(self.inbox.get())
            answers: Answers = []
            connection.execute("begin immediate")
            for kind, argument, future in batch:
                if kind == "lease":
                    now = time.time()
                    rows = connection.execute(LEASE, (now + 30, now, argument)).fetchall()
                    answers.append((future, rows))
                else:
                    connection.executemany(ACK, argument)
                    answers.append((future, len(argument)))
            connection.execute("commit")
            self.loop.call_soon_threadsafe(_answer, answers)


def _answer(answers: Answers) -> None:
    for future, value in answers:
        future.set_result(value)


async def drain(path: str, total: int) -> None:
    """Run every job in the file."""
    loop = asyncio.get_running_loop()
    writer = Writer(path, loop)
    writer.start()
    decoder, encoder = msgspec.json.Decoder(Arguments), msgspec.json.Encoder()
    events: collections.deque[tuple[int, str, float, int]] = collections.deque(maxlen=10_000)
    groups: dict[str, _Group] = {}
    heap: list[tuple[float, str]] = []
    wake = asyncio.Event()
    waiting_acks: list[Row] = []
    running = queued = done = sequence = 0
    leasing = acking = empty = False

    async def run(job: Row) -> None:
        nonlocal running, sequence
        arguments = decoder.decode(job[4])
        for _ in range(EVENTS_PER_JOB):
            sequence += 1
            events.append((sequence, "event", time.monotonic(), job[0]))
        result = arguments.n  # the task's body
        waiting_acks.append((encoder.encode(result).decode(), time.time(), job[0], job[6]))
        running -= 1
        wake.set()

    def leased(future: asyncio.Future[list[Row]]) -> None:
        nonlocal leasing, empty, queued
        rows = future.result()
        leasing, empty = False, not rows
        for row in rows:
            group = groups.get(row[3])
            if group is None:
                group = groups[row[3]] = _Group()
            if not group.rows:
                heapq.heappush(heap, (group.finish, row[3]))
            group.rows.append(row)
        queued += len(rows)
        wake.set()

    def acknowledged(future: asyncio.Future[int]) -> None:
        nonlocal done, acking
        done += future.result()
        acking = False
        wake.set()

    while done < total:
        wake.clear()
        if not leasing and not empty and queued < WINDOW:
            leasing = True
            writer.submit("lease", WINDOW).add_done_callback(leased)
        if not acking and waiting_acks:
            acking, batch = True, waiting_acks[:]
            waiting_acks.clear()
            writer.submit("ack", batch).add_done_callback(acknowledged)
        while heap and running < SLOTS:
            finish, key = heapq.heappop(heap)
            group = groups[key]
            job = group.rows.popleft()
            group.finish = finish + 1
            if group.rows:
                heapq.heappush(heap, (group.finish, key))
            queued -= 1
            running += 1
            loop.create_task(run(job))  # noqa: RUF006 (it never waits: the loop holds it till it runs)
        await wake.wait()


def measure(total: int) -> Answer:
    """Drain `total` no-op jobs; rate and CPU of the drain alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/q.db"
        rows = ((f"k{i}", "t", f"g{i % GROUPS}", f'{{"n":{i}}}') for i in range(total))
        connection = create(path)
        insert(connection, rows)
        with stopwatch() as spent:
            uvloop.run(drain(path, total))
        connection.close()
    return {"rate": total / spent.wall, "cpu_us": spent.cpu / total * 1e6}


def main() -> None:
    """Measure once and say it."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    figures = measure(total)
    print(f"{figures['rate']:,.0f} jobs/s, {figures['cpu_us']:.1f} us of CPU per job")


if __name__ == "__main__":
    main()
