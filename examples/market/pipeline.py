# SPDX-License-Identifier: Apache-2.0
"""Prices of an exchange, their returns, how much they vary, and a report a month."""

import hashlib
import math
from collections.abc import Sequence
from datetime import datetime
from statistics import mean, stdev
from typing import Any

from penstock import Context, Penstock, Slices
from penstock.calendars import Exchange, Monthly

app = Penstock("market")

SYMBOLS = ("ACME", "GLOBEX", "INITECH")
NEW_YORK = "America/New_York"


@app.dataset(calendar=Exchange("XNYS"))
async def prices(ctx: Context, at: datetime) -> list[dict[str, Any]]:
    """Closing prices of one session; made up, but always the same."""
    return [{"symbol": symbol, "close": _close(symbol, at)} for symbol in SYMBOLS]


@app.dataset(calendar=Exchange("XNYS"), needs=[prices.lookback(2)])
def returns(ctx: Context, at: datetime, prices: Slices) -> list[dict[str, Any]]:
    """By how much each price has changed since the session before."""
    before, now = prices  # a Slices of one slice each
    old = {row["symbol"]: row["close"] for row in before.rows()}
    return [
        {"symbol": row["symbol"], "change": math.log(row["close"] / old[row["symbol"]])}
        for row in now.rows()
    ]


@app.dataset(calendar=Exchange("XNYS"), needs=[returns.lookback(20)])
def volatility(ctx: Context, at: datetime, returns: Slices) -> list[dict[str, Any]]:
    """How much each price varies, over twenty sessions, for a year."""
    rows = returns.rows()
    return [
        {"symbol": symbol, "value": stdev(_changes(rows, symbol)) * math.sqrt(252)}
        for symbol in SYMBOLS
    ]


@app.dataset(
    calendar=Monthly(day=-1, at="23:00", tz=NEW_YORK), needs=[volatility, prices], batch=12
)
def report(
    ctx: Context, at: Sequence[datetime], volatility: Slices, prices: Slices
) -> dict[datetime, list[dict[str, Any]]]:
    """One row a symbol and month: where it stands, and how much it varies. Twelve months a job."""
    return {month: _report(month, volatility.of(month), prices.of(month)) for month in at}


app.keep_current(report, since="2024-01-01", every="30 18 * * 1-5", tz=NEW_YORK)


def _report(month: datetime, volatility: Slices, prices: Slices) -> list[dict[str, Any]]:
    close = {row["symbol"]: row["close"] for row in prices.rows()}
    average = mean(close.values())
    return [
        {
            "month": f"{month:%Y-%m}",
            "symbol": row["symbol"],
            "close": close[row["symbol"]],
            "against_average": round(close[row["symbol"]] / average, 4),
            "volatility": round(row["value"], 4),
        }
        for row in volatility.rows()
    ]


def _changes(rows: list[dict[str, Any]], symbol: str) -> list[float]:
    return [row["change"] for row in rows if row["symbol"] == symbol]


def _close(symbol: str, at: datetime) -> float:
    noise = hashlib.sha256(f"{symbol} {at:%Y-%m-%d}".encode()).digest()
    base = 50 + sum(symbol.encode()) % 100
    return round(base * (1 + at.timetuple().tm_yday / 1_000 + noise[0] / 5_000), 2)
