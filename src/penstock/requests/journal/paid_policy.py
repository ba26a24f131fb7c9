# SPDX-License-Identifier: Apache-2.0
"""What holds for the calls of a provider that costs money?"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.model.spending import Amount, Budget, Price, scopes_of

HOLD = "hold"  # of `in_doubt`
CALL_MICROS_MAX = 10**12  # of one call, a million dollars: no sum of calls leaves 64 bits

_NO_PRICES: Mapping[str, Price] = {}


class PaidRules(msgspec.Struct, frozen=True):
    """One provider that costs money, as a run serves it."""

    provider: str
    holds_doubts: bool = False  # a call in doubt waits for a person; else it is sent again
    idempotency_header: str | None = None  # None: the provider knows none
    prices: Mapping[str, Price] = _NO_PRICES  # by model; without one, tokens are still counted
    dollar_budgets: tuple[Budget, ...] = ()  # that a call without a price cannot be paid from

    def amount(self, model: str, input_tokens: int, output_tokens: int) -> Amount:
        """What so many tokens of a model come to."""
        price = self.prices.get(model)
        micros = 0 if price is None else price.of(input_tokens, output_tokens)
        micros = min(micros, CALL_MICROS_MAX)
        return Amount(micros, input_tokens + output_tokens)

    def forbids_unpriced(self, task: str, model: str) -> Budget | None:
        """The budget that a call cannot be counted in, since nobody has told its price."""
        if not self.dollar_budgets or model in self.prices:
            return None
        scopes = scopes_of(task, self.provider, model)
        return next((one for one in self.dollar_budgets if one.scope in scopes), None)
