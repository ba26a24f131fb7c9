# SPDX-License-Identifier: Apache-2.0
"""What becomes of two operations on one store that run side by side?

The same as if one had come after the other: a world is made anew for each order and for each way
to interleave their statements, everything is worked off, and the ends are compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any

import psycopg

from penstock.errors import PenstockError
from penstock.model.job import (
    TERMINAL,
    AttemptError,
    Edge,
    EdgeKind,
    ErrorCategory,
    JobState,
    LeasedJob,
    NewJob,
    WorkerId,
)
from penstock.model.journal import Answer, CallKey, CallRef, Intent
from penstock.model.lease import (
    CommitLevel,
    ConfiguredCaps,
    EnqueueJobs,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseRequest,
    Rearm,
    StageManifest,
    WorkerInfo,
)
from penstock.model.spending import Amount, Budget, Period
from penstock.model.views import FIRST_END
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from penstock.testing import ManualClock
from tests.postgres.stepping import Choice, SteppedStore, run_stepped
from tests.running_plan import run_plan

CAPS = ConfiguredCaps({"one:*": 1, "two:*": 2, "lone:*": 1})
DAY_SECONDS = 86_400
ROUNDS_MAX = 300  # lease calls that a world may need to be worked off
ERROR = AttemptError(ErrorCategory.OWN, "ValueError", "no")
FOR_EVER = 1e9

Outcome = tuple[Any, ...]


class World:
    """Jobs of every kind, in one state of affairs, under names that no other world has."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.n = fleet, number
        self.store: Store = fleet.plain
        self.clock: ManualClock = fleet.clock
        self.leased: dict[str, tuple[WorkerId, LeasedJob]] = {}
        self.one: WorkerId = WorkerId(self.name("one"))
        self.two: WorkerId = WorkerId(self.name("two"))
        self._build()

    def name(self, key: str) -> str:
        return f"{self.n}-{key}"

    def new(self, key: str, *after: str | Edge, limit: str = "", **more: Any) -> NewJob:
        edges = tuple(
            Edge(self.name(a), EdgeKind.SUCCESS)
            if isinstance(a, str)
            else Edge(self.name(a.key), a.kind)
            for a in after
        )
        group = more.pop("group", key)
        keys = (f"{limit}:{self.n}",) if limit else ()
        return NewJob(
            key=self.name(key),
            task="t",
            payload="{}",
            group=f"{self.n}-{group}",
            limit_keys=keys,
            after=edges,
            **more,
        )

    def put(self, *jobs: NewJob) -> None:
        self.store.enqueue(jobs).result()

    def register(self, name: str, ttl: float = FOR_EVER) -> WorkerId:
        worker = WorkerId(self.name(name))
        info = WorkerInfo(id=worker, run_id="r", tasks=("t",))
        self.store.register(info, ttl).result()
        return worker

    def take(self, worker: WorkerId, limit: int, *, quarantine: bool = False) -> bool:
        """Lease; True if another call may find something."""
        request = LeaseRequest(
            worker=worker, tasks=("t",), limit=limit, caps=CAPS, quarantine=quarantine
        )
        return self.keep(worker, self.store.lease(request).result())

    def keep(self, worker: WorkerId, batch: Any) -> bool:
        for job in batch.jobs:
            self.leased[job.key.partition("-")[2]] = (worker, job)
        return bool(batch.jobs or batch.more)

    def _build(self) -> None:
        store, clock = self.store, self.clock
        clock.advance(3 * DAY_SECONDS)
        mark = FIRST_END
        while (answer := store.purge(self.border, mark).result())[0].more:
            mark = answer[1]
        self.register("one")
        self.register("two")
        run_plan(store, self.name("plan"), self.name("build"))
        self.put(self.new("old"))
        self.take(self.one, 1)
        store.intend([self.intent("old", 1)], ()).result()
        self.done("old")
        clock.advance(2 * DAY_SECONDS)
        lost = self.register("lost", ttl=10.0)
        self.put(self.new("x", limit="two"))
        self.take(lost, 1)
        self.put(self.new("h", limit="one"))
        self.take(self.one, 1)
        self.put(self.new("m1", limit="one", group="m"), self.new("m2", limit="one", group="m"))
        self.take(self.two, 5)
        self.put(self.new("later", delay_seconds=5.0))
        self.put(self.new("p"), self.new("q"), self.new("f"), self.new("e"))
        self.put(self.new("g", limit="two"), self.new("i", limit="lone"))
        self.take(self.one, 6)
        self.put(self.new("i2", limit="lone"))
        self.put(
            self.new("c1", "p"),
            self.new("c2", "p", Edge("q", EdgeKind.FINISHED)),
            self.new("c3", "c2"),
            self.new("s1", "f"),
            self.new("s2", "s1"),
            self.new("s3", "f", "q"),
        )
        self.end("f", JobState.ERROR)
        store.intend([self.intent("e", 1)], ()).result()
        clock.advance(11.0)
        assert set(self.leased) == {"old", "x", "h", "p", "q", "f", "e", "g", "i"}, set(self.leased)
        assert store.check().result() == []

    def intent(self, key: str, micros: int) -> Intent:
        job = self.leased[key][1]
        place = (self.name("run"), "t", "p", "m")
        return Intent(self.call(key), job.token, *place, Amount(micros, 0))

    def call(self, key: str) -> CallKey:
        return CallKey(self.leased[key][1].id, "f", 0)

    @property
    def border(self) -> int:
        return int(self.clock.now_micros - DAY_SECONDS * 1_000_000)

    def job_end(self, key: str, state: JobState = JobState.DONE, *effects: Any) -> JobEnd:
        now = self.clock.now_micros
        error = ERROR if state is JobState.ERROR else None
        return JobEnd(self.leased[key][1], state, now, now, '"r"', error, effects)

    def ref(self, key: str) -> JobRef:
        job = self.leased[key][1]
        return JobRef(job.id, job.token)

    def end(self, key: str, state: JobState) -> None:
        self.store.ack(self.leased[key][0], [self.job_end(key, state)]).result()

    def done(self, key: str) -> None:
        self.end(key, JobState.DONE)

    def failure(self, key: str) -> JobFailure:
        now = self.clock.now_micros
        ref = self.ref(key)
        return JobFailure(ref, self.name(key), "t", ERROR, now, now, 0.0, False, False)

    def work_off(self) -> dict[str, str]:
        """Let the workers that are there end everything; how each job ended."""
        store = self.store
        assert store.check().result() == []
        finished: set[JobRef] = set()
        for _ in range(ROUNDS_MAX):
            for key, (worker, job) in list(self.leased.items()):
                ref = JobRef(job.id, job.token)
                if ref not in finished:
                    finished.add(ref)
                    self.done(key)
                    store.release(worker, [ref]).result()
            self.clock.advance(1.0)
            more = self.take(self.two, 5)
            if not (more or self.take(self.two, 1, quarantine=True)):
                break
        else:
            raise AssertionError("there was always more to do, and it did not come to an end")
        assert store.check().result() == []
        found = {}
        for key in self.fleet.keys(self.n):
            row = store.job(key).result()
            assert row is not None
            found[key.partition("-")[2]] = str(row.state)
            assert row.state in TERMINAL, f"{key} is still {row.state}"
        assert self.fleet.left_over() == {}
        return found | self._datasets()

    def _datasets(self) -> dict[str, str]:
        """Where the plan is, who holds its lock, and which slices are visible."""
        plan = self.store.plan(self.name("plan")).result()
        assert plan is not None
        page = self.store.manifests(self.name("d"), 0, 9, 9).result()
        locks = self.store.locks().result()
        return {
            "plan": str(plan.state),
            "slices": str([row.at for row in page.rows]),
            "holders": str(
                sorted(
                    lock.run_id.partition("-")[2]
                    for lock in locks
                    if lock.run_id.startswith(f"{self.n}-")
                )
            ),
        }


