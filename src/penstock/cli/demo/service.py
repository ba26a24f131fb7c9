# SPDX-License-Identifier: Apache-2.0
"""What does the provider of the demo see?

It is the witness of the story: whoever says that nothing was bought again is checked against what
came to it. It knows a call again as the journal does, by the same fingerprint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.requests.journal.paid_policy import fingerprint
from penstock.testing import Lognormal, ProviderRules, SimulatedProvider, SimulatedRequest
from penstock.testing.simulated_provider import Counts, Reply

CALLS_EACH = 3  # of a document: draft, criticism, final text


@dataclass(frozen=True, slots=True)
class Sizes:
    """The measures of one story."""

    documents: int
    allowed: int  # calls at once that the provider hides
    squeezed: int  # the same for a while
    slots: int  # documents in hand at once
    latency_seconds: float
    retry_after_seconds: float  # told with a refusal

    @property
    def calls(self) -> int:
        return self.documents * CALLS_EACH


FULL = Sizes(
    documents=250,
    allowed=16,
    squeezed=4,
    slots=20,
    latency_seconds=0.2,
    retry_after_seconds=1.0,
)
FAST = Sizes(
    documents=140,
    allowed=12,
    squeezed=3,
    slots=14,
    latency_seconds=0.1,
    retry_after_seconds=0.3,
)


SEED = 7
REFUSAL_SECONDS = 0.05  # how long a refusal is on its way


class PaidService:
    """A model on loopback that costs money, with a limit that it tells nobody."""

    def __init__(self, sizes: Sizes) -> None:
        rules = ProviderRules(
            concurrency=sizes.allowed,
            latency=Lognormal(sizes.latency_seconds, sigma=0.2),
            retry_after_seconds=sizes.retry_after_seconds,
            refusal_seconds=REFUSAL_SECONDS,
        )
        self._provider = SimulatedProvider(rules, seed=SEED, script=self._note)
        self._prints: list[str] = []  # of the calls, in the order of arrival

    def serve(self, until: ExitStack) -> str:
        """Listen until the stack is closed; where."""
        return until.enter_context(self._provider).url

    def allow(self, calls_at_once: int) -> None:
        self._provider.change(concurrency=calls_at_once)

    @property
    def counts(self) -> Counts:
        return self._provider.counts

    @property
    def arrived(self) -> int:
        """Calls that have come so far."""
        return len(self._prints)

    def accepted(self) -> Counter[str]:
        """How often each call was taken on, so may have been charged for, and not refused."""
        log = self._provider.log
        return Counter(self._prints[call.number - 1] for call in log if not call.refused)

    def asked_since(self, arrived: int, prints: Iterable[str]) -> int:
        """How many of these calls have come again after so many arrivals."""
        return len(set(self._prints[arrived:]) & set(prints))

    def _note(self, request: SimulatedRequest) -> Reply | None:
        url = f"{self._provider.url}{request.path}"
        kind = request.headers.get("content-type", "")
        self._prints.append(fingerprint(request.method, url, request.body, kind))
        return None
