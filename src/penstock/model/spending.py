# SPDX-License-Identifier: Apache-2.0
"""What did calls cost, who may spend how much, and in which span of time?

Money is counted in whole micro-dollars: sums are exact on every store.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

MICROS = 1_000_000  # of a dollar
ALL = "all"  # the scope of everything


class Amount(NamedTuple):
    """Money and tokens."""

    micros: int = 0
    tokens: int = 0


class Period(StrEnum):
    """For how long does a sum grow?"""

    RUN = "run"  # from one start to its end
    DAY = "day"  # of UTC


class Account(NamedTuple):
    """One sum: whose, and of which run or day."""

    scope: str  # `all`, `provider:NAME`, `model:PROVIDER/MODEL`, `task:NAME`, `table:NAME`
    period: Period
    span: str  # a run id, or a day as 2026-11-16


def day_of(micros: int) -> str:
    """The day of UTC in which a time lies."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).date().isoformat()


def scopes_of(task: str, provider: str, model: str) -> tuple[str, ...]:
    """Everything that a call counts in."""
    return (ALL, f"provider:{provider}", f"model:{provider}/{model}", f"task:{task}")


@lru_cache(maxsize=1_024)
def accounts_of(run_id: str, day: str, task: str, provider: str, model: str) -> tuple[Account, ...]:
    """The sums that a call is part of."""
    return tuple(
        Account(scope, period, span)
        for scope in scopes_of(task, provider, model)
        for period, span in ((Period.RUN, run_id), (Period.DAY, day))
    )


class Balance(msgspec.Struct, frozen=True, gc=False):
    """What one account holds."""

    account: Account
    spent: Amount  # settled by what replies said
    reserved: Amount  # estimates of calls that have begun and not ended, those in doubt included
    bought: int = 0  # answers that were paid for
    reused: int = 0  # answers that came from the journal


class Budget(msgspec.Struct, frozen=True, gc=False):
    """What an account may come to: money, tokens, or both."""

    scope: str
    period: Period
    micros: int | None = None
    tokens: int | None = None

    @property
    def name(self) -> str:
        """What people call it: `budget`, `budget.day`, `budget.provider.openai`."""
        kind, _, rest = self.scope.partition(":")
        words = ["budget", *([kind, rest] if rest else [])]
        return ".".join([*words, "day"] if self.period is Period.DAY else words)


class Price(msgspec.Struct, frozen=True, gc=False):
    """What a model costs, in micro-dollars per million tokens."""

    input_micros: int
    output_micros: int

    def of(self, input_tokens: int, output_tokens: int) -> int:
        """The price of a call in micro-dollars, rounded up: a budget is never undercounted."""
        return -(-(input_tokens * self.input_micros + output_tokens * self.output_micros) // MICROS)
