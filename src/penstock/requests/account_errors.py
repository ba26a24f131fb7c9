# SPDX-License-Identifier: Apache-2.0
"""Recognises replies about the account: a dead key, an empty balance, a used-up quota.

A 401 or 402 of a provider with a dialect is always about the account. A 400, 403, 412 or 429 is if
its codes say so, else if its words do; codes of other troubles (a rate, a model, the contents) come
first, since their messages may speak of billing as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from penstock.requests.usage import UNREADABLE

STATUSES = frozenset({400, 401, 402, 403, 412, 429})
SAID_LENGTH_MAX = 300  # characters of what a provider wrote
DEPTH_MAX = 4  # of an error's document

#: Fields in which providers name what went wrong, and those that hold a sentence about it.
_CODE_FIELDS = frozenset({"code", "type", "reason", "status"})
_TEXT_FIELDS = frozenset({"message", "detail", "error", "error_description", "title"})

_ACCOUNT_CODES = frozenset(
    {
        *("insufficient_quota", "invalid_api_key", "authentication_error", "billing_error"),
        *("billing_hard_limit_reached", "billing_not_active", "account_deactivated"),
        *("access_terminated", "organization_restricted", "blocked_api_access", "api_key_invalid"),
        *("service_disabled", "billing_disabled", "consumer_suspended", "account_suspended"),
        *("insufficient_balance", "insufficient_credits", "payment_required", "unauthenticated"),
        *("api_key_service_blocked", "unsupported_country_region_territory"),
    }
)
_OTHER_CODES = frozenset(
    {
        *("rate_limit_exceeded", "rate_limited", "rate_limit_error", "too_many_requests"),
        *("context_length_exceeded", "content_filter", "content_policy_violation", "moderation"),
        *("responsibleaipolicyviolation", "model_not_found", "deploymentnotfound", "tokens"),
        *("requests", "overloaded_error", "resource_exhausted", "string_above_max_length"),
    }
)
_MONEY = (
    r"credit balance|credit limit|spend(?:ing)? limit|usage limits? reached|api usage limits"
    r"|(?:insufficient|not enough|out of|no|used all|purchase|add|more)\b[\w ]{0,24}"
    r"\b(?:credits?|balance|funds)\b"
    r"|account\b[\w ]{0,40}\b(?:suspended|disabled|deactivated|restricted|not active)"
    r"|organi[sz]ation\b[\w ]{0,16}\b(?:disabled|restricted|deactivated)"
)
_KEY = (
    r"(?:invalid|incorrect|expired|missing|revoked|wrong) (?:api|subscription)[ _-]?(?:key|token)"
    r"|api[ _-]?key\b[\w ,]{0,40}\b(?:not valid|invalid|expired|revoked|disabled|leaked)"
)
_DENIED = (  # of a 403 only: there a mention is enough
    r"api[ _-]?keys?\b|subscription key|key limit|credentials|authenticat|unauthorized"
    r"|billing|payment|call volume quota|virtual network|firewall|not supported in your"
    r"|location is not supported|has not been used in project"
)
_CONTENTS = re.compile(
    r"moderation|flagged|content policy|safety|context length|max_tokens|access to (?:the )?model"
    r"|model\b.{0,80}\b(?:not found|does not exist)",
    re.IGNORECASE,
)
_WORDS = {
    400: re.compile(f"{_MONEY}|{_KEY}|location is not supported", re.IGNORECASE),
    403: re.compile(f"{_MONEY}|{_KEY}|{_DENIED}", re.IGNORECASE),
    412: re.compile(_MONEY, re.IGNORECASE),
    429: re.compile(_MONEY, re.IGNORECASE),
}
_TAG = re.compile(r"<[^<>]{0,200}>")


def account_problem(status: int, body: bytes) -> str | None:
    """Return what a provider wrote if a reply is about the account; None: it is about a request.

    Args:
        status: of the reply, one of STATUSES.
        body: its beginning, decoded.
    """
    codes, text = _read(body)
    if status not in (401, 402):
        is_other = codes & _OTHER_CODES or _CONTENTS.search(text)
        if not codes & _ACCOUNT_CODES and (is_other or not _WORDS[status].search(text)):
            return None
    return " ".join(text.split())[:SAID_LENGTH_MAX]


def said(body: bytes) -> str:
    """Return the sentences in the body of an error."""
    return " ".join(_read(body)[1].split())[:SAID_LENGTH_MAX]


def _read(body: bytes) -> tuple[set[str], str]:
    """Return the codes of an error's document and its sentences; of anything else its text."""
    try:
        document = msgspec.json.decode(body)
    except UNREADABLE:
        return set(), _TAG.sub(" ", body[:4_096].decode("utf-8", "replace"))
    codes: set[str] = set()
    texts: dict[str, None] = {}
    for name, value in _fields(document, DEPTH_MAX):
        if name in _CODE_FIELDS:
            codes.add(value.lower().replace(" ", "_"))
        if name in _TEXT_FIELDS:
            texts[value] = None
    return codes, " ".join(texts)[:4_096]


def _fields(document: object, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the texts of a document with the names of their fields."""
    if depth < 0:
        return
    if isinstance(document, dict):
        for name, value in document.items():
            if isinstance(value, str):
                yield name, value
            else:
                yield from _fields(value, depth - 1)
    elif isinstance(document, list):
        for value in document[:8]:
            yield from _fields(value, depth - 1)
