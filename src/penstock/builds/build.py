# SPDX-License-Identifier: Apache-2.0
"""Builds of datasets: from a request to a plan whose jobs may run, and to the report of it.

Locks first, then either a plan that was left is taken up again, or a new one is made and all its
jobs are enqueued before any may run. Workers do the rest; at the end the plan is ended and told.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from penstock import process_identity
from penstock.builds.changed_code import ChangedCode
from penstock.builds.locks import LockHolder, format_holders, format_lost_locks
from penstock.builds.report import AskStore, read_report
from penstock.builds.slice import attempt_name, step_task
from penstock.clock import Clock, to_micros
from penstock.errors import BuildLost, OutputFailed, UsageError
from penstock.model.dataset import DatasetSpec, SliceMarks, SliceOutput, built_as
from penstock.model.job import TERMINAL, JobId, JobState
from penstock.model.plan import (
    KEEPER,
    BuildPlan,
    BuildReport,
    BuildRequest,
    LocksTaken,
    Placement,
    PlanFacts,
    PlanRow,
    PlanState,
)
from penstock.outputs.garbage import collect_garbage
from penstock.outputs.paths import attempt_mark
from penstock.outputs.root import OutputRoot, claim_root
from penstock.planning.build_plan import plan_build, request_digest
from penstock.planning.graph import closure
from penstock.planning.plan_jobs import PlanKeys, plan_jobs, with_plan_id
from penstock.sentences import command, counted
from penstock.stores.protocol import Store
from penstock.stores.retry import StoreRetry
from penstock.stores.store_future import Reply
from penstock.worker.parts import Stopping
from penstock.worker.worker import Worker

TIDY_SLICE = 1_000  # manifests in one transaction
LOCKS_SECONDS = 0.5  # between two tries to get locks that others hold
SAY_AFTER_SECONDS = 10.0  # a wait says its reason once it is this long
SWEEP_SHARE = 20  # files are looked through if at most so many slices are there for one to build
PATHS_AT_ONCE = 5_000
PLAN_IDS_MAX = 10_000  # failed builds of the very same slices
STEPS = "build"  # the group of barriers, gates, joins and ends
WAITS = "The build has to wait"

log = logging.getLogger("penstock.build")

T = TypeVar("T")

_output = msgspec.json.Decoder(SliceOutput).decode


async def end_build(
    store: Store, ask: AskStore, plan_id: str, facts: PlanFacts, run_id: str
) -> BuildReport:
    """End a plan whose jobs have all ended; one that has not is left. The run's locks are free."""
    last = await ask(partial(store.job, PlanKeys(plan_id).end))
    ended = last is None or last.state in TERMINAL
    report = await read_report(store, ask, plan_id, facts, run_id, stopped=not ended)
    if not ended:
        await ask(partial(store.release_locks, run_id, facts.datasets))
        return report
    await ask(partial(store.end_plan, plan_id))
    while (await ask(partial(store.tidy_manifests, TIDY_SLICE))).more:
        pass
    return report


class Aside(Protocol):
    """Does something that blocks elsewhere."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A plan whose jobs may run."""

    plan_id: str
    plan: BuildPlan | None  # None: it was taken up again, and is known to the store only
    facts: PlanFacts
    jobs: int  # that build slices
    levels: int

    @property
    def end_key(self) -> str:
        """The job whose end is the plan's."""
        return PlanKeys(self.plan_id).end


@dataclass(frozen=True, slots=True)
class BuildScope:
    """The datasets of an app, and where their jobs and slices go."""

    app: str
    specs: Mapping[str, DatasetSpec]
    placements: Mapping[str, Placement]  # where the jobs of each dataset go
    root: OutputRoot  # where slices are kept
    code_of: Callable[[str], str | None]  # the fingerprint of a dataset's function
    is_whole: Callable[[SliceOutput], bool] | None = None  # else it is outdated; None: all are
    told: set[str] = field(default_factory=set)  # datasets whose code was told to have changed


