# SPDX-License-Identifier: Apache-2.0
"""What may wrong clocks of single machines do to a fleet? Leases live by PostgreSQL's clock."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.definitions.request import to_new_job
from penstock.model.job import NewJob
from penstock.stores.postgres.open import open_postgres
from penstock.stores.protocol import Store
from tests.faults import fault_app
from tests.faults.point_deaths import kill_at, lines, starts
from tests.faults.project import CONFIG
from tests.faults.roles import STORE
from tests.faults.test_clocks import SHORT_LEASE, WallClock
from tests.faults.zygote import Zygote
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

MINUTES, DAY = 300, 86_400
SKEWS = (MINUTES, -MINUTES, DAY, -DAY)


@pytest.fixture
def wrong(tmp_path: Path) -> Iterator[tuple[Zygote, WallClock]]:
    """Forks processes whose wall clock is wrong."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler called cc for the clock shim")
    clock = WallClock(tmp_path / "offset")
    shim = tmp_path / "shim.so"
    source = Path(__file__).with_name("wall_clock_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    zygote = Zygote(
        tmp_path,
        environment={"LD_PRELOAD": str(shim), "PENSTOCK_TEST_CLOCK_OFFSET": str(clock.path)},
    )
    yield zygote, clock
    zygote.close()


@pytest.fixture
def store(tmp_path: Path, fresh_postgres: Callable[[], str]) -> Iterator[Store]:
    url = fresh_postgres()
    (tmp_path / "penstock.toml").write_text(CONFIG.replace(f"sqlite:///{STORE}", url))
    store = open_postgres(url, durability="normal")
    yield store
    assert store.check().result() == []
    store.close()


def _works(*keys: str, seconds: float, delay: float = 0.0) -> list[NewJob]:
    return [
        to_new_job(fault_app.works.job(seconds=seconds).with_options(key=key, delay=delay))
        for key in keys
    ]


@pytest.mark.parametrize("skew", SKEWS)
def test_f21_a_worker_whose_clock_is_wrong_loses_and_steals_nothing(
    skew: int, wrong: tuple[Zygote, WallClock], zygote: Zygote, store: Store, tmp_path: Path
) -> None:
    jumpy, clock = wrong
    clock.set(skew)
    keys = [f"k{n}" for n in range(16)]
    store.enqueue(_works(*keys, seconds=0.3)).result()
    runs = [(jumpy, jumpy.fork(tmp_path, "run"))]
    wait_until(lambda: bool(starts(tmp_path)))
    runs.append((zygote, zygote.fork(tmp_path, "run")))
    expired = 0
    while runs := [(owner, pid) for owner, pid in runs if owner.poll(pid) is None]:
        expired += sum(not worker.alive for worker in store.workers().result())
        time.sleep(0.02)

    assert expired == 0
    assert starts(tmp_path) == dict.fromkeys(keys, 1)
    stamps = []
    for key in keys:
        assert [attempt.outcome for attempt in store.attempts(key).result()] == ["done"]
        job = store.job(key).result()
        assert job is not None
        assert job.started_at is not None
        stamps.append(abs(job.started_at / 1e6 - time.time()))
    assert max(stamps) > abs(skew) / 2  # the shim did its part


@pytest.mark.parametrize("skew", [MINUTES, -DAY])
def test_f21_a_worker_whose_clock_is_wrong_is_inherited_when_its_time_is_over(
    skew: int, wrong: tuple[Zygote, WallClock], zygote: Zygote, store: Store, tmp_path: Path
) -> None:
    jumpy, clock = wrong
    clock.set(skew)
    store.enqueue(_works("k", seconds=0.0)).result()
    code = jumpy.run(tmp_path, "run", failpoints=kill_at("exec.during"), environment=SHORT_LEASE)
    assert code == -signal.SIGKILL
    died = time.time()

    assert zygote.run(tmp_path, "run") == 0

    assert [attempt.outcome for attempt in store.attempts("k").result()] == ["lost", "done"]
    second = [float(line[3]) for line in lines(tmp_path, "bodies.log") if line[0] == "start"][-1]
    assert second - died < MINUTES / 2
    assert starts(tmp_path) == {"k": 2}


def test_f21_a_delay_is_counted_by_the_server_whatever_the_producer_believes(
    wrong: tuple[Zygote, WallClock], store: Store, tmp_path: Path
) -> None:
    jumpy, clock = wrong
    for number, skew in enumerate(SKEWS):
        clock.set(skew)
        assert jumpy.run(tmp_path, "produce", f"k{number}") == 0
        job = store.job(f"k{number}").result()
        assert job is not None
        assert abs(job.available_at / 1e6 - time.time()) < 60
        assert abs(job.created_at / 1e6 - time.time()) < 60
