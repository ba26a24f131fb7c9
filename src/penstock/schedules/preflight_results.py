# SPDX-License-Identifier: Apache-2.0
"""What preflights have returned, and which of it is for a job or a tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.definitions.preflight import Preflight, checks_of
from penstock.definitions.schedule import Schedule
from penstock.model.job import LeasedJob
from penstock.model.schedule import PreflightResult
from penstock.stores.protocol import ScheduleStore
from penstock.stores.retry import StoreRetry
from penstock.worker.kind import JobReader, Window

PAGE = 1_000  # results that are read at once
WAITS = "Reading what preflights found has to wait"

_NO_SHARES: Mapping[str, tuple[str, ...]] = {}


class CheckedValues:
    """Owns what a worker knows of preflights, as strict JSON text. Belongs to one loop."""

    def __init__(
        self,
        app: str,
        preflights: Iterable[Preflight[..., Any]],
        shares: Mapping[str, tuple[str, ...]] = _NO_SHARES,
    ) -> None:
        """Values of an app, none of them read.

        Args:
            app: whose they are.
            preflights: that the app has.
            shares: the partitions that one lies in, the finest last.
        """
        self.app = app
        self._preflights = tuple(preflights)
        #: Those that may find something later: on duty, or not required at the start.
        self.on_duty = tuple(one for one in self._preflights if one.recheck or not one.required)
        self._shares = shares
        self._kept: dict[str, str] = {}  # by unit
        self._of_partition: dict[str, Mapping[str, str]] = {}
        self._of_tick: dict[tuple[str, str], Mapping[str, str]] = {}

    def __repr__(self) -> str:
        return f"<CheckedValues of {self.app!r}: {len(self._kept)}>"

    async def read(self, store: ScheduleStore, retry: StoreRetry) -> None:
        """Read what is kept; a store that is unreachable is waited for."""
        last = ""
        while True:
            ask = partial(store.preflights, self.app, last, PAGE)
            page = await retry.until_answered(WAITS, ask)
            for result in page:
                self.take(result)
            if len(page) < PAGE:
                return
            last = page[-1].unit

    def take(self, result: PreflightResult) -> bool:
        """Let a result count from now on; False if it says nothing new."""
        text = None if result.error is not None else result.value or "null"
        if text is None or self._kept.get(result.unit) == text:
            return False
        self._kept[result.unit] = text
        self._of_partition.clear()
        self._of_tick.clear()
        return True

    def has_passed(self, unit: str) -> bool:
        """Whether a check has passed, as far as is known here."""
        return unit in self._kept

    def rechecked_for_job(self, job: LeasedJob) -> list[str]:
        """The units of preflights on duty whose values a job may see."""
        return [
            preflight.unit_key(share or None)
            for share in self._shares_of(job.partition or "")
            for preflight in self.on_duty
        ]

    def rechecked_for_tick(self, schedule: Schedule[..., Any], payload: str) -> list[str]:
        """The same for a unit of a schedule."""
        return [check.unit for check in checks_of(schedule, payload, self.on_duty)]

    def _shares_of(self, partition: str) -> Iterable[str]:
        return self._shares.get(partition) or dict.fromkeys(("", partition))

    def of_job(self, partition: str | None) -> Mapping[str, str]:
        """By preflight: the value for a partition, else for one that it lies in."""
        key = partition or ""
        known = self._of_partition.get(key)
        if known is None:
            known = self._of_partition[key] = {
                preflight.plain_name: self._kept[unit]
                for share in self._shares_of(key)
                for preflight in self._preflights
                if (unit := preflight.unit_key(share or None)) in self._kept
            }
        return known

    def of_tick(self, schedule: Schedule[..., Any], payload: str) -> Mapping[str, str]:
        """The same for a unit of a schedule, whose dimensions are known."""
        known = self._of_tick.get((schedule.name, payload))
        if known is None:
            known = self._of_tick[schedule.name, payload] = {
                check.preflight.plain_name: self._kept[check.unit]
                for check in checks_of(schedule, payload, self._preflights)
                if check.unit in self._kept
            }
        return known


class RecheckedReader:
    """Reads what preflights on duty have found since, in any process, before jobs may start."""

    def __init__(
        self,
        checked: CheckedValues,
        units_of: Callable[[LeasedJob], Iterable[str]],
        store: ScheduleStore,
        retry: StoreRetry,
        then: JobReader | None = None,
    ) -> None:
        """Values for one kind of jobs.

        Args:
            checked: where they go.
            units_of: the units of preflights that are for a job.
            store: where all processes keep them.
            retry: waits for it.
            then: reads what the jobs need besides.
        """
        self._checked = checked
        self._units_of = units_of
        self._store = store
        self._retry = retry
        self._then = then

    async def prepare(self, jobs: Sequence[LeasedJob], wanted: Callable[[], bool]) -> None:
        units = sorted({unit for job in jobs for unit in self._units_of(job)})
        if units:
            ask = partial(self._store.checked, self._checked.app, units)
            for result in await self._retry.until_answered(WAITS, ask, wanted=wanted):
                self._checked.take(result)
        if self._then is not None:
            await self._then.prepare(jobs, wanted)

    def enters(self, job: LeasedJob, window: Window) -> bool:
        return self._then is None or self._then.enters(job, window)
