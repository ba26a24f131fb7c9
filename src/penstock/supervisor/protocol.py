# SPDX-License-Identifier: Apache-2.0
"""The messages between supervisor and worker.

JSON lines over a socket pair. The end of the stream is a message too: the other one is gone.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import msgspec

from penstock.model.provider import ClosedAccount
from penstock.model.spending import BudgetStop

LINE_BYTES_MAX = 1024 * 1024  # a longer line is cut


class BuildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The datasets that a run is to build, as typed."""

    targets: tuple[str, ...]
    start: str
    end: str
    force: bool = False
    eager: bool = False
    fail_fast: bool = False
    yes: bool = False
    mark: str = ""  # of the process that keeps its locks alive
    rows: int | None = None  # of the table that is its only target; None: it builds datasets
    retry_dropped: bool = False  # rows of it that were dropped are made once more


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do; everything that a worker process needs to know."""

    app: str | None
    flags: dict[str, Any]
    folder: str
    processes: int = 1
    drain: bool = False
    max_jobs: int | None = None  # that may start; None: any number
    daemon: bool = False  # preflights first, then schedules as well as the queue
    check: bool = False  # preflights only
    build: BuildSpec | None = None  # plan and build datasets, and nothing else
    debug: bool = False
    log_level: str = "info"
    log_format: str = "text"


class CrashedPreflight(msgspec.Struct, frozen=True):
    """A preflight that crashes its process or blocks it, and so does not run again."""

    unit: str  # as people are shown it
    problem: str


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker process is told what it is."""

    spec: RunSpec
    run_id: str
    solo: bool
    patient: bool = False  # wait for a store that cannot be reached, however long
    first: bool = True  # of several it says what all of them wait for
    index: int = 0  # which of the processes it is; each has its part of every provider's caps
    leads: bool = False  # runs the preflights and arms the schedules, or plans, before it works
    plan_id: str | None = None  # what is built, if that is planned already
    alone: tuple[str, ...] = ()  # preflights that ran when one died: they run last, each alone
    crashed: tuple[CrashedPreflight, ...] = ()  # preflights that do not run again
    table_fd: int = -1  # of its slot table
    starts_fd: int | None = None  # of the start budget; None: any number of jobs may start
    supervisor_pid: int  # a worker's parent is its guard


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A worker has read its app and its settings and laid out its slot table."""

    pid: int
    app: str
    store_url: str
    durability: str
    lease_ttl_seconds: float
    beat_seconds: float
    grace_seconds: float
    statistics_seconds: float
    max_crashes: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A worker cannot work, and a new one could not either."""

    message: str
    exit_code: int
    details: str | None = None  # a traceback, with --debug


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A worker has come to its end in good order."""

    left_behind: int = 0  # open jobs that nobody can do
    stops: tuple[BudgetStop, ...] = ()  # budgets that have ended its work
    ended_schedules: tuple[str, ...] = ()  # sentences: schedules that have ended the run
    closed_accounts: tuple[ClosedAccount, ...] = ()  # accounts that have ended its work


class Recycle(msgspec.Struct, frozen=True, tag="recycle"):
    """A worker leases nothing more and ends when what runs has ended: start another one."""

    reason: str


class Told(msgspec.Struct, frozen=True, tag="told"):
    """What any of the workers may notice, and people need to hear of once."""

    subject: str
    sentence: str


class ToCheck(msgspec.Struct, frozen=True, tag="to_check"):
    """Preflights begin, as they are shown to people: the n-th is job n in the slot table."""

    names: tuple[str, ...]  # or some of them; the rest follows
    first: bool = True  # no others run any more; False: they follow what was told before


class Check(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """One preflight has ended: of those that passed `--check` hears, or if they ran alone."""

    name: str
    partition: str  # "": it is global
    passed: bool
    required: bool = True  # False: if it fails, its partition is left out
    problem: str = ""  # what went wrong, in one line
    hint: str = ""  # what to do

    @property
    def unit(self) -> str:
        """As people are shown it."""
        return unit_name(self.name, self.partition)


class Checking(msgspec.Struct, frozen=True, kw_only=True, tag="checking"):
    """Preflights run: how far they are."""

    passed: int
    failed: int
    total: int


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """All preflights have ended."""

    passed: int
    failed: int  # of those that are required
    left_out: int = 0  # of those that are not


class Armed(msgspec.Struct, frozen=True, kw_only=True, tag="armed"):
    """Schedules are armed: the work may begin."""

    schedules: int
    units: int
    new: int = 0
    retimed: int = 0
    revived: int = 0
    retired: int = 0


class Locked(msgspec.Struct, frozen=True, tag="locked"):
    """The run has the locks of its datasets: whoever hears this keeps them alive."""

    names: tuple[str, ...]


class Planned(msgspec.Struct, frozen=True, kw_only=True, tag="planned"):
    """What is to be built is known, and its jobs may run."""

    plan_id: str | None  # None: everything is up to date
    slices: int = 0
    jobs: int = 0
    levels: int = 0
    fresh: int = 0  # slices that are up to date
    future: int = 0  # slices that were asked for and lie in the future
    resumed: bool = False  # it was left, and goes on


class Go(msgspec.Struct, frozen=True, tag="go"):
    """The supervisor has the store open and renews your lease: begin."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """End when nothing is left."""


class Held(msgspec.Struct, frozen=True, tag="held"):
    """Another worker has ended: nobody else serves tasks that wait for a budget or an account."""

    stops: tuple[BudgetStop, ...]
    closed_accounts: tuple[ClosedAccount, ...] = ()


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop leasing, finish what runs, for as long as the grace lasts."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop now."""


Checks = ToCheck | Check | Checking | Checked | Armed
FromWorker = Hello | Failed | Finished | Recycle | Told | Checks | Locked | Planned
ToWorker = Go | Drain | Held | Stop | Abort


def unit_name(name: str, partition: str) -> str:
    """A preflight as people are shown it."""
    return f"{name}:{partition}" if partition else name


_encode = msgspec.json.Encoder().encode
decode_from_worker = msgspec.json.Decoder(FromWorker).decode
decode_to_worker = msgspec.json.Decoder(ToWorker).decode
_decode_order = msgspec.json.Decoder(WorkerOrder).decode


def send(channel: socket.socket, message: FromWorker | ToWorker | WorkerOrder) -> None:
    """Say something; if nobody listens any more, that is no error here."""
    with contextlib.suppress(OSError):
        channel.sendall(_encode(message) + b"\n")


def receive_order(channel: socket.socket) -> WorkerOrder | None:
    """The first thing that a worker hears; None if its supervisor is gone before.

    It comes this way, and not as an argument, because everybody on the machine can read arguments.
    """
    line = b""
    while not line.endswith(b"\n"):
        byte = channel.recv(1)  # one by one: what follows it is for others to read
        if not byte:
            return None
        line += byte
    return _decode_order(line)


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def flush(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []
