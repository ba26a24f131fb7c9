# SPDX-License-Identifier: Apache-2.0
"""SimulatedProvider: a fake rate-limited service, in virtual time or on loopback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from penstock.errors import UsageError
from penstock.testing.simulated_provider.core import Answer, Call, Counts, ProviderCore, Script
from penstock.testing.simulated_provider.rules import Change, ProviderRules
from penstock.testing.simulated_provider.server import LoopbackServer
from penstock.testing.simulated_provider.transport import SimulatedTransport

VIRTUAL_URL = "http://simulated.invalid"  # where a client with our transport may say it sends to


class SimulatedProvider:
    """A scripted, seeded service with hidden limits; in virtual time, or on loopback.

    It speaks OpenAI's chat completions and embeddings, Anthropic's messages (streamed and not),
    and answers every other path with a small JSON document.

    In virtual time: give `provider.transport()` to a client, or the provider to `harness`. On
    loopback: `with SimulatedProvider(...) as provider:` serves at `provider.url`.

    Args:
        rules: hidden limits, latency, faults.
        seed: of everything that is left to chance; the same calls at the same moments get the
            same answers.
        changes: other rules from a moment or a call on.
        script: answers a call before any limit is looked at; None leaves it to the rules.
        answer: the body of a call that is served, in place of the built-in ones.
    """

    def __init__(
        self,
        rules: ProviderRules | None = None,
        *,
        seed: int = 0,
        changes: Sequence[Change] = (),
        script: Script | None = None,
        answer: Answer | None = None,
    ) -> None:
        self._core = ProviderCore(rules or ProviderRules(), seed, changes, script, answer)
        self._server: LoopbackServer | None = None

    def __repr__(self) -> str:
        return f"<SimulatedProvider at {self.url}, {self.counts.calls} calls>"

    @property
    def url(self) -> str:
        """Where it listens; a name that leads nowhere while it does not."""
        return VIRTUAL_URL if self._server is None else self._server.url

    @property
    def counts(self) -> Counts:
        """What it has seen so far."""
        return self._core.counts

    @property
    def log(self) -> Sequence[Call]:
        """Its calls one by one, in the order of arrival."""
        return self._core.log

    @property
    def rules(self) -> ProviderRules:
        """The rules that hold now."""
        return self._core.rules

    def change(self, **changed: Any) -> None:  # noqa: ANN401 (fields of ProviderRules)
        """Change some rules from now on: `provider.change(concurrency=4)`."""
        self._core.change(replace(self._core.rules, **changed))

    def transport(self) -> SimulatedTransport:
        """The way to it without a network, for a client of httpx2 or httpx."""
        return SimulatedTransport(self._core)

    def __enter__(self) -> Self:
        if self._server is not None:
            raise UsageError(f"The simulated provider serves already, at {self.url}.")
        self._server = LoopbackServer(self._core)
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
