# SPDX-License-Identifier: Apache-2.0
"""Views for people: short reads, each of one state of the database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec

from penstock.clock import MICROSECONDS, BootTime
from penstock.model.dataset import SliceMarks
from penstock.model.job import (
    TERMINAL,
    Attempt,
    AttemptError,
    EdgeKind,
    Job,
    JobId,
    JobKind,
    JobState,
    WorkerId,
    kind_of_name,
)
from penstock.model.lease import JobRef
from penstock.model.provider import ProviderModelKey
from penstock.model.views import (
    FIRST_END,
    Dependency,
    EndMark,
    HeldKey,
    Holder,
    JobContext,
    Outlook,
    ResultPage,
    ResultRow,
    RetryCounts,
    Stats,
    StoredLimit,
    UpstreamRow,
    WorkerView,
)
from penstock.model.worker import Inbox, Question
from penstock.stores.protocol import (
    CHORE_SLICE,
    DELAYED_IN_STATS,
    DEPENDENCIES_SHOWN,
    GROUPS_IN_STATS,
    HOLDERS_SHOWN,
    LEARNED_READ,
    RESULT_PAGE_BYTES,
    JobFilter,
)
from penstock.stores.sql.journal import broken_calls
from penstock.stores.sql.operator import OWNER, refuse_several
from penstock.stores.sql.retention import rows_of_ends
from penstock.stores.sql.row_state import OF_STATE, PUBLIC, RowState
from penstock.stores.sql.schedules import broken_units
from penstock.stores.sql.statements import Row, Statements, as_json

_decode_error = msgspec.json.Decoder(AttemptError).decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode

WINDOW_JOBS = 5_000  # rows that one read of a list looks at
PAUSES_IN_STATS = 100  # schedules and units that are named
LANES_ASKED = 10_000  # lanes times priorities that are asked for their oldest ready job

_OPEN = (JobState.WAITING, JobState.QUEUED, JobState.IN_PROGRESS)
_UNHAPPY = (JobState.SKIPPED, JobState.ERROR, JobState.CANCELLED)
_JUMPS: dict[JobState | None, str] = {
    JobState.WAITING: "next_waiting",
    JobState.QUEUED: "next_queued",
    JobState.IN_PROGRESS: "next_in_progress",
}


class SqlReader(Statements):
    """Answers questions by short reads; how they are run is the backend's."""

    def stats(self, now: int, boot: BootTime, app: int | None) -> Stats:
        """The queue in numbers; states and tasks are those of an app, or of all."""
        tasks: dict[str, dict[JobState, int]] = {}
        schedules: dict[str, dict[JobState, int]] = {}
        states = dict.fromkeys(JobState, 0)
        for task, state, n in self.rows("read_task_counts", app):
            if kind_of_name(task) is JobKind.TICK:
                schedules.setdefault(task, {})[JobState(state)] = n
                continue
            tasks.setdefault(task, {})[JobState(state)] = n
            states[JobState(state)] += n
        armed = sum(counts.get(JobState.QUEUED, 0) for counts in schedules.values())
        names = list(dict.fromkeys(self._some_groups()))[:GROUPS_IN_STATS]
        groups: dict[str, dict[JobState, int]] = {name: {} for name in names}
        wanted, kinds = as_json(names), as_json(list(JobState))
        for group, state, n in self.rows("read_group_counts", wanted, kinds):
            groups[group][JobState(state)] = n
        oldest = self.value("oldest_ready", LANES_ASKED)
        return Stats(
            states=states,
            tasks=tasks,
            groups={name: counts for name, counts in groups.items() if counts},
            groups_total=self.value("count_groups"),
            oldest_ready_seconds=None if oldest is None else max(now - oldest, 0) / MICROSECONDS,
            next_due_at=self.value("next_due"),
            delayed=max(0, self.value("count_delayed", DELAYED_IN_STATS + armed, now) - armed),
            suspects=self.value("count_suspects", app),
            workers=self.value("count_workers", boot.boot_id, boot.at),
            paused=self._is_paused(),
            schedules=schedules,
            paused_schedules=tuple(
                name for (name,) in self.rows("list_pauses", app, PAUSES_IN_STATS)
            ),
        )

    def _is_paused(self) -> bool:
        return bool(self.first("read_meta", "paused") == "1")

    def _some_groups(self) -> list[str]:
        """A bounded number of groups, those with open work first."""
        return [
            name
            for state in (*_OPEN, *TERMINAL)
            for (name,) in self.rows("read_group_names", state, GROUPS_IN_STATS)
        ]

    def outlook(self, worker: WorkerId, run_id: str, boot: BootTime, app: int | None) -> Outlook:
        """What is left to do of an app, or of all."""
        open_by_task: dict[str, dict[JobState, int]] = {}
        for task, state, n in self.rows("read_task_counts", app):
            if state in _OPEN:
                open_by_task.setdefault(task, {})[JobState(state)] = n
        ends = as_json(list(TERMINAL))
        elsewhere: set[str] = set()
        for (tasks,) in self.rows("tasks_elsewhere", boot.boot_id, boot.at, worker, app):
            elsewhere.update(_decode_names(tasks))
        return Outlook(
            open_by_task=open_by_task,
            next_due_at=self.value("next_due"),
            suspects=self.value("count_suspects", app),
            served_elsewhere=frozenset(elsewhere),
            ended_in_run={JobState(s): n for s, n in self.rows("read_run_counts", run_id, ends)},
            paused=self._is_paused(),
        )

    def job(self, key: str, app: int | None) -> Job | None:
        """A job of an app; of any, if only one has a job of this key."""
        found = self.rows("read_job", key, app)
        refuse_several(key, [row[OWNER] for row in found])
        return _job(found[0]) if found else None

    def jobs(self, wanted: JobFilter, after_id: JobId, limit: int, app: int | None) -> list[Job]:
        if wanted.state in _UNHAPPY:
            low = int(OF_STATE[wanted.state])
            rows = self.rows("list_unhappy", after_id, low, wanted.task, limit, app)
            return [_job(row) for row in rows]
        low, high = 0, int(RowState.CANCELLED)
        if wanted.state is JobState.QUEUED:
            low, high = int(RowState.DELAYED), int(RowState.SUSPECT)
        elif wanted.state is not None:
            low = high = int(OF_STATE[wanted.state])
        return [_job(row) for row in self._walk(wanted, after_id, limit, (low, high), app)]

    def _walk(
        self,
        wanted: JobFilter,
        after_id: JobId,
        limit: int,
        states: tuple[int, int],
        app: int | None,
    ) -> list[Row]:
        """Look through jobs by id in short reads; where a read finds none, jump to the next one.

        What has not ended is in small indexes, so the jump does not walk past what has.
        """
        found: list[Row] = []
        at: int | None = after_id
        while len(found) < limit:
            end = self.value("window_end", at, WINDOW_JOBS)
            if end is None:
                break
            most = limit - len(found)
            rows = self.rows("list_jobs", at, end, *states, wanted.task, most, app)
            found += rows
            at = end
            if not rows and wanted.state in _JUMPS:
                following = self.value(_JUMPS[wanted.state], end)
                if following is None:
                    break
                at = following - 1
        return found

    def results(self, task: str, after: EndMark, limit: int, app: int | None) -> ResultPage:
        """One page of results; it looks at no more than WINDOW_JOBS ends."""
        window = self.rows("end_window", *after, WINDOW_JOBS)
        if not window:
            return ResultPage((), after, more=False)
        end = EndMark(*window[0])
        bounds = (*after, *end, task, app, limit, RESULT_PAGE_BYTES)
        found = self.rows("list_results", *bounds)
        results = tuple(ResultRow(key, result) for _, _, key, result in found)
        size = sum(len(result) for *_, result in found if result is not None)
        if len(found) == limit or size > RESULT_PAGE_BYTES // 4:  # characters have up to four
            end = EndMark(found[-1][1], found[-1][0])
        return ResultPage(results, end, more=True)

    def upstream(self, job: JobId) -> list[UpstreamRow]:
        return [
            UpstreamRow(key, task, PUBLIC[row_state], result)
            for key, task, row_state, result in self.rows("list_upstream", job)
        ]

    def jobs_by(self, query: str, *parameters: object) -> list[Job]:
        """Jobs that a statement finds, for people."""
        return [_job(row) for row in self.rows(query, *parameters)]

    @abstractmethod
    def slice_marks(self, dataset: str, start: int, end: int, version: str) -> SliceMarks:
        """What is committed in a range, in numbers."""

    @abstractmethod
    def slice_rows(self, query: str, *parameters: object) -> tuple[int, list[Row]]:
        """The commit number and slices, of one state of the store."""

    def attempts(self, key: str, app: int | None) -> list[Attempt]:
        job = self.job(key, app)
        if job is None:
            return []
        return [
            Attempt(
                token=token,
                worker=WorkerId(worker),
                outcome=outcome,
                started_at=started_at,
                ended_at=ended_at,
                error=None if error is None else _decode_error(error).without_traceback(),
            )
            for token, worker, outcome, started_at, ended_at, error in self.rows(
                "read_attempts", job.id
            )
        ]

    def workers(self, boot: BootTime) -> list[WorkerView]:
        return [
            WorkerView(
                id=WorkerId(id_),
                run_id=run_id,
                host=host,
                pid=pid,
                started_at=started_at,
                alive=left > 0,
                lease_seconds=max(left, 0) / MICROSECONDS,
                tasks=_decode_names(tasks),
                status=status,
                status_at=status_at,
            )
            for id_, run_id, host, pid, started_at, left, tasks, status, status_at in self.rows(
                "list_workers", boot.boot_id, boot.at
            )
        ]

    def learned(self) -> list[StoredLimit]:
        return [
            StoredLimit(ProviderModelKey(provider, model), document, learned_at)
            for provider, model, document, learned_at in self.rows("list_learned", LEARNED_READ)
        ]

    def leases(self, worker: WorkerId) -> list[JobRef]:
        return [JobRef(job_id, token) for job_id, token in self.rows("leased_by_id", worker)]

    def inbox(self, worker: WorkerId) -> Inbox:
        """One statement: workers ask for this all the time."""
        inbox = Inbox([], [])
        for job_id, token, question in self.rows("inbox_of", worker):
            ref = JobRef(job_id, token)
            if question is None:
                inbox.detached.append(ref)
            else:
                inbox.questions.append(Question(question, ref))
        return inbox

    def job_context(self, key: str, now: int, app: int | None) -> JobContext | None:
        job = self.job(key, app)
        if job is None:
            return None
        counts = dict(self.array("count_holders", as_json(job.limit_keys)))
        return JobContext(
            job=job,
            now=now,
            dependencies=tuple(
                Dependency(key, EdgeKind(kind), PUBLIC[row_state], bool(is_open))
                for key, kind, row_state, is_open in self.rows(
                    "read_dependencies", job.id, DEPENDENCIES_SHOWN
                )
            ),
            skipped_by=self.first("read_skipped_by", job.id),
            detached=tuple(WorkerId(name) for (name,) in self.rows("read_detached", job.id)),
            held=tuple(
                HeldKey(limit_key, counts[limit_key], self._holders(limit_key))
                for limit_key in job.limit_keys
            ),
        )

    def _holders(self, limit_key: str) -> tuple[Holder, ...]:
        return tuple(
            Holder(key, None if worker is None else WorkerId(worker), since, bool(detached))
            for key, worker, since, detached in self.rows("read_holders", limit_key, HOLDERS_SHOWN)
        )

    def caps(self) -> dict[str, int]:
        return dict(self.array("all_caps"))

    def check_ready(self) -> None:
        """StoreCorrupt if indexes miss what could be leased; a server answers for its own."""

    def check(self) -> list[str]:
        """Every broken invariant, as sentences."""
        broken = [
            f"The counter of {scope} {name!r} in {state} is {kept}, a count gives {counted}."
            for scope, query in (("task", "check_task_counts"), ("group", "check_group_counts"))
            for name, state, counted, kept in self.rows(query)
        ]
        for query, sentence in (
            ("check_heads", "The head of lane {} is not its first ready job."),
            ("check_held", "{}."),
            ("check_pending", "Job {} has a wrong count of open dependencies."),
            ("check_waiting", "Job {} waits for no other job, or does not wait although it must."),
            ("check_workers", "Job {} has a worker without being in progress, or the reverse."),
            ("check_apps", "Job {} belongs to another app than its lane, or to none."),
            ("check_parked", "Lane {} is parked on a key that nobody will free."),
        ):
            broken += [sentence.format(name) for (name,) in self.rows(query)]
        broken += [f"{sentence}." for (sentence,) in self.rows("check_datasets")]
        return [*broken, *broken_calls(self), *broken_units(self)]