Act = Callable[[World, Store], Any]


def _ack(key: str, state: JobState = JobState.DONE) -> Act:
    return lambda w, s: s.ack(w.one, [w.job_end(key, state)]).result()


def _with(key: str, effect: Callable[[World], Any]) -> Act:
    return lambda w, s: s.ack(w.one, [w.job_end(key, JobState.DONE, effect(w))]).result()


def _enqueue(make: Callable[[World], Sequence[NewJob]]) -> Act:
    def act(world: World, store: Store) -> Any:
        return sorted(k.partition("-")[2] for k in store.enqueue(make(world)).result().created)

    return act


def _cancel(*keys: str) -> Act:
    def act(world: World, store: Store) -> Any:
        names = [world.name(key) for key in keys]
        return sorted(k.partition("-")[2] for k in store.cancel(names).result())

    return act


def _lease(world: World, store: Store) -> None:
    request = LeaseRequest(worker=world.two, tasks=("t",), limit=8, caps=CAPS)
    world.keep(world.two, store.lease(request).result())


def _ack_and_lease(world: World, store: Store) -> Any:
    """Both in one transaction, as the group commit would have it."""
    ack = store.ack(world.one, [world.job_end("g")])
    _lease(world, store)
    return ack.result()


def _retry(world: World, store: Store) -> None:
    settled = store.retry_failed("t", None).result()
    for _ in range(ROUNDS_MAX):
        if not settled.more:
            return
        settled = store.settle().result()
    raise AssertionError("a retry does not come to an end")


