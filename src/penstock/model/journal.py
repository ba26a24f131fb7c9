# SPDX-License-Identifier: Apache-2.0
"""The journal of paid calls: intents, answers and their states, so that none is paid twice."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from penstock.model.job import JobId
from penstock.model.spending import Amount, Budget

BODY_BYTES_MAX = 16 * 1024 * 1024  # of an answer as it is kept; a larger one is bought again


class CallKey(NamedTuple):
    """One call of one job: the same call of a later attempt has the same key."""

    job: JobId
    fingerprint: str  # hash of method, URL and body, never of headers
    ordinal: int  # among equal calls of one attempt, from 0


#: Where a reply of httpx2 or httpx says which call it answers, among its extensions.
CALL = "penstock_call"


def call_of(reply: object) -> CallKey | None:
    """The paid call that a reply, or what an SDK makes of it, answers; None: nobody can tell."""
    reply = getattr(reply, "http_response", reply)  # raw responses of SDKs
    found = getattr(reply, "extensions", None)
    key = found.get(CALL) if isinstance(found, dict) else None
    return key if isinstance(key, CallKey) else None


class CallRef(NamedTuple):
    """A call, and the lease under which something is said about it: a greater one wins."""

    key: CallKey
    token: int


class CallState(StrEnum):
    """How far a call came."""

    OPEN = "open"  # it began; if nobody has it in hand any more, it is in doubt
    ANSWERED = "answered"  # its answer is here
    SPOILED = "spoiled"  # answered, and bought anew: it is bad, or could not be read or kept
    HELD = "held"  # in doubt, and a person must look before it is sent again
    CLOSED = "closed"  # it ended without an answer, and nothing was bought


class Intent(msgspec.Struct, frozen=True, gc=False):
    """A call that is about to be sent."""

    key: CallKey
    token: int  # of the lease under which it is made
    run_id: str
    task: str
    provider: str
    model: str
    reserved: Amount  # the most that it is expected to cost
    resent: int = 0  # how often it was sent though its end was in doubt, this time included
    app: str = ""  # whose budgets it counts in


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A complete reply with a status of 2xx."""

    key: CallKey
    status: int
    headers: tuple[tuple[str, str], ...]  # safe ones only: see requests/journal
    body: bytes | None  # compressed; None: it is too large, so the call is settled and `spoiled`
    used: Amount
    input_tokens: int = 0
    output_tokens: int = 0
    token: int = 0  # of its intent; told twice under one, it counts once. 0: nobody remembers
    is_estimated: bool = False  # it did not tell all that it used: the rest is what was reserved


class CallRecord(msgspec.Struct, frozen=True, gc=False):
    """What is known of a call, without its answer."""

    key: CallKey
    state: CallState
    token: int
    provider: str
    model: str
    begun_at: int
    ended_at: int | None = None
    reserved: Amount = Amount()
    used: Amount = Amount()  # over all times that it was bought
    bought: int = 0
    reused: int = 0
    resent: int = 0  # times that it was sent again because its end was in doubt
    estimated: int = 0  # times that its cost was not told wholly
    doubts: int = 0  # earlier sends of it whose fate is unknown
    doubt: Amount = Amount()  # what those were estimated at; it stays counted


class NewestCall(msgspec.Struct, frozen=True, gc=False):
    """One of the calls of a store that were written down last, without its answer."""

    job: str | None  # the key of its job; None: nobody knows the job any more
    app: str
    is_in_hand: bool  # the present lease of its job has begun it, and it has not ended
    record: CallRecord


class IntentVerdict(msgspec.Struct, frozen=True, gc=False):
    """Whether a call may be sent, and the budget that is in the way."""

    written: bool
    over: Budget | None = None  # the budget that it would exceed
    left: Amount = Amount()  # of that budget
    is_stale: bool = False  # a later attempt has begun: nobody wants this call any more


class CallFigures(msgspec.Struct, frozen=True, gc=False):
    """Sums over calls, for people."""

    bought: int = 0
    reused: int = 0
    in_doubt: int = 0  # sends whose fate is unknown
    spent: Amount = Amount()
    resent: int = 0  # sent again because their end was in doubt: some may be paid twice
    estimated: int = 0  # of those bought, how many did not tell all that they cost
    doubt: Amount = Amount()  # what the sends in doubt were estimated at
