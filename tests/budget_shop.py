# SPDX-License-Identifier: Apache-2.0
"""An app that buys answers, from a provider that tells what each of them cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import Context, Penstock
from penstock.clock import MICROSECONDS
from penstock.config.load import load_settings
from penstock.model.spending import Account, Amount, Balance, Period, utc_day
from penstock.testing import Harness
from penstock.testing.simulated_provider import (
    ProviderRules,
    SimulatedProvider,
    SimulatedRequest,
)
from penstock.testing.simulated_provider.core import Script
from tests.suite_canaries import ANSWER, KEY, PROMPT

URL = "http://simulated.invalid"
CHAT = "/v1/chat/completions"
PRICE = {"input": 1, "output": 2}  # micro-dollars a token


def answer(request: SimulatedRequest) -> dict[str, Any]:
    """What is bought depends on what was asked for, and on nothing else."""
    asked = request.json() or {}
    prompt, most = asked["messages"][0]["content"], asked.get("max_tokens", 64)
    output = 1 + sum(prompt.encode()) % most
    return {
        "text": f"{asked['model']}: {prompt}",
        "said": ANSWER,
        "usage": {"prompt_tokens": 4, "completion_tokens": output, "total_tokens": 4 + output},
    }


class BudgetShop:
    """Tasks `ask` and `other`, each with its model, and `free`, which buys nothing."""

    def __init__(
        self,
        rules: ProviderRules | None = None,
        *,
        models: Mapping[str, Mapping[str, Any]] | None = None,
        script: Script | None = None,
        **options: Any,
    ) -> None:
        self.app = Penstock("shop")
        known = {name: {"usd_per_million_tokens": PRICE} for name in ("m", "n")}
        self.api = self.app.provider(
            "api",
            base_url=URL,
            paid=True,
            models=known if models is None else models,
            **options,
        )
        self.provider = SimulatedProvider(rules, answer=answer, script=script)
        self.started: list[str] = []
        api = self.api

        async def buy(prompt: str, model: str, max_tokens: int | None) -> str:
            asked: dict[str, Any] = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
            }
            if max_tokens is not None:
                asked["max_tokens"] = max_tokens
            asked["user"] = PROMPT
            reply = await api.http.post(CHAT, json=asked, headers={"x-own": KEY})
            reply.raise_for_status()
            return str(reply.json()["text"])

        @self.app.task(uses=api)
        async def ask(
            ctx: Context, prompt: str, calls: int = 1, max_tokens: int | None = 100
        ) -> list[str]:
            self.started.append(ctx.job.key)
            return [await buy(f"{prompt}/{n}", "m", max_tokens) for n in range(calls)]

        @self.app.task(uses=api)
        async def other(ctx: Context, prompt: str) -> str:
            self.started.append(ctx.job.key)
            return await buy(prompt, "n", 100)

        @self.app.task()
        async def free(ctx: Context, number: int) -> int:
            return number

        self.ask, self.other, self.free = ask, other, free


def today(t: Harness, scope: str = "all") -> Balance:
    """What an account of the day holds; harnesses run on one day, unless they sleep long."""
    day = utc_day(round(t.clock.now() * MICROSECONDS))
    account = Account(scope, Period.DAY, day, t.app.name)
    found = [one for one in t.store.balances([day]).result() if one.account == account]
    return found[0] if found else Balance(account, Amount(), Amount())


def set_budgets(t: Harness, **budget: Any) -> None:
    """Other budgets for the next drain."""
    with TemporaryDirectory() as nowhere:
        settings = load_settings({}, {}, Path(nowhere), {"budget": budget}).settings
    t._settings = t._settings.model_copy(update={"budget": settings.budget})
