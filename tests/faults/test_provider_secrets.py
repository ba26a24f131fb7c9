# SPDX-License-Identifier: Apache-2.0
"""F71: do keys of providers stay out of everything that is written down, whoever quotes them?

A key stands in a header, in the URL of a provider, in a parameter, even as the name of a model; the
provider echoes it in its refusals, the body raises and logs it. Nobody may find it in the store,
in a row of a worker, in an event or in the output of a command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Secret
from penstock.testing import SimulatedProvider, SimulatedRequest
from penstock.testing.simulated_provider import Reply
from tests.forked import run_forked
from tests.processes import environment_of_tests

pytestmark = pytest.mark.faults

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
CANARIES = [f"canary{number:02}" for number in range(1, 5)]
APP = """
import logging
from pathlib import Path
from penstock import Context, Penstock, Secret

app = Penstock("keys")
KEY = Secret(Path("vault.txt").read_text().strip())  # nothing in it says that it is one
api = app.provider("api", base_url={url!r})
log = logging.getLogger("keys")

def headers():
    return {{"x-custom": KEY.reveal()}}

@app.task(uses=api, max_attempts=1)
async def echoes(ctx: Context) -> None:
    log.warning("sending with %s and %r", KEY.reveal(), KEY)
    reply = await api.http.get("/echo?token=canary02-abcdefgh", headers=headers())
    raise ValueError(f"{{reply.text}} for {{reply.request.url}} {{reply.request.headers}}")

@app.task(uses=api, max_attempts=1)
async def refused(ctx: Context) -> None:
    reply = await api.http.get("/refused?api_key=canary02-abcdefgh", headers=headers())
    reply.raise_for_status()

@app.task(uses=api, max_attempts=1)
async def names_it(ctx: Context) -> None:
    body = {{"model": KEY.reveal(), "messages": []}}
    (await api.http.post("/v1/chat/completions", json=body, headers=headers())).raise_for_status()

@app.task(uses=api, max_attempts=1)
def in_thread(ctx: Context) -> None:
    api.http_sync.get("/refused", headers=headers()).raise_for_status()

if __name__ == "__main__":
    for task in (echoes, refused, names_it, in_thread):
        app.enqueue(task.job(), key=task.name)
"""


def answer(request: SimulatedRequest) -> Reply | None:
    key = dict(request.headers).get("x-custom", "")
    status = 401 if "refused" in request.path else 200
    return Reply.of(f"Incorrect key provided: {key}".encode(), status=status)


@pytest.fixture
def echo() -> Iterator[SimulatedProvider]:
    with SimulatedProvider(script=answer) as provider:
        yield provider


def found_in(data: bytes | str) -> set[str]:
    text = data if isinstance(data, bytes) else data.encode()
    return {canary for canary in CANARIES if canary.encode() in text}


def test_f71_keys_of_providers_are_found_nowhere(tmp_path: Path, echo: SimulatedProvider) -> None:
    url = echo.url.replace("://", "://me:canary03-abcdefgh@")
    (tmp_path / "vault.txt").write_text("plain-words-canary01")
    (tmp_path / "pipeline.py").write_text(APP.format(url=url))
    (tmp_path / "penstock.toml").write_text(f'[providers.api]\nbase_url = "{url}"\n')
    outputs = []

    def command(*words: str) -> None:
        done = run_forked(
            [*words],
            cwd=tmp_path,
            env=environment_of_tests(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        outputs.append(done.stdout + done.stderr)

    command(sys.executable, "pipeline.py")
    command(*PENSTOCK, "queue", "run", "--drain", "--log-level", "debug")
    for words in (
        ["config", "show"],
        ["config", "show", "--json"],
        ["providers"],
        ["providers", "--json"],
        ["queue", "list", "--json"],
        *(["queue", "show", key] for key in ("echoes", "refused", "names_it", "in_thread")),
        ["why", "refused"],
        ["doctor"],
    ):
        command(*PENSTOCK, *words)

    assert "[redacted]" in outputs[1]
    assert '"model": "[redacted]"' in outputs[5]
    assert any("Incorrect key provided: [redacted]" in text for text in outputs)
    assert [found_in(text) for text in outputs] == [set()] * len(outputs), "\n".join(outputs)
    for path in (tmp_path / ".penstock").iterdir():
        assert found_in(path.read_bytes()) == set(), path.name


def test_f71_a_wrong_base_url_is_refused_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "vault.txt").write_text("plain-words-canary01")
    (tmp_path / "pipeline.py").write_text(APP.format(url="https://me:canary04-abcdefgh@host/?x=1"))

    done = run_forked(
        [*PENSTOCK, "config", "show"],
        cwd=tmp_path,
        env=environment_of_tests(),
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 2
    assert "base_url" in done.stderr
    assert found_in(done.stdout + done.stderr) == set(), done.stderr


def test_f71_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret("canary04-abcdefgh")

    shown = f"{secret} {secret!r} {[secret]} %s" % secret

    assert found_in(shown) == set()
    assert secret.reveal() == "canary04-abcdefgh"
    assert secret == Secret("canary04-abcdefgh")
