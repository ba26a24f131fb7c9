# SPDX-License-Identifier: Apache-2.0
"""What does `penstock table generate` say of every kind of failure, and with which exit code?"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import ProviderRules, Reply, SimulatedProvider, SimulatedRequest
from tests.canaries import Sweep, word
from tests.forked import ForkedWithArrow, run_forked
from tests.processes import environment_of_tests

pytestmark = pytest.mark.acceptance

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 240.0
ROWS = 12
PROMPT = f"Please tell all that is known about {word('prompt')} and of hill number"
APP = f"""
import os

from penstock import Penstock, Secret

SCORE = {{
    "type": "object",
    "properties": {{"stars": {{"type": "integer"}}}},
    "required": ["stars"],
}}

app = Penstock("shop")
api = app.provider(
    "api",
    base_url=os.environ["PROVIDER"],
    api="openai",
    api_key=Secret.env("TABLE_KEY"),
    paid=True,
    models={{"m": {{"usd_per_million_tokens": {{"input": 10_000, "output": 0}}}}}},
)
model = api.model("m", max_tokens=50)
table = app.table("reviews", buffer_size=6, early_stop=None)
table.seed("n", source=list(range(100)))
table.llm("review", model=model, prompt="{PROMPT} {{{{ n }}}}")
"""
CONFIG = """
app = "shop.py"
[runtime]
lease_ttl_seconds = 3
beat_seconds = 0.5
[tasks]
max_attempts = 1
"""
FINE = f"The lamp is fine, and so is {word('completion')} of the hills"
PROSE = f"I would say {word('completion')}, a lot."
SCORE = 'table.llm("score", model=model, prompt="Rate: {{ review }}", schema=SCORE, attempts=2)'
JUDGE = 'table.judge("quality", model=model, of="review", rubric={"helpful": "1 to 5"}, attempts=2)'
RAISES = """
def odd(review: str) -> bool:
    raise RuntimeError("cannot say of " + review)

