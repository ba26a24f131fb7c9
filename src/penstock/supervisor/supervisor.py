# SPDX-License-Identifier: Apache-2.0
"""Supervisor of worker processes.

A small process that imports no user code. It starts workers, renews their leases, reports the
dead, runs suspects apart in a fresh worker, and turns signals into a graceful shutdown.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import BuildLost, PenstockError, StoreError
from penstock.ids import IdSource, SystemIds
from penstock.model.job import JobState
from penstock.model.provider import ClosedAccount
from penstock.model.spending import BudgetStop
from penstock.stores.protocol import Store
from penstock.supervisor import protocol
from penstock.supervisor.display import KEYS, Course, Display, KeyboardCommands
from penstock.supervisor.phases import BudgetStops, Phases, format_armed
from penstock.supervisor.protocol import RunSpec
from penstock.supervisor.restarts import Restarts, SoloTurns
from penstock.supervisor.sd_notify import Announcer
from penstock.supervisor.stall_watch import StallWatch, StoppedWorkers
from penstock.supervisor.store_access import OpenStore, StoreAccess
from penstock.supervisor.suspension import Suspension
from penstock.supervisor.worker_handle import (
    EXIT_OVER_BUDGET,
    ToldOnce,
    WorkerHandle,
    kill_lapsed,
    kill_overdue,
)
from penstock.worker.signals import SignalInbox
from penstock.worker.start_budget import StartBudget

TICK_SECONDS = 0.25  # display and looking around
FAILED_STARTS_MAX = 3  # workers in a row that die before they say hello
AFTER_GRACE_SECONDS = 4.0  # a worker that outlives its grace by this much is killed
ABORT_SECONDS = 2.0  # the same after a second signal
RESUMED_SECONDS = 1.0  # for workers that were stopped to look at their own time limits
DEAF_SECONDS = 3.0  # a worker that has closed its end of the channel, and lives on, is killed
RECYCLING_MAX = 2  # for each process: recycled workers that still run something
OPEN_SECONDS = 1.0  # how long the supervisor waits for the store to open

log = logging.getLogger("penstock.supervisor")


class Supervisor:
    """Owns the worker processes of one run."""

    def __init__(
        self,
        spec: RunSpec,
        open_store: OpenStore,
        display: Display,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        announcer: Announcer | None = None,
    ) -> None:
        self._spec = spec
        self.phases = Phases(spec)
        self._display = display
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._announcer = announcer or Announcer(self._clock)
        self.run_id = self._ids.new_id("run")
        self._selector = selectors.DefaultSelector()
        self._workers: list[WorkerHandle] = []
        self._access = StoreAccess(
            self.run_id,
            open_store,
            lambda: [worker.table for worker in list(self._workers)],
            self._clock,
            self._ids,
        )
        self.hello: protocol.Hello | None = None
        self._signals = SignalInbox()
        self._suspension = Suspension(lambda: kill_lapsed(self._workers, self._clock.monotonic()))
        self._stop_signal: int | None = None
        self._failed: protocol.Failed | None = None
        self._restarts = Restarts()
        self._failed_starts = 0
        self._left_behind = 0
        self._tick_at = 0.0
        self._solo_turns = SoloTurns()
        self._starts = None if spec.max_jobs is None else StartBudget.of(spec.max_jobs)
        self._postponed: list[int] = []  # in whose place to start one when a recycled one has ended
        self._forced = False  # a worker had to be killed
        self._stalls = StallWatch()
        self._told = ToldOnce()
        self._stopped = StoppedWorkers()
        interrupt = partial(self._stop, signal.SIGINT)
        self._keyboard = KeyboardCommands(display, self._selector, self._begin_drain, interrupt)
        self.stops = BudgetStops()
        self._is_out_of_money = False  # although it would not end with its work

    def run(self) -> int:
        """Work until drained, stopped or failed; the exit code."""
        self._selector.register(self._signals, selectors.EVENT_READ, "signal")
        try:
            if not self.phases.is_working:
                self._announcer.begins(self.phases.status)
            for index in self.phases.starters():
                self._start(index)
            while not self._over():
                self._turn()
            self._access.finish_reports()  # their jobs may end in error
            return self._exit_code()
        finally:
            for worker in list(self._workers):
                worker.kill()
                worker.process.wait()
                self._reap(worker)
            self._access.finish_reports()
            self._access.stop_heartbeats()
            if self.phases.plan_id is None:
                self._access.let_locks_go()
            self._display.close(self._summarised_run())
            self._access.close()
            self._suspension.close()
            if self._starts is not None:
                self._starts.close()
            self._signals.close()  # last: a signal must not tear the end in two

    def _over(self) -> bool:
        if self._workers:
            return False
        if self._stop_signal is not None or self._failed is not None:
            return True
        return not self._restarts

    def _exit_code(self) -> int:
        """The exit code: 3 preflights, 4 budget or account, 130 Ctrl-C, 1 failed or left jobs."""
        if self._failed is not None:
            return self._failed.exit_code
        if self._stop_signal == signal.SIGINT:
            return 130
        if self._stop_signal is not None:
            return 1 if self._forced else 0
        if (code := self.phases.exit_code()) is not None:
            return code
        outlook = self._access.last_outlook(self._is_stopped)
        if self._is_out_of_money or self.stops.hold_up(outlook):
            return EXIT_OVER_BUDGET
        has_failed = outlook is not None and outlook.ended_in_run.get(JobState.ERROR, 0)
        return 1 if has_failed or self._left_behind else 0

    def _is_stopped(self, wait_seconds: float) -> bool:
        """True if a signal has come, or comes within this time."""
        if wait_seconds:
            self._selector.select(wait_seconds)
        for number in self._signals.take():
            self._stop(number)
        return self._stop_signal is not None

    def _summarised_run(self) -> str | None:
        """The run in the closing line, if there is to be one."""
        if self._failed is not None or self._access.unreachable or not self.phases.is_working:
            return None
        return self.run_id

    @property
    def failure(self) -> protocol.Failed | None:
        """Why the run could not go on."""
        return self._failed

    def _turn(self) -> None:
        now = self._clock.monotonic()
        timeout = max(self._restarts.next_at(self._tick_at) - now, 0.0)
        for key, _ in self._selector.select(min(timeout, TICK_SECONDS)):
            if key.data == KEYS:
                self._keyboard.hear(self._access.store)
            elif key.data != "signal":
                kind, worker = key.data
                self._read(kind, worker, key.fileobj)
        for number in self._signals.take():
            self._stop(number)
        self._go_on_after_stop()
        for worker in [worker for worker in self._workers if not worker.alive]:
            self._ended(worker)
        self._restart_due()
        if self._clock.monotonic() >= self._tick_at:
            self._tick_at = self._clock.monotonic() + TICK_SECONDS
            self._look_around()
            self._announcer.store(unreachable=self._access.unreachable)
        self._announcer.turned()

    def _go_on_after_stop(self) -> None:
        """Say what a Ctrl-Z has cost; workers get some time before they are judged by the clock."""
        ended = self._suspension.take_ended()
        if ended is None:
            return
        self._stopped.forget()
        self._tick_at = self._clock.monotonic() + RESUMED_SECONDS
        for pid in ended:
            log.error(
                "Worker %d lost its lease while it was stopped and is killed; another one takes "
                "its place.",
                pid,
            )

    def _read(self, kind: str, worker: WorkerHandle, source: Any) -> None:  # noqa: ANN401
        if kind == "pid":
            return  # the death itself is seen below
        if kind == "output":
            if not self._pass_on(worker):
                self._selector.unregister(source)
            return
        worker.read()
        if worker.channel_ended:
            self._selector.unregister(worker.channel)  # the death itself is seen below, or brought
            until = self._clock.monotonic() + DEAF_SECONDS
            worker.kill_at_monotonic = min(worker.kill_at_monotonic, until)
        if worker.hello is not None and self.hello is None:
            self._meet(worker.hello)
        self._tell_to_begin(worker)
        self._follow(worker)
        if worker.recycle is not None and not worker.replaced:
            self._replace(worker)
        self._told.pass_on(worker)
        self._fail_as(worker.failed)

    def _follow(self, worker: WorkerHandle) -> None:
        """Go on to the next phase when the lead says so; the others start when work begins."""
        self.phases.checking = worker.checking or self.phases.checking
        if worker.locked is not None:
            self._access.keep_locks(worker.locked)
        if not worker.leads:
            return
        checked = self.phases.hear(worker.take_checks(), worker.checked, worker.armed)
        if checked or self.phases.hear_plan(worker.planned):
            if worker.armed is not None and worker.armed.units:
                log.info("%s", format_armed(self.phases.checked, worker.armed))
            self._announcer.ready(self.phases.ready_status)
            if self._may_start():
                for index in self.phases.followers():
                    self._start(index)

    def _replace(self, worker: WorkerHandle) -> None:
        """Start another worker beside one that is recycled; later, if there are many of those."""
        worker.replaced = True
        recycled = sum(other.replaced for other in self._workers)
        if recycled > RECYCLING_MAX * self._spec.processes:
            self._postponed.append(
                worker.index
            )  # what runs in them is not their fault: it ends first
        elif self._may_start():
            self._restart(worker, worker.index)

    def _pass_on(self, worker: WorkerHandle) -> bool:
        """Show what a worker wrote; False if it has nothing (more) to say."""
        data = worker.output()
        for line in worker.output_lines.feed(data or b""):
            self._display.line(line.decode("utf-8", "replace"))
        return bool(data)

    def _meet(self, hello: protocol.Hello) -> None:
        """The first worker has told where the store is."""
        self.hello = hello
        self._access.meet(hello)
        self._open(OPEN_SECONDS)

    def _open(self, wait_seconds: float) -> None:
        """Open the store, if it can be reached; the workers wait for the word to begin."""
        try:
            is_new = self._access.open(wait_seconds)
        except PenstockError as error:
            self._fail(error)
            return
        if is_new and self._access.store is not None:
            self._display.started(self._access.store, self.run_id, self._course())

    def _tell_to_begin(self, worker: WorkerHandle) -> None:
        """Tell a worker to begin, once both it and the store are there."""
        if worker.hello is None or worker.told_to_go or self._access.store is None:
            return
        worker.told_to_go = True
        if self._may_start():
            worker.tell(protocol.Go())
            if self.phases.is_working:
                self._announcer.ready("The queue is served.")
            if self._spec.drain:  # it may have been started before that was asked for
                worker.tell(protocol.Drain())
            if self.stops:
                worker.tell(self._held())

    def _look_around(self) -> None:
        """What happens now and again: suspects, overdue attempts, the display."""
        now = self._clock.monotonic()
        if kill_overdue(self._workers, now, self.hello):
            self._forced = True
        self._kill_stopped(now)
        self._keyboard.listen()
        self._keyboard.go_on()
        self._open(0.0)
        store = self._access.store
        if store is None:
            return
        for worker in self._workers:
            self._tell_to_begin(worker)
            checks = worker.unfinished_checks()[1]
            self._stalls.look(worker.pid, worker.snapshot(), now, store, checks)
        try:
            self._access.look(lambda: self._show(store))
        except (StoreError, BuildLost) as error:
            self._fail(error)
        if not self._access.suspects:
            self._solo_turns.nothing_left()
        elif self._may_work() and self._solo_turns.is_due(now) and not self._solos():
            self._start(0, solo=True)

    def _kill_stopped(self, now: float) -> None:
        """Kill workers that are stopped again and again; what they ran is suspect."""
        met = {worker.pid: worker for worker in self._workers if worker.hello is not None}
        for pid in self._stopped.look(met, now):
            log.error(
                "Worker %d was stopped again (SIGSTOP?), so it is not responding and is killed; "
                "what it ran is tried again alone.",
                pid,
            )
            met[pid].kill()

    def _solos(self) -> list[WorkerHandle]:
        return [worker for worker in self._workers if worker.solo]

    def _show(self, store: Store) -> None:
        self._display.tick(store, self._course(), self.phases.checking)

    def _fail(self, error: PenstockError) -> None:
        self._fail_as(protocol.Failed(str(error), 1))

    def _fail_as(self, failed: protocol.Failed | None) -> None:
        """The run cannot go on."""
        if failed is not None and self._failed is None:
            self._failed = failed
            self._tell_all(protocol.Abort())

    def _start(self, index: int, *, solo: bool = False) -> None:
        leads, crashes = self.phases.needs_lead, self.phases.crashes
        order = protocol.WorkerOrder(
            spec=self._spec,
            run_id=self.run_id,
            supervisor_pid=os.getpid(),
            solo=solo,
            patient=self.hello is not None,
            first=not self._workers,
            index=index,
            leads=leads,
            plan_id=self.phases.plan_id,
            alone=crashes.alone if leads else (),
            crashed=crashes.crashed if leads else (),
            starts_fd=None if self._starts is None else self._starts.fd,
        )
        now = self._clock.monotonic()
        try:
            worker = WorkerHandle(order, pipe_output=self._display.pipes_workers, now=now)
        except OSError as error:  # nothing to spare for one more, or its Python is gone
            self._not_started(index, error, now, solo=solo)
            return
        self._workers.append(worker)
        for kind, source in worker.sources():
            self._selector.register(source, selectors.EVENT_READ, (kind, worker))

    def _may_work(self) -> bool:
        return self.phases.is_working and self._may_start()

    def _may_start(self) -> bool:
        return not (self._stop_signal or self._failed or self._is_out_of_money)

    def _ended(self, worker: WorkerHandle) -> None:
        """A worker process is gone: in good order, or not."""
        worker.read_rest()
        if worker.hello is not None and self.hello is None:
            self._meet(worker.hello)
        self._follow(worker)
        self._fail_as(worker.failed)
        while self._pass_on(worker):
            pass
        for line in worker.output_lines.flush():
            self._display.line(line.decode("utf-8", "replace"))
        unfinished = worker.unfinished_checks()
        self._reap(worker)
        if worker.finished is not None:
            if worker.solo:
                self._solo_turns.ended(self._clock.monotonic())
            self._left_behind = max(self._left_behind, worker.finished.left_behind)
            self._note_stops(worker, worker.finished.stops, worker.finished.closed_accounts)
            self._end_with(worker.finished.ended_schedules)
        elif self._may_start() and worker.leads and not self.phases.is_working:
            has_begun = worker.hello is not None
            failed = self.phases.lead_died(worker.cause(), *unfinished, has_begun=has_begun)
            self._fail_as(failed)
            if failed is None:
                self._start(0)
        elif self._may_start() and not worker.replaced:
            self._plan_restart(worker)
        if worker.replaced and self._postponed and self._may_start():
            self._restart(worker, self._postponed.pop(0))

    def _end_with(self, schedules: Sequence[str]) -> None:
        """A schedule has ended for good: everything else comes to its end in good order."""
        if schedules and self._failed is None:
            self._failed = protocol.Failed(" ".join(schedules), 1)
            self._wind_down()

    def _note_stops(
        self,
        worker: WorkerHandle,
        stops: Sequence[BudgetStop],
        closed: Sequence[ClosedAccount],
    ) -> None:
        """What is left waits for a budget, says one: then a run ends, drained or not.

        For a closed account only a drain ends.
        """
        if not (stops or closed):
            return
        self.stops.note(stops)
        self.stops.note_accounts(closed)
        self._tell_all(self._held())
        if stops and not (self._spec.drain or worker.solo):
            self._is_out_of_money = True
            self._restarts.forget()
            self._tell_all(protocol.Stop())

    def _held(self) -> protocol.Held:
        return protocol.Held(self.stops.all(), self.stops.accounts())

    def _reap(self, worker: WorkerHandle) -> None:
        """Give back what it held; what ran is suspect."""
        worker.kill()  # what its tasks left behind, before the same jobs run again
        self._workers.remove(worker)
        self._stalls.forget(worker.pid)
        for _, source in worker.sources():
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(source)
        dead = worker.as_dead(self.hello.max_crashes if self.hello else 3)
        if dead is not None:
            self._access.report_dead(dead)
        worker.close()

    def _not_started(self, index: int, error: OSError, now: float, *, solo: bool) -> None:
        """There is no process: try again later, or end if this goes on and no other works."""
        what = "" if error.filename is None else f": {error.filename!r}"
        cause = f"{error.strerror or error}{what}"
        log.warning("A worker process cannot be started: %s.", cause)
        if solo:
            self._solo_turns.ended(now)
        elif self._workers or not self._gives_up(cause):
            self._restarts.plan(index, 0.0, now)

    def _plan_restart(self, worker: WorkerHandle) -> None:
        if worker.hello is not None:
            self._failed_starts = 0
        elif self._gives_up(worker.cause()):
            return
        self._restart(worker, worker.index)

    def _gives_up(self, cause: str) -> bool:
        """Count a start that has failed; at some in a row the run has failed."""
        self._failed_starts += 1
        if self._failed_starts < FAILED_STARTS_MAX:
            return False
        self._fail_as(protocol.Failed(f"No worker could be started: {cause}.", 1))
        return True

    def _restart(self, worker: WorkerHandle, index: int) -> None:
        """Start another worker in the place of this one; the later, the sooner they go."""
        if not worker.solo:  # else the next look around starts another, if there are suspects
            now = self._clock.monotonic()
            self._restarts.plan(index, now - worker.started_monotonic, now)

    def _restart_due(self) -> None:
        due = self._restarts.take_due(self._clock.monotonic())
        if self._may_start():
            for index in due:
                self._start(index)

    def _stop(self, number: int) -> None:
        """First signal: orderly; second: at once."""
        first = self._stop_signal is None
        self._stop_signal = number if first else self._stop_signal
        if first and self.phases.is_working:
            self._wind_down()
            return
        self._announcer.stopping()
        self._tell_all(protocol.Abort())
        self._restarts.forget()

    def _wind_down(self) -> None:
        """Let everything come to its end, for as long as the grace lasts."""
        grace = self.hello.grace_seconds if self.hello else 0.0
        log.warning("Stopping: what runs has %g s to end; a second signal stops it at once.", grace)
        self._announcer.stopping()
        self._tell_all(protocol.Stop())
        until = self._clock.monotonic() + grace + AFTER_GRACE_SECONDS
        for worker in self._workers:
            worker.kill_at_monotonic = min(worker.kill_at_monotonic, until)
        self._restarts.forget()

    def _begin_drain(self) -> None:
        """End the run when nothing is left."""
        if not self._spec.drain:
            log.info("Draining: the run ends when nothing is left.")
            self._spec = msgspec.structs.replace(self._spec, drain=True)
            for worker in [one for one in self._workers if one.told_to_go]:
                worker.tell(protocol.Drain())  # others are told with the word to begin

    def _course(self) -> Course:
        if self._stop_signal is not None or self._failed is not None:
            return Course.STOPPING
        if self.phases.needs_lead:
            return Course.CHECKING if self._spec.build is None else Course.PLANNING
        if not self.phases.is_working:
            return Course.STOPPING
        return Course.DRAINING if self._spec.drain else Course.WORKING

    def _tell_all(self, message: protocol.ToWorker) -> None:
        now = self._clock.monotonic()
        for worker in self._workers:
            worker.tell(message)
            if isinstance(message, protocol.Abort):
                worker.kill_at_monotonic = min(worker.kill_at_monotonic, now + ABORT_SECONDS)
