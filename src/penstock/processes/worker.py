# SPDX-License-Identifier: Apache-2.0
"""Entry point of a worker process.

Started by the supervisor, never by a person. It imports the user's app, tells the supervisor
where the store is, works, and obeys the supervisor's socket; the end of that socket means that
the supervisor died.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.admission.requests.policy import ProcessShare
from penstock.app import wiring
from penstock.app.app import Penstock
from penstock.app.build import kept_datasets, served_schedules, served_tasks
from penstock.app.daemon import checked_values, plan_of_now
from penstock.app.dataset_reader import found_root
from penstock.app.queue import warn_of_other_store
from penstock.clock import SystemClock, blocking_sleep, to_micros
from penstock.config.find_app import find_app
from penstock.config.load import LoadedSettings, load_settings
from penstock.config.settings import Settings
from penstock.definitions.schedule import Schedule
from penstock.definitions.task import Task
from penstock.errors import PenstockError, StoreUnavailable, UsageError
from penstock.ids import SystemIds
from penstock.logs import set_up_logging
from penstock.output_queue import STALLED_SECONDS, end_output
from penstock.outputs.parquet import load_arrow
from penstock.planning.plan_jobs import PlanKeys
from penstock.planning.units import DaemonPlan
from penstock.processes.lead import (
    BuildLead,
    DaemonLead,
    Lead,
    check_build_spec,
    tasks_of_build,
)
from penstock.redaction.secrets import redacted
from penstock.schedules.preflight_run import CheckTable
from penstock.sentences import repeat_flags
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from penstock.stores.retry import STORE_WAIT_SECONDS, open_when_reachable
from penstock.supervisor import protocol
from penstock.terminal_text import queue_output, warn_of_traceback
from penstock.worker import embedded
from penstock.worker.event_loop import run_on_new_loop
from penstock.worker.heartbeat import FallbackHeartbeat, RepeatingThread
from penstock.worker.loop_watchdog import LoopWatchdog
from penstock.worker.parts import Stopping, SupervisorLink
from penstock.worker.process_guard import be_guarded
from penstock.worker.slot_table import SlotTable
from penstock.worker.start_budget import StartBudget
from penstock.worker.task_protocol import TaskOrder
from penstock.worker.worker import Worker

ORPHAN_SECONDS = 0.9  # a worker without a supervisor is gone after this long
GUARD_SECONDS = 1.0  # or is killed by its guard, if a C call keeps the GIL
LOW_DESCRIPTORS = 64  # tasks that close "all" descriptors mostly close the first few
QUARANTINE_PART = 2  # beside all others: half of the part that a process has of each cap
WATCH_SECONDS = 0.25  # between two looks at what tasks may have broken
EXIT_BROKEN = 70  # not an end of ours: the supervisor treats it as a crash

log = logging.getLogger("penstock.worker")


class ProcessWatch(RepeatingThread):
    """Ends a worker that a task has broken: neither its loop nor its store can work any more.

    The task has closed descriptors of the worker, or lowered the size that its files may have. That
    is a death like any other: what ran is suspect.
    """

    def __init__(self, *descriptors: int) -> None:
        super().__init__("penstock-process", WATCH_SECONDS)
        self._known = {fd: _file_at(fd) for fd in descriptors}
        self._file_size = _file_size()

    def run_once(self) -> None:
        broken = self._broken()
        if broken is not None:
            log.critical(
                "A task has %s, so this worker can do nothing more and ends; what it ran is tried "
                "again alone.",
                broken,
            )
            _end(EXIT_BROKEN)

    def _broken(self) -> str | None:
        if any(_file_at(fd) != known for fd, known in self._known.items()):
            return "closed descriptors that are not its own (os.closerange?)"
        if _file_size() < self._file_size:
            return "lowered how large files of its process may be (RLIMIT_FSIZE)"
        return None


def _file_size() -> float:
    """The largest size of a file that this process may write."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _file_at(fd: int) -> tuple[int, int] | None:
    """Which file a descriptor means; None if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class CommandRelay:
    """Passes the supervisor's commands on to whoever is at work here. Belongs to its loop."""

    def __init__(self) -> None:
        self._lead: Lead | None = None
        self._worker: Worker | None = None
        self._kept: list[protocol.ToWorker] = []  # said before there was a worker
        self._is_stopped = False

    async def run_lead(self, lead: Lead) -> bool:
        """Run what comes before the work; False if no work is to follow."""
        self._lead = lead
        try:
            return not self._is_stopped and await lead.run() and not self._is_stopped
        finally:
            self._lead = None

    def take(self, worker: Worker) -> None:
        """From now on the worker obeys, also what was said before."""
        self._worker = worker
        for command in self._kept:
            self.obey(command)
        self._kept.clear()

    def obey(self, command: protocol.ToWorker) -> None:
        if isinstance(command, protocol.Stop | protocol.Abort):
            self._is_stopped = True
            if self._lead is not None:
                self._lead.stop()
        if self._worker is None:
            self._kept.append(command)
            return
        match command:
            case protocol.Drain():
                self._worker.drain()
            case protocol.Held():
                self._worker.hold.held_elsewhere(command.stops)
                self._worker.accounts.held_elsewhere(command.closed_accounts)
            case protocol.Stop():
                self._worker.stop(Stopping.GRACEFUL)
            case protocol.Abort():
                self._worker.stop(Stopping.NOW)
            case protocol.Go():
                pass  # it has begun


