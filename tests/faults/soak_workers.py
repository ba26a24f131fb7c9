# SPDX-License-Identifier: Apache-2.0
"""`make soak-workers`: how fast a killed worker's jobs come back, and what poison costs the others.

Prints what it measured. It fails if a job is lost, if poison is not contained, or if workers are
started without back-off.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.model.job import JobState
from tests.faults.project import Project
from tests.processes import children_of
from tests.waiting import wait_until

STORM_SECONDS = 10.0
BACK_OFF_FIRST_SECONDS = 0.1  # of the supervisor; each further one is twice as long


@contextlib.contextmanager
def project() -> Iterator[Project]:
    with tempfile.TemporaryDirectory(prefix="penstock-workers-") as folder:
        made = Project(Path(folder))
        try:
            yield made
        finally:
            made.close()


def measure_reaps(kills: int) -> list[float]:
    """Kill the worker of a run again and again; how long until nothing is held by a dead one."""
    times = []
    for _ in range(kills):
        with project() as shop:
            keys = shop.add("works", 12, seconds=0.3)
            run = shop.run("--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="600")
            wait_until(lambda shop=shop: len(shop.bodies()) >= 4)  # type: ignore[misc]
            (worker,) = children_of(run.pid)
            os.kill(worker, signal.SIGKILL)
            times.append(
                wait_until(
                    lambda shop=shop: JobState.IN_PROGRESS not in shop.states().values()  # type: ignore[misc]
                )
            )
            assert run.wait(60) == 0, shop.errors()
            assert shop.states() == dict.fromkeys(keys, JobState.DONE)
    return sorted(times)


def contain_poison() -> tuple[float, float]:
    """Every kind of poison beside honest work; the share of time that the honest work lost."""
    spent = []
    for poisons in ((), ("kills_itself", "reads_null")):
        with project() as shop:
            keys = shop.add("works", 400, seconds=0.05)
            for poison in poisons:
                shop.add(poison)
            code, said = shop.drain()
            assert code == (1 if poisons else 0), said
            assert all(shop.states()[key] is JobState.DONE for key in keys)
            for poison, name in zip(poisons, ("SIGKILL", "SIGSEGV"), strict=False):
                job = shop.job(f"{poison}-0")
                assert (job.state, job.crashes) == (JobState.ERROR, 3)
                assert job.last_error is not None
                assert name in job.last_error.message
            at = [at for key, _, at in shop.bodies("end") if key in keys]
            spent.append(max(at) - min(at))
    return spent[0], spent[1]


def provoke_a_storm() -> list[float]:
    """Twenty jobs, each of which kills the shared worker: the times between its starts."""
    with project() as shop:
        shop.add("kills_itself", 20)
        run = shop.run(PENSTOCK_RUNTIME__ASYNC_SLOTS="1")
        time.sleep(STORM_SECONDS)
        run.send_signal(signal.SIGTERM)
        run.wait(30)
        first: dict[str, int] = {}  # a job that is poison runs alone from its second start on
        for key, pid, _ in shop.bodies():
            first.setdefault(key, pid)
        starts = [at for pid, at in shop.imports() if pid in first.values()]
    assert len(starts) >= 3
    gaps = [later - sooner for sooner, later in itertools.pairwise(starts)]
    for number, gap in enumerate(gaps):
        assert gap >= BACK_OFF_FIRST_SECONDS * 2**number, f"no back-off: {gaps}"
    return gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    kills: int = parser.parse_args().kills
    times = measure_reaps(kills)
    middle, last = times[len(times) // 2], times[-1]
    print(
        f"{kills} killed workers, reaped after: median {middle:.2f} s, max {last:.2f} s", flush=True
    )
    without, beside = contain_poison()
    print(f"400 jobs: {without:.1f} s alone, {beside:.1f} s beside two poisonous ones", flush=True)
    gaps = provoke_a_storm()
    said = ", ".join(f"{gap:.1f}" for gap in gaps)
    print(f"20 poisonous jobs, {STORM_SECONDS:g} s: seconds between starts of the worker: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
