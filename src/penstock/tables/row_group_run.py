# SPDX-License-Identifier: Apache-2.0
"""Makes the rows of one row group: what is computed here at once, all else cell by cell.

A cell of a model or a function is a task of the scheduler; seeds, samples, expressions and checks
of a row are computed as soon as what they need is there, without a task of their own. A column that
looks at the whole group is one task, once every cell that it needs has ended. Nothing here is
durable but the answers that were paid for: whoever makes the group again finds them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from penstock.clock import Clock
from penstock.definitions.column import (
    CheckColumn,
    Column,
    FunctionColumn,
    JudgeColumn,
    LlmColumn,
    SeedColumn,
)
from penstock.definitions.context import Context
from penstock.definitions.table import Table
from penstock.definitions.template import TemplateFailed
from penstock.errors import InternalError, TableStopped, TooManyFailures
from penstock.model.provider import ANY, RequestResourceKey
from penstock.model.table import CellError, CellFigures, ColumnKind, DroppedRow, OnFail
from penstock.model.task import SchedulableTask, SchedulerResourceRequest, TaskGroupSpec
from penstock.planning.completion import CompletionTracker, Finished
from penstock.redaction.content_guard import redact_content
from penstock.redaction.secrets import redacted
from penstock.requests import attempt_context
from penstock.requests.attempt_context import AttemptContext
from penstock.retry.policy import RetryPolicy
from penstock.tables.chat import AnswerRejected
from penstock.tables.checks import Verdict, group_verdicts, row_check
from penstock.tables.local_columns import compute, plain_value, plain_values, skipped
from penstock.tables.model_columns import CellTally, FileUnreadable, ModelColumn, ModelRefused
from penstock.tables.seeds import SeedReader
from penstock.tables.value_types import ValueType
from penstock.worker.graph_run import (
    Accepted,
    Again,
    EarlyStop,
    Ends,
    Failed,
    GraphRun,
    RetryJudge,
    Tries,
)
from penstock.worker.graph_run import Verdict as Judgement
from penstock.worker.scheduler import AsyncTaskScheduler
from penstock.worker.thread_executor import ThreadRunner

#: Statuses that another try may turn into an answer; any other below 500 is about the request.
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_COMPUTED = frozenset({ColumnKind.SEED, ColumnKind.SAMPLE, ColumnKind.EXPRESSION})
LOCAL_AT_ONCE = 1_000  # rows that are computed without a turn of the loop


_MakeValue = Callable[[int, Column], Awaitable[Any]]  # of a row and a column


class CellFailed(Exception):
    """A cell has no value; its text quotes neither prompts nor answers."""

    def __init__(
        self, error: CellError, cause: BaseException | None = None, closed: str | None = None
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.cause = cause  # None: another try would meet the same
        self.closed_account = closed  # the provider whose account it has met closed


class _RowDropped(Exception):
    """A check has not been passed, and its row is not wanted."""

    def __init__(self, error: CellError) -> None:
        super().__init__(error.message)
        self.error = error


class Node(msgspec.Struct, frozen=True, gc=False):
    """A task of a row group: one cell, or a column for the whole group."""

    group: Hashable  # which row group
    row: int | None  # None: all
    column: str


class RowGroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of the rows of a group."""

    rows: list[int]  # that were made, by their numbers
    values: list[dict[str, Any]]  # of these
    figures: dict[tuple[int, str], CellFigures]  # by row and column, of cells that were made
    errors: dict[tuple[int, str], CellError]  # of cells that are empty, or of dropped rows
    dropped: list[DroppedRow]


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table with what is known of it before its first row: types, seeds, how cells are asked."""

    table: Table
    types: Mapping[str, ValueType]
    readers: Mapping[str, SeedReader]

    @property
    def group(self) -> TaskGroupSpec:
        """Its columns weigh together as one group of jobs does."""
        return TaskGroupSpec(f"table:{self.table.name}")


class Pressure(Protocol):
    """Whoever counts tasks that will call a provider and have not yet."""

    def began(self, task: Hashable, gate: Hashable, /) -> None: ...

    def asked(self, task: Hashable, /) -> None: ...

    def ended(self, task: Hashable, /) -> None: ...


@dataclass(frozen=True, slots=True)
class RowGroupSite:
    """Where the tasks of a row group run."""

    scheduler: AsyncTaskScheduler
    run_id: str
    clock: Clock
    threads: ThreadRunner
    policy: RetryPolicy
    rand: Callable[[], float]
    pressure: Pressure | None = None  # None: nothing calls a provider
    lends: Mapping[str, int] | None = None  # what whoever runs the group holds itself


class Peers:
    """The row groups of one run of a table that run in this process: what ends one may end all."""

    def __init__(self, early_stop: EarlyStop | None = None) -> None:
        self.early_stop = early_stop
        self.running: set[RowGroupRun] = set()
        self.ended: Exception | None = None  # why no group is begun any more

    def end(self, error: Exception) -> None:
        """Let no group begin any more, and those that run end with this."""
        self.ended = self.ended or error
        for group in self.running:
            group.end(error)


class RowGroupRun:
    """Owns the rows of one group while they are made. Belongs to one loop."""

    def __init__(
        self,
        definition: TableDefinition,
        site: RowGroupSite,
        group: Hashable,
        first_row: int,
        count: int,
        *,
        context: Context | None = None,
        kept: Mapping[str, Mapping[int, Any]] | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Nothing is made yet.

        Args:
            definition: of the table.
            site: where tasks run.
            group: tells it from all that is attached to the scheduler.
            first_row: its number.
            count: of rows.
            context: of the job, for functions that take one.
            kept: values that are there already, by column and row.
            peers: the groups of the table that run in this process.
        """
        self._definition = definition
        self._table = definition.table
        self._site = site
        self._group = group
        self._first = first_row
        self._context = context
        self._kept = kept or {}
        self._peers = Peers() if peers is None else peers
        self._graph: GraphRun | None = None
        self._rows: dict[int, dict[str, Any]] = {
            number: {} for number in range(first_row, first_row + count)
        }
        self._order = [self._table.columns[name] for name in self._table.order]
        self._tasks = [one for one in self._order if not _is_inline(one)]
        self._checks = {
            one.name: row_check(one)
            for one in self._order
            if isinstance(one, CheckColumn) and not one.needs_group
        }
        self._models = {
            one.name: ModelColumn(one)
            for one in self._tasks
            if isinstance(one, LlmColumn | JudgeColumn)
        }
        self._inline_after = _inline_after(self._order)
        self._resources = {one.name: _resources(one) for one in self._tasks}
        self._generations: dict[tuple[int, str], int] = {}  # how often a cell was made
        self._skipped: set[tuple[int, str]] = set()  # with those that need them
        self._figures: dict[tuple[int, str], CellFigures] = {}
        self._errors: dict[tuple[int, str], CellError] = {}
        self._dropped: dict[int, DroppedRow] = {}
        self._tries: dict[tuple[int, str], int] = {}  # of checks, and of cells that were made again
        self._locks: dict[int, asyncio.Lock] = {}  # of rows of which something is made anew
        self._attempt: AttemptContext | None = None  # of the job; None: there is none
        self._judge = {
            one.name: RetryJudge(site.policy, one.attempts, site.clock.now, site.rand)
            for one in self._tasks
        }

    def __repr__(self) -> str:
        made = len(self._rows) - len(self._dropped)
        return f"<RowGroupRun of {self._table.name!r}, {made} of {len(self._rows)} rows>"

    async def run(self, turn: Callable[[], object] | None = None) -> RowGroupResult:
        """Make all rows.

        Raises:
            TooManyFailures: too many of the last cells of a column have failed for good.
            TableStopped: a column with `on_fail="stop"` has.
            Exception: what ends every task: a closed account, a used-up budget, a stop.
        """
        self._attempt = attempt_context.current.get()
        await self._begin()
        nodes = self._nodes()
        if nodes:
            if self._peers.ended is not None:
                raise self._peers.ended
            tracker = CompletionTracker(nodes, self._task_of)
            graph = self._graph = GraphRun(
                tracker,
                self._execute,
                self._verdict,
                self._site.scheduler,
                self._site.run_id,
                early_stop=self._peers.early_stop,
                lends=self._site.lends,
            )
            self._peers.running.add(self)
            try:
                await graph.run(turn)
            except (TableStopped, TooManyFailures) as stopped:
                self._peers.end(stopped)
                raise
            finally:
                self._peers.running.discard(self)
            if not tracker.is_finished:
                raise InternalError(f"{self!r} has ended before its cells.")
        made = [number for number in self._rows if number not in self._dropped]
        return RowGroupResult(
            rows=made,
            values=[self._rows[number] for number in made],
            figures=self._figures,
            errors=self._errors,
            dropped=[self._dropped[number] for number in sorted(self._dropped)],
        )

    # ── What is computed here ─────────────────────────────────────────────────────────────────

    async def _begin(self) -> None:
        """Compute all that needs no task, and take in what is there already."""
        table, seed = self._table, self._table.options.seed
        known: set[str] = set()
        for column in self._order:
            if not (_is_inline(column) and known.issuperset(column.needs)):
                continue
            known.add(column.name)
            if isinstance(column, CheckColumn):
                self._check_all(column)
                continue
            reader = self._definition.readers.get(column.name)
            numbers = list(self._rows)
            for start in range(0, len(numbers), LOCAL_AT_ONCE):
                part = numbers[start : start + LOCAL_AT_ONCE]
                rows = [self._rows[number] for number in part]
                if isinstance(column, SeedColumn):  # files are read
                    values = await self._aside(
                        partial(compute, column, seed, part[0], rows, reader)
                    )
                else:
                    values = compute(column, seed, part[0], rows, reader)
                for number, value in zip(part, values, strict=True):
                    if number not in self._dropped:
                        self._take_in(number, column, value)
                await self._site.clock.sleep(0)
        for name, values in self._kept.items():
            for number, value in values.items():
                if number in self._rows and number not in self._dropped:
                    self._rows[number][name] = value
        for number in self._alive():
            for name in self._kept:
                if number in self._kept[name]:
                    self._follow_or_drop(number, table.columns[name])

    def _check_all(self, column: CheckColumn) -> None:
        for number in self._alive():
            try:
                self._check(number, column)
            except _RowDropped as dropped:
                self._drop(number, dropped.error)
            except CellFailed as failed:
                self._fail_here(number, column, failed.error)

    def _take_in(self, number: int, column: Column, value: Any) -> None:  # noqa: ANN401
        """A value that was computed, or why there is none; by its rule for failures."""
        row = self._rows[number]
        rule = skipped(column, row)
        if isinstance(rule, CellError):
            value = rule
        elif rule or self._is_skipped_along(number, column):
            value = self._skip(number, column)
        if isinstance(value, CellError):
            self._fail_here(number, column, value)
        else:
            row[column.name] = value

    def _fail_here(self, number: int, column: Column, error: CellError) -> None:
        """What follows where a value that is computed here cannot be made."""
        self._errors[number, column.name] = error
        if column.on_fail is OnFail.STOP:
            raise TableStopped(_stopped(self._table.name, number, error))
        if column.on_fail in (OnFail.NULL, OnFail.KEEP):
            self._rows[number][column.name] = None
        else:
            self._drop(number, error)

    def _follow_or_drop(self, number: int, column: Column) -> None:
        try:
            self._follow(number, column.name, again=False)
        except _RowDropped as dropped:
            self._drop(number, dropped.error)
        except CellFailed as failed:
            self._fail_here(number, self._table.columns[failed.error.column], failed.error)

    def _skip(self, number: int, column: Column) -> Any:  # noqa: ANN401
        """Note that a cell is not made; what stands in its place."""
        if column.skip is not None and column.skip.dependants:
            self._skipped.add((number, column.name))
        if self._is_skipped_along(number, column):
            self._skipped.add((number, column.name))
            return None
        return None if column.skip is None else column.skip.value

    def _is_skipped_along(self, number: int, column: Column) -> bool:
        return bool(self._skipped) and any((number, need) in self._skipped for need in column.needs)

    # ── The graph ─────────────────────────────────────────────────────────────────────────────

    def _alive(self) -> list[int]:
        return [number for number in self._rows if number not in self._dropped]

    def _nodes(self) -> dict[Node, list[Hashable]]:
        """The tasks, with what each waits for."""
        nodes: dict[Node, list[Hashable]] = {}
        alive = self._alive()
        for column in self._tasks:
            needs = self._task_needs(column)
            if column.needs_group:
                if alive and not all(self._has(number, column) for number in alive):
                    waits = [node for need in needs for node in self._of(need, alive, nodes)]
                    nodes[Node(self._group, None, column.name)] = [*map(Finished, waits)]
                continue
            for number in alive:
                if not self._has(number, column):
                    waits = [node for need in needs for node in self._of(need, [number], nodes)]
                    nodes[Node(self._group, number, column.name)] = [*waits]
        return nodes

    def _of(self, column: str, numbers: Sequence[int], nodes: Mapping[Node, object]) -> list[Node]:
        """The tasks that make a column of some rows."""
        rows: Iterable[int | None] = numbers
        if self._table.columns[column].needs_group:
            rows = (None,)
        named = (Node(self._group, row, column) for row in rows)
        return [node for node in named if node in nodes]

    def _has(self, number: int, column: Column) -> bool:
        return column.name in self._rows[number]

    def _task_needs(self, column: Column) -> list[str]:
        """The columns with tasks that one needs, also through what is computed here."""
        found: dict[str, None] = {}
        todo = list(column.needs)
        while todo:
            need = self._table.columns[todo.pop()]
            if _is_inline(need):
                todo += need.needs
            else:
                found[need.name] = None
        return list(found)

    def _task_of(self, node: Node) -> SchedulableTask:
        request, gate = self._resources[node.column]
        return SchedulableTask(node, None, self._definition.group, request, gate, 0, node.column)

    # ── Cells ─────────────────────────────────────────────────────────────────────────────────

    def _execute(self, task: SchedulableTask) -> Any:  # noqa: ANN401 (a coroutine)
        node = task.task_id
        if not isinstance(node, Node):
            raise InternalError(f"{node!r} is no task of a row group.")
        if task.request_resource_key is not None and self._site.pressure is not None:
            self._site.pressure.began(node, task.request_resource_key)
        return self._run_task(node)

    async def _run_task(self, node: Node) -> None:
        column = self._table.columns[node.column]
        try:
            if node.row is None:
                await self._make_group(column)
            else:
                await self._make_cell(node.row, column)
        finally:
            if self._site.pressure is not None:
                self._site.pressure.ended(node)

    async def _make_cell(self, number: int, column: Column) -> None:
        """Make one cell and what follows from it, until its checks are passed or used up."""
        while True:
            rule = skipped(column, self._rows[number])
            if isinstance(rule, CellError):
                raise CellFailed(rule)
            if rule or self._is_skipped_along(number, column):
                self._rows[number][column.name] = self._skip(number, column)
                self._follow(number, column.name, again=False)
                return
            before = self._generations_of(number, column)
            value = await self._value(number, column)
            if number in self._dropped or self._generations_of(number, column) == before:
                break
        self._put(number, column.name, value)
        follow = [column.name]
        while remade := self._follow_all(number, follow):
            async with self._locks.setdefault(number, asyncio.Lock()):
                await self._remake(number, remade)
            follow = [*dict.fromkeys([column.name, *remade])]

    def _follow_all(self, number: int, names: Iterable[str]) -> list[str]:
        """Compute what follows from some values; what one check wants to be made anew."""
        return next(filter(None, (self._follow(number, name, again=True) for name in names)), [])

    def _put(self, number: int, name: str, value: Any) -> None:  # noqa: ANN401
        self._rows[number][name] = value
        place = number, name
        self._generations[place] = self._generations.get(place, 0) + 1

    def _generations_of(self, number: int, column: Column) -> tuple[int, ...]:
        """How often what a cell needs was made: if that changes meanwhile, it is out of date."""
        return tuple(self._generations.get((number, need), 0) for need in column.needs)

    async def _remake(
        self, number: int, names: Sequence[str], make: _MakeValue | None = None
    ) -> None:
        """Make cells anew, and of those that need them what was made already."""
        make = make or self._value
        stale = set(names)
        for column in self._order:
            is_made = column.name in self._rows[number]
            if column.name in names or (is_made and not stale.isdisjoint(column.needs)):
                stale.add(column.name)
                if not _is_inline(column) and not column.needs_group:
                    place = number, column.name
                    self._tries[place] = self._tries.get(place, 0) + 1
                    self._put(number, column.name, await make(number, column))
                elif not isinstance(column, CheckColumn):
                    self._compute_one(number, column)

    async def _value(self, number: int, column: Column) -> Any:  # noqa: ANN401
        """Let a model or a function make the value of a cell; CellFailed if it cannot."""
        row, place = self._rows[number], (number, column.name)
        tally = CellTally(self._site.clock)
        part = self._part(f"{number}:{column.name}", self._tries.get(place, 0), number, column.name)
        try:
            if isinstance(column, FunctionColumn):
                tally.attempts += 1
                given = await self._call(column, column.function.arguments(row))
            else:
                given = await self._models[column.name].answer(row, tally)
            value = plain_value(column.name, self._definition.types[column.name], given)
            if isinstance(value, CellError):
                raise CellFailed(value)
            return value
        except CellFailed:
            raise
        except Exception as error:
            raise self._cell_failed(column, error, part, [row]) from error
        finally:
            if part is not None:
                part.dissolve()
            self._figures[place] = _sum(self._figures.get(place), tally.figures(part))

    async def _value_in_time(self, number: int, column: Column) -> Any:  # noqa: ANN401
        """The same where no task of its own can be put off: what may pass is waited for."""
        clock, tries = self._site.clock, Tries()
        began: float | None = None  # when the first of those failed that cost nothing
        task = self._task_of(Node(self._group, number, column.name))
        while True:
            try:
                return await self._value(number, column)
            except CellFailed as failed:
                if failed.closed_account is not None or not isinstance(failed.cause, Exception):
                    raise
                since = None if began is None else clock.monotonic() - began
                tries = msgspec.structs.replace(tries, since_seconds=since)
                verdict = self._judge[column.name](task, failed.cause, tries)
                if not isinstance(verdict, Again):
                    raise
            if verdict.charged:
                tries, began = Tries(charged=tries.charged + 1), None
            else:
                tries = msgspec.structs.replace(tries, deferred=tries.deferred + 1)
                began = clock.monotonic() if began is None else began
            await clock.sleep(verdict.after_seconds)

    async def _make_group(self, column: Column) -> None:
        """Make a column for all rows that are there and have what it needs."""
        numbers = [number for number in self._alive() if not self._has(number, column)]
        wanted: list[int] = []
        for number in numbers:
            rule = skipped(column, self._rows[number])
            if isinstance(rule, CellError):
                self._fail_here(number, column, rule)
            elif rule or self._is_skipped_along(number, column):
                self._rows[number][column.name] = self._skip(number, column)
            else:
                wanted.append(number)
        if isinstance(column, CheckColumn):
            await self._check_group(column, wanted)
        elif isinstance(column, FunctionColumn) and wanted:
            rows = [self._rows[number] for number in wanted]
            part = self._part(f"*:{column.name}", 0, None, column.name)
            tally = CellTally(self._site.clock)
            tally.attempts += 1
            try:
                found = await self._call(column, column.function.group_arguments(rows))
            except Exception as error:
                raise self._cell_failed(column, error, part, rows) from error
            finally:
                if part is not None:
                    part.dissolve()
            kind = self._definition.types[column.name]
            values = plain_values(column.name, kind, found, len(wanted))
            for number, value in zip(wanted, values, strict=True):
                if isinstance(value, CellError):
                    self._fail_here(number, column, value)
                else:
                    self._put(number, column.name, value)
                    self._figures[number, column.name] = CellFigures()
        for number in numbers:
            if number not in self._dropped and self._has(number, column):
                self._follow_or_drop(number, column)

    async def _call(self, column: FunctionColumn, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
        function = column.function
        if function.context is not None:
            if self._context is None:
                raise InternalError(f"Column {column.name!r} takes a context, and there is none.")
            arguments = {function.context: self._context, **arguments}
        if function.is_async:
            return await function.function(**arguments)
        return await self._aside(partial(function.function, **arguments))

    async def _aside(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Run a function of the user in a thread."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        run = contextvars.copy_context().run

        def done(value: Any, error: BaseException | None) -> None:  # noqa: ANN401
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        self._site.threads.submit(partial(run, call), done)
        return await future

    # ── Checks, and what is computed along ────────────────────────────────────────────────────

    def _follow(self, number: int, name: str, *, again: bool) -> list[str]:
        """Compute what a new value of a row makes possible; the columns that are to be remade.

        Raises:
            _RowDropped: a check is not passed, and that drops the row.
            CellFailed: a check cannot decide, or something cannot be computed.
        """
        row = self._rows[number]
        for column in self._inline_after.get(name, ()):
            if any(need not in row for need in column.needs):
                continue
            if isinstance(column, CheckColumn):
                remade = self._check(number, column, again=again)
                if remade:
                    return remade
            else:
                self._compute_one(number, column)
                if number in self._dropped:
                    raise _RowDropped(self._errors[number, column.name])
        return []

    def _compute_one(self, number: int, column: Column) -> None:
        (value,) = compute(column, self._table.options.seed, number, [self._rows[number]])
        self._take_in(number, column, value)

    def _check(self, number: int, column: CheckColumn, *, again: bool = False) -> list[str]:
        """Check a row; the columns that are to be made anew if it does not pass."""
        rule = skipped(column, self._rows[number])
        if isinstance(rule, CellError):
            raise CellFailed(rule)
        if rule or self._is_skipped_along(number, column):
            self._rows[number][column.name] = self._skip(number, column)
            return []
        verdict = self._checks[column.name](self._rows[number])
        return self._judged(number, column, verdict, again=again)

    def _judged(
        self, number: int, column: CheckColumn, verdict: Verdict, *, again: bool
    ) -> list[str]:
        """What follows a verdict."""
        if isinstance(verdict, CellError):
            raise CellFailed(verdict)
        row = self._rows[number]
        row[column.name] = verdict is None
        if verdict is None:
            self._errors.pop((number, column.name), None)
            return []
        error = CellError(column.name, "check", verdict)
        place = number, column.name
        self._errors[place] = error
        judged = self._table.judged(column.name)
        if column.on_fail is OnFail.AGAIN and again and judged:
            self._tries[place] = self._tries.get(place, 0) + 1
            if self._tries[place] < column.attempts:
                return list(judged)
        if column.on_fail is OnFail.STOP:
            raise TableStopped(_stopped(self._table.name, number, error))
        if column.on_fail is OnFail.NULL:
            for name in judged:
                row[name] = None
                for later in self._inline_after.get(name, ()):
                    if later.name in row and not isinstance(later, CheckColumn):
                        self._compute_one(number, later)
        elif column.on_fail is not OnFail.KEEP:
            raise _RowDropped(error)
        return []

    async def _check_group(self, column: CheckColumn, numbers: list[int]) -> None:
        """Check a row group, and make anew what does not pass, as often as the check allows."""
        while numbers:
            rows = [self._rows[number] for number in numbers]
            verdicts = await self._aside(
                partial(group_verdicts, column, rows, self._definition.types)
            )
            again: dict[int, list[str]] = {}
            for number, verdict in zip(numbers, verdicts, strict=True):
                try:
                    remade = self._judged(number, column, verdict, again=True)
                except _RowDropped as dropped:
                    self._drop(number, dropped.error)
                except CellFailed as failed:
                    self._fail_here(number, column, failed.error)
                else:
                    if remade:
                        again[number] = remade
            if not again:
                return
            done = await asyncio.gather(
                *(self._remade_or_dropped(number, names) for number, names in again.items())
            )
            for error in done:
                if error is not None:
                    raise error
            numbers = [number for number in numbers if number not in self._dropped]

    async def _remade_or_dropped(self, number: int, names: list[str]) -> Exception | None:
        """Make the cells of a row anew; what ends everything is returned."""
        try:
            await self._remake(number, names, self._value_in_time)
        except CellFailed as failed:
            if failed.closed_account is not None:
                return failed
            if failed.cause is not None and isinstance(failed.cause, Exception):
                column = self._table.columns[failed.error.column]
                verdict = self._judge[column.name](
                    self._task_of(Node(self._group, number, column.name)), failed.cause, Tries()
                )
                if isinstance(verdict, Ends):
                    return verdict.error
            self._errors[number, failed.error.column] = failed.error
            self._drop(number, failed.error)
        return None

    # ── Failures ──────────────────────────────────────────────────────────────────────────────

    def _part(
        self, name: str, tries: int, number: int | None, column: str
    ) -> AttemptContext | None:
        """The attempt context of a cell, in which it runs from now on; None: there is none."""
        if self._attempt is None:
            return None
        pressure, asked = self._site.pressure, None
        if pressure is not None:
            asked = partial(pressure.asked, Node(self._group, number, column))
        full_name = f"{name}:{tries}" if tries else name
        part = self._attempt.part(full_name, on_first_request=asked)
        attempt_context.current.set(part)
        return part

    def end(self, error: Exception, closed_account: str | None = None) -> None:
        """Begin no more cells; `run` raises this when those that run have ended."""
        if self._attempt is not None and closed_account is not None:
            self._attempt.closed_account = closed_account
        if self._graph is not None:
            self._graph.end(error)

    def _cell_failed(
        self,
        column: Column,
        error: Exception,
        part: AttemptContext | None,
        rows: Sequence[Mapping[str, Any]],
    ) -> CellFailed:
        """An error of a cell with a text that quotes nothing, and whether it may pass."""
        kind, cause = type(error).__name__, error
        if isinstance(error, AnswerRejected):
            kind, message, final = error.kind, error.reason, True
        elif isinstance(error, TemplateFailed):
            kind, message, final = "template", str(error), True
        elif isinstance(error, FileUnreadable):
            kind, message, final = "file", str(error), True
        else:
            message = _said(error, part, rows)
            status = getattr(getattr(error, "response", None), "status_code", 0)
            final = (
                isinstance(error, ModelRefused)
                and 300 <= status < 500
                and status not in _PASSING_STATUSES
            )
            if isinstance(error, ModelRefused):
                kind = f"status {status}"
        closed = None if part is None else part.closed_account
        tells = None if final and closed is None else cause
        return CellFailed(CellError(column.name, kind, message), tells, closed)

    def _verdict(self, task: SchedulableTask, error: Exception, tries: Tries) -> Judgement:
        """What follows an error of a task."""
        node = task.task_id
        if not isinstance(node, Node) or isinstance(error, TableStopped | TooManyFailures):
            return Ends(error)
        column = self._table.columns[node.column]
        if isinstance(error, _RowDropped) and node.row is not None:
            self._drop(node.row, error.error)
            return Failed(self._open_nodes(node.row))
        if not isinstance(error, CellFailed):
            return Ends(error)
        cause = error.cause
        if error.closed_account is not None:
            for peer in self._peers.running - {self}:  # or what they have not begun would wait
                peer.end(error, error.closed_account)
            return Ends(error)
        if isinstance(cause, Exception):
            verdict = self._judge[node.column](task, cause, tries)
            if not isinstance(verdict, Failed):
                return verdict
        return self._failed_for_good(node, column, error)

    def _failed_for_good(self, node: Node, column: Column, failed: CellFailed) -> Judgement:
        error = failed.error
        numbers = self._alive() if node.row is None else [node.row]
        own = self._table.columns[error.column]
        if own.on_fail is OnFail.STOP:
            return Ends(TableStopped(_stopped(self._table.name, numbers[0], error)))
        for number in numbers:
            self._errors[number, error.column] = error
            if own.on_fail in (OnFail.NULL, OnFail.KEEP):
                self._rows[number].setdefault(column.name, None)
                self._rows[number][error.column] = None
                self._follow_or_drop(number, own)
            else:
                self._drop(number, error)
        drops = [
            one for number in numbers if number in self._dropped for one in self._open_nodes(number)
        ]
        if own.on_fail in (OnFail.NULL, OnFail.KEEP):
            return Failed(drops) if node.row in self._dropped else Accepted()
        return Failed(drops)

    def _open_nodes(self, number: int) -> list[Node]:
        """The tasks of a row; those that have ended are dropped in vain."""
        return [
            Node(self._group, number, one.name)
            for one in self._tasks
            if not one.needs_group and not self._was_kept(number, one)
        ]

    def _was_kept(self, number: int, column: Column) -> bool:
        return number in self._kept.get(column.name, ())

    def _drop(self, number: int, error: CellError) -> None:
        if number not in self._dropped:
            reason = error.text
            values = {
                name: value for name, value in self._rows[number].items() if name != error.column
            }
            self._dropped[number] = DroppedRow(number, error.column, reason, values)


def _is_inline(column: Column) -> bool:
    """Whether it needs no task of its own."""
    return column.kind in _COMPUTED or (isinstance(column, CheckColumn) and not column.needs_group)


def _inline_after(order: Sequence[Column]) -> dict[str, list[Column]]:
    """What may be computed once a column is there: all inline columns that follow from it."""
    found: dict[str, list[Column]] = {}
    for column in order:
        reached = {column.name}
        for later in order:
            if _is_inline(later) and not reached.isdisjoint(later.needs):
                reached.add(later.name)
                found.setdefault(column.name, []).append(later)
    return found


def _resources(
    column: Column,
) -> tuple[SchedulerResourceRequest, RequestResourceKey | None]:
    """What a task of a column holds, and what it calls."""
    slot = column.slot
    request = SchedulerResourceRequest({} if slot is None else {slot: 1})
    if isinstance(column, LlmColumn | JudgeColumn):
        return request, RequestResourceKey(column.model.provider.name, column.model.name, ANY)
    if isinstance(column, FunctionColumn) and len(column.uses) == 1:
        return request, column.uses[0].resource
    return request, None


def _said(error: Exception, part: AttemptContext | None, rows: Sequence[Mapping[str, Any]]) -> str:
    """What an error says, without what the row or a reply says."""
    try:
        text = str(error)
    except Exception:  # its own code
        text = ""
    texts = [one for row in rows for one in _texts(row)]
    if part is not None:
        texts += part.content_guard.texts()
    return redact_content(redacted(text), texts)[:500]


def _texts(value: Any) -> Iterable[str]:  # noqa: ANN401 (JSON)
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _stopped(table: str, number: int, error: CellError) -> str:
    return (
        f"The column {error.column!r} of table {table!r} has failed in row {number} "
        f"({error.text}), and its on_fail='stop' ends the run; rows that were "
        "finished are kept."
    )


def _sum(before: CellFigures | None, now: CellFigures) -> CellFigures:
    """The figures of a cell over all its tries."""
    if before is None:
        return now

    def both(name: str) -> Any:  # noqa: ANN401
        first, second = getattr(before, name), getattr(now, name)
        return None if first is None or second is None else first + second

    names = ("input_tokens", "cached_tokens", "output_tokens", "micros")
    added = {name: both(name) for name in names}
    times = {name: both(name) for name in ("waited_seconds", "served_seconds")}
    return msgspec.structs.replace(
        now,
        attempts=before.attempts + now.attempts,
        calls=before.calls + now.calls,
        reused=before.reused + now.reused,
        **added,
        **times,
    )
