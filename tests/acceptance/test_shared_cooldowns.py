# SPDX-License-Identifier: Apache-2.0
"""Long pauses and closed accounts of providers are known to all processes and runs of a store."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.job import JobState
from penstock.model.provider import CooldownKey
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from penstock.testing import SimulatedProvider
from penstock.testing.simulated_provider import Reply, SimulatedRequest
from penstock.worker.cooldowns import LOOK_SECONDS
from tests.forked import Forked, run_forked
from tests.postgres.fixtures import MakeCluster
from tests.processes import environment_of_tests, kill_run
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 120.0
PAUSE_SECONDS = 15
JOBS = 20
OLD_KEY, NEW_KEY = "sk-canary-old-0123456789", "sk-canary-new-9876543210"
APP = """
from penstock import Context, Penstock, Secret

app = Penstock("shop")
api = app.provider("api", base_url={url!r}, {options})

@app.task(uses=api, max_attempts=1)
async def fetch(ctx: Context, n: int) -> int:
    reply = await api.http.get(f"/things/{{n}}")
    reply.raise_for_status()
    return reply.status_code

@app.task(max_attempts=1)
async def fetch_untold(ctx: Context, n: int) -> int:
    reply = await api.http.get(f"/things/{{n}}")
    reply.raise_for_status()
    return reply.status_code
