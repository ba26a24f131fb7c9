# SPDX-License-Identifier: Apache-2.0
"""Do graphs of thousands of jobs run whole, in order, and at a cost that does not grow?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.size import shapes
from tests.size.yard import Yard

pytestmark = pytest.mark.slow


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.close()


def test_f59_a_long_chain_runs_in_order(yard: Yard) -> None:
    shapes.chain(yard, 1_000)


def test_f59_a_long_chain_is_skipped_and_put_back_though_its_teller_is_killed(yard: Yard) -> None:
    shapes.broken_chain(yard, 2_500, run=False)


def test_f59_a_chain_that_was_put_back_runs_in_order(yard: Yard) -> None:
    shapes.broken_chain(yard, 300, run=True)


def test_f59_a_wide_fan_out_runs_whole(yard: Yard) -> None:
    shapes.fan_out(yard, 10_000)


def test_f59_a_wide_diamond_closes_after_its_last_job(yard: Yard) -> None:
    shapes.diamond(yard, 2_000)


def test_f59_a_wide_fan_is_skipped_put_back_and_forgotten(yard: Yard) -> None:
    shapes.broken_fan(yard, 3_000)


def test_f59_a_batch_behind_a_failed_job_is_skipped_as_it_comes(yard: Yard) -> None:
    shapes.stillborn(yard, 5_000)


def test_priorities_order_a_group_and_delays_are_kept(yard: Yard) -> None:
    shapes.ordered(yard, 600)


def test_delayed_jobs_are_not_early(yard: Yard) -> None:
    shapes.delayed(yard, 1_000)