def _purge(world: World, store: Store) -> None:
    mark = FIRST_END
    for _ in range(ROUNDS_MAX):
        progress, mark = store.purge(world.border, mark).result()
        if not progress.more:
            return
    raise AssertionError("a purge does not come to an end")


def _settle(world: World, store: Store) -> None:
    store.settle().result()


def _cap(value: int | None) -> Act:
    return lambda w, s: s.set_cap(f"one:{w.n}", value).result()


def _end_worker(how: str) -> Act:
    def act(world: World, store: Store) -> None:
        for _ in range(ROUNDS_MAX):
            if how == "retire":
                answer = store.retire(world.one).result()
            else:
                answer = store.reap(world.one, [world.ref("p")], "killed", 3).result()
            if not answer.more:
                return

    return act


def _register(world: World, store: Store) -> None:
    worker = WorkerId(world.name("new"))
    store.register(WorkerInfo(id=worker, run_id="r", tasks=("t",)), FOR_EVER).result()


def _stage(at: int) -> Callable[[World], Any]:
    return lambda w: StageManifest(
        dataset=w.name("d"),
        at=at,
        version="1",
        basis=0,
        document="{}",
        plan_id=w.name("plan"),
        level=0,
        commit=True,
    )


def _staged(world: World) -> StageManifest:
    return StageManifest(
        dataset=world.name("d"),
        at=2,
        version="1",
        basis=0,
        document="{}",
        plan_id=world.name("plan"),
        level=1,
    )


def _takes(run: str) -> Act:
    """All locks of this world, those of the run that builds included: its mark is gone."""

    def act(world: World, store: Store) -> Any:
        names = [f"lock of {world.name('plan')}", world.name("a")]
        names = names if run == "b" else names[::-1]
        taken = store.take_locks(names, world.name(run), run, FOR_EVER, ["mark"]).result()
        held = {lock.run_id.partition("-")[2] for lock in taken.held}
        return taken.taken, sorted(held), len(taken.left)

    return act


def _on_plan(name: str) -> Act:
    return lambda w, s: getattr(s, f"{name}_plan")(w.name("plan")).result()