"""


@pytest.fixture
def refusing() -> Iterator[SimulatedProvider]:
    """A provider that asks for a long pause, once."""

    def script(request: SimulatedRequest) -> Reply | None:
        if request.number > 1:
            return None
        return Reply.of({}, status=429, headers=(("retry-after", str(PAUSE_SECONDS)),))

    with SimulatedProvider(script=script) as provider:
        yield provider


class Shop:
    """A project, its store, and the runs that work on it."""

    def __init__(self, folder: Path, provider_url: str, store_url: str, options: str = "") -> None:
        (folder / "shop.py").write_text(APP.format(url=provider_url, options=options))
        (folder / "penstock.toml").write_text(f'app = "shop.py"\nstore = "{store_url}"\n')
        self._folder = folder

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_forked(
            [*PENSTOCK, *words],
            cwd=self._folder,
            env=environment_of_tests(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def document(self, *words: str) -> Any:
        ended = self.command(*words, "--json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def enqueue(self, task: str, first: int, count: int) -> None:
        lines = (
            json.dumps({"task": task, "key": f"{task}-{n}", "payload": {"n": n}})
            for n in range(first, first + count)
        )
        (self._folder / "jobs.jsonl").write_text("\n".join(lines))
        ended = self.command("queue", "import", "jobs.jsonl")
        assert ended.returncode == 0, ended.stderr

    def start(self, cleanup: ExitStack, *words: str) -> Forked:
        run = Forked(
            [*PENSTOCK, "queue", "run", *words],
            cwd=self._folder,
            env=environment_of_tests(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        cleanup.callback(kill_run, run)
        return run


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    make_cluster: MakeCluster = request.getfixturevalue("make_cluster")
    return make_cluster().url()


def test_f84_nothing_is_sent_before_the_end_of_a_pause_that_one_process_was_told_of(
    tmp_path: Path, store_url: str, refusing: SimulatedProvider
) -> None:
    shop = Shop(tmp_path, refusing.url, store_url)
    with ExitStack() as cleanup:
        store = cleanup.enter_context(closing(open_store(store_url)))
        shop.enqueue("fetch", 0, 1)
        first = shop.start(cleanup, "--processes", "2")
        wait_until(lambda: bool(store.cooldowns().result()), SECONDS)
        told = refusing.log[0].at_seconds
        time.sleep(LOOK_SECONDS + 0.5)  # every process has read it

        shop.enqueue("fetch", 1, JOBS)
        shop.enqueue("fetch_untold", 0, JOBS)
        late = shop.start(cleanup)  # a run that begins during the pause
        assert cooling(shop) <= PAUSE_SECONDS
        wait_until(lambda: has_gate(shop, "fetch-5", "cooldown"), PAUSE_SECONDS)

        wait_until(lambda: done(store) == 1 + 2 * JOBS, SECONDS)
        assert (first.poll(), late.poll()) == (None, None)
    others = [call.at_seconds - told for call in refusing.log[1:]]
    assert len(others) == 1 + 2 * JOBS
    assert min(others) >= PAUSE_SECONDS


def cooling(shop: Shop) -> float:
    (row,) = shop.document("providers")["providers"]
    said = shop.command("providers").stdout
    assert "api/127.0.0.1 cools down for another" in said, said
    assert "--end-cooldown api" in said
    left: float = row["cooldown"]["seconds"]
    assert left > 0
    return left


def has_gate(shop: Shop, key: str, gate: str) -> bool:
    found = shop.document("why", key)
    assert "unhealthy" not in found["sentence"], found
    return bool(found["gate"] == gate)


def done(store: Store) -> int:
    return store.stats().result().states.get(JobState.DONE, 0)


def test_a_person_who_knows_better_ends_a_long_pause(tmp_path: Path, store_url: str) -> None:
    with SimulatedProvider() as provider:
        shop = Shop(tmp_path, provider.url, store_url)
        end_early(shop, store_url)
        assert len(provider.log) == JOBS


def end_early(shop: Shop, store_url: str) -> None:
    with closing(open_store(store_url)) as store:
        store.begin_cooldown(CooldownKey("api", "127.0.0.1"), 3_600.0, "{}").result()
    shop.enqueue("fetch", 0, JOBS)

    ended = shop.command("providers", "--end-cooldown", "api")
    assert ended.stdout.startswith("1 cool-down of api ended early."), ended

    began = time.monotonic()
    assert shop.command("queue", "run", "--drain").returncode == 0
    assert time.monotonic() - began < SECONDS


class Bank:
    """A provider that accepts one key, once its account has been filled."""

    def __init__(self, folder: Path) -> None:
        self.is_filled = True
        self.keys: list[str] = []  # of each call
        (folder / "key").write_text(OLD_KEY)
        self._folder = folder

    def script(self, request: SimulatedRequest) -> Reply | None:
        key = request.headers["authorization"].removeprefix("Bearer ")
        self.keys.append(key)
        if key == NEW_KEY and self.is_filled:
            return None
        return Reply.of({"error": {"message": "Incorrect API key"}}, status=401, wait_seconds=0.1)

    def replace_key(self) -> None:
        (self._folder / "key").write_text(NEW_KEY)


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


@pytest.fixture
def bank_shop(tmp_path: Path, store_url: str, bank: Bank) -> Iterator[Shop]:
    with SimulatedProvider(script=bank.script) as provider:
        key = str(tmp_path / "key")
        yield Shop(tmp_path, provider.url, store_url, f'api="openai", api_key=Secret.file({key!r})')


def test_f83_a_closed_account_is_left_alone_by_all_and_a_replaced_key_opens_it_for_all(
    store_url: str, bank: Bank, bank_shop: Shop
) -> None:
    shop = bank_shop
    with ExitStack() as cleanup:
        store = cleanup.enter_context(closing(open_store(store_url)))
        shop.enqueue("fetch", 0, 1)
        first = shop.start(cleanup, "--processes", "2")
        wait_until(lambda: bool(store.cooldowns().result()), SECONDS)
        time.sleep(LOOK_SECONDS + 0.5)  # every process has read it
        assert len(bank.keys) == 1

        shop.enqueue("fetch", 1, JOBS)
        shop.enqueue("fetch_untold", 0, JOBS)
        late = shop.start(cleanup)  # its first request probes: perhaps somebody has filled it
        wait_until(lambda: len(bank.keys) == 2, SECONDS)
        wait_until(lambda: has_gate(shop, "fetch-5", "account"), SECONDS)
        said = shop.command("providers").stdout
        assert "The account of api is closed: 401: Incorrect API key" in said, said
        time.sleep(2 * LOOK_SECONDS)
        assert bank.keys == [OLD_KEY] * 2

        bank.replace_key()
        wait_until(lambda: done(store) == 1 + 2 * JOBS, SECONDS)
        assert (first.poll(), late.poll()) == (None, None)
    assert bank.keys == [OLD_KEY] * 2 + [NEW_KEY] * (1 + 2 * JOBS)


def test_f83_the_next_drain_asks_once_and_goes_on_if_the_account_was_filled(
    store_url: str, bank: Bank, bank_shop: Shop
) -> None:
    bank.replace_key()
    bank.is_filled = False
    bank_shop.enqueue("fetch", 0, 1)
    bank_shop.enqueue("fetch_untold", 0, 1)
    for calls in (2, 3, 4):  # the first meets it with both jobs, each other run probes it once
        ended = bank_shop.command("queue", "run", "--drain", "--processes", "2")
        assert ended.returncode == 4, ended.stderr
        assert "replace its key or fill the account" in ended.stderr
        assert len(bank.keys) <= calls
    assert "The account of api is closed" in bank_shop.command("providers").stdout
    assert "The account of provider 'api' is closed (401: " in bank_shop.command("doctor").stdout

    bank.is_filled = True
    bank_shop.enqueue("fetch", 1, JOBS)
    ended = bank_shop.command("queue", "run", "--drain", "--processes", "2")
    assert ended.returncode == 0, ended.stderr
    assert "is closed" not in bank_shop.command("providers").stdout
    with closing(open_store(store_url)) as store:
        assert done(store) == 2 + JOBS
        assert store.cooldowns().result() == []
