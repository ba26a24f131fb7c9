# SPDX-License-Identifier: Apache-2.0
"""The proofs of the section on scheduling, each in a size of seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.measuring import fresh
from benchmarks.runner import Outcome, Setup
from benchmarks.scheduling import backlog, cooldown, downstream, hosts
from penstock import Context, Penstock
from tests.unit.worker.worker_world import World, simulate

VISITS = 80


def values(outcome: Outcome) -> list[float]:
    assert all(check.ok for check in outcome.checks), outcome.checks
    return [check.value for check in outcome.checks]


def test_fast_tasks_do_not_wait_behind_slow_roots(tmp_path: Path) -> None:
    gap, wall = values(downstream.measure(Setup(True, tmp_path)))

    assert 0 < gap < 0.05
    assert wall < 1.05


def test_first_come_order_is_what_one_group_gets() -> None:
    course = downstream.run(40, in_groups=False)

    roots = [name for name in course.begun if name.startswith("root.")]
    assert max(course.begun[name] for name in roots) < min(
        at for name, at in course.begun.items() if name.startswith("judge.")
    )


def test_a_provider_in_cool_down_takes_nothing_from_another(tmp_path: Path) -> None:
    assert values(cooldown.measure(Setup(True, tmp_path))) == [1.0]


def test_ten_jobs_beside_thousands_begin_at_once(tmp_path: Path) -> None:
    big, small = 3_000, 10
    fresh(backlog.fill_groups, tmp_path, big=big, small=small)

    assert fresh(backlog.run_until_small_began, tmp_path)["begun"] <= 4 * small


@pytest.mark.slow
def test_a_host_behind_another_runs_in_real_processes(tmp_path: Path) -> None:
    fresh(backlog.fill_hosts, tmp_path, ahead=200, seconds=0.01)

    answer = fresh(hosts.visit_b, tmp_path, processes=2, visits=2, marks=str(tmp_path / "marks"))

    assert answer["rate"] > 0


@pytest.mark.parametrize("workers", [1, 4])
def test_a_host_with_a_full_limit_takes_nothing_from_another(workers: int) -> None:
    """In virtual time: B's jobs, behind 2,000 of A, begin exactly when they begin without A."""

    def begun(ahead: int) -> list[float]:
        app = Penstock("hosts")
        times: list[float] = []
        all_begun = asyncio.Event()

        @app.task(limits={"host": lambda host: host})
        async def visit(ctx: Context, host: str) -> None:
            if host == "b":
                times.append(asyncio.get_running_loop().time())
                if len(times) == VISITS:
                    all_begun.set()
            await asyncio.sleep(1.0)

        async def main(world: World) -> None:
            world.store.set_cap("host:a", 2).result()
            world.store.set_cap("host:b", 8).result()
            for number in range(ahead):
                world.enqueue("visit", f"a-{number}", host="a")
            for number in range(VISITS):
                world.enqueue("visit", f"b-{number}", host="b")
            running = [world.start(world.worker(drain=False)) for _ in range(workers)]
            await all_begun.wait()
            for task in running:
                task.cancel()
            await asyncio.wait(running)

        simulate(app, main, seed=None, sound=False, runtime={"async_slots": 16})
        return times

    alone, beside = begun(0), begun(2_000)
    assert max(beside) <= max(alone) * 1.02
