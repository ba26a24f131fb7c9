# SPDX-License-Identifier: Apache-2.0
"""Who sends a refused request again, and when is it given up?

What all HTTP libraries share. A refusal is waited out inside the client, each time through
admission, so that a body which made nine good calls does not repeat them for the tenth. Longer
waits and ill providers are raised: the job goes back to the queue, uncharged.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock.errors import ProviderThrottled, ProviderUnavailable
from penstock.model.request import RequestOutcome
from penstock.requests.executor import ModelRequest, ModelRequestExecutor

COOLDOWN_SECONDS_MAX = 30.0  # a longer one is for the queue
REFUSED_SECONDS_MAX = 900.0  # so is a call that is refused again and again
DISCARD_BYTES = 65_536  # of a body that nobody wants; kept for the error
DISCARD_SECONDS = 2.0

R = TypeVar("R")


class RepeatableRequest(ModelRequest[R], Protocol[R]):
    """A request of a client that sends again."""

    @property
    def can_repeat(self) -> bool:
        """Its body is at hand; a stream is not."""
        ...

    async def discard(self, reply: R) -> R:
        """Close a reply, soon, and give one that holds the beginning of its body."""
        ...


async def send_patiently(executor: ModelRequestExecutor, request: RepeatableRequest[R]) -> R:
    """Send until it is not refused; raise what needs more patience than a client has."""
    refused_since: float | None = None
    refusals = 0
    while True:
        reply, exchange = await executor.execute_attempt(request, refusals)
        ending = exchange.ending
        if ending is None or ending.outcome is RequestOutcome.SUCCESS:
            return reply
        reply = await request.discard(reply)
        said = f"{exchange.where} answered {exchange.status}"
        wait_seconds = ending.retry_after_seconds
        if ending.outcome is not RequestOutcome.RATE_LIMITED:
            raise ProviderUnavailable(
                f"{said}: it is ill, and its jobs wait for it.",
                exchange.status,
                wait_seconds,
                reply,
            )
        now = executor.clock.monotonic()
        if refused_since is None:
            refused_since = now
        if wait_seconds is not None and wait_seconds > COOLDOWN_SECONDS_MAX:
            why = f"it asks for {wait_seconds:g} s"
        elif now - refused_since > REFUSED_SECONDS_MAX:
            why = f"it has refused this call for {now - refused_since:.0f} s"
        elif not request.can_repeat:
            why = "the body of this call is a stream and cannot be sent again"
        else:
            refusals += 1
            continue
        raise ProviderThrottled(f"{said}: {why}.", exchange.status, wait_seconds, reply)
