# SPDX-License-Identifier: Apache-2.0
"""What the load test takes for a worker that stays small."""

from __future__ import annotations

from benchmarks.queue import pressure
from benchmarks.queue.pressure import Sample
from benchmarks.runner import Outcome
from penstock.worker import prefetch


def outcome_of(samples: list[Sample]) -> Outcome:
    return pressure.to_outcome(samples, {"sent": 0, "rate": 20_000.0}, 10_000.0, backlog=20_000)


def run(held: int, mib_per_sample: float) -> list[Sample]:
    """Forty samples of a growing backlog; the first ten are the start, in which caches fill."""
    return [Sample(no * 1_000, held, 40.0 + min(no, 10) + no * mib_per_sample) for no in range(40)]


def missed(outcome: Outcome) -> list[str]:
    return [check.name for check in outcome.checks if not check.ok]


def test_a_worker_with_a_full_window_and_flat_memory_meets_every_bound() -> None:
    assert missed(outcome_of(run(held=2 * 1_024 + 256, mib_per_sample=0.0))) == []


def test_a_worker_that_holds_more_than_its_windows_and_slots_is_found() -> None:
    (name,) = missed(outcome_of(run(held=2 * 1_024 + 257, mib_per_sample=0.0)))

    assert "held" in name


def test_a_worker_whose_memory_follows_the_backlog_is_found() -> None:
    # 1 MiB per sample: 25 samples lie between the middles of both quarters.
    (name,) = missed(outcome_of(run(held=300, mib_per_sample=1.0)))

    assert "memory" in name


def test_a_run_without_a_growing_backlog_proves_nothing() -> None:
    samples = [Sample(100, 300, 40.0)] * 40

    (name,) = missed(outcome_of(samples))

    assert "backlog" in name


def test_what_fills_in_the_first_quarter_is_no_growth() -> None:
    assert pressure.growth(run(held=300, mib_per_sample=0.0)) == 0.0


def test_the_bound_is_the_window_of_the_worker() -> None:
    assert pressure.WINDOW_MAX == prefetch.WINDOW_MAX
