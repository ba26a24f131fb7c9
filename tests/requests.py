# SPDX-License-Identifier: Apache-2.0
"""What do tests of request admission share?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from penstock.admission.requests.aimd import Aimd
from penstock.admission.requests.algorithm import LearnedLimit, LimitAlgorithm, LimitChange
from penstock.admission.requests.controller import AdaptiveRequestAdmissionController
from penstock.admission.requests.policy import (
    ProcessShare,
    ProviderPolicy,
    RequestCaps,
)
from penstock.model.provider import ProviderModelKey, RequestResourceKey
from penstock.model.request import (
    RequestAdmissionItem,
    RequestGroupSpec,
    RequestOutcome,
    RequestReleaseOutcome,
)

SUCCESS = RequestReleaseOutcome(RequestOutcome.SUCCESS)
CANCELLED = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED)
REFUSED = RequestReleaseOutcome(RequestOutcome.RATE_LIMITED)
CHAT = RequestResourceKey("p", "m", "chat")
EMBEDDING = RequestResourceKey("p", "m", "embedding")


def refused(seconds: float) -> RequestReleaseOutcome:
    return RequestReleaseOutcome(RequestOutcome.RATE_LIMITED, retry_after_seconds=seconds)


def item(
    resource: RequestResourceKey = CHAT,
    group: str | None = None,
    weight: int = 1,
    *,
    tokens: int | None = None,
    timeout: float | None = None,
    refusals: int = 0,
) -> RequestAdmissionItem:
    spec = RequestGroupSpec(resource.domain if group is None else group, weight)
    return RequestAdmissionItem(resource, spec, timeout, tokens, None, refusals)


class ScriptedLimit:
    """A limit algorithm that does what a test says; it also checks what it is told."""

    def __init__(self, effective_max: int, pace: float = 0.0) -> None:
        self.max = effective_max
        self.limit = 1_000_000  # as many as the caps allow
        self.pace = pace  # seconds between two sends
        self.grows_to: tuple[float, int] | None = None  # from this moment on, this limit
        self.blocked_until = -inf
        self.ceiling: float | None = None
        self.consecutive_refusals = 0
        self.forgives = False  # a refusal changes nothing
        self.endings: list[RequestReleaseOutcome] = []
        self.marks: set[int] = set()  # of requests in flight
        self._last_mark = 0
        self._next_send = -inf

    def set_max(self, effective_max: int) -> None:
        self.max = effective_max

    def window(self, now: float, in_flight: int) -> int:
        if self.grows_to is not None and now >= self.grows_to[0]:
            self.limit = self.grows_to[1]
            self.grows_to = None
        return max(1, min(self.limit, self.max))

    def grows_at(self, now: float, in_flight: int) -> float:
        if self.grows_to is None or min(self.grows_to[1], self.max) <= in_flight:
            return inf
        return max(now, self.grows_to[0])

    def send_at(self, now: float, in_flight: int, tokens: float) -> float:
        return max(now, self.blocked_until, self._next_send)

    def granted(self, now: float, in_flight_before: int, tokens: float) -> int:
        assert now >= self.blocked_until, "granted in a cool-down"
        assert now >= self._next_send, "granted before its pace allows"
        assert in_flight_before < self.window(now, in_flight_before), "granted above the window"
        assert in_flight_before == len(self.marks), "told another number than is in flight"
        self._next_send = now + self.pace
        self._last_mark += 1
        self.marks.add(self._last_mark)
        return self._last_mark

    def ended(
        self, now: float, in_flight_after: int, mark: int, ending: RequestReleaseOutcome
    ) -> Sequence[LimitChange]:
        self.marks.remove(mark)
        assert in_flight_after == len(self.marks)
        self.endings.append(ending)
        if ending.outcome is RequestOutcome.RATE_LIMITED and not self.forgives:
            self.blocked_until = max(self.blocked_until, now + (ending.retry_after_seconds or 0.0))
            self.consecutive_refusals += 1
            return (LimitChange.DECREASED,)
        return ()

    def pause(self, now: float, seconds: float) -> None:
        self.blocked_until = max(self.blocked_until, now + seconds)

    def learned(self) -> LearnedLimit:
        return LearnedLimit()


class Core(AdaptiveRequestAdmissionController):
    """A controller whose limits are scripted, by what they hold for."""

    def __init__(
        self,
        *policies: ProviderPolicy,
        share: ProcessShare | None = None,
        pace: float = 0.0,
        make: Callable[[ProviderPolicy, ProviderModelKey, int, float], LimitAlgorithm]
        | None = None,
    ) -> None:
        self.limits: dict[ProviderModelKey, list[ScriptedLimit]] = {}
        self.pace = pace
        super().__init__(policies, make or self._scripted, share=share)

    def _scripted(
        self, policy: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
    ) -> LimitAlgorithm:
        made = ScriptedLimit(effective_max, self.pace)
        self.limits.setdefault(key, []).append(made)
        return made

    def limit(self, resource: RequestResourceKey = CHAT) -> ScriptedLimit:
        """The one limit of a resource that somebody has asked for."""
        algorithm = self.tree.resources[resource].limited.algorithm
        assert isinstance(algorithm, ScriptedLimit)
        return algorithm


def policy(
    cap: int | None = None,
    *,
    provider: str = "p",
    models: dict[str, RequestCaps] | None = None,
    algorithm: str = "adaptive",
    rpm: float | None = None,
    tpm: float | None = None,
) -> ProviderPolicy:
    """A provider that says so much about itself as a whole."""
    return ProviderPolicy(
        provider,
        RequestCaps(cap, rpm, tpm),
        models or {},
        algorithm=algorithm,  # type: ignore[arg-type]
    )


def aimd(
    declared: ProviderPolicy, key: ProviderModelKey, effective_max: int, now: float
) -> LimitAlgorithm:
    return Aimd(declared.aimd, effective_max, now)
