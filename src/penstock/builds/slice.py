# SPDX-License-Identifier: Apache-2.0
"""The slice and step kinds of job: build slices, write them, stage and commit their manifests.

The body calls the user's function with what was read for the job before it started, and writes what
that returns. Its end stages one manifest for each slice; the end of a barrier commits a level.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from penstock.builds.report import end_kept_plan, kept_cursor, log_kept_end
from penstock.definitions.context import Context, JobInfo
from penstock.definitions.dataset import Dataset
from penstock.definitions.task import Task, TaskOptions
from penstock.errors import InternalError, Skip, UsageError
from penstock.model.dataset import SliceOutput, built_as, task_name, utc_datetime
from penstock.model.job import SLICE, STEP, AttemptError, ErrorCategory, JobState, LeasedJob
from penstock.model.lease import (
    CommitLevel,
    Effect,
    EnqueueJobs,
    JobEnd,
    SetCursor,
    StageManifest,
)
from penstock.model.plan import BuildReport, SlicePayload, Step, StepPayload
from penstock.outputs.garbage import remove_attempt_files
from penstock.outputs.paths import attempt_mark, slice_names
from penstock.outputs.read import Slices, SlicesData
from penstock.outputs.root import OutputRoot
from penstock.outputs.write import encode_slices, write_slices
from penstock.worker.attempt import Attempt, AttemptEnd, Encoded
from penstock.worker.job_kind import PlainKind, PreflightValues
from penstock.worker.kind import JobReader
from penstock.worker.parts import WorkerParts

WAITS = "Ending the plan of a schedule has to wait"

T = TypeVar("T")

_Built = dict[str, list[tuple[int, int]]]
_NOTHING: _Built = {}

_payload = msgspec.json.Decoder(SlicePayload).decode
_step_payload = msgspec.json.Decoder(StepPayload).decode


class SliceInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What was read for a job before it started."""

    basis: int = 0  # the store's commit number at that read
    needs: tuple[SlicesData, ...] = ()
    missing: str | None = None  # what is needed and not there: the job cannot be done
    report: BuildReport | None = None  # of the plan of a schedule, of which this is the end
    failed: str | None = None  # what failed before: the job is skipped
    old: SliceOutput | None = None  # the slice that is there already, if its task reads that
    until: int | None = None  # where the range of its plan ends


class SliceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All that a body needs, wherever it runs."""

    root: str  # the folder
    root_id: str
    job_id: int
    token: int  # of this attempt; every lease of the job has a higher one
    inputs: SliceInputs

    @property
    def attempt(self) -> str:
        """What no other attempt of any job is called by."""
        return attempt_name(self.job_id, self.token)

    @property
    def earlier(self) -> list[str]:
        """The attempts before: they have lost the job, and nothing of theirs can be named."""
        return [attempt_name(self.job_id, token) for token in range(1, self.token)]


class SliceContext(Context):
    """The context of a job that builds slices; its user sees a Context."""

    __slots__ = ("_order",)

    def __init__(self, job: JobInfo, preflight: Mapping[str, str], order: SliceOrder) -> None:
        super().__init__(job, preflight)
        self._order = order


class SliceSite:
    """Owns where one run reads and writes slices."""

    def __init__(self, root: OutputRoot, datasets: Mapping[str, Dataset[..., Any]]) -> None:
        self.root = root
        self.datasets = datasets
        self.specs = {name: dataset.spec for name, dataset in datasets.items()}
        self.parts: WorkerParts | None = None

    def connect(self, parts: WorkerParts) -> None:
        """The worker that serves it: its threads write what coroutines return."""
        self.parts = parts

    def order(self, job: LeasedJob) -> SliceOrder:
        """What the body of a job is told."""
        inputs = _inputs(job)
        return SliceOrder(
            root=self.root.path,
            root_id=self.root.id,
            job_id=job.id,
            token=job.token,
            inputs=inputs,
        )

    async def aside(self, call: Callable[[], T]) -> T:
        """Do something that blocks in a thread of the worker."""
        if self.parts is None:
            raise InternalError("This run has no worker.")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(value: T, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        self.parts.threads.submit(call, done)
        return await answer


class SliceTask(Task[..., Any]):
    """The task of the jobs that build one dataset in one root."""

    reads_old = False  # a job is given the slice that it replaces

    @property
    def caps(self) -> Mapping[str, int]:
        """The keyed limits of its jobs, unless the settings say others."""
        return {}

    def __init__(
        self,
        site: SliceSite,
        dataset: Dataset[..., Any],
        body: Callable[..., Any] | None = None,
    ) -> None:
        """Let the function of a dataset, or a body of its own, build slices."""
        self.site = site
        self.dataset = dataset
        if body is None:
            body = _async_body(site, dataset) if dataset.is_async else _body(site, dataset)
        super().__init__(slice_task(dataset.name, site.root.id), body, dataset.task.options)


class StepTask(Task[..., Any]):
    """The task of the steps between jobs that build slices in one root."""

    def __init__(self, site: SliceSite) -> None:
        super().__init__(step_task(site.root.id), _step, TaskOptions())


def slice_task(dataset: str, root_id: str) -> str:
    """The task of jobs that build slices of a dataset in a root."""
    return f"{SLICE}{dataset}#{root_id}"


def attempt_name(job_id: int, token: int) -> str:
    """What no other attempt of any job is called by."""
    return f"{job_id}:{token}"


def step_task(root_id: str) -> str:
    """The task of barriers, gates, joins and ends of plans in a root."""
    return f"{STEP}#{root_id}"


def slice_tasks(
    site: SliceSite,
    names: Iterable[str],
    task_of: Callable[[SliceSite, Dataset[..., Any]], SliceTask] = SliceTask,
) -> dict[str, Task[..., Any]]:
    """The tasks of some datasets, and that of steps between their jobs."""
    slices = [task_of(site, site.datasets[name]) for name in names]
    tasks: list[Task[..., Any]] = [*slices, StepTask(site)]
    return {task.name: task for task in tasks}


async def _step(
    ctx: Context,
    step: str,
    level: int | None = None,
    fail_fast: bool = False,
    unit: str | None = None,
) -> None:
    """A barrier, a gate, a join or an end: what it does is in its acknowledgement."""


def _async_body(site: SliceSite, dataset: Dataset[..., Any]) -> Callable[..., Any]:
    async def build(
        ctx: Context, at: list[int], eager: bool = False, built: _Built = _NOTHING
    ) -> list[SliceOutput]:
        order = order_of(ctx)
        value = await dataset.function(ctx, **_arguments(dataset, at, order))
        return await site.aside(partial(_written, site.root, dataset, at, order, value))

    return build


def _body(site: SliceSite, dataset: Dataset[..., Any]) -> Callable[..., Any]:
    def build(
        ctx: Context, at: list[int], eager: bool = False, built: _Built = _NOTHING
    ) -> list[SliceOutput]:
        order = order_of(ctx)
        value = dataset.function(ctx, **_arguments(dataset, at, order))
        return _written(site.root, dataset, at, order, value)

    return build


def order_of(ctx: Context) -> SliceOrder:
    """What a body of slices was told."""
    if not isinstance(ctx, SliceContext):
        raise InternalError(
            "A job that builds slices was given the context of another kind of job."
        )
    return ctx._order


def _arguments(dataset: Dataset[..., Any], at: list[int], order: SliceOrder) -> dict[str, Any]:
    """What the user's function is called with, besides its context."""
    inputs = order.inputs
    if inputs.failed is not None:
        raise Skip(f"upstream failed: {inputs.failed}")
    if inputs.missing is not None:
        raise UsageError(inputs.missing)
    zone = ZoneInfo(dataset.calendar.tz)
    moments = [utc_datetime(one).astimezone(zone) for one in at]
    arguments: dict[str, Any] = {"at": moments if dataset.batch > 1 else moments[0]}
    for need, given in zip(dataset.needs, inputs.needs, strict=True):
        arguments[need.argument] = Slices(given)
    return arguments


def _written(
    root: OutputRoot, dataset: Dataset[..., Any], at: list[int], order: SliceOrder, value: object
) -> list[SliceOutput]:
    """Write what the function returned, each slice to a file of its own."""
    named = slice_names(dataset.spec)
    if order.token > 1:
        remove_attempt_files(root, dataset.name, at, {attempt_mark(one) for one in order.earlier})
    slices = encode_slices(value, at, named, batch=dataset.batch > 1)
    return list(write_slices(root, named, slices, order.attempt))


class SliceKind(PlainKind):
    """Jobs that build slices; what they need is read before they enter the prefetch window."""

    payload_is_final = False
    releases_stale = True  # its plan may be over, while its lease is not

    def __init__(
        self,
        tasks: Mapping[str, SliceTask],
        reader: JobReader,
        values: PreflightValues | None = None,
    ) -> None:
        super().__init__(values, reader)
        self._tasks = tasks

    def context(self, job: LeasedJob, started_at: int) -> SliceContext:
        plain = super().context(job, started_at)
        info = plain.job
        shown = JobInfo(info.key, task_name(info.task), info.attempt, info.partition)
        return SliceContext(shown, plain._preflight, self._tasks[job.task].site.order(job))

    def remote_order(self, context: Context) -> str | None:
        return msgspec.json.encode(order_of(context)).decode()

    def encoded(self, attempt: Attempt, value: Any, *, at_once: bool) -> Any:  # noqa: ANN401
        return value  # what its body has written is told by our own code

    def returned(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (whatever the body returned)
        now_at: int,
    ) -> JobEnd:
        task = self._tasks[attempt.job.task]
        return _built(task.dataset, task.site.root.id, attempt, value, now_at)


