# SPDX-License-Identifier: Apache-2.0
"""Group commit: many callers share one transaction.

One writer owns the write connection. Callers put operations into its inbox; it takes its turn at
the database, begins, claims what waits (urgent ones first), runs it, commits, and only then
answers. An operation that was not claimed can be withdrawn, so that a caller's time-out before
the claim is certain: nothing happened.

Where many write side by side a transaction may fail because another one was in the way, or because
the server went away before the commit. Then nothing happened, and the same operations run again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import (
    PenstockError,
    SchemaTooNew,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreForked,
    StoreUnavailable,
    StoreUnknown,
)
from penstock.stores.store_future import Reply


@contextmanager
def deferred_interrupt() -> Iterator[bool]:
    """Keep Python's own Ctrl-C away until the end; False if that cannot be had here.

    Only the main thread is ever interrupted, and only the handler that raises KeyboardInterrupt
    is known to us; whoever has installed another one may raise whatever it likes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield True
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield False
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield True
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


def closed() -> StoreClosed:
    """It was closed."""
    return StoreClosed("The store is closed; open it again to use it.")


def forked(which: str = "the store") -> StoreForked:
    """It was opened by the process that this one was forked from."""
    return StoreForked(
        f"This process was forked while {which} was open, so it cannot use it. Start processes "
        "with 'spawn' (multiprocessing.get_context('spawn')), or close the store before forking."
    )


TURN_SECONDS = 0.020  # a transaction takes no further operation after this long
ANTICIPATE_SECONDS = 0.005  # a transaction that was opened ahead waits for an operation
CLOSE_SECONDS = 10.0  # close() waits at most this long for the thread
AGAIN_SECONDS = 30.0  # operations are run again for this long, and wait this long for a server
FINAL = (StoreFailed, StoreCorrupt, SchemaTooNew)  # after one of these nothing more is written

T = TypeVar("T")
Tx = TypeVar("Tx")
TxC = TypeVar("TxC", covariant=True)


class Contended(StoreError):
    """Somebody was in the way, or the server went away: nothing was changed, so run it again."""