def _intend(key: str) -> Act:
    """Six of the ten that the budget of the run allows, of which two are reserved."""

    def act(world: World, store: Store) -> Any:
        budget = Budget("all", Period.RUN, micros=10)
        return [v.written for v in store.intend([world.intent(key, 6)], [budget]).result()]

    return act


def _answered(key: str) -> Act:
    return lambda w, s: s.answered([Answer(w.call(key), 200, (), b"", Amount(3, 0))]).result()


FINISHED = EdgeKind.FINISHED

#: name → what it does; each is one call, or the few that its caller would make
ACTS: dict[str, Act] = {
    "ack p": _ack("p"),
    "ack q": _ack("q"),
    "ack q, p": lambda w, s: s.ack(w.one, [w.job_end("q"), w.job_end("p")]).result(),
    "p fails": _ack("p", JobState.ERROR),
    "q fails": _ack("q", JobState.ERROR),
    "ack h": _ack("h"),
    "h again": lambda w, s: s.fail_and_retry(w.one, [w.failure("h")]).result(),
    "ack i": _ack("i"),
    "ack g, lease": _ack_and_lease,
    "release h": lambda w, s: s.release(w.one, [w.ref("h")]).result(),
    "revoke p": lambda w, s: s.revoke(w.ref("p"), "why").result(),
    "revoke h": lambda w, s: s.revoke(w.ref("h"), "why").result(),
    "cancel p": _cancel("p"),
    "cancel c2, p": _cancel("c2", "p"),
    "cancel m1, h": _cancel("m1", "h"),
    "after p, q": _enqueue(lambda w: [w.new("y1", "q", "p"), w.new("y2", Edge("p", FINISHED))]),
    "after f": _enqueue(lambda w: [w.new("y3", "f"), w.new("y4", "y3")]),
    "after s2": _enqueue(lambda w: [w.new("y5", "s2"), w.new("y6", "c3")]),
    "after old": _enqueue(lambda w: [w.new("y7", "old"), w.new("y8", group="old")]),
    "old again": _enqueue(lambda w: [w.new("old")]),
    "a": _enqueue(lambda w: [w.new("a")]),
    "a, b after a": _enqueue(lambda w: [w.new("a"), w.new("b", "a")]),
    "into e": _enqueue(lambda w: [w.new("z1", group="e")]),
    "into m": _enqueue(lambda w: [w.new("z2", limit="one", group="m")]),
    "lease": _lease,
    "retry": _retry,
    "purge": _purge,
    "settle": _settle,
    "cap 2": _cap(2),
    "cap 0": _cap(0),
    "register": _register,
    "retire": _end_worker("retire"),
    "reap": _end_worker("reap"),
    "e commits s": _with("e", lambda w: _stage(1)(w)),
    "q commits s": _with("q", lambda w: _stage(1)(w)),
    "q stages l": _with("q", lambda w: _staged(w)),
    "e commits l": _with("e", lambda w: CommitLevel(w.name("plan"), 1)),
    "a takes": _takes("a"),
    "b takes": _takes("b"),
    "beats": lambda w, s: s.beat_locks(w.name("build"), FOR_EVER).result(),
    "plan ends": _on_plan("end"),
    "plan cancelled": _on_plan("cancel"),
    "tidies": lambda w, s: s.tidy_manifests(10).result().more,
    "e adds": _with("e", lambda w: EnqueueJobs((w.new("v1", "p"), w.new("v2", "e")))),
    "p intends": _intend("p"),
    "q intends": _intend("q"),
    "e answered": _answered("e"),
    "old answered": _answered("old"),
    "e closed": lambda w, s: s.closed([CallRef(w.call("e"), w.ref("e").token)]).result(),
    "e rearms": _with("e", lambda w: Rearm(w.clock.now_micros + 1_000_000)),
}


