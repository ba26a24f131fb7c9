# SPDX-License-Identifier: Apache-2.0
"""Do many callers share one transaction, and does each get its own answer exactly once?"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import (
    EnqueueRefused,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreForked,
    StoreFull,
)
from penstock.stores.group_commit import TURN_SECONDS, GroupCommit
from penstock.stores.store_future import Reply

WAIT = 5.0


class FakeSession:
    """A session that only writes down what happens to it; a test may make it fail or wait."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.commits: list[list[str]] = []
        self.now = 0.0
        self.turn = threading.Event()  # not set: it is another process's turn
        self.turn.set()
        self.patience_seconds = 0.05  # for its turn
        self.begin_errors: list[StoreError] = []
        self.commit_errors: list[BaseException] = []
        self.after_commit_errors: list[BaseException] = []
        self.closed = False
        self.closed_sound: bool | None = None
        self._began = 0.0
        self._marks: list[int] = []
        self._written: list[str] = []
        self._open = False

    def written(self) -> list[str]:
        """Everything that was committed, in order."""
        return [text for batch in self.commits for text in batch]

    def begin(self, *, wait: bool) -> list[str]:
        assert not self.closed, "used after close"
        assert not self._open, "two at once"
        if self.begin_errors:
            raise self.begin_errors.pop(0)
        if not self.turn.is_set() and (not wait or not self.turn.wait(self.patience_seconds)):
            raise StoreBusy("another's turn")
        self._open = True
        self._written = []
        self._began = self.now
        return self._written

    def savepoint(self) -> None:
        self._marks.append(len(self._written))

    def release_savepoint(self) -> None:
        self._marks.pop()

    def rollback_savepoint(self) -> bool:
        del self._written[self._marks.pop() :]
        return True

    def monotonic(self) -> float:
        return self.now

    def commit(self, *, more: bool) -> None:
        assert not self.closed, "committed after close"
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        self._open = False
        self.commits.append(list(self._written))

    def rollback(self) -> None:
        self._open = False
        self._marks.clear()
        self._written.clear()

    def translated(self, error: BaseException) -> BaseException:
        return StoreFull("no space") if isinstance(error, BufferError) else error

    def elapsed(self) -> float:
        return self.now - self._began

    def after_commit(self) -> None:
        assert not self._open, "before the commit"
        if self.after_commit_errors:
            raise self.after_commit_errors.pop(0)

    def close(self, *, sound: bool) -> None:
        assert not self._open, "closed inside a transaction"
        self.closed = True
        self.closed_sound = sound


def write(text: str) -> Callable[[list[str]], str]:
    def run(tx: list[str]) -> str:
        tx.append(text)
        return text.upper()

    return run