def main() -> None:
    """Do as the order says."""
    be_guarded(int(sys.argv[2]), GUARD_SECONDS)
    channel = socket.socket(fileno=_out_of_the_way(int(sys.argv[1])))
    order = protocol.receive_order(channel)
    if order is None:
        sys.exit(1)
    pid = os.getpid()
    table_fd = _out_of_the_way(order.table_fd)
    starts = None
    if order.starts_fd is not None:
        starts = StartBudget(_out_of_the_way(order.starts_fd))
    _take_low_descriptors()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_up_logging(order.spec.log_level, order.spec.log_format)
    queue_output()
    try:
        finished = _work(order, channel, table_fd, starts)
    except PenstockError as error:
        _fail(channel, str(error), 2 if isinstance(error, UsageError) else 1, order.spec.debug)
    except BaseException:
        # A task has broken the loop, or we have a bug: a death like any other. What ran is suspect.
        if os.getpid() == pid:
            warn_of_traceback(traceback.format_exc())
        _end(EXIT_BROKEN)
    else:
        protocol.send(channel, finished)
        _end(0)


def _fail(channel: socket.socket, message: str, exit_code: int, debug: bool) -> None:
    details = traceback.format_exc() if debug else None
    protocol.send(channel, protocol.Failed(message, exit_code, details))
    _end(exit_code)


def _end(exit_code: int) -> None:
    """Leave at once: neither threads of abandoned tasks nor readers hold the process up."""
    flush = threading.Thread(target=_flush, daemon=True)
    flush.start()
    flush.join(STALLED_SECONDS)
    end_output()
    os._exit(exit_code)


def _flush() -> None:
    """Write out what tasks have printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a task may have closed it
            stream.flush()


def _out_of_the_way(fd: int) -> int:
    """The same file under a high number: tasks that close low ones do not hit us."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOW_DESCRIPTORS)
    os.close(fd)
    return high


