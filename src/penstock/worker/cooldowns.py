# SPDX-License-Identifier: Apache-2.0
"""Long cool-downs and closed accounts of providers, shared by all processes and runs of a store.

Whoever is told by a provider to wait for SHARED_SECONDS or more, or that its account is closed,
writes that down; every worker that serves providers reads what is written before its first job, and
once a second from then on. So no call waits for the store, and a process sends at most what leaves
within a second after another one was told.

A cool-down ends by itself. A closed account is probed by one process at a time, which asks the
store for leave; its reply opens the account for all, or closes it for twice as long. A new run, and
a process whose key has been replaced, need not wait for the time of the next probe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from penstock.admission.requests.account import AccountGate
from penstock.clock import MICROSECONDS, Clock, to_micros
from penstock.errors import StoreError
from penstock.model.provider import (
    ANY,
    AccountNote,
    CooldownKey,
    RequestResourceKey,
    read_account_note,
)
from penstock.model.views import StoredCooldown
from penstock.requests.admission import RequestAdmissionController
from penstock.stores.protocol import PROBE_SECONDS, CooldownStore
from penstock.terminal_text import format_duration

LOOK_SECONDS = 1.0  # between two readings
KNOWN_SECONDS = 1.5  # after it what was met here is known to all
NO_NOTE = "{}"  # of a cool-down all that is known is in its key and its times
SLACK_SECONDS = 1.0  # a pause that ends later by less is the same
DOMAIN_MARK = ":"  # between an account and the domain whose own limit cools down
APP_MARK = "@"  # before an app, where its key is not known: it stands for the account

log = logging.getLogger("penstock.providers")


class SharedCooldowns:
    """Owns what was read and written of long cool-downs and accounts. Belongs to one loop."""

    def __init__(
        self,
        store: CooldownStore,
        clock: Clock,
        admission: RequestAdmissionController,
        key_mark: Callable[[str], str | None],
        reread_key: Callable[[str], object] = lambda _: None,
        *,
        app: str = "",
        run_id: str = "",
    ) -> None:
        """Nothing is known yet.

        Args:
            store: where they are kept.
            clock: of this process.
            admission: of the requests of this process.
            key_mark: tells the keys of a provider apart; None: it is not served here.
            reread_key: reads the key of a provider anew.
            app: whose keys they are.
            run_id: whose probes they are.
        """
        self._store = store
        self._clock = clock
        self._admission = admission
        self._key_mark = key_mark
        self._reread_key = reread_key
        self._app = app
        self._run_id = run_id
        self._until: dict[RequestResourceKey, float] = {}  # monotonic: as it is kept
        self._unwritten: dict[RequestResourceKey, float] = {}  # begun here, and not kept yet
        self._changed: set[str] = set()  # providers whose accounts are not kept as they are
        self._accounts: dict[str, StoredCooldown] = {}  # by provider: closed ones, as they are kept
        self._is_first_look = True
        self._next_monotonic = 0.0
        self._is_busy = False

    @property
    def is_due(self) -> bool:
        """It is time to read, or there is something to write."""
        is_time = self._clock.monotonic() >= self._next_monotonic
        return not self._is_busy and (is_time or self._admission.core.has_news)

    def is_probed_elsewhere(self, provider: str) -> bool:
        """Another process has leave to probe its account: perhaps it is open in a moment."""
        kept = self._accounts.get(provider)
        return kept is not None and kept.probed_seconds > 0

    async def share(self) -> None:
        """Write down what was met, and read what others have met; a failure is tried again."""
        self._is_busy = True
        try:
            await self.write()
            await self._read()
        except StoreError as error:
            log.debug("Long cool-downs were not shared: %s", error)
        finally:
            self._is_busy = False

    async def write(self) -> None:
        """Write down the long cool-downs that began here, and accounts that changed here."""
        self._unwritten |= self._admission.core.take_long_cooldowns()
        self._changed |= self._admission.core.take_account_changes()
        for resource, until in list(self._unwritten.items()):
            seconds = until - self._clock.monotonic()
            mark = self._key_mark(resource.provider)
            if mark is not None and seconds > 0 and self._is_news(resource, until):
                key = CooldownKey(resource.provider, resource.model, _scoped(mark, resource))
                await self._store.begin_cooldown(key, seconds, NO_NOTE)
                self._until[resource] = until
            if self._unwritten[resource] == until:  # else it has grown meanwhile
                del self._unwritten[resource]
        for provider in list(self._changed):
            self._changed.discard(provider)  # what changes meanwhile is written next time
            try:
                await self._write_account(provider)
            except StoreError:
                self._changed.add(provider)
                raise

    async def _read(self) -> None:
        """Obey what other processes were told."""
        self._next_monotonic = self._clock.monotonic() + LOOK_SECONDS
        accounts: dict[CooldownKey, StoredCooldown] = {}
        for one in await self._store.cooldowns():
            if one.key.model == ANY:
                accounts[one.key] = one
            elif one.left_seconds > 0:
                self._pause(one)
        known = {key.provider for key in accounts if self._key_mark(key.provider) is not None}
        for provider in {*known, *self._accounts} - self._changed:
            await self._obey_account(provider, accounts)
        self._is_first_look = False

    # ── Cool-downs ────────────────────────────────────────────────────────────────────────────

    def _pause(self, one: StoredCooldown) -> None:
        provider, model, scope = one.key
        mark, _, domain = scope.partition(DOMAIN_MARK)
        resource = RequestResourceKey(provider, model, domain or ANY)
        until = self._clock.monotonic() + one.left_seconds
        if mark != self._key_mark(provider) or not self._is_news(resource, until):
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

    # ── Accounts ──────────────────────────────────────────────────────────────────────────────

    def _account_key(self, provider: str) -> CooldownKey:
        mark = self._key_mark(provider)
        return CooldownKey(provider, ANY, mark or f"{APP_MARK}{self._app}")

    def _gate(self, provider: str) -> AccountGate:
        return self._admission.core.tree.provider(provider, self._clock.monotonic()).account

    async def _write_account(self, provider: str) -> None:
        gate, key = self._gate(provider), self._account_key(provider)
        kept = self._accounts.get(provider)
        if gate.is_closed and not gate.status:
            return  # its key cannot be read: nobody else need know
        if gate.closed_at is not None:
            gate.needs_leave()
            now = self._clock.monotonic()
            note = AccountNote(
                status=gate.status,
                said=gate.said,
                since_at=to_micros(self._clock.now() - now + gate.closed_at),
                probes=gate.probes,
                interval_seconds=gate.interval_seconds,
                run_id=self._run_id,
            )
            document = msgspec.json.encode(note).decode()
            await self._store.begin_cooldown(key, max(gate.probe_at - now, 0.0), document)
        else:
            await self._store.end_cooldown(key)
        if kept is not None and kept.key != key:  # of the key that was replaced
            await self._store.end_cooldown(kept.key)
            del self._accounts[provider]

    async def _obey_account(
        self, provider: str, accounts: Mapping[CooldownKey, StoredCooldown]
    ) -> None:
        """Close an account that another process found closed, open it, or get leave to probe it."""
        kept, gate = self._accounts.get(provider), self._gate(provider)
        key = self._account_key(provider)
        if gate.is_probing:
            return  # it is known in a moment
        found = accounts.get(key)
        if found is None and kept is not None and kept.key != key:
            found = accounts.get(kept.key)  # that of the key which was replaced
        if found is None:
            if self._accounts.pop(provider, None) is not None and gate.is_closed and gate.status:
                self._reread_key(provider)
                self._admission.open_account(provider)
            return
        self._accounts[provider] = found
        note = read_account_note(found.document)
        if note is None:
            return
        if not gate.is_closed or kept is None or kept.until_at != found.until_at:
            now = self._clock.monotonic()
            since = now - max(self._clock.now() - note.since_at / MICROSECONDS, 0.0)
            self._admission.close_account_elsewhere(provider, note, since, now + found.left_seconds)
        is_new_run = self._is_first_look and note.run_id != self._run_id
        at_once = is_new_run or found.key != key
        if found.probed_seconds <= 0 and (at_once or found.left_seconds <= 0):
            await self._probe(provider, found, at_once)

    async def _probe(self, provider: str, kept: StoredCooldown, at_once: bool) -> None:
        """Ask for leave to probe an account, and let the next request do it."""
        if await self._store.take_probe(kept.key, at_once=at_once):
            self._admission.probe_account(provider)
        else:  # somebody else was quicker
            self._accounts[provider] = replace(kept, probed_seconds=PROBE_SECONDS)


def _scoped(mark: str, resource: RequestResourceKey) -> str:
    return mark if resource.domain == ANY else f"{mark}{DOMAIN_MARK}{resource.domain}"