class Gate:
    """An operation that says when it runs and waits until it is let go."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.entered = threading.Event()
        self.go = threading.Event()
        self.thread = ""  # who runs it

    def __call__(self, tx: list[str]) -> str:
        self.thread = threading.current_thread().name
        self.entered.set()
        assert self.go.wait(WAIT)
        tx.append(self.text)
        return self.text.upper()


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def commit(session: FakeSession) -> Iterator[GroupCommit[list[str]]]:
    group: GroupCommit[list[str]] = GroupCommit(session, lambda tx: None)
    yield group
    session.turn.set()
    group.close()


Commit = GroupCommit[list[str]]


def in_thread(ask: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(ask())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, name="asking")
    thread.start()
    return thread, results


def helped(commit: GroupCommit[list[str]]) -> tuple[Gate, threading.Thread, list[Any]]:
    """An operation that the asking thread runs itself, and that waits at its gate."""
    for _ in range(1_000):
        gate = Gate("helped")
        thread, results = in_thread(lambda gate=gate: commit.submit(gate).result(WAIT))  # type: ignore[misc]
        assert gate.entered.wait(WAIT)
        if gate.thread == "asking":
            return gate, thread, results
        gate.go.set()  # the writer's thread was faster
        thread.join()
    raise AssertionError("no thread ever helped")


def test_what_waits_while_a_transaction_runs_is_merged_into_the_next(
    commit: Commit, session: FakeSession
) -> None:
    session.turn.clear()
    replies = [commit.submit(write(f"op{n}")) for n in range(10)]
    time.sleep(0.02)
    assert not any(reply.done for reply in replies)

    session.turn.set()

    assert [reply.result(WAIT) for reply in replies] == [f"OP{n}" for n in range(10)]
    assert session.commits == [[f"op{n}" for n in range(10)]]


def test_replies_are_given_after_the_commit_and_not_before(session: FakeSession) -> None:
    seen: list[bool] = []
    commit: Commit = GroupCommit(session, lambda tx: seen.append(reply.done))
    reply = commit.submit(write("a"))

    reply.result(WAIT)

    assert seen == [False]
    commit.close()


def test_urgent_operations_go_first(commit: Commit, session: FakeSession) -> None:
    session.turn.clear()
    replies = [commit.submit(write("plain-1")), commit.submit(write("plain-2"))]
    replies += [commit.submit(write("beat-1"), urgent=True), commit.submit(write("plain-3"))]
    replies += [commit.submit(write("beat-2"), urgent=True)]
    session.turn.set()

    for reply in replies:
        reply.result(WAIT)

    assert session.commits == [["beat-1", "beat-2", "plain-1", "plain-2", "plain-3"]]


def test_a_transaction_takes_no_further_operation_after_its_time(
    commit: Commit, session: FakeSession
) -> None:
    def slow(tx: list[str]) -> None:
        tx.append("slow")
        session.now += TURN_SECONDS * 1.1

    session.turn.clear()
    replies: list[Reply[Any]] = [commit.submit(slow), commit.submit(write("next"))]
    session.turn.set()

    for reply in replies:
        reply.result(WAIT)

    assert session.commits == [["slow"], ["next"]]


def test_an_operation_that_raises_unexpectedly_fails_alone(
    commit: Commit, session: FakeSession
) -> None:
    def bug(tx: list[str]) -> None:
        tx.append("half")
        raise KeyError("our bug")

    session.turn.clear()
    before, broken, after = (
        commit.submit(write("before")),
        commit.submit(bug),
        commit.submit(write("after"), atomic=True),
    )
    session.turn.set()

    assert before.result(WAIT) == "BEFORE"
    assert after.result(WAIT) == "AFTER"
    with pytest.raises(KeyError, match="our bug"):
        broken.result(WAIT)
    assert sorted(session.written()) == ["after", "before"]


def test_a_refusal_inside_a_savepoint_leaves_its_neighbours_in_the_same_transaction(
    commit: Commit, session: FakeSession
) -> None:
    def refused(tx: list[str]) -> None:
        tx.append("half")
        raise EnqueueRefused("no such key")

    session.turn.clear()
    before, broken, after = (
        commit.submit(write("before")),
        commit.submit(refused, atomic=True),
        commit.submit(write("after")),
    )
    session.turn.set()

    assert (before.result(WAIT), after.result(WAIT)) == ("BEFORE", "AFTER")
    with pytest.raises(EnqueueRefused):
        broken.result(WAIT)
    assert session.commits == [["before", "after"]]


def test_a_refusal_without_a_savepoint_is_undone_as_well(
    commit: Commit, session: FakeSession
) -> None:
    def refused(tx: list[str]) -> None:
        tx.append("half")
        raise EnqueueRefused("no such key")

    session.turn.clear()
    good, broken = commit.submit(write("good")), commit.submit(refused)
    session.turn.set()

    assert good.result(WAIT) == "GOOD"
    with pytest.raises(EnqueueRefused):
        broken.result(WAIT)
    assert session.commits == [["good"]]


def test_an_error_of_the_world_inside_an_operation_is_told_in_our_words(
    commit: Commit, session: FakeSession
) -> None:
    def full(tx: list[str]) -> None:
        tx.append("half")
        raise BufferError("as the database says it")

    with pytest.raises(StoreFull):
        commit.submit(full, atomic=True).result(WAIT)
    with pytest.raises(StoreFull):
        commit.submit(full).result(WAIT)
    assert commit.submit(write("next")).result(WAIT) == "NEXT"
    assert session.commits == [["next"]]


def test_a_full_disk_is_told_to_all_and_the_next_transaction_works(
    commit: Commit, session: FakeSession
) -> None:
    session.commit_errors.append(StoreFull("no space"))
    session.turn.clear()
    replies = [commit.submit(write(f"op{n}")) for n in range(3)]
    session.turn.set()

    for reply in replies:
        with pytest.raises(StoreFull):
            reply.result(WAIT)
    assert commit.submit(write("later")).result(WAIT) == "LATER"
    assert session.commits == [["later"]]


def test_an_unknown_commit_marks_the_store_failed_and_nothing_carries_on(
    commit: Commit, session: FakeSession
) -> None:
    session.commit_errors.append(StoreFailed("I/O error"))
    gate = Gate("first")
    first = commit.submit(gate)
    gate.entered.wait(WAIT)
    session.now += TURN_SECONDS * 2  # the second one must wait for the next transaction
    second = commit.submit(write("second"))
    beat = commit.submit(write("beat"), urgent=True)
    gate.go.set()

    for reply in (first, second, beat, commit.submit(write("third"))):
        with pytest.raises(StoreFailed):
            reply.result(WAIT)
    assert session.commits == []


def test_a_failure_to_begin_is_told_to_all_that_wait(commit: Commit, session: FakeSession) -> None:
    session.turn.clear()
    session.begin_errors += [StoreFailed("the disk is gone")] * 10
    replies = [commit.submit(write("a")), commit.submit(write("b"), urgent=True)]

    for reply in replies:
        with pytest.raises(StoreFailed):
            reply.result(WAIT)


def test_a_withdrawal_before_the_claim_is_certain(commit: Commit, session: FakeSession) -> None:
    session.turn.clear()
    reply = commit.submit(write("late"))
    with pytest.raises(TimeoutError):
        reply.result(0.02)

    session.turn.set()
    commit.submit(write("next")).result(WAIT)

    assert session.commits == [["next"]]


def test_a_time_out_after_the_claim_waits_for_the_truth(
    commit: Commit, session: FakeSession
) -> None:
    gate = Gate("slow")
    reply = commit.submit(gate)
    gate.entered.wait(WAIT)
    thread = threading.Timer(0.1, gate.go.set)
    thread.start()

    assert reply.result(0.01) == "SLOW"
    thread.join()


def test_operations_of_one_caller_keep_their_order_while_another_helps(
    commit: Commit, session: FakeSession
) -> None:
    """A batch may name keys of the batch before it, which is still on its way. The writer's thread
    holds the first batch and waits for the session; a helper must not run the second before it."""
    gate, helper, _ = helped(commit)
    first = commit.submit(write("first"))
    time.sleep(0.03)  # the writer's thread has seen it by now
    second = commit.submit(write("second"))
    gate.go.set()

    first.result(WAIT)
    second.result(WAIT)

    helper.join()
    order = session.written()
    assert order.index("first") < order.index("second")


def test_operations_keep_their_order_when_a_helper_finds_the_store_busy(
    commit: Commit, session: FakeSession
) -> None:
    session.turn.clear()
    replies: list[Reply[Any]] = []
    threads = []
    for n in range(40):
        replies.append(commit.submit(write(f"{n:02}")))
        threads.append(in_thread(lambda n=n: replies[n].result(WAIT))[0])  # type: ignore[misc]
    session.turn.set()

    for thread in threads:
        thread.join()

    order = session.written()
    assert order == sorted(order)
    assert len(order) == 40


def test_close_finishes_what_was_accepted(session: FakeSession) -> None:
    session.patience_seconds = WAIT
    commit: Commit = GroupCommit(session, lambda tx: None)
    session.turn.clear()
    replies = [commit.submit(write(f"op{n}")) for n in range(5)]
    threading.Timer(0.02, session.turn.set).start()

    commit.close()

    assert all(reply.done for reply in replies)
    assert session.closed
    results = [reply.result(0) for reply in replies]
    assert results == [f"OP{n}" for n in range(5)]
    commit.close()  # idempotent
    with pytest.raises(StoreClosed):
        commit.submit(write("late")).result(WAIT)


def test_close_refuses_what_a_busy_store_does_not_take(session: FakeSession) -> None:
    commit: Commit = GroupCommit(session, lambda tx: None)
    session.turn.clear()
    reply = commit.submit(write("never"))

    commit.close()

    with pytest.raises(StoreBusy):
        reply.result(WAIT)
    assert session.commits == []


def test_close_waits_for_a_helper_inside_a_transaction(session: FakeSession) -> None:
    commit: Commit = GroupCommit(session, lambda tx: None)
    gate, helper, results = helped(commit)
    behind = commit.submit(write("behind"))
    closing = threading.Thread(target=commit.close)
    closing.start()
    time.sleep(0.03)
    gate.go.set()

    closing.join(WAIT)
    helper.join(WAIT)

    assert results == ["HELPED"]
    assert behind.result(WAIT) == "BEHIND"
    assert session.closed


def test_close_waits_for_a_helper_that_nobody_stands_behind(session: FakeSession) -> None:
    commit: Commit = GroupCommit(session, lambda tx: None)
    gate, helper, results = helped(commit)
    closing = threading.Thread(target=commit.close)
    closing.start()
    time.sleep(0.03)
    assert not session.closed
    gate.go.set()

    closing.join(WAIT)
    helper.join(WAIT)

    assert results == ["HELPED"]
    assert session.closed


def test_an_operation_that_arrives_while_the_store_is_being_closed_is_refused(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed between the question whether it is open and the place in the inbox."""
    commit: Commit = GroupCommit(session, lambda tx: None)
    getpid = os.getpid

    def closing() -> int:
        monkeypatch.setattr(os, "getpid", getpid)
        commit.close()
        return getpid()

    monkeypatch.setattr(os, "getpid", closing)

    with pytest.raises(StoreClosed):
        commit.submit(write("late")).result(1)
    assert session.commits == []