def _job(row: Row) -> Job:
    return Job(
        id=JobId(row[0]),
        key=row[1],
        task=row[2],
        group=row[3],
        partition=row[4],
        limit_keys=_decode_names(row[5]),
        priority=row[6],
        payload=row[7],
        state=PUBLIC[row[8]],
        suspect=row[8] == RowState.SUSPECT,
        token=row[9],
        worker=None if row[10] is None else WorkerId(row[10]),
        attempts=row[11],
        crashes=row[12],
        deferred_since=row[13],
        available_at=row[14],
        pending=row[15],
        plan_id=row[16],
        level=row[17],
        result=row[18],
        last_error=None if row[19] is None else _decode_error(row[19]),
        created_at=row[20],
        updated_at=row[21],
        started_at=row[22],
        finished_at=row[23],
        kind=JobKind(row[24]),
        app=row[OWNER],
    )


ALL = -1  # no limit


def would_retry(
    reader: SqlReader, task: str | None, max_attempts: int | None, app: int | None
) -> RetryCounts:
    """Walk as retry_failed would, with the rows that it would change kept in memory."""
    back: set[int] = set()
    after = 0
    while seen := reader.array("failed_jobs", after, task, max_attempts, CHORE_SLICE, app):
        back.update(job_id for job_id, _, wanted in seen if wanted)
        after = seen[-1][0]
    failed = len(back)
    heap = [child for job_id in sorted(back) for child in _hanging(reader, job_id)]
    heapify(heap)
    last = 0
    while heap:
        job_id = heappop(heap)
        if job_id == last:
            continue
        last = job_id
        spoilt = reader.array("spoilt_by", as_json([job_id]))
        if all(parent in back for _, parent, _, _ in spoilt):
            back.add(job_id)
            for child in _hanging(reader, job_id):
                heappush(heap, child)
    return RetryCounts(failed, len(back) - failed)


def _hanging(reader: SqlReader, parent_id: int) -> list[int]:
    """Jobs that were skipped because of this one."""
    return reader.array("skipped_because", parent_id)


def would_purge(reader: SqlReader, before: int, app: int | None) -> int:
    count, mark = 0, FIRST_END
    while seen := reader.array("old_jobs", before, *mark, CHORE_SLICE, ALL, app):
        count += sum(free for *_, free, _ in seen)
        mark = EndMark(seen[-1][3], seen[-1][0])
    return count


def would_purge_jobs(reader: SqlReader, ends: Sequence[EndMark], app: int | None) -> int:
    return sum(free for *_, free, _ in rows_of_ends(reader, ends, ALL, app))
