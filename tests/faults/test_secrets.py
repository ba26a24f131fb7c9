# SPDX-License-Identifier: Apache-2.0
"""F71: do secrets stay out of everything that is written down or can be read by others?

Twenty canaries stand where secrets stand in real programs: in messages, URLs, headers, settings and
the environment. Jobs raise, skip and log them, commands fail with them; afterwards nobody may find
one in the database, its log, the output of any command, or the arguments of a worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.model.job import JobState
from tests.faults.shop import NOTES, Shop
from tests.forked import run_forked
from tests.processes import children_of
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

#: In the environment of every command.
VARIABLES = {
    "SHOP_API_KEY": "canary01-plain-words",
    "SHOP_TOKEN": "canary02+signs/and=",
    "SHOP_SECRET": "canary03'quoted\"",
    "SHOP_DB_PASSWORD": "canary04 with spaces",
    "SHOP_PASSWORD_FILE_CONTENT": "canary05\\back\\slash",
}
#: Known to the app only, but written as secrets are written.
TEXTS = [
    "Authorization: Bearer canary06",
    "{'authorization': 'Basic canary07=='}",
    "Cookie: sid=canary08; theme=canary09",
    "Set-Cookie: sid=canary10; Path=/",
    "x-api-key: canary11",
    "https://me:canary12@example.org/x failed",
    "https://canary13@example.org/x failed",
    "GET https://example.org/x?api_key=canary14&page=2",
    "login(user='me', password='canary15')",
    '{"access_token": "canary16"}',
    "Incorrect API key provided: sk-canary17-abcdefghijkl",
    "sent Bearer canary18-abcdef",
]
STORE = "postgresql://me:canary19@127.0.0.1:1/shop"
FLAG = "https://u:canary20@example.org"
CANARIES = [f"canary{number:02}" for number in range(1, 21)]

APP = (
    NOTES
    + f"""
import json, logging
from penstock import Skip, host_key

TEXTS = {TEXTS!r} + [os.environ[name] for name in {list(VARIABLES)!r}]
"""
    + """
ALL = " | ".join(TEXTS)

@app.task(max_attempts=1, limits={"host": lambda n: f"h{n % 3}"})
async def raises(ctx: Context, n: int) -> None:
    ctx.log.warning("about to send %s", TEXTS[n])
    logging.getLogger("some.library").error("response:\\n%s", TEXTS[n])
    raise ValueError(TEXTS[n])

@app.task(max_attempts=1)
def raises_in_thread(ctx: Context) -> None:
    try:
        raise KeyError(ALL)
    except KeyError:
        logging.getLogger("shop").exception("it failed: %s", ALL)
        raise

@app.task(max_attempts=1, executor="process")
def raises_in_process(ctx: Context) -> None:
    raise RuntimeError(ALL)

@app.task()
async def skips(ctx: Context) -> None:
    raise Skip(ALL)

@app.task()
async def returns_no_json(ctx: Context) -> object:
    class Model:
        def model_dump(self, mode: str) -> object:
            raise ValueError(ALL)
    return Model()

@app.task(max_attempts=1)
async def refused_by_name(ctx: Context) -> None:
    raise type("Error_sk-canary17-abcdefghijkl", (Exception,), {})("x" * 16_370 + TEXTS[-1])

@app.task(limits={"host": lambda url: host_key(url)})
async def visits(ctx: Context, url: str) -> None: ...

@app.task()
async def waits(ctx: Context) -> None:
    note("start", ctx)
    await asyncio.sleep(60)
"""
)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


RETRY = [["queue", "retry-failed", "--task", "raises_in_thread"]]
LOOKS = [
    ["queue", "list"],
    ["queue", "list", "--json"],
    ["queue", "show", "raises_in_thread-0"],
    ["queue", "show", "raises_in_process-0", "--json"],
    ["queue", "stats", "--store", STORE],
    ["--debug", "queue", "stats", "--store", STORE],
    ["queue", "enqueue", "visits", "v", f'{{"url": "{FLAG} x"}}'],
    ["--debug", "queue", "enqueue", "visits", "v", f'{{"url": "{FLAG} x"}}'],
    ["queue", "enqueue", "visits", "v", f'{{"url": 5, "x": "{TEXTS[0]}"}}'],
    ["queue", "run", "--drain", "--store", STORE],
]
#: A store that will never come up is not waited for.
HASTY = """
from penstock.stores import retry
retry.STORE_WAIT_SECONDS = 0.5
"""
#: Several commands in one process, to save time; the last one gives the exit code.
DRIVER = """
import contextlib, json, sys
from penstock.cli import main
*first, last = json.loads(sys.argv[1])
for arguments in first:
    with contextlib.suppress(SystemExit):
        main.run(arguments)
