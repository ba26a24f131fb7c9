# SPDX-License-Identifier: Apache-2.0
"""Permits are waited for on the loop and in threads, and none is lost."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.admission.requests.decisions import RequestDenialReason
from penstock.admission.requests.policy import ProcessShare
from penstock.clock import SystemClock
from penstock.errors import RequestAdmissionError, UsageError
from penstock.events.kinds import RequestEventKind as Kind
from penstock.events.sink import RecentEvents, RequestEvents
from penstock.model.provider import RequestResourceKey
from penstock.model.request import RequestAdmissionItem, RequestOutcome
from penstock.requests.admission import RequestAdmissionController
from penstock.requests.clients.provider_clients import Permit
from penstock.requests.executor import ModelRequestExecutor
from penstock.requests.thread_bridge import ThreadBridge
from penstock.testing import RecordingSink, VirtualClock, run_virtual
from tests.requests import CHAT, SUCCESS, Core, item, policy, refused
from tests.waiting import wait_until

Reason = RequestDenialReason


def opened(cap: int | None = 1, pace: float = 0.0) -> RequestAdmissionController:
    return RequestAdmissionController(Core(policy(cap), pace=pace), VirtualClock())


def on_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(main())


def assert_empty(admission: RequestAdmissionController) -> None:
    core = admission.core
    assert (core.in_flight, core.waiting) == (0, 0)
    assert not admission._futures
    for one in core.tree.resources.values():
        assert one.gate.in_flight == one.active_leases == 0


# ── On the loop ───────────────────────────────────────────────────────────────────────────────


def test_a_free_permit_is_given_without_a_turn_of_the_loop() -> None:
    async def main() -> None:
        admission = opened()
        coroutine = admission.acquire_async(item())
        with pytest.raises(StopIteration) as stopped:
            coroutine.send(None)
        assert admission.release(stopped.value.value, SUCCESS).released

    on_loop(main)


def test_everybody_gets_the_lease_of_its_own_request() -> None:
    async def main() -> None:
        admission = opened()
        items = [item(group=f"g{number % 3}", weight=1 + number % 3) for number in range(30)]

        async def one(wanted: RequestAdmissionItem) -> None:
            lease = await admission.acquire_async(wanted)
            assert lease.item is wanted
            await asyncio.sleep(0.01)
            admission.release(lease, SUCCESS)

        await asyncio.gather(*map(one, items))
        assert_empty(admission)

    on_loop(main)


def test_one_timer_stands_for_everybody_and_rings_when_somebody_may_go() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        admission = opened(None, pace=0.5)
        timers: list[float] = []
        call_later = loop.call_later

        def counted(delay: float, *rest: Any) -> asyncio.TimerHandle:
            timers.append(delay)
            return call_later(delay, *rest)

        loop.call_later = counted  # type: ignore[method-assign, assignment]
        sent: list[float] = []

        async def one() -> None:
            lease = await admission.acquire_async(item())
            sent.append(loop.time())
            admission.release(lease, SUCCESS)

        await asyncio.gather(*(one() for _ in range(100)))

        assert sent == [number * 0.5 for number in range(100)]
        assert len(timers) <= 100  # one for each moment, not one for each waiter and moment
        assert_empty(admission)

    on_loop(main)


def test_a_wait_that_was_limited_ends_with_its_reason() -> None:
    async def main() -> None:
        admission = opened()
        lease = await admission.acquire_async(item())
        with pytest.raises(RequestAdmissionError, match="p/m/chat") as raised:
            await admission.acquire_async(item(timeout=2.0))
        assert raised.value.reason is Reason.QUEUE_TIMEOUT
        assert asyncio.get_running_loop().time() == 2.0
        admission.release(lease, SUCCESS)
        assert_empty(admission)

    on_loop(main)


def test_shutting_wakes_everybody_who_waits() -> None:
    async def main() -> None:
        admission = opened()
        lease = await admission.acquire_async(item())
        waiting = [asyncio.ensure_future(admission.acquire_async(item())) for _ in range(3)]
        await asyncio.sleep(1)
        admission.shut()
        ends = await asyncio.gather(*waiting, return_exceptions=True)

        reasons = {end.reason for end in ends if isinstance(end, RequestAdmissionError)}
        assert (len(ends), reasons) == (3, {Reason.SHUTDOWN})
        admission.release(lease, SUCCESS)
        assert_empty(admission)

    on_loop(main)


def test_a_policy_that_changes_wakes_who_waits() -> None:
    async def main() -> None:
        admission = opened(1)
        await admission.acquire_async(item())
        waiting = asyncio.ensure_future(admission.acquire_async(item()))
        await asyncio.sleep(1)
        admission.set_policy(policy(2))
        await waiting
        also = asyncio.ensure_future(admission.acquire_async(item()))
        await asyncio.sleep(1)
        admission.set_share(ProcessShare(3, 4))
        with pytest.raises(RequestAdmissionError) as raised:
            await also
        assert raised.value.reason is Reason.HARD_POLICY_DENIAL

    on_loop(main)


def test_cancelling_a_waiter_leaves_no_trace() -> None:
    async def main() -> None:
        admission = opened()
        lease = await admission.acquire_async(item())
        tasks = [asyncio.ensure_future(admission.acquire_async(item())) for _ in range(3)]
        await asyncio.sleep(1)
        tasks[0].cancel()
        await asyncio.sleep(1)
        assert admission.core.waiting == 2
        admission.release(lease, SUCCESS)
        admission.release(await tasks[1], SUCCESS)
        admission.release(await tasks[2], SUCCESS)
        assert_empty(admission)

    on_loop(main)


def test_a_waiter_cancelled_in_the_turn_of_its_grant_gives_the_lease_back() -> None:
    async def main() -> None:
        admission = opened()
        core = admission.core
        assert isinstance(core, Core)
        lease = await admission.acquire_async(item())
        first = asyncio.ensure_future(admission.acquire_async(item()))
        second = asyncio.ensure_future(admission.acquire_async(item()))
        await asyncio.sleep(1)
        admission.release(lease, SUCCESS)
        admission._pump()  # the first has its lease, and does not know it
        first.cancel()
        admission.release(await second, SUCCESS)

        assert [ending.outcome for ending in core.limit().endings] == [
            RequestOutcome.SUCCESS,
            RequestOutcome.LOCAL_CANCELLED,
            RequestOutcome.SUCCESS,
        ]
        assert_empty(admission)

    on_loop(main)


def test_a_waiter_that_nobody_runs_any_more_is_withdrawn() -> None:
    async def main() -> None:
        admission = opened()
        lease = await admission.acquire_async(item())
        lost = admission.acquire_async(item())
        lost.send(None)
        assert admission.core.waiting == 1
        del lost
        gc.collect()
        await asyncio.sleep(0.1)
        assert admission.core.waiting == 0
        admission.release(lease, SUCCESS)
        assert_empty(admission)

    on_loop(main)


def test_relief_is_told_at_every_fall_and_at_the_end_of_a_cool_down() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        admission = opened()
        told: list[tuple[float, RequestResourceKey]] = []
        admission.on_pressure_change(lambda resource: told.append((loop.time(), resource)))
        lease = await admission.acquire_async(item())
        waiting = asyncio.ensure_future(admission.acquire_async(item()))
        await asyncio.sleep(1)
        admission.release(lease, SUCCESS)
        admission.release(await waiting, refused(5.0))
        await asyncio.sleep(10)

        assert told == [(1.0, CHAT), (6.0, CHAT)]

    on_loop(main)


# ── In threads ────────────────────────────────────────────────────────────────────────────────


class Thread:
    """A thread that wants a permit."""

    def __init__(self, admission: RequestAdmissionController, wanted: RequestAdmissionItem) -> None:
        executor = ModelRequestExecutor(admission, lambda facts: wanted.resource, SystemClock())
        self.permit = Permit(executor, ThreadBridge(executor.loop), wanted)
        self.has_entered = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.permit.__enter__()
            self.has_entered = True
            for _ in range(10):  # an interrupt that is on its way comes here, not into nowhere
                time.sleep(0.001)
        except BaseException as error:
            self.error = error

    def release(self) -> None:
        """Give the permit back, in a thread."""
        exit_ = self.permit.__exit__
        threading.Thread(target=exit_, args=(None, None, None), daemon=True).start()

    def interrupt(self, kind: type[BaseException]) -> None:
        """Raise in the thread, as an interrupt does in the main one."""
        assert self.thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self.thread.ident), ctypes.py_object(kind)
        )

    @property
    def is_done(self) -> bool:
        return not self.thread.is_alive()


def on_real_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


async def come_true(condition: Callable[[], bool]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, wait_until, condition)


def test_a_thread_waits_for_its_permit_and_gives_it_back() -> None:
    async def main() -> None:
        admission = RequestAdmissionController(Core(policy(1)), SystemClock())
        lease = await admission.acquire_async(item())
        threads = [Thread(admission, item()) for _ in range(2)]
        await come_true(lambda: admission.core.waiting == 2)
        admission.release(lease, SUCCESS)
        await come_true(lambda: any(one.is_done for one in threads))
        first, second = sorted(threads, key=lambda one: not one.is_done)
        assert (first.has_entered, second.has_entered) == (True, False)
        first.release()
        await come_true(lambda: second.is_done)
        assert second.has_entered
        second.release()
        await come_true(lambda: not admission.core.in_flight)
        assert_empty(admission)

    on_real_loop(main)


def test_a_free_permit_is_given_to_a_thread_at_once() -> None:
    async def main() -> None:
        admission = RequestAdmissionController(Core(policy(1)), SystemClock())
        one = Thread(admission, item())
        await come_true(lambda: one.is_done)
        assert one.has_entered
        one.release()
        await come_true(lambda: not admission.core.in_flight)
        assert_empty(admission)

    on_real_loop(main)


def test_a_thread_that_runs_a_loop_is_refused() -> None:
    async def main() -> None:
        admission = opened()
        bridge = ThreadBridge(asyncio.get_running_loop())
        with pytest.raises(UsageError, match="would stop the loop"):
            bridge.call(lambda: admission.acquire_async(item()))

        async def elsewhere() -> None:
            bridge.call(lambda: admission.acquire_async(item()))

        def run() -> None:
            with pytest.raises(UsageError):
                asyncio.run(elsewhere())

        await asyncio.get_running_loop().run_in_executor(None, run)
        assert_empty(admission)

    on_loop(main)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interrupted_thread_leaves_no_waiter_and_no_lease(kind: type[BaseException]) -> None:
    async def main() -> None:
        admission = RequestAdmissionController(Core(policy(1)), SystemClock())
        lease = await admission.acquire_async(item())
        one = Thread(admission, item())
        await come_true(lambda: admission.core.waiting == 1)
        one.interrupt(kind)
        admission.release(lease, SUCCESS)  # it is granted, and raises all the same
        await come_true(lambda: one.is_done)
        if one.has_entered:  # the interrupt came too late to hit the wait
            one.release()
        await come_true(lambda: not admission.core.in_flight)
        assert_empty(admission)

    on_real_loop(main)


def test_shutting_wakes_threads_and_later_ones_do_not_wait() -> None:
    async def main() -> None:
        admission = RequestAdmissionController(Core(policy(1)), SystemClock())
        lease = await admission.acquire_async(item())
        one = Thread(admission, item())
        await come_true(lambda: admission.core.waiting == 1)
        admission.shut()
        late = Thread(admission, item())
        await come_true(lambda: one.is_done and late.is_done)
        for thread in (one, late):
            assert isinstance(thread.error, RequestAdmissionError)
            assert thread.error.reason is Reason.SHUTDOWN
        admission.release(lease, SUCCESS)
        assert_empty(admission)

    on_real_loop(main)


def test_a_thread_whose_request_the_loop_has_not_seen_is_told_by_the_shutdown() -> None:
    async def main() -> None:
        admission = RequestAdmissionController(Core(policy(1)), SystemClock())
        one = Thread(admission, item())  # this thread's loop does nothing meanwhile
        admission.shut()
        await come_true(lambda: one.is_done)
        assert isinstance(one.error, RequestAdmissionError)
        assert_empty(admission)

    on_real_loop(main)


# ── Events ────────────────────────────────────────────────────────────────────────────────────


def told_by(sink: Any, main: Callable[[RequestAdmissionController], Any]) -> None:
    async def run() -> None:
        clock = VirtualClock()
        admission = RequestAdmissionController(
            Core(policy(1)), clock, RequestEvents(clock, (sink,)), "run-1"
        )
        await main(admission)

    run_virtual(run())


async def a_busy_moment(admission: RequestAdmissionController) -> None:
    """One at once, one that waits, one that gives up, one that waits too long, one refused."""
    first = await admission.acquire_async(item())
    waiting = asyncio.ensure_future(admission.acquire_async(item()))
    leaves = asyncio.ensure_future(admission.acquire_async(item()))
    await asyncio.sleep(1)
    admission.try_acquire(item())
    with pytest.raises(RequestAdmissionError):
        await admission.acquire_async(item(timeout=1.0))
    leaves.cancel()
    await asyncio.sleep(1)
    admission.release(first, SUCCESS)
    second = await waiting
    admission.release(second, refused(3.0))
    admission.release(second, SUCCESS)
    admission.set_policy(policy(2))


def test_who_wants_every_step_hears_of_every_step() -> None:
    sink = RecordingSink()
    told_by(sink, a_busy_moment)

    assert [event.sequence for event in sink.requests] == [
        number + 1 for number in range(len(sink.requests))
    ]
    assert [event.event_kind for event in sink.requests] == [
        Kind.REQUEST_RESOURCE_REGISTERED,
        Kind.REQUEST_WAIT_STARTED,
        Kind.REQUEST_WAIT_COMPLETED,
        Kind.REQUEST_LEASE_ACQUIRED,
        Kind.REQUEST_QUEUE_FORMED,
        Kind.REQUEST_WAIT_STARTED,
        Kind.REQUEST_WAIT_STARTED,
        Kind.REQUEST_ACQUIRE_DENIED,
        Kind.REQUEST_WAIT_STARTED,
        Kind.REQUEST_WAIT_TIMEOUT,
        Kind.REQUEST_WAIT_CANCELLED,
        Kind.REQUEST_LEASE_RELEASED,
        Kind.REQUEST_QUEUE_DRAINED,
        Kind.REQUEST_WAIT_COMPLETED,
        Kind.REQUEST_LEASE_ACQUIRED,
        Kind.REQUEST_RATE_LIMITED,
        Kind.REQUEST_LIMIT_DECREASED,
        Kind.REQUEST_LEASE_RELEASED,
        Kind.REQUEST_RELEASE_DIAGNOSTIC,
        Kind.REQUEST_EFFECTIVE_CAP_CHANGED,
    ]
    waits = sink.of(Kind.REQUEST_WAIT_COMPLETED)
    assert [event.numbers for event in waits] == [{"seconds": 0.0}, {"seconds": 3.0}]
    assert {event.correlation.run_id for event in sink.requests} == {"run-1"}
    assert {event.resource for event in sink.requests} == {CHAT}


def test_a_wait_that_was_cancelled_after_its_deadline_ends_once() -> None:
    async def main(admission: RequestAdmissionController) -> None:
        await admission.acquire_async(item())
        waiting = asyncio.ensure_future(admission.acquire_async(item(timeout=1.0)))
        await asyncio.sleep(0.5)
        admission.core.try_acquire(item(), 1.0)  # before the timer rings
        waiting.cancel()
        await asyncio.sleep(1)
        assert waiting.cancelled()

    sink = RecordingSink()
    told_by(sink, main)

    assert len(sink.of(Kind.REQUEST_WAIT_TIMEOUT)) == 1
    assert not sink.of(Kind.REQUEST_WAIT_CANCELLED)


def test_what_is_kept_in_memory_leaves_steps_out() -> None:
    sink = RecentEvents()
    told_by(sink, a_busy_moment)

    kinds = [event.event_kind for event in sink.events]
    assert Kind.REQUEST_LEASE_ACQUIRED not in kinds
    assert Kind.REQUEST_LEASE_RELEASED not in kinds
    assert kinds.count(Kind.REQUEST_WAIT_COMPLETED) == 1
    assert kinds.count(Kind.REQUEST_WAIT_STARTED) == 3


def test_nothing_is_built_if_nobody_listens() -> None:
    async def main() -> None:
        admission = opened()
        await a_busy_moment(admission)
        assert not admission.core.pending_events.pending
        assert not admission.events.is_on

    on_loop(main)
