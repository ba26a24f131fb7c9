# SPDX-License-Identifier: Apache-2.0
"""Does a run end with exit code 4 at its budget, and go on after a raise as if it never had?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.model.job import JobId
from penstock.stores.open import open_store
from penstock.stores.protocol import JobFilter
from penstock.testing import ProviderRules, SimulatedProvider
from tests.budget_shop import answer
from tests.forked import Forked, run_forked
from tests.processes import environment_of_tests, kill_run
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 120.0
APP = """
import asyncio
import os
import signal

from penstock import Context, Penstock

app = Penstock("shop")
api = app.provider("api", base_url={url!r}, paid=True, max_parallel=2)

async def buy(prompt: str) -> str:
    asked = {{"model": "m", "messages": [{{"content": prompt}}], "max_tokens": 100}}
    reply = await api.http.post("/v1/chat/completions", json=asked)
    return str(reply.json()["text"])

@app.task(uses=api)
async def ask(ctx: Context, n: int) -> list[str]:
    return [await buy(f"{{n}}/{{k}}") for k in range(3)]

@app.task()
async def free(ctx: Context, n: int) -> int:
    return n

@app.task(uses=api)
async def crash(ctx: Context) -> str:
    if not os.path.exists("crashed"):
        open("crashed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return await buy("after the crash")

@app.task()
async def sleep(ctx: Context) -> None:
    await asyncio.sleep(600)

if __name__ == "__main__":
    app.enqueue_many(ask.job(n=n).with_options(key=f"ask{{n}}") for n in range(12))
    app.enqueue_many(free.job(n=n).with_options(key=f"free{{n}}") for n in range(12))
"""
PRICES = """
[providers.api.models.m]
usd_per_million_tokens = { input = 1, output = 2.0 }
"""


def configure(folder: Path, settings: str) -> None:
    (folder / "penstock.toml").write_text(f'app = "shop.py"\n{settings}{PRICES}')


def write(folder: Path, url: str, settings: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "shop.py").write_text(APP.format(url=url))
    configure(folder, settings)
    subprocess.run([sys.executable, "shop.py"], cwd=folder, check=True, timeout=SECONDS)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PENSTOCK, *words],
        cwd=folder,
        env=environment_of_tests(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def document(folder: Path, *words: str) -> Any:
    ended = command(folder, *words, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def results(folder: Path) -> dict[str, str | None]:
    with closing(open_store(f"sqlite:///{folder}/.penstock/shop.db")) as store:
        jobs = store.jobs(JobFilter(), JobId(0), 100).result()
    return {job.key: job.result for job in jobs}


@pytest.fixture
def provider() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(ProviderRules(latency=0.01), answer=answer) as one:
        yield one


def test_capped_raised_and_run_again_is_the_same_as_one_run(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    """Three processes, of which one has no part of the provider and must end as well."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    write(whole, provider.url, "")
    assert command(whole, "queue", "run", "--drain").returncode == 0
    assert provider.counts.served == 36

    write(parts, provider.url, "[budget.day]\nusd = 0.002\n")
    ended = command(parts, "queue", "run", "--drain", "--processes", "3")

    assert ended.returncode == 4, ended.stderr
    following = "Next: raise the used-up budget, then penstock queue run --drain continues"
    assert ended.stdout.splitlines()[-1] == following
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("The budget [budget.day] of $0.002 a day is used up ($0.00")
    assert "raise budget.day.usd = 0.002 in penstock.toml, then run the same command again" in last
    stats = document(parts, "queue", "stats")
    assert stats["tasks"]["free"]["done"] == 12
    assert stats["tasks"]["ask"]["queued"] > 0
    assert stats["tasks"]["ask"]["error"] == 0

    told = document(parts, "providers")
    (budget,) = told["budgets"]
    assert (budget["name"], budget["usd"], budget["tokens"]) == ("budget.day", "0.002", None)
    assert 0 < float(budget["spent_usd"]) <= 0.002
    (row,) = [row for row in told["spending"] if row["period"] == "day"]
    assert (row["provider"], row["model"], row["usd"]) == ("api", "m", budget["spent_usd"])
    assert row["bought"] == provider.counts.served - 36
    assert stats["calls"]["bought"] == row["bought"]
    assert "budget.day" in command(parts, "providers").stdout
    waits = next(key for key, result in results(parts).items() if result is None)
    found = document(parts, "why", waits)
    assert found["gate"] == "budget"
    assert "the last run ended at its budget [budget.day] of $0.002 a day" in found["sentence"]
    report = document(parts, "report")
    assert report["over_budget"] == last
    assert report["spent"][0]["usd"] == budget["spent_usd"]
    assert {type(one["reserved_usd"]) for one in report["spent"]} == {str}

    again = command(parts, "queue", "run", "--drain", "--processes", "2")
    assert again.returncode == 4, again.stderr
    assert provider.counts.served < 72

    configure(parts, "[budget.day]\nusd = 1\n")
    ended = command(parts, "queue", "run", "--drain", "--processes", "2")
    assert ended.returncode == 0, ended.stderr
    assert results(parts) == results(whole)
    assert provider.counts.served == 72
    calls = document(parts, "queue", "show", "ask0")["calls"]
    assert (calls["bought"], calls["in_doubt"]) == (3, 0)
    assert "3 bought, " in command(parts, "queue", "show", "ask0").stdout


def test_runs_and_calls_tell_what_was_bought_and_answers_only_on_request(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    write(tmp_path, provider.url, "")
    assert document(tmp_path, "calls") == {"calls": []}
    assert command(tmp_path, "queue", "run", "--drain").returncode == 0

    (run,) = document(tmp_path, "runs")["runs"]
    assert (run["state"], run["ended"]["done"], run["workers"]) == ("ended", 24, 1)
    last = document(tmp_path, "calls", "--limit", "36")["calls"]
    own = document(tmp_path, "calls", "ask3")["calls"]
    told = command(tmp_path, "calls", "ask3")
    answers = document(tmp_path, "calls", "ask3", "--answer")["calls"]
    texts = command(tmp_path, "calls", "ask3", "--answer").stdout.splitlines()

    assert sum(Decimal(call["used_usd"]) for call in last) == Decimal(run["spent_usd"]) > 0
    assert sum(call["used_tokens"] for call in last) == run["spent_tokens"]
    assert {(call["provider"], call["model"], call["state"]) for call in last} == {
        ("api", "m", "answered")
    }
    assert own == [call for call in reversed(last) if call["job"] == "ask3"]
    assert len(told.stdout.splitlines()) == 1 + len(own) == 4
    assert "m: 3/" not in told.stdout + json.dumps(last)
    assert [json.loads(call["answer"])["text"] for call in answers] == [
        "m: 3/0",
        "m: 3/1",
        "m: 3/2",
    ]
    assert [json.loads(text)["text"] for text in texts] == ["m: 3/0", "m: 3/1", "m: 3/2"]
    assert command(tmp_path, "calls", "--answer").returncode == 2


def test_why_names_the_budget_while_others_still_run(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    write(tmp_path, provider.url, "[budget.run]\nusd = 0.0001\n[runtime]\ngrace_seconds = 0\n")
    assert command(tmp_path, "queue", "enqueue", "sleep", "slow").returncode == 0
    run = Forked(
        [*PENSTOCK, "queue", "run"],
        cwd=tmp_path,
        env=environment_of_tests(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: why(tmp_path)["gate"] == "budget", SECONDS)
        found = why(tmp_path)
        free = document(tmp_path, "queue", "stats")["tasks"]["free"]
    finally:
        kill_run(run)

    assert "The task 'ask' of 'ask0' is held back in run" in found["sentence"]
    assert "has $0.0001 of $0.0001 left" in found["sentence"]
    assert "budget.run.usd = 0.0001 in penstock.toml is raised" in found["unblocks"]
    assert free["done"] == 12


def why(folder: Path) -> Any:
    return document(folder, "why", "ask0")


def test_a_run_that_does_not_drain_ends_at_its_budget_as_well(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    write(tmp_path, provider.url, "[budget.task.ask.run]\ntokens = 500\n")

    ended = command(tmp_path, "queue", "run", "--processes", "2")

    assert ended.returncode == 4, ended.stderr
    assert "[budget.task.ask.run] of 500 tokens a run" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("options", [["--drain"], []])
def test_a_job_that_runs_alone_after_a_crash_does_not_keep_a_run_alive(
    tmp_path: Path, provider: SimulatedProvider, options: list[str]
) -> None:
    """Only the worker for suspects hears of the budget; the others must end as well."""
    write(tmp_path, provider.url, "[budget.task.crash.run]\ntokens = 1\n")
    assert command(tmp_path, "queue", "enqueue", "crash", "suspect").returncode == 0

    ended = command(tmp_path, "queue", "run", "--processes", "2", *options)

    assert ended.returncode == 4, ended.stderr
    assert "[budget.task.crash.run] of 1 tokens a run" in ended.stderr.splitlines()[-1]
    stats = document(tmp_path, "queue", "stats")
    assert (stats["suspects"], stats["states"]["done"]) == (1, 24)


def test_a_wrong_budget_is_refused_before_anything_runs(tmp_path: Path) -> None:
    write(tmp_path, "http://127.0.0.1:1", "")
    configure(tmp_path, "[budget.provider.apy.run]\nusd = 1\n")

    ended = command(tmp_path, "queue", "run", "--drain")

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        "budget.provider.apy.run (from penstock.toml) is about a provider that the app does not "
        "define; the nearest known one is 'api'."
    )


def test_f77_a_total_holds_over_a_kill_is_shown_and_can_be_reset(
    tmp_path: Path, provider: SimulatedProvider
) -> None:
    """Killed with -9 in the middle and resumed: in all it is not exceeded."""
    write(tmp_path, provider.url, "[budget.total]\nusd = 0.002\n")
    run = Forked(
        [*PENSTOCK, "queue", "run", "--drain"],
        cwd=tmp_path,
        env=environment_of_tests(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: provider.counts.served >= 3, SECONDS)
    finally:
        kill_run(run)

    for _ in range(2):
        ended = command(tmp_path, "queue", "run", "--drain")
        assert ended.returncode == 4, ended.stderr
        assert "[budget.total] of $0.002 in all is used up" in ended.stderr.splitlines()[-1]

    (told,) = document(tmp_path, "budget", "show")["budgets"]
    names = ("spent_usd", "reserved_usd", "in_doubt_usd", "left_usd")
    spent, reserved, in_doubt, left = (round(float(told[name]) * 1e6) for name in names)
    assert (told["name"], told["usd"], told["app"]) == ("budget.total", "0.002", "shop")
    assert (reserved, spent + in_doubt + left) == (0, 2_000)
    assert 0 < spent <= 2_000
    assert "budget.total" in command(tmp_path, "budget", "show").stdout

    asked = command(tmp_path, "budget", "reset")
    assert (asked.returncode, "add --yes to do it" in asked.stderr) == (2, True)
    assert document(tmp_path, "budget", "show")["budgets"] == [told]
    done = command(tmp_path, "budget", "reset", "--yes")
    assert "4 totals of app 'shop' begin at zero; they held: all $0.00" in done.stdout
    (told,) = document(tmp_path, "budget", "show")["budgets"]
    assert (told["spent_usd"], told["in_doubt_usd"], told["left_usd"]) == ("0", "0", "0.002")
    wrong = command(tmp_path, "budget", "reset", "providers", "--yes")
    assert (wrong.returncode, "A scope is all, provider:NAME" in wrong.stderr) == (2, True)
