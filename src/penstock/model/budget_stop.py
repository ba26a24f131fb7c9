# SPDX-License-Identifier: Apache-2.0
"""Which budget has ended a run before its work was done, and what is to be done now?"""

from __future__ import annotations

import msgspec

from penstock.model.spending import Amount, BudgetRefusal, Period


class BudgetStop(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that tasks wait for, with the numbers of the end."""

    refusal: BudgetRefusal
    span: str  # the run or the day that it was about
    tasks: tuple[str, ...]  # that wait for it
    spent: Amount | None = None  # None: the store could not tell
    reserved: Amount = Amount()  # by calls of which nobody knows the end

    @property
    def budget(self) -> str:
        """Its name."""
        return self.refusal.budget.name

    @property
    def title(self) -> str:
        """`[budget.day] of $50.00 a day`; of what was enough nothing is said."""
        short = self.refusal.short
        return f"[{self.budget}] of {short.shown(short.cap)} a {short.period.value}"

    @property
    def numbers(self) -> str:
        """What was spent and is reserved, and what a call would need."""
        short, words = self.refusal.short, []
        if self.spent is not None:
            words.append(f"{short.shown(self.spent)} spent")
            if short.shown(self.reserved) != short.shown(Amount()):
                words.append(f"{short.shown(self.reserved)} reserved by calls in doubt")
        needs = f"a call of {self.refusal.where} may need {short.shown(self.refusal.asked)}"
        return ", ".join([*words, f"and {needs}"] if words else [needs])

    @property
    def sentence(self) -> str:
        """Which budget, what it allows, what was spent, and what is to be done."""
        refusal = self.refusal
        if refusal.price_is_missing:
            return (
                f"The price of {refusal.where} is not known, and [{self.budget}] counts dollars: "
                f"say {refusal.price_setting} of penstock.toml, then run the same command again."
            )
        a_day = refusal.budget.period is Period.DAY
        anew = "it opens again at midnight UTC" if a_day else "a new run counts from zero"
        return (
            f"The budget {self.title} is used up ({self.numbers}): raise {refusal.short.settings}, "
            f"then run the same command again; {anew}."
        )
