# SPDX-License-Identifier: Apache-2.0
"""Long cool-downs of providers, shared by all processes and runs of a store.

Whoever is told by a provider to wait for SHARED_SECONDS or more writes that down; every worker that
serves providers reads what is written before its first job, and once a second from then on. So no
call waits for the store, and one process sends at most what leaves within a second after another
one was told. What is kept ends by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.errors import StoreError
from penstock.model.provider import ANY, CooldownKey, RequestResourceKey
from penstock.model.views import StoredCooldown
from penstock.requests.admission import RequestAdmissionController
from penstock.stores.protocol import CooldownStore
from penstock.terminal_text import format_duration

LOOK_SECONDS = 1.0  # between two readings
DOCUMENT = "{}"  # all that is known is in the key and in the times
SLACK_SECONDS = 1.0  # a pause that ends later by less is the same
DOMAIN_MARK = ":"  # between an account and the domain whose own limit cools down

log = logging.getLogger("penstock.providers")


class SharedCooldowns:
    """Owns what was read and written of the long cool-downs. Belongs to one loop."""

    def __init__(
        self,
        store: CooldownStore,
        clock: Clock,
        admission: RequestAdmissionController,
        account_of: Callable[[str], str | None],
    ) -> None:
        """Nothing is known yet.

        Args:
            store: where they are kept.
            clock: of this process.
            admission: of the requests of this process.
            account_of: tells the keys of a provider apart; None: it is not served here.
        """
        self._store = store
        self._clock = clock
        self._admission = admission
        self._account_of = account_of
        self._until: dict[RequestResourceKey, float] = {}  # monotonic: as it is kept
        self._unwritten: dict[RequestResourceKey, float] = {}  # begun here, and not kept yet
        self._next_monotonic = 0.0
        self._is_busy = False

    @property
    def is_due(self) -> bool:
        """It is time to read, or there is something to write."""
        is_time = self._clock.monotonic() >= self._next_monotonic
        return not self._is_busy and (is_time or self._admission.core.has_long_cooldowns)

    async def share(self) -> None:
        """Write down what was met, and read what others have met; a failure is tried again."""
        self._is_busy = True
        try:
            await self.write()
            await self.read()
        except StoreError as error:
            log.debug("Long cool-downs were not shared: %s", error)
        finally:
            self._is_busy = False

    async def read(self) -> None:
        """Let nothing leave for whom another process was told to wait."""
        self._next_monotonic = self._clock.monotonic() + LOOK_SECONDS
        for one in await self._store.cooldowns():
            if one.left_seconds > 0 and one.key.model != ANY:
                self._pause(one)

    async def write(self) -> None:
        """Write down the long cool-downs that have begun here."""
        self._unwritten |= self._admission.core.take_long_cooldowns()
        for resource, until in list(self._unwritten.items()):
            seconds = until - self._clock.monotonic()
            account = self._account_of(resource.provider)
            if account is not None and seconds > 0 and self._is_news(resource, until):
                key = CooldownKey(resource.provider, resource.model, _scoped(account, resource))
                await self._store.begin_cooldown(key, seconds, DOCUMENT)
                self._until[resource] = until
            if self._unwritten[resource] == until:  # else it has grown meanwhile
                del self._unwritten[resource]

    def _pause(self, one: StoredCooldown) -> None:
        provider, model, scope = one.key
        account, _, domain = scope.partition(DOMAIN_MARK)
        resource = RequestResourceKey(provider, model, domain or ANY)
        until = self._clock.monotonic() + one.left_seconds
        if account != self._account_of(provider) or not self._is_news(resource, until):
            return
        self._until[resource] = until
        self._admission.pause(resource, one.left_seconds)
        log.info(
            "%s/%s cools down for another %s, as another process was told; nothing is sent to it "
            "before.",
            provider,
            model,
            format_duration(one.left_seconds),
        )

    def _is_news(self, resource: RequestResourceKey, until: float) -> bool:
        return until > self._until.get(resource, 0.0) + SLACK_SECONDS


def _scoped(account: str, resource: RequestResourceKey) -> str:
    return account if resource.domain == ANY else f"{account}{DOMAIN_MARK}{resource.domain}"
