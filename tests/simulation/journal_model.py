# SPDX-License-Identifier: Apache-2.0
"""What should become of paid calls and of accounts? Written for the second time, and simply.

Sums are not kept: they are added up from all that ever happened, each time that somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.journal import Answer, CallFigures, CallKey, CallRecord, CallState, Intent
from penstock.model.spending import Amount, Budget, Period, utc_day

#: Spent, reserved (micros, tokens each), bought, reused, resent, estimated, in doubt (2).
Entry = tuple[int, int, int, int, int, int, int, int, int, int]
Sum = tuple[str, str, str]  # scope, period, span


@dataclass
class ModelJob:
    """What calls have to know of a job."""

    token: int = 0
    runs: bool = False
    ended_at: int | None = None


@dataclass
class ModelCall:
    """One call."""

    intent: Intent
    state: str
    begun: tuple[int, int]
    sums: list[Sum]
    ended_at: int | None = None
    answer: Answer | None = None
    paid: list[Amount] = field(default_factory=list)
    reused: int = 0
    resent: int = 0
    estimated: int = 0
    doubts: list[Amount] = field(default_factory=list)  # of earlier sends of unknown fate

    @property
    def in_flight(self) -> bool:
        return self.state in ("open", "held")

    def repeats(self, intent: Intent) -> bool:
        """The same send is told once more."""
        return self.in_flight and (
            self.intent.token == intent.token and intent.resent <= self.resent
        )


class JournalModel:
    """Owns the calls of one store as they should be."""

    def __init__(self) -> None:
        self.jobs: dict[int, ModelJob] = {}
        self.calls: dict[CallKey, ModelCall] = {}
        self.entries: list[tuple[Sum, Entry]] = []  # but for reserves, which are those of calls
        self._first_places: dict[CallKey, int] = {}
        self._number = 0

    def intend(self, intent: Intent, budgets: list[Budget], now: int) -> object:
        """Written, stale, or the first budget that forbids it."""
        job = self.jobs.get(intent.key.job)
        call = self.calls.get(intent.key)
        if job is None or job.token > intent.token:
            return "stale"
        if call is not None and call.intent.token > intent.token:
            return "stale"
        sums = sums_of(intent, utc_day(now))
        is_repeated = call is not None and call.repeats(intent)
        for budget in budgets:
            spans = {Period.RUN: intent.run_id, Period.DAY: utc_day(now), Period.TOTAL: "total"}
            span = spans[budget.period]
            where = (budget.scope, str(budget.period), span)
            if where not in sums:
                continue
            spent = self.balance(where, but=intent.key if is_repeated else None)
            for limit, used, asked in (
                (budget.micros, spent[0] + spent[2] + spent[8], intent.reserved.micros),
                (budget.tokens, spent[1] + spent[3] + spent[9], intent.reserved.tokens),
            ):
                if limit is not None and used + asked > limit:
                    return budget
        if call is None:
            self._number += 1
            self._first_places[intent.key] = self._number
        fresh = ModelCall(intent, "open", (now, self._first_places[intent.key]), sums)
        if call is not None:
            fresh.doubts = call.doubts
            if call.in_flight and not is_repeated:
                fresh.doubts = [*call.doubts, call.intent.reserved]
                self._doubt(call)
            fresh.paid, fresh.reused = call.paid, call.reused
            fresh.resent, fresh.estimated = call.resent, call.estimated
        if intent.resent > fresh.resent:
            more, fresh.resent = intent.resent - fresh.resent, intent.resent
            self.entries += [(where, (0, 0, 0, 0, 0, 0, more, 0, 0, 0)) for where in sums]
        self.calls[intent.key] = fresh
        return "written"

    def answered(self, answer: Answer, now: int) -> None:
        call = self.calls.get(answer.key)
        if call is None:
            return
        call.paid.append(answer.used)
        for where in call.sums:
            self.entries.append((where, (*answer.used, 0, 0, 1, 0, 0, answer.is_estimated, 0, 0)))
        call.estimated += answer.is_estimated
        if call.state != "answered":
            call.state, call.answer, call.ended_at = "answered", answer, now

    def closed(self, key: CallKey, token: int, now: int) -> None:
        call = self.calls.get(key)
        if call is not None and call.in_flight and token >= call.intent.token:
            call.state, call.ended_at = "closed", now

    def held(self, key: CallKey, token: int) -> None:
        call = self.calls.get(key)
        if call is not None and call.state == "open" and token >= call.intent.token:
            call.state = "held"

    def reused(self, key: CallKey, sums: list[Sum]) -> None:
        self.entries += [(where, (0, 0, 0, 0, 0, 1, 0, 0, 0, 0)) for where in sums]
        if key in self.calls:
            self.calls[key].reused += 1

    def spoil(self, key: CallKey) -> None:
        call = self.calls.get(key)
        if call is not None and call.state == "answered":
            call.state, call.answer = "spoiled", None

    def forget(self, job: int) -> int:
        gone = [key for key in self.calls if key.job == job]
        for key in gone:
            if self.calls[key].in_flight:
                self._doubt(self.calls[key])
            del self.calls[key], self._first_places[key]
        return len(gone)

    def _doubt(self, call: ModelCall) -> None:
        """Nobody will ever know whether it was billed."""
        doubt = call.intent.reserved
        self.entries += [(where, (0, 0, 0, 0, 0, 0, 0, 0, *doubt)) for where in call.sums]

    # What should be told

    def told(self, where: Sum) -> Entry:
        """A balance as people see it: what is reserved by no call in hand is in doubt."""
        a, b, c, d, e, f, g, h, i, j = self.balance(where)
        in_hand = added(
            [
                call.intent.reserved
                for call in self.calls.values()
                if call.in_flight and where in call.sums and self._in_hand(call)
            ]
        )
        micros, tokens = c - in_hand.micros, d - in_hand.tokens
        return a, b, *in_hand, e, f, g, h, i + micros, j + tokens

    def balance(self, where: Sum, but: CallKey | None = None) -> Entry:
        found = [entry for at, entry in self.entries if at == where]
        found += [
            (0, 0, *call.intent.reserved, 0, 0, 0, 0, 0, 0)
            for key, call in self.calls.items()
            if call.in_flight and where in call.sums and key != but
        ]
        a, b, c, d, e, f, g, h, i, j = (sum(entry[place] for entry in found) for place in range(10))
        return a, b, c, d, e, f, g, h, i, j

    def records(self, job: int) -> list[CallRecord]:
        found = sorted(
            (call for key, call in self.calls.items() if key.job == job), key=lambda c: c.begun
        )
        return [
            CallRecord(
                key=call.intent.key,
                state=CallState(call.state),
                token=call.intent.token,
                provider=call.intent.provider,
                model=call.intent.model,
                begun_at=call.begun[0],
                ended_at=call.ended_at,
                reserved=call.intent.reserved if call.in_flight else Amount(),
                used=added(call.paid),
                bought=len(call.paid),
                reused=call.reused,
                resent=call.resent,
                estimated=call.estimated,
                doubts=len(call.doubts),
                doubt=added(call.doubts),
            )
            for call in found
        ]

    def figures(self, job: int | None) -> CallFigures:
        calls = [call for key, call in self.calls.items() if job is None or key.job == job]
        doubtful = [one for one in calls if one.in_flight and not self._in_hand(one)]
        doubts = [one for call in calls for one in call.doubts]
        doubts += [call.intent.reserved for call in doubtful]
        return CallFigures(
            bought=sum(len(call.paid) for call in calls),
            reused=sum(call.reused for call in calls),
            in_doubt=len(doubts),
            doubt=added(doubts),
            spent=added([used for call in calls for used in call.paid]),
            resent=sum(call.resent for call in calls),
            estimated=sum(call.estimated for call in calls),
        )

    def _in_hand(self, call: ModelCall) -> bool:
        job = self.jobs.get(call.intent.key.job)
        return job is not None and job.runs and job.token == call.intent.token


def sums_of(intent: Intent, day: str) -> list[Sum]:
    """Where a call counts."""
    scopes = [
        "all",
        f"provider:{intent.provider}",
        f"model:{intent.provider}/{intent.model}",
        f"task:{intent.task}",
    ]
    spans = (("run", intent.run_id), ("day", day), ("total", "total"))
    return [(scope, *of) for scope in scopes for of in spans]


def added(amounts: list[Amount]) -> Amount:
    return Amount(sum(one.micros for one in amounts), sum(one.tokens for one in amounts))