class Build:
    """Owns one build from its locks to its report. Belongs to one loop."""

    def __init__(
        self,
        scope: BuildScope,
        request: BuildRequest,
        holder: LockHolder,
        store: Store,
        clock: Clock,
        *,
        rand: Callable[[], float],
        aside: Aside,
        now_at: int | None = None,
    ) -> None:
        """Nothing has begun.

        Args:
            scope: all datasets of the app.
            request: what is to be there.
            holder: of the locks.
            store: where plans are kept.
            clock: the time.
            rand: numbers in [0, 1), for back-offs.
            aside: does what blocks.
            now_at: what lies later is left out; None: what the clock says.
        """
        self._scope = scope
        self._request = request
        self._holder = holder
        self._store = store
        self._clock = clock
        self._aside = aside
        self._now_at = now_at
        self._retry = StoreRetry(log, clock, rand)
        self.names = tuple(sorted(closure(scope.specs, request.targets)))
        self.prepared: Prepared | None = None
        self.has_locks = False
        self.facts: PlanFacts | None = None  # of the plan, also if nothing is to be built
        self._has_abandoned = False  # a plan of somebody who is gone
        self.is_lost = False  # somebody else has taken a lock

    @property
    def digest(self) -> str:
        """By which a plan of the same request is known."""
        return request_digest(self._scope.specs, self._request, self._scope.root.id)

    async def try_lock(self) -> LocksTaken:
        """Take the locks of all datasets, unless others hold one of them.

        Raises:
            UsageError: the root is another store's.
        """
        await self._claim_root()
        answer = await self._take()
        self.has_locks = answer.taken
        return answer

    async def lock(self) -> None:
        """Take the locks of all datasets, however long others hold them.

        Raises:
            UsageError: the root is another store's.
        """
        await self._claim_root()
        since, told = self._clock.monotonic(), False
        while not (answer := await self._take()).taken:
            if not told and self._clock.monotonic() - since >= SAY_AFTER_SECONDS:
                told = True
                log.info("Waiting: %s.", format_holders(answer.held))
            await self._clock.sleep(LOCKS_SECONDS)
        self.has_locks = True
        if told:
            log.info("The datasets are free now; the build goes on.")

    async def prepare(self) -> Prepared | None:
        """With the locks, see that there is a plan whose jobs may run; None: up to date.

        Raises:
            BuildLost: somebody else has taken the locks meanwhile.
            UsageError: what is asked for cannot be planned.
        """
        digest = self.digest
        self.prepared = await self._take_up(digest) or await self._begin(digest)
        return self.prepared

    async def finish(self) -> BuildReport:
        """What came of it; if the plan has not ended, it is left for the next who asks the same.

        Raises:
            BuildLost: somebody else has taken the locks meanwhile.
        """
        if self.is_lost:
            raise await self.lost()
        prepared = self.prepared
        if prepared is None:
            fresh = 0 if self.facts is None else self.facts.fresh
            return BuildReport(plan_id=None, run_id=self._holder.run_id, fresh=fresh)
        report = await end_build(
            self._store, self._ask, prepared.plan_id, prepared.facts, self._holder.run_id
        )
        self.has_locks = False
        return report

    async def release(self) -> None:
        """Let the locks go; a plan that has not ended is left."""
        if self.has_locks:
            self.has_locks = False
            await self._ask(partial(self._store.release_locks, self._holder.run_id, self.names))

    async def lost(self) -> BuildLost:
        """The error that names the current holders of the locks."""
        locks = await self._ask(self._store.locks)
        return BuildLost(format_lost_locks(locks, self.names, self._holder.run_id))

    async def _ask(self, ask: Callable[[], Reply[T]]) -> T:
        return await self._retry.until_answered(WAITS, ask)

    async def _claim_root(self) -> None:
        own = self._holder.run_id.rpartition(KEEPER)[2]
        owner = await self._ask(partial(self._store.own_name, f"store-{own}"))
        await self._aside(lambda: claim_root(self._scope.root, owner))

    async def _take(self) -> LocksTaken:
        """Ask for the locks; those of runs that are certainly gone are released first."""
        gone = [] if self._holder.unit is None else [self._holder.mark]
        while True:
            answer = await self._ask(
                partial(
                    self._store.take_locks,
                    self.names,
                    self._holder.run_id,
                    self._holder.mark,
                    self._holder.ttl_seconds,
                    gone,
                )
            )
            dead = [m for m in {x.mark for x in answer.held} if process_identity.is_gone(m)]
            if answer.taken or not set(dead) - set(gone):
                return answer
            gone.extend(dead)

    async def _take_up(self, digest: str) -> Prepared | None:
        """Go on with a plan of the same request that was left; give up every other one."""
        taken: Prepared | None = None
        for row in await self._ask(self._store.open_plans):
            facts = PlanFacts.read(row.document)
            if not set(facts.datasets) & set(self.names):
                continue  # others hold its locks, or may take it up
            same = row.digest == digest and row.state is PlanState.LEFT and taken is None
            adopt = partial(self._store.adopt_plan, row.id, self._holder.run_id)
            if same and await self._ask(adopt):
                taken = Prepared(
                    plan_id=row.id, plan=None, facts=facts, jobs=row.jobs, levels=row.levels
                )
                size = _format_size(facts, row.jobs, row.levels)
                log.info("Resumed plan %s where it was left: %s.", row.id, size)
                for name in self.names:
                    await self._sweep(name, row.id)
            else:
                await self._abandon(row.id)
        return taken

    async def _abandon(self, plan_id: str) -> None:
        self._has_abandoned = True
        await self._ask(partial(self._store.abandon_plan, plan_id))
        while (await self._ask(partial(self._store.cancel_plan, plan_id))).more:
            pass

    async def _begin(self, digest: str) -> Prepared | None:
        """Make a plan and enqueue its jobs; None: everything is up to date."""
        now = to_micros(self._clock.now()) if self._now_at is None else self._now_at
        plan: BuildPlan = await self._aside(lambda: self._plan(now))
        facts = PlanFacts.of(plan, self._request, self.names)
        self.facts = facts
        if not plan.jobs:
            return None
        plan = await self._added(plan, facts, digest)
        for name in self._to_sweep(plan):
            await self._sweep(name, plan.plan_id)
        await self._enqueue(plan)
        if not await self._ask(partial(self._store.begin_plan, plan.plan_id, self._holder.run_id)):
            self.has_locks = False
            raise await self.lost()
        size = _format_size(facts, plan.jobs, len(plan.levels))
        log.info("Planned %s as plan %s: %s.", ", ".join(plan.targets), plan.plan_id, size)
        return Prepared(
            plan_id=plan.plan_id, plan=plan, facts=facts, jobs=plan.jobs, levels=len(plan.levels)
        )

    def _to_sweep(self, plan: BuildPlan) -> list[str]:
        """Datasets whose files are looked through: where something was left, or much is built.

        Looking costs as much as there are slices, so that it goes with the work that is done.
        """
        if self._has_abandoned:
            return list(self.names)
        return [
            name
            for name, counts in plan.counts.items()
            if counts.fresh <= SWEEP_SHARE * (counts.needed - counts.fresh)
        ]

    async def _sweep(self, name: str, plan_id: str) -> None:
        """Remove files of a dataset that no manifest names; its lock is ours.

        Those of attempts that others still make for this plan stay.
        """
        alive: set[str] = set()
        named = partial(self._paths, name, plan_id, alive)
        try:
            swept = await self._aside(lambda: collect_garbage(self._scope.root, name, named, alive))
        except OutputFailed as error:
            log.warning("%s The build goes on.", error)
            return
        if swept.files or swept.staged:
            files = counted(swept.files, "unreferenced file")
            log.info("%s of %r %s removed.", files, name, "was" if swept.files == 1 else "were")

    def _paths(self, name: str, plan_id: str, alive: set[str]) -> Iterator[str]:
        """What manifests name, visible or not; first, who may still add to them is noted."""
        after = JobId(0)
        running = (JobState.IN_PROGRESS,)
        while jobs := self._store.plan_jobs(plan_id, running, after, PATHS_AT_ONCE).result():
            after = jobs[-1].id
            alive.update(attempt_mark(attempt_name(job.id, job.token)) for job in jobs)
        last = 0
        while page := self._store.named_paths(name, last, PATHS_AT_ONCE).result():
            last = page[-1][0]
            for _, document in page:
                yield from _output(document).paths

    def _plan(self, now: int) -> BuildPlan:
        scope = self._scope
        code = ChangedCode(self._store, scope.code_of, scope.told)

        def marks(dataset: str, start: int, end: int, version: str) -> SliceMarks:
            found = code.marks(dataset, start, end, built_as(version, scope.root.id))
            return found if scope.is_whole is None else self._whole(dataset, found, scope.is_whole)

        plan = plan_build(scope.specs, self._request, marks, now)
        if not self._request.force:
            code.warn()
        return plan

    def _whole(
        self, dataset: str, found: SliceMarks, is_whole: Callable[[SliceOutput], bool]
    ) -> SliceMarks:
        """Count what is there in part as outdated."""
        part: set[int] = set()
        start, end = (found.ats[0], found.ats[-1] + 1) if found.ats else (0, 0)
        while start < end:
            rows = self._store.manifests(dataset, start, end, PATHS_AT_ONCE).result().rows
            part.update(row.at for row in rows if not is_whole(_output(row.document)))
            start = rows[-1].at + 1 if len(rows) == PATHS_AT_ONCE else end
        if not part:
            return found
        kept = [place for place, at in enumerate(found.ats) if at not in part]
        return msgspec.structs.replace(
            found,
            ats=array("q", [found.ats[place] for place in kept]),
            seqs=array("q", [found.seqs[place] for place in kept]),
            bases=array("q", [found.bases[place] for place in kept]),
            outdated=array("q", sorted({*found.outdated, *part})),
        )

    async def _added(self, plan: BuildPlan, facts: PlanFacts, digest: str) -> BuildPlan:
        """Keep the draft, under an id of its own: the same plan may have failed before."""
        first = plan.plan_id
        for number in range(1, PLAN_IDS_MAX):
            if number > 1:
                plan = with_plan_id(plan, f"{first}-{number}")
            row = PlanRow(
                id=plan.plan_id,
                app=self._scope.app,
                digest=digest,
                run_id=self._holder.run_id,
                root=self._scope.root.id,
                document=facts.document(),
                levels=len(plan.levels),
                jobs=plan.jobs,
            )
            if await self._ask(partial(self._store.add_plan, row)):
                return plan
        raise UsageError(
            f"This build has failed {PLAN_IDS_MAX:,} times before; forget old jobs with "
            f"'{command('queue', 'purge')}'."
        )

    async def _enqueue(self, plan: BuildPlan) -> None:
        """All jobs, in batches; none may run before the last is there."""
        request = self._request
        jobs = plan_jobs(
            plan,
            self._scope.placements.__getitem__,
            Placement(task=step_task(self._scope.root.id), group=STEPS),
            eager=request.eager,
            fail_fast=request.fail_fast,
            unit=self._holder.unit,
        )
        while batch := await self._aside(lambda: list(islice(jobs, self._store.bulk_jobs))):
            await self._ask(partial(self._store.enqueue, batch))


