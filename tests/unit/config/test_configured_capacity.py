# SPDX-License-Identifier: Apache-2.0
"""What does a capacity plan say of settings?"""

from __future__ import annotations

from penstock.config.settings import Settings
from penstock.config.show import configured_capacity


def test_budgets_are_told_with_their_source() -> None:
    settings = Settings.model_validate({"budget": {"run": {"usd": 20}, "day": {"tokens": 500}}})
    sources = {
        "budget.run.usd": "penstock.toml",
        "budget.day.tokens": "PENSTOCK_BUDGET__DAY__TOKENS",
    }

    found = configured_capacity(settings, sources, [])

    run, day = found["budgets.budget.run"], found["budgets.budget.day"]
    assert ("20" in str(run.value), run.source) == (True, "penstock.toml")
    assert ("500" in str(day.value), day.source) == (True, "PENSTOCK_BUDGET__DAY__TOKENS")
    assert "budgets" not in found


def test_no_budget_is_said_to_be_missing() -> None:
    assert configured_capacity(Settings(), {}, [])["budgets"].missing_reason is not None