def _take_low_descriptors() -> None:
    """Let the files of the store, too, have high numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < LOW_DESCRIPTORS:
        pass
    os.close(fd)


def _work(
    order: protocol.WorkerOrder, channel: socket.socket, table_fd: int, starts: StartBudget | None
) -> protocol.Finished:
    spec = order.spec
    repeat_flags({name: redacted(str(value)) for name, value in spec.flags.items()})
    folder = Path(spec.folder)
    named = load_settings(spec.flags, os.environ, folder, {}).settings.app
    app = find_app(named, folder, Penstock)
    loaded = app.load(spec.flags, folder=folder)
    wiring.check_dimensions(loaded, app.registry.all_tasks)
    settings = loaded.settings
    plan = app.plan_daemon(settings, to_micros(SystemClock().now())) if spec.daemon else None
    if spec.build is not None and order.leads:
        check_build_spec(app, spec.build, to_micros(SystemClock().now()))
    url = app.store_url(loaded)
    if order.first:
        warn_of_other_store(app.registry, loaded, folder)
    store = _open_when_reachable(
        lambda: open_store(
            url,
            app=app.name,
            tasks=(*app.registry.tasks,),
            durability=settings.durability,
            folder=folder,
        ),
        order,
        channel,
    )
    if store is None:
        return protocol.Finished()
    app.use_store(store)
    table = SlotTable(table_fd, wiring.slot_count(settings, app.providers), fresh=True)
    keeps = plan is not None and bool(kept_datasets(app.registry))
    if keeps:
        app.root(loaded)  # where their slices go; refused before any preflight runs
    has_root = app.datasets and found_root(settings, folder) is not None
    if spec.build is not None or keeps or has_root:
        load_arrow()  # takes a second, in which no loop may be blocked
    gc.freeze()  # what is there by now stays: no collection needs to look at it again
    protocol.send(channel, _hello(app.name, url, settings))
    lines = protocol.Lines()
    commands = _first_commands(channel, lines)
    if commands is None:
        store.close()
        return protocol.Finished()
    try:
        with embedded.tuned():
            process = WorkerProcess(order, app, loaded, plan, table, channel, starts)
            return run_on_new_loop(process.run(lines, commands))
    finally:
        store.close()


def _hello(app: str, url: str, settings: Settings) -> protocol.Hello:
    runtime = settings.runtime
    return protocol.Hello(
        pid=os.getpid(),
        app=app,
        store_url=url,
        durability=settings.durability,
        lease_ttl_seconds=runtime.lease_ttl_seconds,
        beat_seconds=runtime.beat_seconds,
        grace_seconds=runtime.grace_seconds,
        statistics_seconds=runtime.statistics_seconds,
        max_crashes=settings.tasks.max_crashes,
    )


def _open_when_reachable(
    open_store: Callable[[], Store], order: protocol.WorkerOrder, channel: socket.socket
) -> Store | None:
    """The store, also if its server comes up later; None if the supervisor does not wait for it.

    At the start of a run it is waited for so long; in the middle of one, until there is an answer.
    """
    called = False

    def wait(seconds: float) -> bool:
        nonlocal called
        readable, _, _ = select.select([channel], [], [], seconds)
        called = bool(readable)  # before a worker could begin, that can only be the end
        return called

    try:
        return open_when_reachable(
            open_store,
            SystemClock(),
            SystemIds().random,
            log,
            wait,
            seconds=math.inf if order.patient else STORE_WAIT_SECONDS,
            level=logging.WARNING if order.first else logging.DEBUG,
        )
    except StoreUnavailable:
        if called:
            return None
        raise


def _first_commands(
    channel: socket.socket, lines: protocol.Lines
) -> list[protocol.ToWorker] | None:
    """Wait for the word to begin; that and what was said with it.

    None: it is the end already, or nobody is there any more.
    """
    with contextlib.suppress(ConnectionResetError):  # it died before it had read our own
        while data := channel.recv(4096):
            commands = [protocol.decode_to_worker(line) for line in lines.feed(data)]
            if any(isinstance(command, protocol.Stop | protocol.Abort) for command in commands):
                return None
            if commands:
                return commands
    return None


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """What a worker process has when it is told to begin."""

    order: protocol.WorkerOrder
    app: Penstock
    loaded: LoadedSettings
    plan: DaemonPlan | None  # of preflights and schedules
    table: SlotTable
    channel: socket.socket  # to the supervisor
    starts: StartBudget | None  # of the run

    async def run(
        self, lines: protocol.Lines, commands: list[protocol.ToWorker]
    ) -> protocol.Finished:
        """Lead, if that was ordered, and work to the end.

        Args:
            lines: what was read of the channel and is no whole line yet.
            commands: that came with the word to begin.
        """
        loop = asyncio.get_running_loop()
        relay = CommandRelay()
        listener = threading.Thread(
            target=_listen,
            args=(self.channel, lines, commands, loop, relay),
            name="penstock-orders",
            daemon=True,
        )
        listener.start()
        plan_id = self.order.plan_id
        if (lead := self._lead()) is not None:
            if not await relay.run_lead(lead):
                return protocol.Finished()
            plan_id = lead.plan_id
        keeper = FallbackHeartbeat(
            self.table,
            self.app.store,
            SystemClock(),
            self.loaded.settings.runtime.lease_ttl_seconds,
        )
        worker = self._worker(plan_id, keeper)
        watch = LoopWatchdog(loop, self.table, SystemClock(), worker.name_of)
        watch.start()
        starts = () if self.starts is None else (self.starts.fd,)
        ProcessWatch(self.channel.fileno(), self.table.fd, *starts).start()
        keeper.start()
        relay.take(worker)
        await worker.run()
        keeper.stop()
        watch.stop()
        return protocol.Finished(
            worker.left_behind, worker.stops, worker.ended_schedules, worker.closed_accounts
        )

    def _lead(self) -> Lead | None:
        """What comes before the work of this process, if anything does."""
        order, clock = self.order, SystemClock()
        if not order.leads:
            return None
        if order.spec.build is not None:
            return BuildLead(
                self.app, order.spec.build, self.loaded, clock, self.channel, order.run_id
            )
        if self.plan is None:
            return None
        table = CheckTable(os.dup(self.table.fd), self.table.slots, fresh=False)
        settings = self.loaded.settings
        return DaemonLead(self.app, self.plan, settings, clock, self.channel, table, order)

    def _tasks(self) -> dict[str, Task[..., Any]]:
        """What it serves: the datasets of a build alone, or everything else of the app."""
        app, spec = self.app, self.order.spec
        if spec.build is not None:
            return tasks_of_build(app, spec.build, self.loaded)
        schedules = {} if self.plan is None else self._schedules()
        served = served_tasks(app.datasets, self.loaded.settings, Path(spec.folder))
        return {**app.tasks, **served, **schedules}

    def _schedules(self) -> dict[str, Schedule[..., Any]]:
        app, loaded = self.app, self.loaded
        clock, ids = SystemClock(), SystemIds()
        root = partial(app.root, loaded)
        return served_schedules(
            app.registry, root, loaded.settings, app.store, clock, ids, asyncio.to_thread
        )

    def _worker(self, plan_id: str | None, keeper: FallbackHeartbeat) -> Worker:
        app, order, spec, settings = self.app, self.order, self.order.spec, self.loaded.settings
        task_order = TaskOrder(
            app=settings.app,
            folder=spec.folder,
            path=tuple(sys.path),
            log_level=spec.log_level,
            log_format=spec.log_format,
        )
        return wiring.build_worker(
            wiring.RunOptions(
                run_id=order.run_id,
                app=app.name,
                drain=spec.drain,
                starts=self.starts,
                solo=order.solo,
                supervisor_pid=order.supervisor_pid,
                until=None if plan_id is None else PlanKeys(plan_id).end,
            ),
            self._tasks(),
            settings,
            app.store,
            keeper,
            self.table,
            task_order=task_order,
            providers=app.providers,
            share=ProcessShare(
                order.index, spec.processes * (QUARANTINE_PART if order.solo else 1)
            ),
            supervisor=SupervisorLink(
                lambda reason: protocol.send(self.channel, protocol.Recycle(reason)),
                lambda *told: protocol.send(self.channel, protocol.Told(*told)),
            ),
            sources=self.loaded.sources,
            policy=app.registry.retry_policy,
            preflights=app.preflights.values(),
            checked=checked_values(app.name, app.preflights, self.plan),
            plan=plan_of_now(self.plan, app.schedules, SystemClock()),
        )


def _listen(
    channel: socket.socket,
    lines: protocol.Lines,
    commands: list[protocol.ToWorker],
    loop: asyncio.AbstractEventLoop,
    relay: CommandRelay,
) -> None:
    """Obey the supervisor; when it is gone, be gone too."""
    while True:
        for command in commands:
            _tell(loop, partial(relay.obey, command))
        try:
            data = channel.recv(4096)
        except OSError:
            data = b""
        if not data:
            break
        commands = [protocol.decode_to_worker(line) for line in lines.feed(data)]
    _tell(loop, partial(relay.obey, protocol.Abort()))
    blocking_sleep(ORPHAN_SECONDS)
    os._exit(1)


def _tell(loop: asyncio.AbstractEventLoop, order: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # its loop is closed: it has stopped by itself
        loop.call_soon_threadsafe(order)


if __name__ == "__main__":
    main()
