# SPDX-License-Identifier: Apache-2.0
"""The limits of providers: as live workers report them, which one binds, and as learned before."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from penstock.admission.requests.algorithm import read_learned
from penstock.clock import MICROSECONDS
from penstock.model.provider import ANY, ProviderModelKey, read_account_note
from penstock.model.views import StoredCooldown, StoredLimit, WorkerView
from penstock.model.worker import ProviderUse, ReportedUse, reported_uses
from penstock.observe.phrases import sum_known

FAILING = 2  # failures in a row: one may come late, after a refusal
NEARLY = 0.95  # of a cap: the minute that is measured is not the bucket's own


class Binding(StrEnum):
    """The limit that keeps a provider from getting more requests now."""

    COOLDOWN = "cool-down"
    ACCOUNT = "account closed"  # its key is dead or its account empty
    DOWN = "down"  # it fails, and is probed with single requests
    RPM = "rpm"
    TPM = "tpm"
    RATE = "adaptive rate"
    ADAPTIVE = "adaptive limit"
    MAX_PARALLEL = "max_parallel"
    BUDGET = "budget"  # of money or tokens, for as long as the run lasts
    NOTHING = "not the provider"


class LiveLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a provider over all workers that use it."""

    workers: int
    limit: int
    limit_max: int
    in_flight: int
    waiting: int
    refused: int
    failed: int
    failed_in_row: int  # up to now; of several workers the most
    cooldown_seconds: float  # that is left; of several workers the longest
    requests_last_minute: int
    tokens_last_minute: int
    rpm: float | None
    tpm: float | None
    algorithm: str
    mode: str
    rate: float | None  # a second, of what the mode counts
    ceiling: float | None
    as_of_seconds: float  # how old the oldest of these figures is
    account: str | None = None  # what its provider says of a closed account; None: it is open

    @property
    def binding(self) -> Binding:
        if self.account is not None:
            return Binding.ACCOUNT
        return binding_of(self, self.cooldown_seconds)

    @property
    def is_down(self) -> bool:
        """Whether it fails, so that it is only probed with single requests."""
        return self.failed_in_row >= FAILING and self.cooldown_seconds > 0


class LearnedBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The learned limit that the store keeps for the next run."""

    ceiling: float | None
    confidence: int
    mode: str
    rate: float | None
    latency_seconds: float | None
    seconds_ago: float


class KeptCooldown(msgspec.Struct, frozen=True):
    """A long pause that a provider asked for: no process of the store sends before its end."""

    seconds: float  # that are left
    until_at: int


class KeptAccount(msgspec.Struct, frozen=True):
    """A closed account: no process of the store sends to it, but for single probes."""

    provider: str
    reason: str  # what it wrote
    since_at: int
    probe_at: int
    probes: int


def kept_accounts(cooldowns: Iterable[StoredCooldown]) -> list[KeptAccount]:
    """The accounts that are closed, by provider; of several keys of one the last to be closed."""
    found: dict[str, KeptAccount] = {}
    for one in sorted(cooldowns, key=lambda one: one.begun_at):
        note = read_account_note(one.document) if one.key.model == ANY else None
        if note is not None:
            name = one.key.provider
            found[name] = KeptAccount(name, note.reason, note.since_at, one.until_at, note.probes)
    return [found[name] for name in sorted(found)]


def binding_of(use: LiveLimit | ProviderUse, cooldown_seconds: float) -> Binding:
    """The first of the limits that holds requests back."""
    if cooldown_seconds > 0:
        return Binding.DOWN if use.failed_in_row >= FAILING else Binding.COOLDOWN
    if use.in_flight >= use.limit:
        return Binding.MAX_PARALLEL if use.limit >= use.limit_max else Binding.ADAPTIVE
    if use.rpm is not None and use.requests_last_minute >= use.rpm * NEARLY:
        return Binding.RPM
    if use.tpm is not None and use.tokens_last_minute >= use.tpm * NEARLY:
        return Binding.TPM
    if not use.waiting:
        return Binding.NOTHING
    return Binding.RATE if use.rate is not None else Binding.ADAPTIVE


class ProviderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a provider: its live limits and what was learned."""

    provider: str
    model: str
    live: LiveLimit | None = None
    learned: LearnedBefore | None = None
    cooldown: KeptCooldown | None = None


def provider_rows(
    workers: Iterable[WorkerView],
    kept: Iterable[StoredLimit],
    now: int,
    cooldowns: Iterable[StoredCooldown] = (),
) -> list[ProviderRow]:
    """One row for each model that a worker uses, a run knows, or that cools down, by name."""
    uses = reported_uses(workers)
    cooling: dict[ProviderModelKey, KeptCooldown] = {}
    for one in sorted(cooldowns, key=lambda one: one.left_seconds):  # of several keys the longest
        if one.left_seconds > 0 and one.key.model != ANY:
            key = ProviderModelKey(one.key.provider, one.key.model)
            cooling[key] = KeptCooldown(one.left_seconds, one.until_at)
    learned = {one.key: found for one in kept if (found := _learned(one, now)) is not None}
    return [
        ProviderRow(
            provider=key.provider,
            model=key.model,
            live=_live(uses[key], now) if key in uses else None,
            learned=learned.get(key),
            cooldown=cooling.get(key),
        )
        for key in sorted({*uses, *learned, *cooling})
    ]


def _told_at(one: ReportedUse) -> int:
    at = one.view.status_at
    return one.status.captured_at if at is None else at


def _blocked_until(one: ReportedUse) -> int:
    """The end of a cool-down, by the clock of the store."""
    until = one.use.blocked_until_at
    return 0 if until is None else until + _told_at(one) - one.status.captured_at


def _live(said: list[ReportedUse], now: int) -> LiveLimit:
    uses = [one.use for one in said]
    parts = [one.use for one in said if one.is_own_part]
    until = max(map(_blocked_until, said))
    return LiveLimit(
        workers=len(uses),
        limit=sum(use.limit for use in parts),
        limit_max=sum(use.limit_max for use in parts),
        in_flight=sum(use.in_flight for use in uses),
        waiting=sum(use.waiting for use in uses),
        refused=sum(use.refused for use in uses),
        failed=sum(use.failed for use in uses),
        failed_in_row=max(use.failed_in_row for use in uses),
        cooldown_seconds=max(0, until - now) / MICROSECONDS,
        requests_last_minute=sum(use.requests_last_minute for use in uses),
        tokens_last_minute=sum(use.tokens_last_minute for use in uses),
        rpm=sum_known(use.rpm for use in parts),
        tpm=sum_known(use.tpm for use in parts),
        algorithm=parts[0].algorithm,
        mode=parts[0].mode,
        rate=sum_known(use.rate for use in parts),
        ceiling=sum_known(use.ceiling for use in parts),
        as_of_seconds=max(0, now - min(map(_told_at, said))) / MICROSECONDS,
        account=next(filter(None, map(_account, said)), None),
    )


def _account(one: ReportedUse) -> str | None:
    closed = {account.provider: account.reason for account in one.status.closed_accounts}
    return closed.get(one.use.provider)


def _learned(one: StoredLimit, now: int) -> LearnedBefore | None:
    limit = read_learned(one.document)
    if limit is None:
        return None
    return LearnedBefore(
        ceiling=limit.ceiling,
        confidence=limit.confidence,
        mode=limit.mode.value,
        rate=limit.rate,
        latency_seconds=limit.latency_seconds,
        seconds_ago=max(0, now - one.learned_at) / MICROSECONDS,
    )