class Spoilt(Exception):
    """An operation was refused after it had written: the others must be run without it."""

    def __init__(self, refusal: PenstockError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Session(Protocol[TxC]):
    """The write side of one database connection, owned by the writer's thread.

    Foreign exceptions are mapped by the session: what it raises is a PenstockError or our bug.
    """

    def begin(self, *, wait: bool) -> TxC:
        """Take the turn and open a write transaction.

        StoreBusy after a while, or at once if it is somebody else's turn and `wait` is False.
        StoreUnavailable if a server cannot be reached, after a pause before the next try.
        """
        ...

    def savepoint(self) -> None: ...

    def release_savepoint(self) -> None: ...

    def rollback_savepoint(self) -> bool:
        """Undo the operation; False if only all of them can be undone."""
        ...

    def commit(self, *, more: bool) -> None:
        """Make it durable; the turn is kept. With `more` the next begin follows at once."""
        ...

    def after_commit(self) -> None:
        """Do what is due while it is still our turn, then give it back."""
        ...

    def rollback(self) -> None:
        """Undo everything and give the turn back; never raises."""
        ...

    def translated(self, error: BaseException) -> BaseException:
        """Translate a driver's or the system's error into one of ours; others are unchanged."""
        ...

    def elapsed(self) -> float:
        """Seconds since begin."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps; asked by any thread."""
        ...

    def close(self, *, sound: bool) -> None:
        """Let go of everything; if it is not sound, nothing more is written."""
        ...


class _Operation(Generic[Tx]):
    __slots__ = ("atomic", "claimed", "opening", "reply", "run", "since")

    def __init__(
        self,
        run: Callable[[Tx], Any],
        atomic: bool,
        help_out: Callable[[], None],
        start: Callable[[], None] | None,
        since: float,
        opening: Callable[[], None] | None,
    ) -> None:
        self.run = run
        self.opening = opening
        self.atomic = atomic
        self.since = since
        self.claimed = threading.Lock()  # whoever gets it decides: the writer, or the withdrawal
        self.reply: Reply[Any] = Reply(self.claim, help_out, start)

    def claim(self) -> bool:
        return self.claimed.acquire(blocking=False)


class GroupCommit(Generic[Tx]):
    """Owns the writer thread of one store in one process. Does not know what operations do."""

    def __init__(self, session: Session[Tx], committed: Callable[[Tx], None]) -> None:
        self._session = session
        self._committed = committed
        self._inbox: deque[_Operation[Tx]] = deque()  # taken from under the session's lock only
        self._urgent: deque[_Operation[Tx]] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the thread
        self._anticipates = False  # the thread is to open a transaction, though nothing waits
        self._failed: StoreError | None = None
        self._session_lock = threading.Lock()  # guards the session: the thread's, or a helper's
        self._closed = False
        self._ended = False  # the session is closed
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="penstock-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        run: Callable[[Tx], T],
        *,
        urgent: bool = False,
        atomic: bool = False,
        lazy: bool = False,
        opening: Callable[[], None] | None = None,
    ) -> Reply[T]:
        """Run this in the next transaction; `atomic` gives it a savepoint of its own.

        A lazy one does not wake the thread before somebody waits for its answer: whoever blocks for
        it does the work itself, and two switches of threads are spared. `opening` is called before
        the begin, if the operation is alone then and claimed: the session may do part of it ahead.
        """
        if self._closed:
            return Reply.failed(closed())
        if self._failed is not None:
            return Reply.failed(_again(self._failed))
        if os.getpid() != self._pid:
            return Reply.failed(forked())
        since = self._session.monotonic()
        start = self._rouse if lazy else None
        operation = _Operation(run, atomic, self._help, start, since, opening)
        (self._urgent if urgent else self._inbox).append(operation)
        if not lazy:
            self._wake.put(None)
        if self._ended:  # it was closed between the question above and now
            self._refuse_all(closed())
        return operation.reply

    def anticipate(self) -> None:
        """Something will be submitted in a moment: open the transaction for it meanwhile."""
        self._anticipates = True
        self._wake.put(None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be claimed."""
        return not (self._urgent or self._inbox)

    @property
    def failed(self) -> StoreError | None:
        """Why nothing more is written."""
        return self._failed

    def fail(self, error: StoreError) -> None:
        """Write nothing more: somebody else has seen that the store is not sound."""
        self._failed = self._failed or error

    def _rouse(self) -> None:
        self._wake.put(None)

    def close(self) -> bool:
        """Finish what was accepted, then end the thread; False if it takes too long. Idempotent."""
        if self._closed:
            return True
        self._closed = True
        if os.getpid() != self._pid:
            return True
        self._wake.put(None)
        self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while not self._ended:
            self._wake.get()
            anticipates, self._anticipates = self._anticipates, False
            if anticipates and self.is_idle and not self._closed:
                with self._session_lock:
                    self._turn(wait=True, anticipates=True)
            while self._urgent or self._inbox:
                with self._session_lock:
                    if self._urgent or self._inbox:  # no helper was faster
                        self._turn(wait=True)
            if self._closed:
                self._end()

    def _end(self) -> None:
        with self._session_lock:  # a helper may be inside a transaction
            self._ended = True
            self._session.close(sound=self._failed is None)
        self._refuse_all(closed())  # what came in at the last moment

    def _help(self) -> None:
        """A thread that would only wait does the work itself, if nobody else is at it.

        Saves two switches of threads, which cost as much as the transaction itself.
        """
        with deferred_interrupt() as may_help:  # a transaction is not to be torn in two
            if not may_help or not self._session_lock.acquire(blocking=False):
                return
            try:
                if (self._urgent or self._inbox) and not self._closed:
                    self._turn(wait=False)
            finally:
                self._session_lock.release()

    def _turn(self, *, wait: bool, anticipates: bool = False) -> None:
        """One transaction with whatever waits, or is about to, in the order in which it came."""
        if self._failed is not None:
            self._refuse_all(_again(self._failed))
            return
        try:
            tx, operation = self._begin(wait=wait)
        except StoreBusy as error:
            if self._closed:
                self._refuse_all(error)
            return  # what waits stays unclaimed; callers may withdraw it
        except StoreUnavailable as error:
            self._refuse_all(error, older_than=0.0 if self._closed else AGAIN_SECONDS)
            return
        except StoreError as error:
            self._refuse_all(error)
            return
        if anticipates:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=ANTICIPATE_SECONDS)
            if self.is_idle:
                self._session.rollback()
                return
        batch: list[tuple[_Operation[Tx], Any, PenstockError | None]] = []
        try:
            while (operation := operation or self._claim_next()) is not None:
                batch.append((operation, None, None))
                value, refusal = self._run(operation, tx)
                batch[-1] = (operation, value, refusal)
                operation = None
                if self._session.elapsed() > TURN_SECONDS:
                    break
            self._session.commit(more=wait and bool(self._urgent or self._inbox))
        except BaseException as raised:
            failure = self._session.translated(raised)
            self._session.rollback()
            operations = [operation for operation, _, _ in batch]
            if isinstance(failure, Contended):
                self._run_again(operations, failure)
            else:
                self._after_failure(operations, failure)
            return
        self._committed(tx)
        for operation, value, refusal in batch:
            if refusal is None:
                operation.reply.resolve(value)
            else:
                operation.reply.refuse(refusal)
        self._after_commit()

    def _begin(self, *, wait: bool) -> tuple[Tx, _Operation[Tx] | None]:
        """Open a transaction; a lone operation that has an opening is claimed before.

        Only for a caller that does the work itself: nobody else waits for it, so it is given back
        without loss if there is no transaction to be had at once.
        """
        if wait or self._urgent or len(self._inbox) != 1 or self._inbox[0].opening is None:
            return self._session.begin(wait=wait), None
        operation = self._claim_next()
        if operation is None or operation.opening is None:
            return self._session.begin(wait=wait), operation
        try:
            operation.opening()
            return self._session.begin(wait=wait), operation
        except BaseException:
            operation.claimed.release()
            self._inbox.appendleft(operation)
            raise

    def _claim_next(self) -> _Operation[Tx] | None:
        """The next operation that was not withdrawn, urgent ones first."""
        while self._urgent or self._inbox:
            operation = (self._urgent or self._inbox).popleft()
            if operation.claim():
                return operation
        return None

    def _after_commit(self) -> None:
        """What was committed stays; but an error here ends the store."""
        try:
            self._session.after_commit()
        except StoreError as error:
            if isinstance(error, FINAL):
                self.fail(error)

    def _run(self, operation: _Operation[Tx], tx: Tx) -> tuple[Any, PenstockError | None]:
        if not operation.atomic:
            return operation.run(tx), None
        self._session.savepoint()
        try:
            value = operation.run(tx)
        except StoreError:
            raise
        except PenstockError as refusal:
            if not self._session.rollback_savepoint():
                raise Spoilt(refusal) from refusal
            return None, refusal
        self._session.release_savepoint()
        return value, None

    def _after_failure(self, batch: list[_Operation[Tx]], error: BaseException) -> None:
        """The whole transaction was undone: find the operation that failed, and redo the others."""
        if isinstance(error, FINAL):
            self.fail(error)
        if isinstance(error, StoreError) or len(batch) == 1:
            cause = error.refusal if isinstance(error, Spoilt) else error
            for operation in batch:
                operation.reply.refuse(cause)
            return
        for operation in batch:
            self._run_alone(operation)

    def _run_alone(self, operation: _Operation[Tx]) -> None:
        failure = self._try([operation])
        if isinstance(failure, Contended):
            self._run_again([operation], failure)
        elif failure is not None:
            self._after_failure([operation], failure)

    def _run_again(self, operations: list[_Operation[Tx]], failure: BaseException) -> None:
        """Run what was claimed again, whole, until nobody is in the way or patience is at its end.

        Nothing of it has happened so far, which is why it may be run again.
        """
        until = self._session.monotonic() + AGAIN_SECONDS
        while isinstance(failure, Contended | StoreUnavailable) and not isinstance(
            failure, StoreUnknown
        ):
            if self._session.monotonic() >= until or self._closed:
                reason = StoreUnavailable(f"{failure} Nothing was changed; try again.")
                reason.__cause__ = failure
                failure = reason
                break
            again = self._try(operations)
            if again is None:
                return
            failure = again
        self._after_failure(operations, failure)

    def _try(self, operations: list[_Operation[Tx]]) -> BaseException | None:
        """Run claimed operations in a transaction of their own; why that did not work."""
        try:
            tx = self._session.begin(wait=True)
        except StoreError as error:
            return error
        try:
            answers = [self._run(operation, tx) for operation in operations]
            self._session.commit(more=False)
        except BaseException as raised:
            failure = self._session.translated(raised)
            self._session.rollback()
            return failure
        self._committed(tx)
        for operation, (value, refusal) in zip(operations, answers, strict=True):
            if refusal is None:
                operation.reply.resolve(value)
            else:
                operation.reply.refuse(refusal)
        self._after_commit()
        return None

    def _refuse_all(self, error: StoreError, *, older_than: float = 0.0) -> None:
        """Refuse what waits, or what has waited for so long."""
        if isinstance(error, FINAL):
            self.fail(error)
        since = self._session.monotonic() - older_than
        for waiting in (self._urgent, self._inbox):
            with contextlib.suppress(IndexError):  # two threads may refuse at once, at the end
                while waiting[0].since <= since:
                    operation = waiting.popleft()
                    if operation.claim():
                        operation.reply.refuse(error)


def _again(error: StoreError) -> StoreError:
    """The same cause for another caller; one error object would collect all their tracebacks."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh
