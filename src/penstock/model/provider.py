# SPDX-License-Identifier: Apache-2.0
"""Names of providers, models and domains: the keys under which requests are limited."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

#: Stands for every model or domain, where a task says only which provider it calls.
ANY = "*"

ALGORITHMS = ("adaptive", "aimd")
RATE_MIN, RATE_MAX = 1e-9, 1e12  # per minute; what is beyond is a slip of the pen

#: What becomes of a call that began and of which nobody knows the end.
IN_DOUBT = ("resend", "hold")

#: The languages of APIs: how a key is sent, and what a reply says about the account.
DIALECTS = ("openai", "anthropic")
IDEMPOTENCY_HEADER = "Idempotency-Key"  # of both

#: Which redirects are followed.
REDIRECTS = ("same-origin", "none", "any")

_HEADER = re.compile("[A-Za-z][A-Za-z0-9-]{0,99}")


class ProviderModelKey(NamedTuple):
    """What a provider limits as one thing."""

    provider: str
    model: str  # for plain HTTP the host, or a name that the user gave


class CooldownKey(NamedTuple):
    """What a long cool-down is of."""

    provider: str
    model: str  # `*`: of the account, whatever the model
    account: str = ""  # tells keys apart (`Credentials.mark`); empty: none is known


class AccountNote(msgspec.Struct, frozen=True):
    """What processes tell each other of a closed account, beside the time of its next probe."""

    status: int  # of the reply that closed it
    said: str  # what the provider wrote, redacted
    since_at: int
    probes: int = 0  # that found it closed
    interval_seconds: float = 0.0  # between the last two
    run_id: str = ""  # which probed it last

    @property
    def reason(self) -> str:
        return f"{self.status}: {self.said}" if self.said else f"it answered {self.status}"


class RequestResourceKey(NamedTuple):
    """What one request asks for."""

    provider: str
    model: str
    domain: str  # chat, embedding, image, healthcheck, http

    @property
    def provider_model(self) -> ProviderModelKey:
        return ProviderModelKey(self.provider, self.model)


class SeveralResources(NamedTuple):
    """What a task asks for that calls more than one service: it needs room at each of them."""

    resources: tuple[RequestResourceKey, ...]  # sorted
    learned: bool = False  # nobody said so: it is what attempts of the task have called


class Endpoint(msgspec.Struct, frozen=True):
    """A service that a task calls; those with the same resource are one, whatever their alias."""

    resource: RequestResourceKey
    alias: str = ""  # what the user calls it
    cap: int | None = None  # requests at once that were declared under this alias


def read_account_note(document: str) -> AccountNote | None:
    """What another process says of an account; None if its version says it otherwise."""
    try:
        return msgspec.json.decode(document, type=AccountNote)
    except msgspec.MsgspecError:
        return None


class ClosedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A provider whose key is dead or whose account is empty."""

    provider: str
    reason: str  # what it answered, redacted, or why its key cannot be read
    since_at: int
    probe_at: int  # when a request may probe it
    probes: int = 0  # that found it closed
    tasks: tuple[str, ...] = ()  # that wait for it

    @property
    def cause(self) -> str:
        return f"The account of provider {self.provider!r} is closed ({self.reason})."

    @property
    def sentence(self) -> str:
        """Which account, what the provider wrote, and what is to be done."""
        return (
            f"{self.cause[:-1]}: replace its key or fill the account, then run the same command "
            "again; its jobs wait, uncharged."
        )


def gate_name(resource: object) -> str:
    """What people call what a task waits for: a provider, or one of its models."""
    if isinstance(resource, SeveralResources):
        return " or ".join(map(gate_name, resource.resources))
    if not isinstance(resource, RequestResourceKey):
        return str(resource)
    if resource.model == ANY:
        return resource.provider
    return f"{resource.provider}/{resource.model}"


def base_url_problem(url: object) -> str | None:
    """Why requests cannot go to a base URL; None if they can."""
    if not isinstance(url, str):
        return "must be text"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no URL ({str(error)[:1].lower()}{str(error)[1:].rstrip('.')})"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    if not host:
        return "must name a host"
    if parts.query or parts.fragment:
        return "must end with its path, without ? and #"
    if not url.isprintable() or " " in url:
        return "must not hold spaces or control characters"
    return None


def header_problem(name: object) -> str | None:
    """Why a text cannot be the name of a header; None if it can. An empty one means: none."""
    if not isinstance(name, str):
        return "must be text"
    if name and not _HEADER.fullmatch(name):
        return "must be the name of a header, such as Idempotency-Key"
    return None