main.run(last)
"""


def penstock(
    shop: Shop, *arguments: str, first: Sequence[Sequence[str]] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    commands = [*first, arguments]
    return run_forked(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        cwd=shop.folder,
        env={**os.environ, **VARIABLES, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def found_in(text: str | bytes) -> set[str]:
    data = text.encode() if isinstance(text, str) else text
    return {canary for canary in CANARIES if canary.encode() in data}


def test_f71_no_canary_is_found_in_the_database_the_logs_or_any_output(shop: Shop) -> None:
    for number in range(len(TEXTS) + len(VARIABLES)):
        shop.add("raises", name=f"raises-{number}", n=number)
    for task in ("raises_in_thread", "raises_in_process", "skips", "returns_no_json"):
        shop.add(task)
    shop.add("refused_by_name")

    run = penstock(shop, "queue", "run", "--drain", "--log-level", "debug")
    assert run.returncode == 1, run.stderr
    assert set(shop.states().values()) == {JobState.ERROR, JobState.SKIPPED}
    again = penstock(
        shop, "queue", "run", "--drain", "--log-level", "debug", "--log-format", "json", first=RETRY
    )
    (shop.folder / "sitecustomize.py").write_text(HASTY)
    looks = penstock(shop, *LOOKS[-1], first=LOOKS[:-1], PYTHONPATH=str(shop.folder))

    for done in (run, again, looks):
        text = done.stdout + done.stderr
        assert "[redacted]" in text
        assert found_in(text) == set(), text
        assert "our bug" not in text, text
    assert "postgresql://me@127.0.0.1:1/shop" in looks.stderr
    assert "The URL 'https://[redacted]@example.org x' has a space" in looks.stderr
    files = [path for path in shop.folder.iterdir() if path.name.startswith("shop.db")]
    assert {path.name for path in files} >= {"shop.db", "shop.db-wal"}
    for path in files:
        assert found_in(path.read_bytes()) == set(), path.name
    message = shop.job("raises-5-0").last_error
    assert message is not None
    assert message.message == "https://[redacted]@example.org/x failed"


def test_f71_an_app_that_cannot_be_imported_is_told_without_its_secrets(shop: Shop) -> None:
    (shop.folder / "shop.py").write_text(APP + "\nraise ValueError(ALL + chr(27) + '[2J')\n")

    for arguments in (["queue", "run", "--drain"], ["--debug", "queue", "run", "--drain"]):
        done = penstock(shop, *arguments)

        assert done.returncode == 2
        assert found_in(done.stdout + done.stderr) == set()
        assert "\x1b" not in done.stderr
        assert ("Traceback" in done.stderr) is ("--debug" in arguments)


def test_f71_no_argument_of_a_worker_can_be_read_by_others(shop: Shop) -> None:
    shop.add("waits")
    run = shop.run("--limit", "host=canary20.example.org:3", quick=False, cloned=False, **VARIABLES)
    wait_until(lambda: len(shop.bodies()) >= 1, 60)

    workers = children_of(run.pid)
    arguments = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers]

    assert len(arguments) == 1
    assert b"penstock.processes.worker" in arguments[0]
    assert found_in(arguments[0]) == set()


def test_f71_a_hostile_error_of_16_kib_costs_little(shop: Shop) -> None:
    """A text that would keep a careless pattern busy for minutes."""
    from penstock.model.job import AttemptError, ErrorCategory

    began = time.monotonic()
    for piece in ("://a:", "token='", "cookie:a;", "Bearer ", "eyJaaaaaaaa."):
        AttemptError(ErrorCategory.OWN, "E", piece * (64 * 1024))

    assert time.monotonic() - began < 20
