# SPDX-License-Identifier: Apache-2.0
"""Does each gate get its own true answer, with what opens it?"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from penstock.clock import MICROSECONDS
from penstock.model.job import (
    AttemptError,
    EdgeKind,
    ErrorCategory,
    Job,
    JobId,
    JobState,
    WorkerId,
)
from penstock.model.views import Dependency, HeldKey, Holder, JobContext, Stats, WorkerView
from penstock.model.worker import (
    BlockedTasks,
    LeasePhase,
    LeaseReport,
    ProviderUse,
    SlotUse,
    UnresponsiveWorker,
    WorkerStatus,
)
from penstock.observe.why.facts import Gate, JobFacts, KnownCaps, WorkerAnswer
from penstock.observe.why.job import explain

NOW = 1_800_000_000 * MICROSECONDS
W, V = WorkerId("w-1"), WorkerId("w-2")
BOOM = AttemptError(ErrorCategory.OWN, "ValueError", "no such\npage.")
FULL = WorkerStatus(
    captured_at=0, slots={"async": SlotUse(4, 4)}, task_slots={"fetch": "async"}, running=4
)


def seconds(n: float) -> int:
    return round(n * MICROSECONDS)


def job(key: str = "k", state: JobState = JobState.QUEUED, **changes: object) -> Job:
    values: dict[str, object] = {
        "id": JobId(1),
        "key": key,
        "task": "fetch",
        "group": "g",
        "partition": None,
        "limit_keys": (),
        "priority": 0,
        "payload": "{}",
        "state": state,
        "suspect": False,
        "token": 3,
        "worker": None,
        "attempts": 0,
        "crashes": 0,
        "deferred_since": None,
        "available_at": NOW - seconds(90),
        "pending": 0,
        "plan_id": None,
        "level": None,
        "result": None,
        "last_error": None,
        "created_at": NOW - seconds(100),
        "updated_at": NOW - seconds(7),
        "started_at": None,
        "finished_at": None,
        **changes,
    }
    return Job(**values)  # type: ignore[arg-type]


def around(subject: Job, **changes: object) -> JobContext:
    values: dict[str, object] = {
        "now": NOW,
        "dependencies": (),
        "skipped_by": None,
        "detached": (),
        "held": (),
        **changes,
    }
    return JobContext(job=subject, **values)  # type: ignore[arg-type]


def stats(*, paused: bool = False, suspects: int = 0) -> Stats:
    return Stats(
        states={},
        tasks={},
        groups={"g": {JobState.QUEUED: 1234}},
        groups_total=1,
        oldest_ready_seconds=None,
        next_due_at=None,
        delayed=0,
        suspects=suspects,
        workers=1,
        paused=paused,
    )


def worker(
    name: WorkerId = W,
    *,
    tasks: tuple[str, ...] = ("fetch",),
    alive: bool = True,
    status: WorkerStatus | None = None,
) -> WorkerView:
    return WorkerView(
        id=name,
        run_id="r",
        host="here",
        pid=1,
        started_at=0,
        alive=alive,
        tasks=tasks,
        status=None if status is None else status.encoded(),
        status_at=None if status is None else NOW - seconds(2),
    )


def facts(this: Job | JobContext, **changes: object) -> JobFacts:
    circumstances = around(this) if isinstance(this, Job) else this
    values: dict[str, object] = {"stats": stats(), "workers": (worker(),), "now": NOW, **changes}
    return JobFacts(this=circumstances, **values)  # type: ignore[arg-type]


def answer(standing: LeasePhase, name: WorkerId = W, **changes: object) -> WorkerAnswer:
    status = changes.pop("status", FULL)
    asked = msgspec.structs.replace(status, captured_at=NOW)  # type: ignore[type-var]
    return WorkerAnswer(name, LeaseReport(standing=standing, status=asked, **changes))  # type: ignore[arg-type]


def test_a_job_that_was_enqueued_for_later_says_when() -> None:
    found = explain(facts(job(available_at=NOW + seconds(75))))

    assert found.gate is Gate.NOT_DUE
    assert found.when == NOW + seconds(75)
    assert found.sentence == ("'k' is delayed: it is due at 2027-01-15 08:01:15Z, in 1:15.")
    assert found.command is None


def test_a_job_that_is_tried_again_says_after_which_error() -> None:
    again = job(available_at=NOW + seconds(5), last_error=BOOM, attempts=2)

    found = explain(facts(again))

    assert found.gate is Gate.NOT_DUE
    assert found.sentence == (
        "'k' is tried again at 2027-01-15 08:00:05Z, in 5.0 s: ValueError: no such page."
    )
    assert found.details == ("Failed attempts so far: 2.",)


def test_a_job_that_is_put_off_uncharged_says_so() -> None:
    late = job(available_at=NOW + seconds(5), last_error=BOOM, deferred_since=NOW - seconds(60))

    assert "and not charged" in explain(facts(late)).details[0]


def test_a_paused_queue_is_told_with_the_command_that_resumes_it() -> None:
    found = explain(facts(job(), stats=stats(paused=True)))

    assert found.gate is Gate.PAUSED
    assert found.command == "penstock queue resume"


def test_every_gate_behind_the_first_closed_one_is_told() -> None:
    late = job(available_at=NOW + seconds(75))

    found = explain(facts(late, stats=stats(paused=True), workers=()))

    assert found.gate is Gate.NOT_DUE
    assert [detail.split(":")[0] for detail in found.details] == ["Behind that"] * 2
    assert "paused" in found.details[0]
    assert "No live worker" in found.details[1]


@pytest.mark.parametrize("workers", [(), (worker(alive=False),)])
def test_without_a_live_worker_that_is_the_answer(workers: tuple[WorkerView, ...]) -> None:
    found = explain(facts(job(), workers=workers))

    assert found.gate is Gate.NO_WORKER
    assert found.command == "penstock queue run"


def test_a_run_whose_worker_has_just_died_needs_nobody() -> None:
    found = explain(facts(job(suspect=True), workers=()))

    assert found.gate is Gate.NO_WORKER
    assert found.unblocks == (
        "a worker starts that knows the task 'fetch'; a run restarts a worker that has died "
        "by itself"
    )


def test_a_task_that_no_live_worker_knows_is_told_with_the_nearest_name() -> None:
    others = (worker(tasks=("fetches", "parse")), worker(V, tasks=("parse",)))

    found = explain(facts(job(), workers=others))

    assert found.gate is Gate.NO_WORKER
    assert found.sentence == (
        "None of the 2 live workers knows the task 'fetch' of 'k' (they know 2; closest: "
        "'fetches')."
    )


def test_the_only_live_worker_is_not_counted() -> None:
    found = explain(facts(job(), workers=(worker(tasks=("parse",)),)))

    assert found.sentence == (
        "The only live worker does not know the task 'fetch' of 'k' (it knows 1)."
    )


HELD = HeldKey(
    "host:x",
    2,
    (
        Holder("a", W, NOW - seconds(4), detached=False),
        Holder("b", V, None, detached=True),
    ),
)


def limited(held: HeldKey = HELD) -> JobContext:
    return around(job(limit_keys=(held.limit_key,)), held=(held,))


def test_a_full_limit_names_its_holders_its_cap_and_who_set_it() -> None:
    found = explain(facts(limited(), caps=KnownCaps({"host:x": 2})))

    assert found.gate is Gate.KEYED_LIMIT
    assert found.sentence == (
        "'k' waits for the limit 'host:x' of 2 (set by 'penstock queue limit'), held by 'a' on "
        "worker 'w-1' for 4.0 s and 'b' on worker 'w-2', whose lease is over but whose body "
        "still runs."
    )
    assert found.command == "penstock queue limit host:x 3"
    assert found.limits[0].held == HELD


@pytest.mark.parametrize(
    ("overrides", "configured", "of_worker", "cap", "source"),
    [
        ({"host:x": 1}, {"host:x": 2}, {"host:x": 2}, 1, "set by 'penstock queue limit'"),
        ({"host:*": 1}, {}, None, 1, "set by 'penstock queue limit', for all 'host:*'"),
        ({"host:*": 1}, {"host:x": 2}, None, 2, "from the settings of this folder"),
        ({}, {"host:*": 2}, None, 2, "from the settings of this folder, for all 'host:*'"),
        ({}, {"host:x": 1}, {"host:x": 2}, 2, "as configured for worker 'w-1'"),
    ],
)
def test_the_cap_is_the_one_that_a_lease_goes_by(
    overrides: dict[str, int],
    configured: dict[str, int],
    of_worker: dict[str, int] | None,
    cap: int,
    source: str,
) -> None:
    workers = (worker(status=WorkerStatus(captured_at=0, caps=of_worker)),)

    found = explain(facts(limited(), caps=KnownCaps(overrides, configured), workers=workers))

    assert found.gate is Gate.KEYED_LIMIT
    assert (found.limits[0].cap, found.limits[0].source) == (cap, source)


def test_a_limit_that_one_worker_has_not_reached_holds_nobody_up() -> None:
    workers = (
        worker(status=WorkerStatus(captured_at=0, caps={"host:x": 2})),
        worker(V, status=WorkerStatus(captured_at=0, caps={"host:x": 3})),
    )

    assert explain(facts(limited(), workers=workers)).gate is Gate.TURN


def test_the_only_holder_of_a_limit_is_not_counted() -> None:
    held = HeldKey("host:x", 1, HELD.holders[:1])

    found = explain(facts(limited(held), caps=KnownCaps(configured={"host:x": 1})))

    assert found.unblocks == "its holder ends, or the limit is raised"


def test_a_limit_of_zero_says_that_it_must_be_raised() -> None:
    nobody = HeldKey("host:x", 0, ())

    found = explain(facts(limited(nobody), caps=KnownCaps({"host:x": 0})))

    assert "which is 0" in found.sentence
    assert found.command == "penstock queue limit host:x 1"


def test_a_limit_with_room_holds_nobody_up() -> None:
    assert explain(facts(limited(), caps=KnownCaps({"host:x": 3}))).gate is Gate.TURN


def test_a_suspect_waits_in_quarantine() -> None:
    found = explain(facts(job(suspect=True, crashes=1), stats=stats(suspects=2)))

    assert found.gate is Gate.QUARANTINE
    assert "1 crash alone" in found.sentence
    assert found.details == ("Jobs that wait in quarantine: 2.",)


def test_workers_whose_slots_are_full_are_told_as_of_their_last_word() -> None:
    found = explain(facts(job(), workers=(worker(status=FULL),)))

    assert found.gate is Gate.SLOTS
    assert found.sentence == (
        "The only worker that knows the task 'fetch' has no free 'async' slot (4 of 4) for 'k': "
        "'w-1'."
    )
    assert found.as_of == NOW - seconds(2)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("async", "PENSTOCK_RUNTIME__ASYNC_SLOTS=8 penstock queue run"),
        ("thread", "penstock queue run --threads 8"),
        ("process", "penstock queue run --process-slots 8"),
        ("row_group", None),  # how many of them there are is no setting
    ],
)
@pytest.mark.parametrize("is_leased", [False, True])
def test_the_command_for_more_slots_is_that_of_their_kind(
    kind: str, command: str | None, is_leased: bool
) -> None:
    full = WorkerStatus(captured_at=0, slots={kind: SlotUse(4, 4)}, task_slots={"fetch": kind})
    denied = BlockedTasks("no_capacity", "capacity", kind, 3, 2, NOW, {})
    said = answer(LeasePhase.WAITING, denied=denied, status=full) if is_leased else None

    found = explain(
        facts(
            leased() if is_leased else job(),
            workers=(worker(status=full),),
            answers=() if said is None else (said,),
        )
    )

    assert (found.gate, found.command) == (Gate.SLOTS, command)


def test_an_answer_counts_before_the_row() -> None:
    idle = msgspec.structs.replace(FULL, slots={"async": SlotUse(4, 1)}, running=1)

    found = explain(
        facts(
            job(),
            workers=(worker(status=FULL),),
            answers=(answer(LeasePhase.UNKNOWN, status=idle),),
        )
    )

    assert (found.gate, found.as_of) == (Gate.TURN, NOW)


def test_one_worker_with_a_free_slot_makes_it_a_matter_of_turns() -> None:
    free = WorkerStatus(
        captured_at=0, slots={"async": SlotUse(4, 3)}, task_slots={"fetch": "async"}
    )

    found = explain(facts(job(), workers=(worker(status=FULL), worker(V, status=free))))

    assert found.gate is Gate.TURN
    assert any("1,234 queued jobs" in detail for detail in found.details)


def test_full_slots_of_another_kind_do_not_matter() -> None:
    slots = {"async": SlotUse(4, 3), "thread": SlotUse(2, 2)}
    other = WorkerStatus(captured_at=0, slots=slots, task_slots={"fetch": "async"})

    assert explain(facts(job(), workers=(worker(status=other),))).gate is Gate.TURN


def leased(key: str = "k", **changes: object) -> Job:
    return job(key, JobState.IN_PROGRESS, worker=W, **changes)


def test_a_running_job_says_where_since_when_and_until_when() -> None:
    said = answer(LeasePhase.RUNNING, since_at=NOW - seconds(5), deadline_at=NOW + seconds(55))

    found = explain(facts(leased(attempts=1), answers=(said,)))

    assert found.gate is Gate.RUNNING
    assert found.sentence == (
        "'k' is running on worker 'w-1' since 2027-01-15 07:59:55Z (5.0 s): attempt 2, and its "
        "time limit is 2027-01-15 08:00:55Z."
    )
    assert (found.when, found.as_of, found.worker) == (NOW + seconds(55), NOW, W)
    assert found.command is None


@pytest.mark.parametrize(
    ("reason", "gate", "said"),
    [
        ("no_capacity", Gate.SLOTS, "one of its 4 'async' slots, of which 4 are in use"),
        (
            "group_cap",
            Gate.FAIR_SHARE,
            "group 'g' holds 2 of 'async', and its share is 2, while 1 other group waits",
        ),
        ("borrow_debt", Gate.FAIR_SHARE, "it has borrowed 1 and repays that first"),
        ("shutdown", Gate.STOPPING, "is stopping and gives it back"),
        ("policy", Gate.POLICY, "a policy holds it back (async)"),
        ("of a later version", Gate.POLICY, "a policy holds it back (async)"),
    ],
)
def test_a_leased_job_that_does_not_start_says_what_its_worker_says(
    reason: str, gate: Gate, said: str
) -> None:
    numbers = {"held": 2.0, "share": 2.0, "rivals": 1.0, "debt": float(reason == "borrow_debt")}
    denied = BlockedTasks(reason, "capacity", "async", 3, 2, NOW, numbers)

    found = explain(facts(leased(), answers=(answer(LeasePhase.WAITING, denied=denied),)))

    assert found.gate is gate
    assert said in found.sentence
    assert found.as_of == NOW


def test_a_leased_job_that_nothing_stops_is_among_the_next() -> None:
    assert explain(facts(leased(), answers=(answer(LeasePhase.WAITING),))).gate is Gate.TURN


def test_a_job_that_was_told_to_stop_and_does_not_is_detached() -> None:
    found = explain(facts(leased(), answers=(answer(LeasePhase.STOPPING, deadline_at=NOW + 9),)))

    assert (found.gate, found.when) == (Gate.DETACHED, NOW + 9)


def test_a_job_whose_end_is_on_the_way_says_so() -> None:
    found = explain(facts(leased(), answers=(answer(LeasePhase.ENDED),)))

    assert found.gate is Gate.RUNNING
    assert "has ended" in found.sentence


@pytest.mark.parametrize(
    "answers", [(), (answer(LeasePhase.UNKNOWN),), (answer(LeasePhase.RUNNING, V),)]
)
def test_without_a_word_of_its_worker_only_the_lease_is_told(
    answers: tuple[WorkerAnswer, ...],
) -> None:
    found = explain(facts(leased(), answers=answers))

    assert found.gate is Gate.RUNNING
    assert "has not reported which" in found.sentence


def test_a_lease_of_a_dead_worker_is_taken_back_by_the_next() -> None:
    found = explain(facts(leased(), workers=(worker(alive=False),)))

    assert found.gate is Gate.NO_WORKER
    assert "that worker is dead" in found.sentence
    assert found.command == "penstock queue run"


def waiting(key: str, *parents: tuple[str, JobState], kind: str = "success") -> JobContext:
    edges = tuple(Dependency(name, EdgeKind(kind), state, open=True) for name, state in parents)
    return around(
        job(key, JobState.WAITING, pending=len(parents)),
        dependencies=edges,
    )


def test_a_dependency_is_named_with_what_holds_it_up_in_turn() -> None:
    this = waiting("c", ("b", JobState.WAITING), ("d", JobState.QUEUED))
    chain = (waiting("b", ("a", JobState.IN_PROGRESS)), around(leased("a")))

    found = explain(facts(this, chain=chain))

    assert found.gate is Gate.DEPENDENCY
    assert found.chain == ("c", "b", "a")
    assert found.sentence.startswith(
        "'c' waits for 'b' (waiting) and 'd' (queued); 'b' waits for 'a'. 'a' was leased by worker"
    )
    assert found.unblocks == "'b' ends successfully, and 1 more that it waits for"
    assert [link.key for link in found.waits_for] == ["b", "d"]


def test_a_long_chain_is_counted_and_its_end_is_named() -> None:
    names = "cbxya"
    chain = tuple(
        waiting(name, (following, JobState.WAITING)) for name, following in pairwise(names[1:])
    )

    found = explain(
        facts(waiting("c", ("b", JobState.WAITING)), chain=(*chain, around(job("a"))), workers=())
    )

    assert found.sentence == (
        "'c' waits for 'b' (waiting); 'b' waits, through 2 more, for 'a'. No live worker "
        "could take 'a'."
    )
    assert found.command == "penstock queue run"


def test_a_dependency_that_may_end_in_any_way_says_so() -> None:
    this = waiting("c", ("a", JobState.QUEUED), kind="finished")
    chain = (around(job("a", available_at=NOW + 5)),)

    found = explain(facts(this, chain=chain))

    assert (found.unblocks, found.when) == ("'a' ends, in any state", NOW + 5)


def test_a_dependency_that_has_ended_is_told_by_the_next_lease() -> None:
    this = waiting("c", ("a", JobState.DONE))

    found = explain(facts(this, chain=(around(job("a", JobState.DONE)),)))

    assert found.sentence == "What 'c' waited for has ended; the next lease call releases it."


def test_a_chain_that_was_not_followed_to_its_end_says_no_more_than_is_known() -> None:
    this = waiting("c", ("b", JobState.WAITING))
    chain = (waiting("b", ("a", JobState.WAITING)),)

    found = explain(facts(this, chain=chain))

    assert found.sentence == "'c' waits for 'b' (waiting). 'b' waits for 'a' (waiting)."


def test_a_done_job_says_when_it_ended() -> None:
    found = explain(facts(job(state=JobState.DONE, finished_at=NOW - seconds(61))))

    assert found.gate is Gate.FINISHED
    assert found.sentence == "'k' is done; it ended at 2027-01-15 07:58:59Z, 1:01 ago."
    assert (found.unblocks, found.command) == (None, None)


def test_a_failed_job_says_its_error_and_how_to_retry() -> None:
    failed = job("it's", JobState.ERROR, last_error=BOOM, attempts=3, finished_at=NOW)

    found = explain(facts(failed))

    assert "ValueError: no such page." in found.sentence
    assert found.unblocks == "its cause is fixed and it is retried"
    assert found.command == """penstock queue retry 'it'"'"'s'"""
    assert found.details == ("Failed attempts: 3, crashes: 0.",)


def test_a_skipped_job_names_the_first_of_the_chain_that_failed() -> None:
    this = around(job("c", JobState.SKIPPED, finished_at=NOW), skipped_by="b")
    chain = (
        around(job("b", JobState.SKIPPED), skipped_by="a"),
        around(job("a", JobState.ERROR, last_error=BOOM, task="root")),
    )

    found = explain(facts(this, chain=chain))

    assert "because 'b' did not succeed" in found.sentence
    assert found.details == ("It began with 'a', which is error: ValueError: no such page.",)
    assert found.command == "penstock queue retry a"
    assert found.chain == ("c", "b", "a")


def test_a_job_that_its_task_skipped_says_its_reason() -> None:
    reason = AttemptError(ErrorCategory.OWN, "Skip", "on purpose")

    found = explain(facts(job(state=JobState.SKIPPED, last_error=reason, finished_at=NOW)))

    assert found.sentence == "'k' was skipped by its own task at 2027-01-15 08:00:00Z: on purpose."


def test_a_cancelled_job_says_so() -> None:
    found = explain(facts(job(state=JobState.CANCELLED, finished_at=NOW)))

    assert (found.gate, found.command) == (Gate.FINISHED, None)


def test_a_cancelled_job_whose_body_goes_on_is_detached_and_names_what_it_holds() -> None:
    body = around(job(state=JobState.CANCELLED, limit_keys=("host:x",)), detached=(W,))

    found = explain(facts(body, answers=(answer(LeasePhase.STOPPING, deadline_at=NOW + 5),)))

    assert found.gate is Gate.DETACHED
    assert found.sentence == (
        "'k' is cancelled, but its body still runs on worker 'w-1'; until it ends it holds "
        "'host:x'."
    )
    assert (found.when, found.as_of) == (NOW + 5, NOW)


def test_a_job_that_was_put_back_while_its_body_goes_on_says_what_is_behind_that() -> None:
    body = around(job(available_at=NOW + seconds(9), last_error=BOOM), detached=(W,))

    found = explain(facts(body))

    assert found.gate is Gate.DETACHED
    assert "was put back" in found.sentence
    assert "is tried again" in found.details[0]


def test_workers_that_stop_take_nothing_more() -> None:
    stopping = msgspec.structs.replace(FULL, stopping=True)

    found = explain(facts(job(), workers=(worker(status=stopping),)))

    assert (found.gate, found.command) == (Gate.STOPPING, "penstock queue run")


@pytest.mark.parametrize(
    ("use", "gate", "said"),
    [
        (
            ProviderUse(provider="ai", model="m", limit=8, limit_max=64, in_flight=8, waiting=9),
            Gate.PROVIDER_LIMIT,
            "waits for its provider 'ai': 8 requests are in flight, its limit now is 8, and 9 wait",
        ),
        (
            ProviderUse(provider="ai", model="m", limit=8, limit_max=8, in_flight=8, waiting=9),
            Gate.PROVIDER_LIMIT,
            "its limit now is 8 (all that is declared)",
        ),
        (
            ProviderUse(
                provider="ai",
                model="m",
                limit=8,
                limit_max=8,
                refused=3,
                waiting=9,
                blocked_until_at=NOW + 12 * MICROSECONDS,
            ),
            Gate.COOLDOWN,
            "'ai', which cools down for another 12 s: it refused requests and asked for a pause "
            "(3 refusals",
        ),
        (
            ProviderUse(
                provider="ai",
                model="m",
                limit=8,
                limit_max=8,
                waiting=9,
                refused=3,
                failed=40,
                failed_in_row=13,
                blocked_until_at=NOW + 12 * MICROSECONDS,
            ),
            Gate.COOLDOWN,
            "for another 12 s: it is unhealthy (40 requests errored, 13 in a row) and is",
        ),
        (
            ProviderUse(
                provider="ai",
                model="m",
                limit=32,
                limit_max=64,
                in_flight=14,
                waiting=9,
                refused=1,
                mode="requests",
                rate=29.523,
            ),
            Gate.PROVIDER_LIMIT,
            "which seems to allow 29.52 requests a second (1 refusal so far); 9 wait",
        ),
        (
            ProviderUse(
                provider="ai",
                model="m",
                limit=8,
                limit_max=8,
                in_flight=1,
                waiting=9,
                rpm=600.0,
                requests_last_minute=600,
            ),
            Gate.REQUEST_BUDGET,
            "whose rate limit is used up: 600 of 600 requests a minute",
        ),
        (
            ProviderUse(
                provider="ai",
                model="m",
                limit=8,
                limit_max=8,
                waiting=9,
                tpm=1000.0,
                tokens_last_minute=999,
            ),
            Gate.REQUEST_BUDGET,
            "999 of 1,000 tokens a minute",
        ),
        (
            ProviderUse(provider="other", model="m", limit=8, limit_max=8),
            Gate.PROVIDER_LIMIT,
            "for its provider 'ai', which takes no more requests now",
        ),
    ],
)
def test_a_job_that_waits_for_its_provider_says_what_of_it(
    use: ProviderUse, gate: Gate, said: str
) -> None:
    denied = BlockedTasks("policy", "gate", "ai", 3, 2, NOW, {})
    status = WorkerStatus(captured_at=NOW, providers=(use,))

    leased_job = explain(
        facts(leased(), answers=(answer(LeasePhase.WAITING, denied=denied, status=status),))
    )

    assert leased_job.gate is gate
    assert said in leased_job.sentence
    assert leased_job.command == "penstock providers"
    assert (leased_job.when is not None) == (gate is Gate.COOLDOWN)


def test_a_running_job_that_waits_for_a_permit_says_so() -> None:
    standing = answer(LeasePhase.RUNNING, permit_since_at=NOW - 7 * MICROSECONDS, permit_of="ai")

    found = explain(facts(leased(), answers=(standing,)))

    assert found.gate is Gate.RUNNING
    assert "(7.0 s) for a permit of its provider 'ai'." in found.sentence
    assert (found.when, found.unblocks) == (None, "it gets its permit, and its attempt ends")


def test_a_running_job_whose_permit_waits_for_a_cool_down_names_it_and_its_end() -> None:
    until = NOW + seconds(14 * 60)
    cooling = ProviderUse(
        provider="ai", model="m", limit=8, limit_max=8, refused=3, waiting=1, blocked_until_at=until
    )
    standing = answer(
        LeasePhase.RUNNING,
        permit_since_at=NOW - seconds(7),
        permit_of="ai",
        deadline_at=NOW + seconds(50),
        status=WorkerStatus(captured_at=NOW, providers=(cooling,)),
    )

    found = explain(facts(leased(), answers=(standing,)))

    assert (found.gate, found.when) == (Gate.COOLDOWN, until)
    assert "attempt 1, and its time limit is paused" in found.sentence
    assert "for a permit of its provider 'ai', which cools down for another 14:00: it refused" in (
        found.sentence
    )
    assert found.unblocks == "the cool-down of 'ai' ends"
    assert found.command == "penstock providers"


def test_a_ready_job_whose_task_is_held_back_waits_for_its_provider() -> None:
    use = ProviderUse(provider="ai", model="m", limit=8, limit_max=9, in_flight=8, waiting=9)
    held = WorkerStatus(captured_at=0, providers=(use,), held_back={"fetch": "ai"})

    found = explain(facts(job(), workers=(worker(status=held),)))

    assert found.gate is Gate.PROVIDER_LIMIT
    assert "and waits for its provider 'ai': 8 requests are in flight" in found.sentence
    assert found.worker == W


@pytest.mark.parametrize(
    ("is_gone", "why"),
    [(True, "its process is gone"), (False, "its lease was not renewed in time")],
)
def test_a_job_of_a_worker_that_no_longer_answers_says_when_it_comes_back(
    is_gone: bool, why: str
) -> None:
    held = job(state=JobState.IN_PROGRESS, worker=W)
    dead = UnresponsiveWorker(W, "r", "here", 77, 17.0, is_gone=is_gone, jobs=1)

    found = explain(facts(held, silent={W: dead}))

    assert found.gate is Gate.SILENT
    assert found.when == NOW + seconds(17)
    assert found.command == "penstock queue run"  # nobody else is there
    assert f"(pid 77 on here), which no longer answers: {why}." in found.sentence
    assert "taken back in 17 s" in found.sentence


def test_a_worker_that_no_longer_answers_takes_no_job() -> None:
    dead = UnresponsiveWorker(W, "r", "here", 77, 17.0, is_gone=True, jobs=1)

    assert explain(facts(job(), silent={W: dead})).gate is Gate.NO_WORKER


def test_lent_slots_are_not_slots_more() -> None:
    status = WorkerStatus(captured_at=NOW, slots={"async": SlotUse(256, 20, 5)}, running=20)

    found = explain(
        facts(
            job(state=JobState.IN_PROGRESS, worker=W),
            answers=(answer(LeasePhase.WAITING, status=status),),
        )
    )

    assert "(20 of 256 'async' slots; 5 of them lent while they wait for" in found.details[0]
