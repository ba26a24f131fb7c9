# SPDX-License-Identifier: Apache-2.0
"""Preflights that run again before a failed tick is tried again.

Preflights that stay on duty run in the tick's own attempt, under its time limit. The body runs only
if they pass; what they return replaces what was kept, for all workers, before it begins.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from penstock.clock import MICROSECONDS
from penstock.definitions.context import Context, JobInfo
from penstock.definitions.preflight import Check, Preflight, checks_of
from penstock.definitions.schedule import Schedule
from penstock.errors import StoreError, StrictJsonError, UsageError
from penstock.model import strict_json
from penstock.model.schedule import PREFLIGHT_BYTES_MAX, PreflightResult
from penstock.schedules.preflight_results import CheckedValues
from penstock.worker.attempt import CheckFailed
from penstock.worker.parts import WorkerParts


class PreflightRecheck:
    """Runs the preflights on duty of one worker. Belongs to its loop."""

    def __init__(self, checked: CheckedValues, parts: WorkerParts) -> None:
        self._checked = checked
        self._store = parts.store
        self._threads = parts.threads
        self._clock = parts.clock
        self._in_threads: set[str] = set()  # units whose look has not ended, wanted or not

    def due(
        self,
        schedule: Schedule[..., Any],
        on_duty: Iterable[Preflight[..., Any]],
        payload: str,
        *,
        has_failed: bool,
    ) -> list[Check]:
        """Those that must pass before a unit ticks: it has failed, or they have never passed."""
        return [
            check
            for check in checks_of(schedule, payload, on_duty)
            if (has_failed and check.preflight.recheck)
            or not (check.preflight.required or self._checked.has_passed(check.unit))
        ]

    async def look(self, checks: Iterable[Check]) -> None:
        """Let all of them look; CheckFailed if one does not pass."""
        for check in checks:
            try:
                value = await self._run(check)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                raise CheckFailed(f"preflight {check.preflight.plain_name}", error) from error
            result = PreflightResult(
                unit=check.unit,
                name=check.preflight.plain_name,
                partition=check.partition,
                value=value,
                checked_at=round(self._clock.now() * MICROSECONDS),
            )
            if self._checked.take(result):
                await self._keep(result)

    async def _keep(self, result: PreflightResult) -> None:
        """Let other workers know of it, too; a store that cannot be told now hears of the next."""
        with suppress(StoreError):
            await self._store.keep_preflights(self._checked.app, [result])

    async def _run(self, check: Check) -> str | None:
        """Run a check; what it returned, as strict JSON text."""
        preflight = check.preflight
        partition = check.partition or None
        info = JobInfo(check.unit, preflight.name, 1, partition)
        context = Context(info, self._checked.of_job(partition))
        args, kwargs = preflight.codec.call_arguments(check.payload)
        if not preflight.is_async:
            return await self._in_thread(
                check.unit, lambda: value_text(preflight.function(context, *args, **kwargs))
            )
        value = await preflight.function(context, *args, **kwargs)
        try:
            return value_text(value, at_once=True)
        except strict_json.NotPlain:  # code of its classes, which may block
            return await self._in_thread(check.unit, lambda: value_text(value))

    async def _in_thread(self, unit: str, body: Callable[[], str | None]) -> str | None:
        """Run a look in a thread; one that was given up keeps its thread, and gets no second."""
        if unit in self._in_threads:
            raise UsageError("its last check has not ended yet; give its calls time limits")
        ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(value: str | None, error: BaseException | None) -> None:
            self._in_threads.discard(unit)
            if ended.done():
                return
            if error is None:
                ended.set_result(value)
            else:
                ended.set_exception(error)

        context = contextvars.copy_context()
        self._in_threads.add(unit)
        self._threads.submit(lambda: context.run(body), done)
        return await ended


def value_text(value: object, *, at_once: bool = False) -> str | None:
    """What a preflight returned, as strict JSON text; UsageError if it is none.

    With `at_once` NotPlain, if code of its classes would have to be run.
    """
    if value is None:
        return None
    try:
        return strict_json.dumps(value, limit_bytes=PREFLIGHT_BYTES_MAX, at_once=at_once)
    except StrictJsonError as error:
        if at_once and isinstance(error, strict_json.NotPlain):
            raise
        raise UsageError(f"result is not JSON: {error}") from None