def _format_size(facts: PlanFacts, jobs: int, levels: int) -> str:
    """How much a plan is to build."""
    return (
        f"{facts.slices:,} slice{'' if facts.slices == 1 else 's'} in "
        f"{jobs:,} job{'' if jobs == 1 else 's'}, {levels:,} level{'' if levels == 1 else 's'}"
    )


#: Works until the job of a key has ended; tells of its worker as soon as there is one. The answer
#: says which budget has stopped it before, if any.
Work = Callable[[str, Callable[[Worker], None]], Awaitable[str | None]]


class Beat(Protocol):
    """Whoever renews the locks."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class EmbeddedBuild:
    """Owns one build, its beat and its worker. Belongs to one loop."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._worker: Worker | None = None
        self._loop = asyncio.get_running_loop()

    def has_locks(self) -> bool:
        return self._build.has_locks

    def lost(self) -> None:
        """Somebody else has the locks: from any thread."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._build.is_lost = True
        if self._worker is not None:
            self._worker.stop(Stopping.NOW)

    async def run(self, beat: Beat, work: Work) -> BuildReport:
        """Prepare, work and finish; whatever happens, the locks are let go."""
        beat.start()
        try:
            await self._build.lock()
            prepared = await self._build.prepare()
            over_budget = None
            if prepared is not None and not self._build.is_lost:
                over_budget = await work(prepared.end_key, self._begun)
            report = await self._build.finish()
            return msgspec.structs.replace(report, over_budget=over_budget)
        finally:
            beat.stop()
            await self._build.release()

    def _begun(self, worker: Worker) -> None:
        self._worker = worker
        if self._build.is_lost:
            worker.stop(Stopping.NOW)