class StepKind(PlainKind):
    """Barriers, gates, joins and ends of plans: what they do is in their acknowledgement."""

    payload_is_final = False
    releases_stale = True

    def __init__(self, reader: JobReader, parts: WorkerParts) -> None:
        super().__init__(reader=reader)
        self._store = parts.store
        self._retry = parts.retry

    def before(self, attempt: Attempt) -> Coroutine[Any, Any, None] | None:
        """The plan of a schedule ends with its last step; nobody else waits for it."""
        job = attempt.job
        if job.plan_id is None or _unit_of(job) is None:
            return None
        return self._end_plan(job, job.plan_id)

    async def _end_plan(self, job: LeasedJob, plan_id: str) -> None:
        ask = partial(self._retry.until_answered, WAITS)
        job.brought = replace(_inputs(job), report=await end_kept_plan(self._store, ask, plan_id))

    def returned(
        self,
        attempt: Attempt,
        value: Any,  # noqa: ANN401 (nothing)
        now_at: int,
    ) -> JobEnd:
        return _stepped(attempt, now_at)

    def ended(self, job: LeasedJob, end: AttemptEnd) -> str | None:
        unit, report = _unit_of(job), _inputs(job).report if isinstance(end, JobEnd) else None
        if unit is not None and report is not None:
            log_kept_end(unit, report)
        return None


def _built(
    dataset: Dataset[..., Any], root_id: str, attempt: Attempt, value: object, now_at: int
) -> JobEnd:
    """The slices are written: they are staged, or committed at once."""
    job = attempt.job
    inputs = _inputs(job)
    outputs = _outputs(value)
    if job.plan_id is None or job.level is None:
        raise InternalError(f"The job {job.key!r} builds slices but belongs to no plan.")
    effects: list[Effect] = [
        StageManifest(
            dataset=dataset.name,
            at=output.at,
            version=built_as(dataset.version, root_id),
            basis=inputs.basis,
            document=msgspec.json.encode(replace(output, code=dataset.code)).decode(),
            plan_id=job.plan_id,
            level=job.level,
            commit=_payload(job.payload).eager,
        )
        for output in outputs
    ]
    if attempt.context._enqueued:
        effects.append(EnqueueJobs(tuple(attempt.context._enqueued)))
    rows = [output.rows for output in outputs if output.rows is not None]
    result = {
        "rows": sum(rows) if rows else None,
        "bytes": sum(output.bytes for output in outputs),
        "slices": len(outputs),
    }
    return JobEnd(
        job,
        JobState.DONE,
        attempt.started_at,
        now_at,
        msgspec.json.encode(result).decode(),
        None,
        tuple(effects),
    )


def _outputs(value: object) -> list[SliceOutput]:
    """What was written, here or in another process."""
    if isinstance(value, Encoded):
        return msgspec.json.decode(value.text or "[]", type=list[SliceOutput])
    return msgspec.convert(value, list[SliceOutput])


def _stepped(attempt: Attempt, now_at: int) -> JobEnd:
    """A barrier commits its level; whatever else stands between jobs is simply done."""
    job = attempt.job
    payload = _step_payload(job.payload)
    effects: tuple[Effect, ...] = ()
    report = _inputs(job).report
    if payload.unit is not None and report is not None:
        effects = (SetCursor(payload.unit, kept_cursor(report, now_at)),)
    if payload.step is Step.LEVEL and payload.level is not None and job.plan_id is not None:
        effects = (CommitLevel(job.plan_id, payload.level),)
    failed = _inputs(job).failed
    if failed is None:
        return JobEnd(job, JobState.DONE, attempt.started_at, now_at, None, None, effects)
    why = AttemptError(ErrorCategory.OWN, "Skip", f"fail fast: not all of {failed} succeeded")
    return JobEnd(job, JobState.SKIPPED, attempt.started_at, now_at, None, why, effects)


def _unit_of(job: LeasedJob) -> str | None:
    """The unit of the schedule whose plan ends with this step."""
    return _step_payload(job.payload).unit


def _inputs(job: LeasedJob) -> SliceInputs:
    if not isinstance(job.brought, SliceInputs):
        raise InternalError(f"Nothing was read for the job {job.key!r}.")
    return job.brought


def run_remote(
    dataset: Dataset[..., Any], ctx: Context, at: list[int], order: str, run: Callable[[Any], Any]
) -> list[dict[str, Any]]:
    """The same body in a process of its own; `run` gets the value of a coroutine."""
    told = msgspec.json.decode(order, type=SliceOrder)
    value = dataset.function(ctx, **_arguments(dataset, at, told))
    if dataset.is_async:
        value = run(value)
    root = _root(told.root, told.root_id)
    written: list[dict[str, Any]] = msgspec.to_builtins(_written(root, dataset, at, told, value))
    return written


@lru_cache(1)
def _root(path: str, root_id: str) -> OutputRoot:
    return OutputRoot(path, root_id)
