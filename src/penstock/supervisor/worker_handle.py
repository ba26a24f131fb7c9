# SPDX-License-Identifier: Apache-2.0
"""One worker process as the supervisor sees it: start, messages, slot table, kill and end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.process_identity import describe_exit
from penstock.process_tree import signal_descendants
from penstock.supervisor import protocol
from penstock.supervisor.dead_workers import DeadWorker
from penstock.worker.heartbeat import Overrun, margin
from penstock.worker.process_guard import GUARD_NAME, end_guarded
from penstock.worker.slot_table import SlotRecord, SlotSnapshot, SlotTable

EXIT_OVER_BUDGET = 4  # exit code of a run whose work waits for a budget or a closed account
OVERDUE_SECONDS = 8.0  # a worker that cannot stop an attempt this long after its limit is killed
OVERRUN_SECONDS = 0.5  # bodies have at least this long to stop when their lease is over

log = logging.getLogger("penstock.supervisor")

#: How a worker process is started; a test launcher may put itself in front.
worker_command: list[str] = [sys.executable, "-P", "-m", "penstock.processes.worker"]


class WorkerHandle:
    """Owns one worker process: its pipe, its slot table, its end."""

    def __init__(self, order: protocol.WorkerOrder, *, pipe_output: bool, now: float) -> None:
        """Start the process; OSError if there can be none.

        Args:
            order: what it is to do; its slot table is added here.
            pipe_output: read what it writes, instead of letting it write to our own streams.
            now: by the monotonic clock.
        """
        self.solo = order.solo
        self.index = order.index
        self.leads = order.leads
        self._to_check: list[str] = []  # the n-th is job n of the first phase
        self.checks: list[protocol.Check] = []
        self.checking: protocol.Checking | None = None
        self.checked: protocol.Checked | None = None
        self.armed: protocol.Armed | None = None
        self.locked: tuple[str, ...] | None = None  # datasets whose locks the run has
        self.planned: protocol.Planned | None = None
        self.started_monotonic = now
        self.hello: protocol.Hello | None = None
        self.failed: protocol.Failed | None = None
        self.finished: protocol.Finished | None = None
        self.recycle: protocol.Recycle | None = None
        self.told: list[protocol.Told] = []  # not yet passed on
        self.replaced = False  # another one was started in its place, while it ends
        self.overdue: tuple[SlotRecord, ...] = ()  # attempts for which it was killed
        self.outlived_lease = False  # it was killed because its bodies did not stop in time
        self._overrun = Overrun()
        self.told_to_go = False
        self.channel_ended = False
        self.kill_at_monotonic = float("inf")
        self.lines = protocol.Lines()
        self.output_lines = protocol.Lines()
        self._table: SlotTable | None = None
        starts = () if order.starts_fd is None else (order.starts_fd,)
        with contextlib.ExitStack() as undo:
            self._table_fd = os.memfd_create("penstock-slots", 0)
            undo.callback(os.close, self._table_fd)
            self.channel, theirs = socket.socketpair()
            undo.callback(self.channel.close)
            with theirs:
                self.process = subprocess.Popen(
                    [*worker_command, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=(self._table_fd, theirs.fileno(), *starts),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipe_output else None,
                    stderr=subprocess.STDOUT if pipe_output else None,
                    cwd=order.spec.folder,
                    process_group=0,  # a Ctrl-C in the terminal reaches the supervisor only
                )
            undo.pop_all()
        protocol.send(self.channel, msgspec.structs.replace(order, table_fd=self._table_fd))
        self.channel.setblocking(False)
        if self.process.stdout is not None:
            os.set_blocking(self.process.stdout.fileno(), False)
        self.pidfd = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else -1

    def __repr__(self) -> str:
        return f"<WorkerHandle {self.pid}{' solo' if self.solo else ''}>"

    @property
    def pid(self) -> int:
        """Of the worker; before it has said so, of its guard."""
        return self.process.pid if self.hello is None else self.hello.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def table(self) -> SlotTable | None:
        """The slot table, once the worker has laid it out."""
        if self._table is None and self.hello is not None:
            self._table = SlotTable.attach(self._table_fd)
        return self._table

    def sources(self) -> list[tuple[str, Any]]:
        """What there is to listen to, each with its kind."""
        found: list[tuple[str, Any]] = [("channel", self.channel)]
        if self.pidfd >= 0:
            found.append(("pid", self.pidfd))
        if self.process.stdout is not None:
            found.append(("output", self.process.stdout))
        return found

    def snapshot(self) -> SlotSnapshot | None:
        return None if self.table is None else self.table.snapshot()

    def past_limit(self, since: float) -> tuple[SlotRecord, ...]:
        """Attempts whose limit had passed at that moment, and which still run."""
        snapshot = self.snapshot()
        return tuple(
            record
            for record in (snapshot.running if snapshot is not None else ())
            if record.deadline_monotonic and since > record.deadline_monotonic
        )

    def outlives_lease(self, now: float, patience_seconds: float) -> bool:
        """Compare its lease with our own clock; True if bodies still run so long after its end.

        The worker stops them itself; one whose loop is blocked, or whose threads do not listen,
        cannot.
        """
        table, snapshot = self.table, self.snapshot()
        if table is None or snapshot is None or snapshot.worker is None:
            return False
        runs = bool(snapshot.running)
        seconds = self._overrun.seconds(now, table.lease_until(), runs=runs)
        self.outlived_lease = seconds > patience_seconds
        return self.outlived_lease

    def lapsed(self, now: float) -> bool:
        """Whether it has had a lease, which is over by our own clock."""
        table, snapshot = self.table, self.snapshot()
        if table is None or snapshot is None or snapshot.worker is None:
            return False
        return now >= table.lease_until()

    def read_rest(self) -> None:
        """Take in what the worker said before it ended; whoever else holds its pipes may go on."""
        while self.read():
            pass

    def output(self) -> bytes | None:
        """What the worker wrote; None at the end, empty if there is nothing now."""
        if self.process.stdout is None:
            return None
        try:
            return os.read(self.process.stdout.fileno(), 65536) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def read(self) -> bool:
        """Take in what the worker says; False if there is nothing (more) to hear now."""
        try:
            data = self.channel.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.channel_ended = not data
        try:
            for line in self.lines.feed(data):
                self._take(protocol.decode_from_worker(line))
        except msgspec.DecodeError:
            self._kill_for_nonsense()
        return bool(data)

    def _kill_for_nonsense(self) -> None:
        """Something else writes to its channel: a death like any other, so what ran is suspect."""
        if self.alive:
            log.error(
                "Worker %d is killed: a task in it has written to a descriptor that is not its "
                "own, and so to the supervisor. What it ran is tried again alone.",
                self.pid,
            )
            self.kill()

    def _take(self, message: protocol.FromWorker) -> None:
        match message:
            case protocol.Hello():
                self.hello = message
            case protocol.Failed():
                self.failed = message
            case protocol.Recycle():
                self.recycle = message
            case protocol.Told():
                self.told.append(message)
            case protocol.ToCheck():
                kept = [] if message.first else self._to_check
                self._to_check = [*kept, *message.names]
            case protocol.Check():
                self.checks.append(message)
            case protocol.Checking():
                self.checking = message
            case protocol.Checked():
                self.checked = message
            case protocol.Armed():
                self.armed = message
            case protocol.Locked():
                self.locked = message.names
            case protocol.Planned():
                self.planned = message
            case protocol.Finished():
                self.finished = message

    @property
    def holds_work(self) -> bool:
        """False if it cannot have leased anything: a lead that has not armed or planned yet."""
        begun = self.armed is not None or self.planned is not None
        return self.told_to_go and (begun or not self.leads)

    def unfinished_checks(self) -> tuple[list[str], list[str]]:
        """Preflights that run, or ran when it died: those past their limit, and all."""
        snapshot = self.snapshot() if self.leads and self.checked is None else None
        running = snapshot.running if snapshot is not None else ()
        return self._named(self.overdue), self._named(running)

    def _named(self, records: Iterable[SlotRecord]) -> list[str]:
        places = sorted(record.ref.id - 1 for record in records)
        return [self._to_check[place] for place in places if place < len(self._to_check)]

    def take_checks(self) -> list[protocol.Check]:
        """The checks that it told of since the last look."""
        taken, self.checks = self.checks, []
        return taken

    def tell(self, message: protocol.ToWorker) -> None:
        protocol.send(self.channel, message)

    def kill(self) -> None:
        """End the process and whatever it started."""
        if self.alive:
            end_guarded(self.process)
            return
        with contextlib.suppress(ProcessLookupError):  # its guard may have been killed itself
            os.killpg(self.process.pid, signal.SIGKILL)

    def cause(self) -> str:
        """How the process ended, for people."""
        return describe_exit(self.process.returncode)

    def as_dead(self, max_crashes: int) -> DeadWorker | None:
        """What the store is to be told of its death; None if it never had a name."""
        snapshot = self.snapshot()
        if snapshot is None or snapshot.worker is None:
            return None
        ran = tuple(record.ref for record in snapshot.running)
        return DeadWorker(
            worker=snapshot.worker,
            pid=self.pid,
            cause=self.cause(),
            in_order=self.finished is not None,
            ran=ran,
            # Where the cause of a death is known, nobody else is under suspicion.
            started=() if self.overdue or self.outlived_lease else ran,
            overdue=self.overdue,
            max_crashes=max_crashes,
        )

    def close(self) -> None:
        """Let go of everything; the process has ended."""
        self.kill()  # processes that its tasks left behind
        self.channel.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        if self._table is not None:
            self._table.close()
        os.close(self._table_fd)


def kill_overdue(workers: Iterable[WorkerHandle], now: float, hello: protocol.Hello | None) -> bool:
    """Kill workers that do not end as told, or cannot stop an attempt; True if one held work."""
    # Half of the time by which a worker stops before the store lets others have its jobs.
    half = margin(hello.lease_ttl_seconds) / 2 if hello else 0.0
    patience_seconds = max(half, OVERRUN_SECONDS)
    forced = False
    for worker in workers:
        if now >= worker.kill_at_monotonic:
            log.error("Worker %d has not ended in time and is killed.", worker.pid)
            forced = forced or worker.holds_work
            worker.kill()
        elif not worker.overdue and (overdue := worker.past_limit(now - OVERDUE_SECONDS)):
            log.error(
                "Worker %d cannot stop an attempt that is past its time limit and is killed.",
                worker.pid,
            )
            worker.overdue = overdue
            worker.kill()
        elif not worker.outlived_lease and worker.outlives_lease(now, patience_seconds):
            log.error(
                "Worker %d runs jobs after the end of its lease and is killed.",
                worker.pid,
            )
            worker.kill()
    return forced


def kill_lapsed(workers: Iterable[WorkerHandle], now: float) -> list[int]:
    """Kill stopped workers whose leases are over: others may have their jobs by now; their pids."""
    lapsed = [worker for worker in workers if worker.lapsed(now)]
    for worker in lapsed:
        worker.outlived_lease = True
        # Not by their guards alone, which need some time: what is continued next is dead by now.
        signal_descendants(worker.process.pid, signal.SIGKILL, spared=GUARD_NAME)
        worker.kill()
    return [worker.pid for worker in lapsed]


class ToldOnce:
    """Owns of which subjects the run has told, whichever of its workers noticed them."""

    def __init__(self) -> None:
        self._subjects: set[str] = set()

    def pass_on(self, worker: WorkerHandle) -> None:
        """Log what a worker tells, unless another one has told it before."""
        for one in worker.told:
            if one.subject not in self._subjects:
                self._subjects.add(one.subject)
                log.warning("%s", one.sentence)
        worker.told.clear()