class Fleet:
    """Stores on one database, two of which can be led step by step, and one clock for all."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.plain = open_postgres(url, durability="normal", server_time=self.now)
        self.led = [SteppedStore(url, self.now) for _ in range(2)]
        self.watch = psycopg.connect(url, autocommit=True)
        self._numbers = count(1)
        self._serial: dict[tuple[str, str], list[Outcome]] = {}

    def now(self) -> int:
        return self.clock.now_micros

    def close(self) -> None:
        for store in (self.plain, *self.led):
            store.close()
        self.watch.close()

    def keys(self, number: int) -> list[str]:
        found = self.watch.execute(
            "select key from penstock.jobs where key >= %s and key < %s",
            (f"{number}-", f"{number}."),
        )
        return [key for (key,) in found]

    def left_over(self) -> dict[str, int]:
        """Rows that nobody needs when all is done."""
        names = ("hot", "held", "detached", "settling", "reviving", "revivable")
        found = {}
        for name in names:
            row = self.watch.execute(f"select count(*) from penstock.{name}".encode()).fetchone()
            if row and row[0]:
                found[name] = row[0]
        return found

    def deadlocks(self) -> int:
        row = self.watch.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone()
        return int(row[0]) if row else 0

    def serial(self, first: str, second: str) -> list[Outcome]:
        """What may become of two operations: one after the other."""
        pair = (first, second)
        if pair not in self._serial:
            self._serial[pair] = [
                self._outcome(pair, partial(self._in_order, pair, order))
                for order in ((0, 1), (1, 0))
            ]
        return self._serial[pair]

    def _in_order(self, pair: tuple[str, str], order: tuple[int, int], world: World) -> list[Any]:
        answers: list[Any] = [None, None]
        for place in order:
            try:
                answers[place] = ACTS[pair[place]](world, self.plain)
            except PenstockError as error:
                answers[place] = type(error).__name__
        return answers

    def together(self, first: str, second: str, choose: Choice) -> Outcome:
        """What became of two operations whose statements alternate as is chosen."""
        pair = (first, second)

        def run(world: World) -> list[Any]:
            calls = [
                (store, lambda s, name=name: ACTS[name](world, s))
                for store, name in zip(self.led, pair, strict=True)
            ]
            return run_stepped(self.watch, calls, choose)

        return self._outcome(pair, run)

    def _outcome(self, pair: tuple[str, str], run: Callable[[World], list[Any]]) -> Outcome:
        try:
            world = World(self, next(self._numbers))
            answers = run(world)
            if "cap 0" in pair:
                self.plain.set_cap(f"one:{world.n}", None).result()
            return (*(str(answer) for answer in answers), world.work_off())
        except BaseException:
            self._empty()  # what is left of this world would spoil the next
            raise

    def _empty(self) -> None:
        names = self.watch.execute(
            "select string_agg('penstock.' || relname, ', ') from pg_class where relkind = 'r' "
            "and relnamespace = 'penstock'::regnamespace "
            "and relname not in ('schema_versions', 'meta', 'apps')"
        ).fetchone()
        if names:
            self.watch.execute(f"truncate {names[0]}".encode())

    def statements_of(self) -> int:
        """How many statements the first of the last pair has run."""
        return len(self.led[0].steps.trace)


def preempt(steps: int) -> Choice:
    """The first makes some steps, then the other as many as it can, then the first again."""
    made = 0
    others = 0

    def choose(ready: Sequence[int]) -> int:
        nonlocal made, others
        if made < steps and 0 in ready:
            made += 1
            return 0
        if 1 in ready and others < 200:
            others += 1
            return 1
        return ready[0]

    return choose


def at_random(seed: int) -> Choice:
    """In runs of random length."""
    chance = random.Random(seed)
    last = 0

    def choose(ready: Sequence[int]) -> int:
        nonlocal last
        if last not in ready or chance.random() < 0.3:
            last = ready[chance.randrange(len(ready))]
        return last

    return choose


@contextmanager
def fleet(url: str) -> Iterator[Fleet]:
    open_postgres(url).close()
    with closing(Fleet(url)) as made:
        made.watch.execute("select 1")
        yield made
