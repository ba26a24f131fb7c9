# SPDX-License-Identifier: Apache-2.0
"""Resets what budgets have counted in all: an operator says that the bill is settled."""

from __future__ import annotations

from penstock.errors import UsageError
from penstock.model.spending import ALL, Balance
from penstock.operate.actions import answer, audit
from penstock.stores.protocol import Store

KINDS = ("provider", "model", "task")


def check_scope(scope: str) -> None:
    """Refuse what no call counts in."""
    kind, colon, name = scope.partition(":")
    if scope == ALL or (kind in KINDS and colon and name):
        return
    raise UsageError(
        f"A scope is all, provider:NAME, model:PROVIDER/MODEL or task:NAME; got {scope[:80]!r}."
    )


def reset_totals(store: Store, app: str, scope: str | None) -> list[Balance]:
    """Let the totals of an app, or one of them, begin at zero; what they held."""
    found = answer(store.reset_totals(app, scope), store)
    which = "every total" if scope is None else f"the total of {scope}"
    audit(store.url, "What budgets of app %r counted was reset: %s", app, which)
    return found
