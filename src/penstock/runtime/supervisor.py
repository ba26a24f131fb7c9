# SPDX-License-Identifier: Apache-2.0
"""Who watches the workers?

A small process that imports no user code. It starts workers, renews their leases, buries the
dead, runs suspects alone in a fresh worker, and turns signals into an orderly end.
"""

from __future__ import annotations

import logging
import selectors
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import (
    TRANSIENT,
    PenstockError,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreUnavailable,
)
from penstock.ids import IdSource, SystemIds
from penstock.model.job import JobState, WorkerId
from penstock.model.views import Outlook
from penstock.runtime import messages
from penstock.runtime.asking import Question, aside
from penstock.runtime.burials import Burials
from penstock.runtime.child import Child
from penstock.runtime.display import Course, Display
from penstock.runtime.messages import RunSpec
from penstock.runtime.overstaying import kill_overstaying
from penstock.runtime.reach import Reach
from penstock.runtime.signal_inbox import SignalInbox
from penstock.runtime.stall_watch import StallWatch
from penstock.runtime.statistics_line import StatisticsLine
from penstock.runtime.supervisor_beat import SupervisorBeat
from penstock.runtime.wishes import KEYS, Wishes
from penstock.stores.store import Store

TICK_SECONDS = 0.25  # display and looking around
BACK_OFF_FIRST_SECONDS = 0.1
BACK_OFF_MAX_SECONDS = 10.0
SOLO_FIRST_SECONDS = 0.5  # before another solo worker, if one ended and left suspects behind
HEALTHY_SECONDS = 10.0  # a worker that lived this long resets the back-off
STILLBORN_MAX = 3  # workers in a row that die before they say hello
AFTER_GRACE_SECONDS = 4.0  # a worker that outlives its grace by this much is killed
ABORT_SECONDS = 2.0  # the same after a second signal
WORN_MAX = 2  # for each process: worn workers that still run something
BURY_SECONDS = 10.0  # how long the end of a run waits for burials
AWAY_SECONDS = 1.0  # the same while the store is away
OPEN_SECONDS = 1.0  # how long the supervisor stands still to open the store
READ_FAILS = "The store cannot be read"

log = logging.getLogger("penstock.supervisor")

