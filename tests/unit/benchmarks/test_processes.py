# SPDX-License-Identifier: Apache-2.0
"""Whether the task that keeps a processor busy does so for as long as it should."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import measuring
from benchmarks.queue import processes, spinning


def test_more_time_takes_more_loops() -> None:
    one, ten = spinning.loops_for(0.001), spinning.loops_for(0.01)

    # The clock of a busy machine is rough: ten times as long is surely not twice as much.
    assert 1 < one * 2 < ten


def test_the_work_is_done_by_the_processor() -> None:
    before = time.thread_time()
    spinning.keep_busy(500_000)

    assert time.thread_time() - before > 0


@pytest.mark.slow
def test_a_real_supervisor_runs_every_job_in_two_processes(tmp_path: Path) -> None:
    answer = measuring.fresh(
        processes.supervise,
        tmp_path,
        processes=2,
        total=20,
        loops=100,
        marks=str(tmp_path / "marks"),
    )

    assert answer["rate"] > 0


@pytest.mark.slow
def test_bare_loops_run_beside_each_other(tmp_path: Path) -> None:
    assert processes.spin_bare(tmp_path, processes=2, total=2, loops=100)["rate"] > 0
