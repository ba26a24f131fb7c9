# SPDX-License-Identifier: Apache-2.0
# fmt: off
# ruff: noqa: E501, I001
"""The datasets of the specification, as they are written there."""
from collections.abc import Sequence
from datetime import datetime
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
def report(ctx: Context, at: Sequence[datetime], volatility: Slices) -> dict[datetime, list[dict[str, Any]]]:
    return {t: volatility.of(t).rows() for t in at}          # batch: several timestamps at once