OpenStore = Callable[[str, str], Store]


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
    ) -> None:
        self._spec = spec
        self._open_store = open_store
        self._display = display
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self.run_id = self._ids.new_id("run")
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._store: Store | None = None
        self._hello: messages.Hello | None = None
        self._opening: Question[Store] | None = None
        self._outlook: Question[Outlook] | None = None
        self._burials: Burials | None = None
        self._reach = Reach(log, self._clock)
        self._beat: SupervisorBeat | None = None
        self._statistics: StatisticsLine | None = None
        self._signals = SignalInbox()
        self._stop_signal: int | None = None
        self._failed: messages.Failed | None = None
        self._back_off = BACK_OFF_FIRST_SECONDS
        self._restart_at: list[tuple[float, int]] = []  # when, and in whose place
        self._stillborn = 0
        self._finished = 0
        self._left_behind = 0
        self._tick_at = 0.0
        self._suspects = 0
        self._solo_at = 0.0
        self._solo_pause = SOLO_FIRST_SECONDS
        self._owed: list[int] = []  # in whose place to start one when one that is worn has ended
        self._forced = False  # a worker had to be killed
        self._stalls = StallWatch()
        interrupt = partial(self._stop, signal.SIGINT)
        self._wishes = Wishes(display, self._selector, self._begin_drain, interrupt)

    def run(self) -> int:
        """Work until drained, stopped or failed; the exit code."""
        self._selector.register(self._signals, selectors.EVENT_READ, "signal")
        try:
            for index in range(self._spec.processes):
                self._start(index)
            while not self._over():
                self._turn()
            self._finish_burials()  # they may end jobs in error
            return self._exit_code()
        finally:
            for child in list(self._children):
                child.kill()
                child.process.wait()
                self._bury(child)
            self._finish_burials()
            if self._beat is not None:
                self._beat.stop()
            self._display.close(self._told_as())
            if self._store is not None:
                self._store.close()
            self._signals.close()  # last: a signal must not tear the end in two

    def _finish_burials(self) -> None:
        if self._burials is not None:
            self._burials.finish(AWAY_SECONDS if self._reach.away else BURY_SECONDS)

    def _over(self) -> bool:
        if self._children:
            return False
        if self._stop_signal is not None or self._failed is not None:
            return True
        return not self._restart_at

    def _exit_code(self) -> int:
        if self._failed is not None:
            return self._failed.exit_code
        if self._stop_signal == signal.SIGINT:
            return 130
        if self._stop_signal is not None:
            return 1 if self._forced else 0
        return 1 if self._errors() or self._left_behind else 0

    def _errors(self) -> int:
        """How many jobs ended in error; a store that is away is waited for, until a signal."""
        if self._outlook is not None:
            self._outlook.forget()  # it may have been asked before the last job ended
        while self._outlook is not None and self._stop_signal is None:
            try:
                outlook = self._outlook.answer(TICK_SECONDS)
            except TRANSIENT as error:
                self._reach.waits(READ_FAILS, error)
                self._selector.select(TICK_SECONDS)
            else:
                if outlook is not None:
                    return outlook.ended_in_run.get(JobState.ERROR, 0)
            for number in self._signals.take():
                self._stop(number)
        return 0

    def _told_as(self) -> str | None:
        """The run in the closing line, if there is to be one."""
        if self._failed is not None or self._reach.away:
            return None
        return self.run_id

    @property
    def failure(self) -> messages.Failed | None:
        """Why the run could not go on."""
        return self._failed

    def _turn(self) -> None:
        now = self._clock.monotonic()
        timeout = max(min([self._tick_at, *(at for at, _ in self._restart_at)]) - now, 0.0)
        for key, _ in self._selector.select(min(timeout, TICK_SECONDS)):
            if key.data == KEYS:
                self._wishes.hear(self._store)
            elif key.data != "signal":
                kind, child = key.data
                self._hear(kind, child, key.fileobj)
        for number in self._signals.take():
            self._stop(number)
        for child in [child for child in self._children if not child.alive]:
            self._ended(child)
        self._restart_due()
        if self._clock.monotonic() >= self._tick_at:
            self._tick_at = self._clock.monotonic() + TICK_SECONDS
            self._look_around()

    def _hear(self, kind: str, child: Child, source: Any) -> None:  # noqa: ANN401
        if kind == "pid":
            return  # the death itself is seen below
        if kind == "output":
            if not self._pass_on(child):
                self._selector.unregister(source)
            return
        child.read()
        if child.channel_ended:
            self._selector.unregister(child.channel)  # the death itself is seen below
        if child.hello is not None and self._hello is None:
            self._meet(child.hello)
        self._let_go(child)
        if child.worn is not None and not child.replaced:
            self._replace(child)
        if child.failed is not None and self._failed is None:
            self._failed = child.failed
            self._tell_all(messages.Abort())

    def _replace(self, child: Child) -> None:
        """Start another worker beside one that is worn; while there are many of those, later."""
        child.replaced = True
        worn = sum(other.replaced for other in self._children)
        if worn > WORN_MAX * self._spec.processes:
            self._owed.append(child.index)  # what runs in them is not their fault: it ends first
        elif self._may_start():
            self._restart(child, child.index)

    def _pass_on(self, child: Child) -> bool:
        """Show what a worker wrote; False if it has nothing (more) to say."""
        data = child.output()
        for line in child.output_lines.feed(data or b""):
            self._display.line(line.decode("utf-8", "replace"))
        return bool(data)

    def _meet(self, hello: messages.Hello) -> None:
        """The first worker has told where the store is."""
        self._hello = hello
        open_store = partial(self._open_store, hello.store_url, hello.durability)
        self._opening = Question(lambda: aside(open_store))
        self._open(OPEN_SECONDS)

    def _open(self, wait_seconds: float) -> None:
        """Open the store, if it can be reached; the workers wait for the word to begin."""
        hello = self._hello
        if self._opening is None or hello is None:
            return
        try:
            store = self._opening.answer(wait_seconds)
        except StoreUnavailable as error:
            self._reach.waits(READ_FAILS, error)
            return
        except PenstockError as error:
            self._opening = None
            self._fail(error)
            return
        if store is None:
            return
        self._opening = None
        self._store = store
        self._outlook = Question(lambda: store.outlook(WorkerId(""), self.run_id))
        self._burials = Burials(store, self._clock, self._ids)
        self._beat = SupervisorBeat(
            store,
            lambda: [child.table for child in list(self._children)],
            self._clock,
            hello.lease_ttl_seconds,
            hello.beat_seconds,
        )
        self._beat.start()
        self._statistics = StatisticsLine(hello.statistics_seconds, self.run_id, store, self._clock)
        self._display.started(store, self.run_id)

    def _let_go(self, child: Child) -> None:
        """Tell a worker to begin, once both it and the store are there."""
        if child.hello is None or child.told_to_go or self._store is None:
            return
        child.told_to_go = True
        if self._may_start():
            child.tell(messages.Go())
            if self._spec.drain:  # it may have been started before that was wished for
                child.tell(messages.Drain())

    def _look_around(self) -> None:
        """What happens now and again: suspects, overdue attempts, the display."""
        now = self._clock.monotonic()
        if kill_overstaying(self._children, now, self._hello):
            self._forced = True
        self._wishes.listen()
        self._wishes.go_on()
        self._open(0.0)
        if self._store is None or self._outlook is None:
            return
        for child in self._children:
            self._let_go(child)
            self._stalls.look(child.process.pid, child.snapshot(), now, self._store)
        try:
            outlook = self._outlook.answer()
            if outlook is not None:
                self._suspects = outlook.suspects
                self._reach.answered(READ_FAILS)
            self._display.tick(self._store, self._course())
            if self._statistics is not None:
                self._statistics.tick()
        except (StoreFailed, StoreCorrupt) as error:
            self._fail(error)
        except StoreError as error:
            self._reach.waits(READ_FAILS, error)
        if self._beat is not None and self._beat.failed is not None:
            self._fail(self._beat.failed)
        if not self._suspects:
            self._solo_pause = SOLO_FIRST_SECONDS
        elif self._may_start() and now >= self._solo_at and not any(c.solo for c in self._children):
            self._start(0, solo=True)

    def _fail(self, error: PenstockError) -> None:
        """The run cannot go on."""
        if self._failed is None:
            self._failed = messages.Failed(str(error), 1)
            self._tell_all(messages.Abort())

    def _start(self, index: int, *, solo: bool = False) -> None:
        child = Child(
            self._spec,
            self.run_id,
            solo=solo,
            patient=self._hello is not None,
            first=not self._children,
            index=index,
            pipe_output=self._display.pipes_workers,
            now=self._clock.monotonic(),
        )
        self._children.append(child)
        self._selector.register(child.channel, selectors.EVENT_READ, ("channel", child))
        if child.pidfd >= 0:
            self._selector.register(child.pidfd, selectors.EVENT_READ, ("pid", child))
        if child.process.stdout is not None:
            self._selector.register(child.process.stdout, selectors.EVENT_READ, ("output", child))

    def _may_start(self) -> bool:
        return self._stop_signal is None and self._failed is None

    def _ended(self, child: Child) -> None:
        """A worker process is gone: in good order, or not."""
        child.read_rest()
        if child.hello is not None and self._hello is None:
            self._meet(child.hello)
        if child.failed is not None and self._failed is None:
            self._failed = child.failed
            self._tell_all(messages.Abort())
        while self._pass_on(child):
            pass
        for line in child.output_lines.flush():
            self._display.line(line.decode("utf-8", "replace"))
        self._bury(child)
        if child.finished is not None:
            self._finished += 1
            if child.solo:  # what it left it could not run: another app's task, a full limit
                self._solo_at = self._clock.monotonic() + self._solo_pause
                self._solo_pause = min(self._solo_pause * 2, BACK_OFF_MAX_SECONDS)
            self._left_behind = max(self._left_behind, child.finished.left_behind)
        elif self._may_start() and not child.replaced:
            self._plan_restart(child)
        if child.replaced and self._owed and self._may_start():
            self._restart(child, self._owed.pop(0))

    def _bury(self, child: Child) -> None:
        """Give back what it held; what ran is suspect."""
        child.kill()  # what its tasks left behind, before the same jobs run again
        self._children.remove(child)
        self._stalls.forget(child.process.pid)
        for source in (child.channel, child.process.stdout, child.pidfd):
            if source is not None and source != -1:
                try:
                    self._selector.unregister(source)
                except (KeyError, ValueError):
                    continue
        death = child.death(self._hello.max_crashes if self._hello else 3)
        if death is not None and self._burials is not None:
            self._burials.begin(death)
        child.close()

    def _plan_restart(self, child: Child) -> None:
        if child.hello is None:
            self._stillborn += 1
            if self._stillborn >= STILLBORN_MAX:
                message = f"No worker could be started: {child.cause()}."
                self._failed = messages.Failed(message, 1)
                self._tell_all(messages.Abort())
                return
        else:
            self._stillborn = 0
        self._restart(child, child.index)

    def _restart(self, child: Child, index: int) -> None:
        """Start another worker in the place of this one; the later, the sooner they go."""
        now = self._clock.monotonic()
        if child.solo:
            return  # the next look around starts another, if there are suspects
        if now - child.started_monotonic > HEALTHY_SECONDS:
            self._back_off = BACK_OFF_FIRST_SECONDS
        self._restart_at.append((now + self._back_off, index))
        self._back_off = min(self._back_off * 2, BACK_OFF_MAX_SECONDS)

    def _restart_due(self) -> None:
        now = self._clock.monotonic()
        due = [index for at, index in self._restart_at if at <= now]
        self._restart_at = [wanted for wanted in self._restart_at if wanted[0] > now]
        if self._may_start():
            for index in due:
                self._start(index)

    def _stop(self, number: int) -> None:
        """First signal: orderly; second: at once."""
        now = self._clock.monotonic()
        first = self._stop_signal is None
        self._stop_signal = number if first else self._stop_signal
        grace = self._hello.grace_seconds if self._hello else 0.0
        seconds = grace + AFTER_GRACE_SECONDS if first else ABORT_SECONDS
        if first:
            log.warning(
                "Stopping: what runs has %g s to end; a second signal stops it at once.", grace
            )
        self._tell_all(messages.Stop() if first else messages.Abort())
        for child in self._children:
            child.kill_at_monotonic = min(child.kill_at_monotonic, now + seconds)
        self._restart_at = []

    def _begin_drain(self) -> None:
        """Somebody wishes that the run ends when nothing is left."""
        if self._spec.drain:
            return
        log.info("Draining: the run ends when nothing is left.")
        self._spec = msgspec.structs.replace(self._spec, drain=True)
        for child in self._children:
            if child.told_to_go:  # others are told with the word to begin
                child.tell(messages.Drain())

    def _course(self) -> Course:
        if self._stop_signal is not None or self._failed is not None:
            return Course.STOPPING
        return Course.DRAINING if self._spec.drain else Course.WORKING

    def _tell_all(self, message: messages.ToWorker) -> None:
        now = self._clock.monotonic()
        for child in self._children:
            child.tell(message)
            if isinstance(message, messages.Abort):
                child.kill_at_monotonic = min(child.kill_at_monotonic, now + ABORT_SECONDS)
