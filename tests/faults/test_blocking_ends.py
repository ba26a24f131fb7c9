# SPDX-License-Identifier: Apache-2.0
"""Code of users that runs after a body blocks: a result's serialiser, an exception's text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import ErrorCategory, JobState
from tests.faults.shop import NOTES, Shop

pytestmark = pytest.mark.faults

APP = (
    NOTES
    + """
class Mute(Exception):
    def __str__(self):
        time.sleep(600)

class Slow:
    def model_dump(self, mode):
        time.sleep(600)

@app.task(timeout=0.5, max_attempts=1)
async def raises(ctx: Context) -> None:
    raise Mute

@app.task(timeout=0.5, max_attempts=1)
def raises_in_a_thread(ctx: Context) -> None:
    raise Mute

@app.task(timeout=0.5, max_attempts=1, executor="process")
def raises_in_a_process(ctx: Context) -> None:
    raise Mute

@app.task(timeout=0.5, max_attempts=1)
async def returns(ctx: Context) -> Slow:
    return {"of": [Slow()]}

@app.task(timeout=0.5, max_attempts=1)
def returns_in_a_thread(ctx: Context) -> Slow:
    return Slow()

@app.task()
async def innocent(ctx: Context) -> None:
    await asyncio.sleep(0.01)
"""
)
BAD = ("raises", "returns", "raises_in_a_thread", "returns_in_a_thread", "raises_in_a_process")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def test_f78_what_blocks_after_a_body_ends_by_its_time_limit_and_stops_nobody(shop: Shop) -> None:
    bad = [key for task in BAD for key in shop.add(task)]
    innocents = shop.add("innocent", 20)

    code, err = shop.drain(quick=True)

    assert code == 1, err
    for key in bad:
        job = shop.job(key)
        assert (job.state, job.attempts, job.crashes) == (JobState.ERROR, 1, 0), key
        assert job.last_error is not None
        assert job.last_error.category is ErrorCategory.TIMEOUT, key
    for key in innocents:
        job = shop.job(key)
        assert (job.state, job.attempts, job.crashes) == (JobState.DONE, 0, 0), key
    assert "has not responded" not in err
