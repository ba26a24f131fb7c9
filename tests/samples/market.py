# SPDX-License-Identifier: Apache-2.0
"""Datasets: what a slice is made of, when there is one, and what it needs."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from statistics import stdev
from typing import Any

from penstock import Context, Penstock, Slices
from penstock.calendars import Exchange, Monthly

app = Penstock("market")


@app.dataset(calendar=Exchange("XNYS"))
async def prices(ctx: Context, at: datetime) -> list[dict[str, Any]]:
    return [{"symbol": "ACME", "close": 100.0 + at.day}]


@app.dataset(calendar=Exchange("XNYS"), needs=[prices.lookback(20)])
def volatility(ctx: Context, at: datetime, prices: Slices) -> list[dict[str, Any]]:
    return [{"value": stdev(row["close"] for row in prices.rows())}]


@app.dataset(calendar=Monthly(day=-1, tz="America/New_York"), needs=[volatility], batch=12)
def report(
    ctx: Context, at: Sequence[datetime], volatility: Slices
) -> dict[datetime, list[dict[str, Any]]]:
    return {t: volatility.of(t).rows() for t in at}


@app.dataset(
    calendar=Exchange("XNYS"),
    needs=[prices.window(timedelta(days=7)), volatility.exact(), "report"],
    version="2024-2",
    name="market.notes",
    group="notes",
    priority=5,
    limits={"host": "notes"},
    max_attempts=2,
    timeout=timedelta(minutes=5),
    executor="process",
)
def notes(
    ctx: Context, at: datetime, *, prices: Slices, volatility: Slices, report: Slices
) -> bytes:
    return b"".join(str(row).encode() for row in prices.rows())


def build() -> int:
    """What a program may do with them."""
    plan = app.plan_build(report, "market.notes", start=date(2024, 1, 1), end="2024-07-01")
    done = app.build(report, start="2024-01-01", end=datetime(2024, 7, 1), eager=True)
    rows: int = report.read(start="2024-01-01").num_rows
    return len(plan.levels) + done.slices + rows + len(prices.files())
