# SPDX-License-Identifier: Apache-2.0
"""Declared limits of a provider (max_parallel, rpm, tpm), and this process's share of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Literal, TypeVar

import msgspec

from penstock.errors import UsageError
from penstock.model.request import DeclaredCap

DEFAULT_MAX = 256  # requests at once of one model, if nobody says otherwise


class RequestCaps(msgspec.Struct, frozen=True):
    """Static caps of a provider or model; None: none was declared."""

    max_parallel: int | None = None
    rpm: float | None = None  # requests per minute
    tpm: float | None = None  # tokens per minute

    def __post_init__(self) -> None:
        for name in ("max_parallel", "rpm", "tpm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise UsageError(f"{name} of a provider is more than 0, got {value!r}.")

    def least(self, other: RequestCaps) -> RequestCaps:
        """Return the smaller of each."""
        return RequestCaps(
            _least(self.max_parallel, other.max_parallel),
            _least(self.rpm, other.rpm),
            _least(self.tpm, other.tpm),
        )


class AimdConfig(msgspec.Struct, frozen=True):
    """The constants of the algorithm `aimd`."""

    initial_limit: int | None = None  # None: the maximum
    decrease_factor: float = 0.75
    successes_until_increase: int = 25
    cooldown_seconds: float = 2.0  # if the provider does not say how long
    startup_ramp_seconds: float = 0.0  # from 1 to the initial limit


class ProviderPolicy(msgspec.Struct, frozen=True):
    """The declared limits and algorithm of one provider."""

    name: str
    caps: RequestCaps = RequestCaps()  # over all its models
    models: Mapping[str, RequestCaps] = {}  # over all domains of one
    contributors: Mapping[str, tuple[DeclaredCap, ...]] = {}  # by model: who declared which cap
    algorithm: Literal["adaptive", "aimd"] = "adaptive"
    aimd: AimdConfig = AimdConfig()

    def model_caps(self, model: str) -> RequestCaps:
        return self.models.get(model, RequestCaps())


class ProcessShare(msgspec.Struct, frozen=True):
    """This process among those that share every cap: whole slots by largest remainder."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"Of {self.count} processes, one is number 0 to {self.count - 1}, got {self.index}."
            )

    def of(self, slots: int) -> int:
        """Return its slots; the shares of all processes add up to exactly `slots`."""
        whole, rest = divmod(slots, self.count)
        return whole + (self.index < rest)


N = TypeVar("N", int, float)


def _least(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
