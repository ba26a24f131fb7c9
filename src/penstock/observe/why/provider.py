# SPDX-License-Identifier: Apache-2.0
"""Does a job wait for its provider, and for what of it: a limit, a cool-down, a budget?"""

from __future__ import annotations

import msgspec

from penstock.model.worker import ProviderUse, WorkerStatus
from penstock.observe.phrases import at, command, counted, span
from penstock.observe.why.facts import Explanation, Gate

LOOK = command("providers")
ILL = 2  # failures in a row: one may come late, after a refusal
NEARLY = 0.95  # of a budget: the minute that is looked at is not the bucket's own


def waits_for_provider(
    found: Explanation, name: str, status: WorkerStatus, now: int, waits: str
) -> Explanation:
    """The answer for a job that waits for a provider; `waits` is who waits, and where.

    Args:
        found: what is known else.
        name: the provider, or PROVIDER/MODEL.
        status: the last word of the worker.
        now: by the clock of the store.
        waits: the beginning of the sentence.
    """
    use = _pressed(name, status)
    if use is None:
        return msgspec.structs.replace(
            found,
            gate=Gate.PROVIDER_LIMIT,
            sentence=f"{waits} for its provider {name!r}, which serves no more now.",
            unblocks="a request to it ends, or its cool-down does",
            command=LOOK,
        )
    if _cools_down(use, now):
        return _cooling(found, name, use, now, f"{waits} for its provider {name!r}, which")
    budget = _used_up(use)
    if budget is not None:
        return msgspec.structs.replace(
            found,
            gate=Gate.REQUEST_BUDGET,
            sentence=f"{waits} for its provider {name!r}: of its budget, {budget} is used up.",
            unblocks="the budget refills, or more is declared for it in [providers.…]",
            command=LOOK,
        )
    if use.rate is not None and use.in_flight < use.limit:
        return msgspec.structs.replace(
            found,
            gate=Gate.PROVIDER_LIMIT,
            sentence=(
                f"{waits} for its provider {name!r}, which seems to allow {use.rate:,.4g} "
                f"{use.mode} a second ({counted(use.refused, 'refusal')} so far); {use.waiting:,} "
                "wait."
            ),
            unblocks="its turn comes at that rate, or more is found to be allowed",
            command=LOOK,
        )
    most = " (all that is declared)" if use.limit >= use.limit_max else ""
    return msgspec.structs.replace(
        found,
        gate=Gate.PROVIDER_LIMIT,
        sentence=(
            f"{waits} for its provider {name!r}: {use.in_flight:,} requests are in flight, its "
            f"limit now is {use.limit:,}{most}, and {use.waiting:,} wait."
        ),
        unblocks="a request to it ends, or its limit grows",
        command=LOOK,
    )


def waits_for_permit(
    found: Explanation, since: int, name: str | None, status: WorkerStatus, now: int
) -> Explanation:
    """The answer for a body that runs and waits for a permit; `found` says that it runs.

    Args:
        found: what is known else.
        since: when it began to wait.
        name: the provider, or PROVIDER/MODEL; None: its task does not say.
        status: the last word of the worker.
        now: by the clock of the store.
    """
    whose = "a provider's permit" if name is None else f"a permit of its provider {name!r}"
    waits = f"{found.sentence} It has waited since {at(since)} ({span(now - since)}) for {whose}"
    use = None if name is None else _pressed(name, status)
    if name is not None and use is not None and _cools_down(use, now):
        return _cooling(found, name, use, now, f"{waits}, which")
    return msgspec.structs.replace(
        found, sentence=f"{waits}.", unblocks="it gets its permit, and its attempt ends", when=None
    )


def _cools_down(use: ProviderUse, now: int) -> bool:
    return use.blocked_until_at is not None and use.blocked_until_at > now


def _cooling(found: Explanation, name: str, use: ProviderUse, now: int, waits: str) -> Explanation:
    until = use.blocked_until_at or now
    return msgspec.structs.replace(
        found,
        gate=Gate.COOLDOWN,
        sentence=f"{waits} cools down for another {span(until - now)}: {_reason(use)}.",
        unblocks=f"the cool-down of {name!r} ends",
        when=until,
        command=LOOK,
    )


def _pressed(name: str, status: WorkerStatus) -> ProviderUse | None:
    """Of the models that are meant, the one with most requests that wait."""
    provider, _, model = name.partition("/")
    uses = [
        use
        for use in status.providers
        if use.provider == provider and (not model or use.model == model)
    ]
    return max(uses, key=lambda use: (use.waiting, use.in_flight), default=None)


def _reason(use: ProviderUse) -> str:
    """Why nothing is sent for a while."""
    if use.failed_in_row >= ILL or not use.refused:
        row = f", {use.failed_in_row:,} in a row" if use.failed_in_row else ""
        return (
            f"it is ill ({counted(use.failed, 'request')} failed{row}), and single requests test "
            "it; the log says how they fail"
        )
    return f"it refused and asked for a pause ({counted(use.refused, 'refusal')} so far)"


def _used_up(use: ProviderUse) -> str | None:
    if use.in_flight >= use.limit:
        return None
    if use.rpm is not None and use.requests_last_minute >= use.rpm * NEARLY:
        return f"{use.requests_last_minute:,} of {use.rpm:,.0f} requests a minute"
    if use.tpm is not None and use.tokens_last_minute >= use.tpm * NEARLY:
        return f"{use.tokens_last_minute:,} of {use.tpm:,.0f} tokens a minute"
    return None
