# SPDX-License-Identifier: Apache-2.0
"""Do keyed limits hold over real processes, also when they change while those run?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.shop import NOTES, Shop
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

SECONDS = 0.2  # of one job
APP = (
    NOTES
    + """
@app.task(limits={"host": lambda host: host})
async def visits(ctx: Context, host: str, seconds: float) -> None:
    note("start", ctx)
    await asyncio.sleep(seconds)
    note("end", ctx)
"""
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def most_at_once(shop: Shop, since: float, until: float) -> int:
    """The most bodies that ran together when one began in this span of time."""
    ends = {key: at for key, _, at in shop.bodies("end")}
    spans = [(at, ends.get(key, float("inf"))) for key, _, at in shop.bodies()]
    return max(
        (
            sum(began <= moment < ended for began, ended in spans)
            for moment, _ in spans
            if since <= moment <= until
        ),
        default=0,
    )


def running(shop: Shop) -> int:
    return len(shop.bodies()) - len(shop.bodies("end"))


def pids(shop: Shop) -> set[int]:
    return {pid for _, pid, _ in shop.bodies()}


def test_a_cap_that_is_raised_lowered_or_zero_holds_over_processes_at_once(shop: Shop) -> None:
    """Goal: caps of 1, 4, 2, 0 and 4 in one run of two processes, none ever exceeded.

    Method: bodies note when they begin and end, by one clock of the machine. A change counts from
    the moment its call returned; bodies that were leased before may still begin until the holders
    of that moment have gone.
    """
    shop.add("visits", 2_000, limit_key="host:a", host="a", seconds=SECONDS)
    set_cap = shop.store.set_cap
    set_cap("host:a", 1).result()
    run = shop.run("--processes", "2", PENSTOCK_RUNTIME__ASYNC_SLOTS="4")
    began = time.monotonic()
    wait_until(lambda: len(shop.bodies("end")) >= 2)
    raised = time.monotonic()

    set_cap("host:a", 4).result()
    wait_until(lambda: running(shop) == 4)
    wait_until(lambda: len(pids(shop)) == 2)
    lowered = time.monotonic()

    set_cap("host:a", 2).result()
    wait_until(lambda: most_at_once(shop, _quiet_from(shop, lowered), float("inf")) >= 2)
    stopped = time.monotonic()

    set_cap("host:a", 0).result()
    wait_until(lambda: not shop.store.holders(10).result())
    count = len(shop.bodies())
    time.sleep(1.0)
    assert len(shop.bodies()) == count
    assert run.poll() is None

    set_cap("host:a", 4).result()
    wait_until(lambda: running(shop) == 4)

    times = sorted(at for _, _, at in shop.bodies())
    assert most_at_once(shop, began, raised) == 1
    assert most_at_once(shop, raised, times[-1]) == 4
    quiet = _quiet_from(shop, lowered)
    assert most_at_once(shop, quiet, stopped) == 2
    assert shop.store.check().result() == []


def _quiet_from(shop: Shop, since: float) -> float:
    """An end after which all four that were held at `since` have gone; never, if it is to come."""
    ends = sorted(at for _, _, at in shop.bodies("end") if at >= since)
    return ends[4] if len(ends) > 4 else float("inf")


def test_max_per_host_and_limit_flags_hold_over_processes(shop: Shop) -> None:
    for host in ("a", "b"):
        shop.add("visits", 6, name=host, limit_key=f"host:{host}", host=host, seconds=0.1)

    run = shop.run("--drain", "--processes", "2", "--max-per-host", "2", "--limit", "host=b:1")
    run.wait(90)

    assert run.returncode == 0
    for host, cap in (("a", 2), ("b", 1)):
        ends = {key: at for key, _, at in shop.bodies("end")}
        spans = [(at, ends[key]) for key, _, at in shop.bodies() if key.startswith(host)]
        assert len(spans) == 6
        assert max(sum(x <= at < y for x, y in spans) for at, _ in spans) <= cap