table.check("odd", odd)
"""


def reply(text: str) -> dict[str, object]:
    return {
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def error(status: int, kind: str, text: str) -> Reply:
    return Reply.of({"error": {"type": kind, "code": kind, "message": text}}, status=status)


def asked(request: SimulatedRequest) -> str:
    """The first message: what a column asks."""
    content: str = request.json()["messages"][0]["content"]
    return content


def is_row(request: SimulatedRequest, number: int) -> bool:
    return asked(request) == f"{PROMPT} {number}"


class Case:
    """A provider and a table that fail in some way."""

    def __init__(
        self,
        answer: Callable[[SimulatedRequest], Reply | None] = lambda request: None,
        more: str = "",
        **rules: Any,
    ) -> None:
        self.provider = SimulatedProvider(
            ProviderRules(latency=0.005, **rules), script=answer, answer=self._text
        )
        self.more = more

    def _text(self, request: SimulatedRequest) -> dict[str, object]:
        return reply(FINE)


@dataclass(frozen=True)
class Ended:
    """How a command has ended, and what was said."""

    code: int
    out: str
    errors: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def last(self) -> str:
        return self.errors.splitlines()[-1]


class Folder:
    """Owns a folder with an app whose table is made by commands."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.path = folder
        (folder / "shop.py").write_text(APP + case.more + "\n")
        (folder / "penstock.toml").write_text(CONFIG)
        self._environment = environment_of_tests(
            PROVIDER=f"{case.provider.url}/v1", TABLE_KEY=f"sk-{word('authorization_key')}"
        )
        self._sweep = Sweep()

    def command(self, *words: str) -> Ended:
        done = run_forked(
            [*PENSTOCK, "table", *words],
            popen=ForkedWithArrow,
            cwd=self.path,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        ended = Ended(done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in ended.errors
        self._sweep.look(f"what {words[0]} says", ended.errors)
        if words[0] != "dropped":  # its values are the user's
            self._sweep.look(f"what {words[0]} shows", ended.out)
        return ended

    def generate(self, *words: str, rows: int = ROWS) -> Ended:
        return self.command("generate", "--rows", str(rows), "--json", *words)

    def dropped(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.command("dropped").out.splitlines()]

    def leaks(self) -> list[str]:
        self._sweep.sqlite(self.path / ".penstock/shop.db")
        return self._sweep.leaks


def refuse_row_3(request: SimulatedRequest) -> Reply | None:
    if not is_row(request, 3):
        return None
    return error(400, "invalid_request_error", f"{asked(request)} is against our policy")


def refuse_all(request: SimulatedRequest) -> Reply | None:
    return error(400, "invalid_request_error", f"no such parameter, in {asked(request)}")


def bad_envelope_of_row_3(request: SimulatedRequest) -> Reply | None:
    return Reply.of(b'{"choices": [' + FINE.encode()) if is_row(request, 3) else None


def score_with_a_text(request: SimulatedRequest) -> Reply | None:
    if not asked(request).startswith("Rate: "):
        return None
    text = json.dumps({"stars": word("completion")})
    return Reply.of(reply(text))


def prose(request: SimulatedRequest) -> Reply | None:
    return Reply.of(reply(PROSE))


@pytest.mark.parametrize(
    ("case", "code", "made", "reason"),
    [
        (Case(bad_envelope_of_row_3), 0, ROWS - 1, "review: no answer: "),
        (Case(score_with_a_text, SCORE), 1, 0, "score: schema: "),
        (Case(prose, SCORE), 1, 0, "score: no JSON: "),
        (Case(refuse_row_3), 0, ROWS - 1, "review: status 400: api/m answers 400: "),
        (Case(refuse_all), 1, 0, "review: status 400: api/m answers 400: "),
        (Case(prose, JUDGE), 1, 0, "quality: no JSON: "),
        (
            Case(more='table.expression("bad", "{{ 1 // (n - 3) }}")'),
            0,
            ROWS - 1,
            "bad: template: ",
        ),
        (Case(more=RAISES), 1, 0, "odd: raised: it raised RuntimeError at shop.py:"),
    ],
    ids=[
        *("bad_json", "schema_violation", "prose_for_json", "400_of_one_row", "400_of_all_rows"),
        *("judge_in_prose", "template_error", "validator_that_raises"),
    ],
)
def test_a_failure_for_good_drops_its_rows_and_tells_why(
    case: Case, code: int, made: int, reason: str, tmp_path: Path
) -> None:
    with case.provider:
        folder = Folder(tmp_path, case)
        ended = folder.generate()
        dropped = folder.dropped()
    assert (ended.code, ended.document["rows"]) == (code, made), ended.errors
    assert ended.document["dropped"] == len(dropped) == ROWS - made
    assert all(f"{one['column']}: {one['reason']}".startswith(reason) for one in dropped), dropped
    assert sum(ended.document["reasons"].values()) == ROWS - made
    if made:
        assert [one["row"] for one in dropped] == [3]
        assert dropped[0]["values"]["n"] == 3
    else:
        cause = "No rows of reviews were made; the first one was dropped: " + reason
        assert ended.last.startswith(cause)
    assert folder.leaks() == []


@pytest.mark.parametrize(
    "case",
    [Case(concurrency=2, retry_after_seconds=0.2), Case(outages=((0.0, 3.0),))],
    ids=["429_storm", "provider_down"],
)
def test_a_storm_and_an_outage_cost_no_row(case: Case, tmp_path: Path) -> None:
    with case.provider:
        folder = Folder(tmp_path, case)
        ended = folder.generate(rows=24)
    assert ended.code == 0, ended.errors
    assert (ended.document["rows"], ended.document["dropped"]) == (24, 0)
    assert case.provider.counts.served == 24
    assert case.provider.counts.refused + case.provider.counts.failed > 0
    assert folder.leaks() == []


@pytest.mark.parametrize(
    "empty",
    [(402, "payment_required"), (429, "insufficient_quota")],
    ids=["402", "insufficient_quota"],
)
def test_an_empty_account_ends_the_run_and_the_same_command_goes_on(
    empty: tuple[int, str], tmp_path: Path
) -> None:
    status, kind = empty
    calls = itertools.count(1)
    is_empty = True

    def account(request: SimulatedRequest) -> Reply | None:
        if next(calls) <= 8 or not is_empty:
            return None
        return error(status, kind, "You exceeded your current quota.")

    case = Case(account)
    with case.provider:
        folder = Folder(tmp_path, case)
        ended = folder.generate(rows=24)
        assert ended.code == 4, ended.errors
        assert "The account of provider 'api' is closed" in ended.errors
        assert folder.dropped() == []
        is_empty = False
        again = folder.generate(rows=24)
    assert again.code == 0, again.errors
    assert (again.document["rows"], again.document["dropped"]) == (24, 0)
    assert case.provider.counts.served == 24
    assert folder.leaks() == []


def test_a_used_up_budget_ends_the_run_with_4_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    case = Case()
    with case.provider:
        folder = Folder(tmp_path, case)
        ended = folder.generate("--limit-usd", "1", rows=24)  # 10 cents for each row
        assert ended.code == 4, ended.errors
        assert case.provider.counts.served <= 10
        assert folder.dropped() == []
        again = folder.generate("--limit-usd", "10", rows=24)
    assert (again.code, again.document["rows"]) == (0, 24), again.errors
    assert case.provider.counts.served == 24
    assert again.document["usd"] == pytest.approx(2.4)
    assert folder.leaks() == []


def test_too_many_failures_end_the_run_and_keep_what_was_finished(tmp_path: Path) -> None:
    def refuse_later(request: SimulatedRequest) -> Reply | None:
        return None if int(asked(request).rpartition(" ")[2]) < 6 else refuse_all(request)

    case = Case(refuse_later)
    with case.provider:
        folder = Folder(tmp_path, case)
        app = tmp_path / "shop.py"
        stops = "early_stop=0.5, early_stop_window=10, max_row_groups=1"
        app.write_text(app.read_text().replace("early_stop=None", stops))
        ended = folder.generate(rows=60)
    assert ended.code == 1
    assert ended.document["rows"] == 6
    assert ended.document["missing"] > 0
    assert "cells of column 'review' failed" in ended.errors
    assert case.provider.counts.calls < 40
    assert folder.leaks() == []
