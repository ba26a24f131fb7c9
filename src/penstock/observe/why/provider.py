# SPDX-License-Identifier: Apache-2.0
"""Explains a job that waits for its provider: for a limit, a cool-down, or a rate per minute."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.model.provider import ClosedAccount
from penstock.model.worker import ProviderUse, WorkerStatus
from penstock.observe.phrases import at, span
from penstock.observe.providers import FAILING, Binding, binding_of
from penstock.observe.why.facts import Explanation, Gate
from penstock.sentences import command, counted


def waits_for_provider(
    found: Explanation, name: str, status: WorkerStatus, now: int, waits: str
) -> Explanation:
    """Explain a job that waits for a provider.

    Args:
        found: what else is known.
        name: the provider, or PROVIDER/MODEL.
        status: the last status of the worker.
        now: by the clock of the store.
        waits: who waits, and where: the beginning of the sentence.
    """
    use = _most_loaded(name, status)
    waits = f"{waits} for its provider {name!r}"
    if use is not None and _cools_down(use, now):
        return _cooling_down(found, name, use, now, f"{waits}, which")
    gate, reason, unblocks = _limit(use)
    return replace(
        found,
        gate=gate,
        sentence=f"{waits}{reason}.",
        unblocks=unblocks,
        command=command("providers"),
    )


def waits_for_account(found: Explanation, account: ClosedAccount, now: int) -> Explanation:
    """Explain a job whose provider has closed the account; `found` says whose job it is."""
    probed = f"; it is probed in {span(account.probe_at - now)}" if account.probe_at > now else ""
    return replace(
        found,
        gate=Gate.ACCOUNT,
        sentence=(
            f"{found.key!r} waits, uncharged, for the account of its provider "
            f"{account.provider!r}, which is closed ({account.reason}){probed}."
        ),
        unblocks="its key is replaced or the account filled",
        when=account.probe_at if account.probe_at > now else None,
        command=command("providers"),
    )


def left_by_account(found: Explanation, account: ClosedAccount) -> Explanation:
    """Explain a job that the last run left over when a closed account ended it."""
    return replace(
        found,
        gate=Gate.ACCOUNT,
        sentence=(
            f"{found.sentence.rstrip('.')}: the last run ended, since the account of its provider "
            f"{account.provider!r} was closed ({account.reason})."
        ),
        unblocks="its key is replaced or the account filled, and a new run starts",
    )


def _limit(use: ProviderUse | None) -> tuple[Gate, str, str]:
    """The limit that binds a provider: its gate, the reason, and what opens it."""
    if use is None:
        return (
            Gate.PROVIDER_LIMIT,
            ", which takes no more requests now",
            "a request to it ends, or its cool-down does",
        )
    binding = binding_of(use, 0.0)
    if binding in (Binding.RPM, Binding.TPM):
        used = (
            f"{use.requests_last_minute:,} of {use.rpm:,.0f} requests"
            if binding is Binding.RPM
            else f"{use.tokens_last_minute:,} of {use.tpm:,.0f} tokens"
        )
        return (
            Gate.REQUEST_BUDGET,
            f", whose rate limit is used up: {used} a minute",
            "the minute passes, or a higher limit is set in [providers.…]",
        )
    if use.rate is not None and use.in_flight < use.limit:
        return (
            Gate.PROVIDER_LIMIT,
            f", which seems to allow {use.rate:,.4g} {use.mode} a second "
            f"({counted(use.refused, 'refusal')} so far); {use.waiting:,} wait",
            "its turn comes at that rate, or a higher rate is found to be allowed",
        )
    most = " (all that is declared)" if use.limit >= use.limit_max else ""
    return (
        Gate.PROVIDER_LIMIT,
        f": {use.in_flight:,} requests are in flight, its limit now is {use.limit:,}{most}, and "
        f"{use.waiting:,} wait",
        "a request to it ends, or its limit grows",
    )


def waits_for_permit(
    found: Explanation, since: int, name: str | None, status: WorkerStatus, now: int
) -> Explanation:
    """Explain a running body that waits for a permit; `found` says that it runs.

    Args:
        found: what else is known.
        since: when it began to wait.
        name: the provider, or PROVIDER/MODEL; None: its task does not say.
        status: the last status of the worker.
        now: by the clock of the store.
    """
    whose = "a provider's permit" if name is None else f"a permit of its provider {name!r}"
    waits = f"{found.sentence} It has waited since {at(since)} ({span(now - since)}) for {whose}"
    use = None if name is None else _most_loaded(name, status)
    if name is not None and use is not None and _cools_down(use, now):
        return _cooling_down(found, name, use, now, f"{waits}, which")
    return replace(
        found, sentence=f"{waits}.", unblocks="it gets its permit, and its attempt ends", when=None
    )


def _cools_down(use: ProviderUse, now: int) -> bool:
    return use.blocked_until_at is not None and use.blocked_until_at > now


def _cooling_down(
    found: Explanation, name: str, use: ProviderUse, now: int, waits: str
) -> Explanation:
    until = use.blocked_until_at or now
    return replace(
        found,
        gate=Gate.COOLDOWN,
        sentence=f"{waits} cools down for another {span(until - now)}: {_reason(use)}.",
        unblocks=f"the cool-down of {name!r} ends",
        when=until,
        command=command("providers"),
    )


def _most_loaded(name: str, status: WorkerStatus) -> ProviderUse | None:
    """Of the models that are meant, the one with most waiting requests."""
    provider, _, model = name.partition("/")
    uses = [
        use
        for use in status.providers
        if use.provider == provider and (not model or use.model == model)
    ]
    return max(uses, key=lambda use: (use.waiting, use.in_flight), default=None)


def _reason(use: ProviderUse) -> str:
    """Why nothing is sent for a while."""
    if use.failed_in_row >= FAILING or (use.failed_in_row and not use.refused):
        row = f", {use.failed_in_row:,} in a row" if use.failed_in_row else ""
        return (
            f"it is unhealthy ({counted(use.failed, 'request')} errored{row}) and is probed with "
            "single requests; the log says how they fail"
        )
    if not use.refused:
        return "it asked for a pause, as another process of this store was told"
    return f"it refused requests and asked for a pause ({counted(use.refused, 'refusal')} so far)"
