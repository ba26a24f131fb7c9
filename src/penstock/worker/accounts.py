# SPDX-License-Identifier: Apache-2.0
"""The tasks that wait for a closed account in this worker, and who lets them go for a probe.

A call that meets a closed account ends its attempt uncharged. Its task, and every other that uses
the provider, is not leased again until a probe is due: then they are let go, one request leaves,
and its reply opens the account or holds them back once more. Other tasks go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from penstock.clock import Clock
from penstock.model.lease import JobRef
from penstock.model.provider import ClosedAccount
from penstock.worker.attempt import Attempt, AttemptEnd
from penstock.worker.kind import ServedTask

KEY_SECONDS = 2.0  # between two looks whether the key of a closed account is another one

log = logging.getLogger("penstock.providers")


class Accounts(Protocol):
    """Whoever knows the accounts of providers."""

    def closed_account(self, provider: str) -> ClosedAccount | None:
        """Return the account of a provider; None: it is open."""
        ...

    def closed_providers(self) -> Iterable[str]:
        """Return the providers whose accounts are closed."""
        ...

    def is_left_alone(self, provider: str) -> bool:
        """Return whether no request may leave for a closed account, not even a probe."""
        ...

    def is_probed_elsewhere(self, provider: str) -> bool:
        """Return whether another process probes a closed account."""
        ...

    def reread_key(self, provider: str) -> bool:
        """Read its key anew; if it is another one, the account may be probed."""
        ...

    def counted_as(self, provider: str) -> str: ...


class TaskGate(Protocol):
    """Where tasks are held back: the prefetch window."""

    def is_held(self, name: str) -> bool: ...

    def hold_back(self, name: str) -> None: ...

    def let_go(self, name: str) -> None: ...


class AccountHold:
    """Owns which tasks wait for which account, until it is probed. Belongs to one loop."""

    def __init__(
        self,
        accounts: Accounts | None,
        tasks: Mapping[str, ServedTask],
        window: TaskGate,
        clock: Clock,
    ) -> None:
        self._accounts = accounts  # None: there are no providers
        self._window = window
        self._clock = clock
        self._users = {} if accounts is None else _users(accounts, tasks)
        self.held: dict[str, str] = {}  # task → the provider whose account it waits for
        self._known: dict[str, ClosedAccount] = {}  # by provider: those that were told
        self._elsewhere: dict[str, ClosedAccount] = {}  # that ended another worker of the run
        self._look_monotonic = 0.0  # when keys are looked at again

    def __repr__(self) -> str:
        return f"<AccountHold of {', '.join(sorted(self.held)) or 'nothing'}>"

    @property
    def tasks(self) -> frozenset[str]:
        """Those that are held back, here or elsewhere, with no probe under way."""
        elsewhere = (task for one in self._elsewhere.values() for task in one.tasks)
        probed = {name for name in self._known if self._is_probed_elsewhere(name)}
        return frozenset((*(x for x, name in self.held.items() if name not in probed), *elsewhere))

    def _is_probed_elsewhere(self, provider: str) -> bool:
        return self._accounts is not None and self._accounts.is_probed_elsewhere(provider)

    def ended(self, attempt: Attempt, end: AttemptEnd) -> None:
        """Hold back the task of a job that was given back for a closed account."""
        provider = attempt.closed_account
        if provider is not None and isinstance(end, JobRef) and attempt.stop is None:
            self._close(provider, attempt.job.task)

    def held_elsewhere(self, closed: Iterable[ClosedAccount]) -> None:
        """Another worker of the run has ended so; what only it could serve is not waited for."""
        self._elsewhere.update({one.provider: one for one in closed})

    def ticked(self) -> None:
        """Let tasks go whose account is open, or is to be probed now."""
        if self._accounts is None:
            return
        for provider in self._accounts.closed_providers():  # as other processes have found
            if provider not in self._known and self._accounts.is_left_alone(provider):
                self._close(provider)
        if not self._known:
            return
        now = self._clock.monotonic()
        looks_at_keys = now >= self._look_monotonic
        if looks_at_keys:
            self._look_monotonic = now + KEY_SECONDS
        for provider in list(self._known):
            if self._accounts.closed_account(provider) is None:
                del self._known[provider]
                log.warning("The account of provider %r is open again.", provider)
                self._let_go(provider)
            elif provider in self.held.values():
                if looks_at_keys:
                    self._accounts.reread_key(provider)
                if not self._accounts.is_left_alone(provider):
                    self._accounts.reread_key(provider)
                    self._let_go(provider)

    def closed(self) -> tuple[ClosedAccount, ...]:
        """The accounts that are closed, with the tasks that wait for them."""
        own = {}
        for provider, known in self._known.items():
            found = None if self._accounts is None else self._accounts.closed_account(provider)
            tasks = sorted(task for task, name in self.held.items() if name == provider)
            own[provider] = replace(found or known, tasks=tuple(tasks))
        return tuple({**self._elsewhere, **own}.values())

    def _close(self, provider: str, *tasks: str) -> None:
        """Hold back the tasks that use an account."""
        self._tell(provider)
        for task in {*tasks, *self._users.get(provider, ())}:
            if task not in self.held and not self._window.is_held(task):
                self.held[task] = provider
                self._window.hold_back(task)

    def _tell(self, provider: str) -> None:
        """Say once which account is closed, and what its provider wrote."""
        found = None if self._accounts is None else self._accounts.closed_account(provider)
        if found is not None and provider not in self._known:
            self._known[provider] = found
            log.warning(
                "%s Its jobs wait, uncharged, and single requests probe it; others go on.",
                found.cause,
            )

    def _let_go(self, provider: str) -> None:
        for task in [task for task, name in self.held.items() if name == provider]:
            del self.held[task]
            self._window.let_go(task)


def _users(accounts: Accounts, tasks: Mapping[str, ServedTask]) -> dict[str, set[str]]:
    """The tasks that say that they use a provider, by the name that it is counted under."""
    users: dict[str, set[str]] = {}
    for name, served in tasks.items():
        for endpoint in served.task.endpoints:
            users.setdefault(accounts.counted_as(endpoint.resource.provider), set()).add(name)
    return users
