# SPDX-License-Identifier: Apache-2.0
"""What did the kill find, what did the run cost, and do journal and provider say the same?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.cli.demo.service import PaidService
from penstock.cli.demo.sizes import Sizes
from penstock.model.job import TERMINAL, Job, JobId, JobState
from penstock.model.journal import CallFigures, CallState
from penstock.model.spending import MICROS, Amount
from penstock.stores.protocol import JobFilter, Store

PAGE = 500  # jobs that are read at once


@dataclass(frozen=True, slots=True)
class AtTheKill:
    """What the dead worker has left in the store."""

    in_hand: int  # documents that were begun and not finished
    answered: frozenset[str]  # calls whose answers are in the journal
    to_reuse: int  # of those, the ones of documents that are not finished
    in_flight: frozenset[str]  # calls that began, and whose answers had not arrived
    arrived: int  # calls that the provider had seen

    @classmethod
    def read(cls, store: Store, service: PaidService) -> AtTheKill:
        """Read it while nothing runs."""
        answered, in_flight, to_reuse, in_hand = set(), set(), 0, 0
        for job in _jobs(store):
            calls = store.calls(job.id).result()
            kept = {call.key.fingerprint for call in calls if call.state is CallState.ANSWERED}
            answered |= kept
            if job.state in TERMINAL:
                continue
            begun = {call.key.fingerprint for call in calls if call.state is CallState.OPEN}
            in_flight |= begun
            to_reuse += len(kept)
            in_hand += bool(kept or begun)
        return cls(in_hand, frozenset(answered), to_reuse, frozenset(in_flight), service.arrived)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The end of the story in numbers: the store's, the journal's and the provider's own."""

    sizes: Sizes
    states: Counter[JobState]
    charged: int  # attempts that failed by a fault of the documents themselves
    figures: CallFigures  # of the journal
    kill: AtTheKill
    bought_again: int  # answers of the journal that the provider was asked for once more
    accepted: Counter[str]  # how often the provider took each call on
    refused: int  # calls that it refused
    served: int  # calls that it answered to the end

    @classmethod
    def read(cls, sizes: Sizes, store: Store, service: PaidService, kill: AtTheKill) -> Accounts:
        """Ask everybody, when all is over."""
        jobs = list(_jobs(store))
        return cls(
            sizes,
            Counter(job.state for job in jobs),
            sum(job.attempts for job in jobs),
            store.call_figures(None).result(),
            kill,
            service.asked_since(kill.arrived, kill.answered),
            service.accepted(),
            service.counts.refused,
            service.counts.served,
        )

    @property
    def lost(self) -> int:
        return self.sizes.documents - self.states[JobState.DONE]

    @property
    def sent_twice(self) -> int:
        """Calls that the provider took on again."""
        return self.accepted.total() - len(self.accepted)

    def problems(self) -> list[str]:
        """What does not add up; nothing, if Penstock keeps its word."""
        again = [call for call, times in self.accepted.items() if times > 1]
        rules = {
            f"{self.lost} documents are lost": self.lost == 0,
            f"{self.charged} attempts were charged to documents": self.charged == 0,
            f"{self.bought_again} answers were bought again": self.bought_again == 0,
            "calls were sent twice that were not in flight": self.kill.in_flight.issuperset(again),
            "a call was sent more than twice": max(self.accepted.values(), default=0) <= 2,
            f"the journal bought {self.figures.bought} answers for {self.sizes.calls} calls": (
                self.figures.bought == self.sizes.calls == len(self.accepted)
            ),
            f"{self.kill.to_reuse} answers were there and {self.figures.reused} were reused": (
                self.figures.reused >= self.kill.to_reuse
            ),
            "the provider served fewer calls than were paid": self.served >= self.figures.bought,
        }
        return [sentence for sentence, holds in rules.items() if not holds]


def spent(amount: Amount) -> str:
    """Money, if the model has a price, and tokens."""
    tokens = f"{amount.tokens:,} tokens"
    return f"${amount.micros / MICROS:.4f} for {tokens}" if amount.micros else tokens


def _jobs(store: Store) -> Iterator[Job]:
    last = JobId(0)
    while page := store.jobs(JobFilter(), last, PAGE).result():
        yield from page
        last = page[-1].id
