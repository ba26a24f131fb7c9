# SPDX-License-Identifier: Apache-2.0
"""Does a run inside a program tell that a budget has ended it, and go on after a raise?"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.testing import ProviderRules, SimulatedProvider
from tests.budget_shop import CHAT, answer


def test_a_report_names_the_budget_that_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "penstock.toml"
    with SimulatedProvider(ProviderRules(latency=0.01), answer=answer) as provider:
        app = Penstock("inside", store=f"sqlite:///{tmp_path}/inside.db")
        api = app.provider("api", base_url=provider.url, paid=True)

        @app.task(uses=api)
        def ask(ctx: Context, n: int) -> str:
            asked: dict[str, Any] = {"model": "m", "messages": [{"content": str(n)}]}
            reply = api.http_sync.post(CHAT, json={**asked, "max_tokens": 100})
            return str(reply.json()["text"])

        with closing(app):
            app.enqueue_many(ask.job(n=n) for n in range(8))
            settings.write_text("[budget.run]\ntokens = 300\n")
            first = app.run(drain=True)
            settings.write_text("[budget.run]\ntokens = 3_000\n")
            second = app.run(drain=True)

    assert first.over_budget is not None
    assert first.over_budget.startswith("The budget [budget.run] of 300 tokens a run is used up (")
    assert (first.errors, first.stopped) == (0, False)
    assert 0 < first.done < 8
    assert (second.done, second.over_budget) == (8 - first.done, None)
    assert provider.counts.served == 8
