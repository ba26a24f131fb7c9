# SPDX-License-Identifier: Apache-2.0
"""How do tests build datasets, in memory and on SQLite, and see what was called?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from penstock import Context, Penstock, Slices
from penstock.calendars import Daily
from penstock.model.plan import BuildReport
from penstock.stores.protocol import Store
from penstock.testing import harness

MEMORY, SQLITE = "memory", "sqlite"
DAY_1, DAY_3, DAY_4, DAY_6 = "2024-01-01", "2024-01-03", "2024-01-04", "2024-01-06"


class Calls:
    """Which slices were built, and which of them shall fail."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.failing: set[str] = set()
        self.stop_at: Callable[[str], None] = lambda _: None

    def take(self) -> list[str]:
        """What was built since the last look, in order of names."""
        made, self.made = sorted(self.made), []
        return made

    def built(self, dataset: str, at: datetime) -> None:
        name = f"{dataset}@{at:%d}"
        self.stop_at(name)
        if name in self.failing:
            raise ValueError(f"{name} shall fail")
        self.made.append(name)


class Chain:
    """`prices` → `mean` (two days) → `total`, and `weather` beside them."""

    def __init__(self, *, versions: Mapping[str, int] | None = None) -> None:
        self.calls = Calls()
        self.app = app = Penstock("chain")
        calls, version = self.calls, {**dict.fromkeys(("prices", "mean"), 1), **(versions or {})}

        @app.dataset(calendar=Daily(), version=version["prices"], max_attempts=1)
        async def prices(ctx: Context, at: datetime) -> list[dict[str, Any]]:
            calls.built("prices", at)
            return [{"close": float(at.day)}]

        @app.dataset(calendar=Daily(), version=version["mean"], needs=[prices.lookback(2)])
        def mean(ctx: Context, at: datetime, prices: Slices) -> list[dict[str, Any]]:
            calls.built("mean", at)
            closes = [row["close"] for row in prices.rows()]
            return [{"mean": sum(closes) / len(closes)}]

        @app.dataset(calendar=Daily(), needs=[mean.exact()], batch=2, max_attempts=1)
        def total(
            ctx: Context, at: Sequence[datetime], mean: Slices
        ) -> dict[datetime, list[dict[str, Any]]]:
            for moment in at:
                calls.built("total", moment)
            return {moment: mean.of(moment).rows() for moment in at}

        @app.dataset(calendar=Daily(), max_attempts=1)
        def weather(ctx: Context, at: datetime) -> list[dict[str, Any]]:
            calls.built("weather", at)
            return [{"rain": at.day % 2 == 0}]


class Builder:
    """One app, wherever it is built."""

    def __init__(self, app: Penstock, build: Callable[..., BuildReport]) -> None:
        self.app = app
        self.build = build

    @property
    def store(self) -> Store:
        return self.app.store

    def rows(self, dataset: str, start: str | None = None, end: str | None = None) -> list[Any]:
        rows: list[Any] = self.app.datasets[dataset].read(start, end).to_pylist()
        return rows

    def committed(self, dataset: str) -> list[int]:
        """Days of the slices that readers see."""
        return [int(path.parent.name[8:10]) for path in self.app.datasets[dataset].files()]

    def check(self) -> None:
        """Nothing is broken, and nobody holds anything."""
        assert self.store.check().result() == []
        assert self.store.locks().result() == []


@contextmanager
def builder(app: Penstock, kind: str) -> Iterator[Builder]:
    """Build an app in memory and virtual time, or on SQLite in the current folder."""
    if kind == MEMORY:
        with harness(app) as test:
            yield Builder(app, test.build)
        return
    try:
        yield Builder(app, app.build)
    finally:
        app.close()