def test_no_reply_is_lost_when_submitting_races_with_closing() -> None:
    for _ in range(100):
        session = FakeSession()
        commit: Commit = GroupCommit(session, lambda tx: None)
        outcomes: list[Any] = []
        start = threading.Barrier(3)

        def submit(commit: Commit = commit, start: threading.Barrier = start) -> None:
            start.wait()
            for n in range(5):
                reply = commit.submit(write(str(n)), urgent=n % 2 == 0)
                try:
                    outcomes.append(reply.result(WAIT))  # noqa: B023
                except BaseException as error:
                    outcomes.append(type(error))  # noqa: B023

        threads = [threading.Thread(target=submit) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        commit.close()
        for thread in threads:
            thread.join()

        assert len(outcomes) == 10
        assert TimeoutError not in outcomes
        assert set(outcomes) <= {"0", "1", "2", "3", "4", StoreClosed}


def test_eight_threads_get_every_answer_exactly_once(commit: Commit, session: FakeSession) -> None:
    per_thread = 300
    results: list[list[str]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def hammer(number: int) -> None:
        start.wait()
        for n in range(per_thread):
            text = f"{number}-{n}"
            reply = commit.submit(write(text), urgent=n % 7 == 0, atomic=n % 3 == 0)
            results[number].append(reply.result(WAIT))

    threads = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    written = session.written()
    assert len(written) == len(set(written)) == 8 * per_thread
    for number in range(8):
        assert results[number] == [f"{number}-{n}" for n in range(per_thread)]
        mine = [text for text in written if text.startswith(f"{number}-")]
        assert mine == [f"{number}-{n}" for n in range(per_thread)]


def test_withdrawals_and_claims_of_many_threads_agree(commit: Commit, session: FakeSession) -> None:
    """Whoever is told that nothing happened must find that nothing happened."""
    said: dict[str, bool] = {}

    def ask(number: int) -> None:
        for n in range(30):
            text = f"{number}-{n}"
            try:
                commit.submit(write(text)).result(0.0005 * (n % 4))
                said[text] = True
            except TimeoutError:
                said[text] = False

    stop = threading.Event()

    def toggle() -> None:
        while not stop.is_set():
            session.turn.clear()
            stop.wait(0.001)
            session.turn.set()
            stop.wait(0.001)

    toggling = threading.Thread(target=toggle)
    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in (toggling, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    toggling.join()
    commit.submit(write("last")).result(WAIT)

    written = {text for batch in session.commits for text in batch} - {"last"}
    assert written == {text for text, done in said.items() if done}
    assert len(said) == 180


@pytest.mark.parametrize("kind", [StoreFailed, StoreCorrupt])
def test_an_error_after_the_commit_keeps_the_answers_and_ends_the_store(
    commit: Commit, session: FakeSession, kind: type[StoreError]
) -> None:
    session.after_commit_errors.append(kind("the log cannot be moved"))

    assert commit.submit(write("kept")).result(WAIT) == "KEPT"

    refused = [commit.submit(write("late")) for _ in range(2)]
    errors = []
    for reply in refused:
        with pytest.raises(kind, match="the log cannot be moved") as raised:
            reply.result(WAIT)
        errors.append(raised.value)
    assert errors[0] is not errors[1]  # one object would collect the tracebacks of all callers
    assert session.commits == [["kept"]]
    commit.close()
    assert session.closed_sound is False


def test_a_full_disk_after_the_commit_stops_nothing(commit: Commit, session: FakeSession) -> None:
    session.after_commit_errors.append(StoreFull("no space"))

    assert commit.submit(write("one")).result(WAIT) == "ONE"
    assert commit.submit(write("two")).result(WAIT) == "TWO"
    commit.close()
    assert session.closed_sound is True


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_its_parent_unharmed(
    commit: Commit, session: FakeSession
) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover (another process)
        try:
            commit.submit(write("child")).result(WAIT)
            os.write(writing, b"accepted")
        except StoreForked as error:
            os.write(writing, str(error).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            commit.close()
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert "was forked while the store was open" in said.read()

    assert commit.submit(write("parent")).result(WAIT) == "PARENT"
    assert session.commits == [["parent"]]


def test_a_finished_operation_is_no_cycle() -> None:
    """A lease's answer is a thousand jobs: it must not wait until Python looks for cycles."""
    gc.collect()
    former = gc.get_debug()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        group = GroupCommit(FakeSession(), lambda tx: None)
        for _ in range(10):
            group.submit(lambda tx: ["much"]).result()
        gc.collect()
        assert not [thing for thing in gc.garbage if isinstance(thing, Reply)]
    finally:
        gc.set_debug(former)
        gc.garbage.clear()
        gc.enable()
        group.close()
