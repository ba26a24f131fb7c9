# SPDX-License-Identifier: Apache-2.0
"""The account gate of a provider: shut while a key is dead or an account empty, probed one by one.

Nothing leaves while it is shut; who waits is denied, so that its job waits in the store. At its
time one request may leave as a probe, and only its reply opens the account again, or shuts it for
twice as long. Where other processes know that it is shut, each probe needs leave: one of them has
it at a time.
"""

from __future__ import annotations

from math import inf

from penstock.model.provider import AccountNote
from penstock.model.request import RequestOutcome, RequestReleaseOutcome

FIRST_PROBE_SECONDS = 30.0
PROBE_SECONDS_MAX = 600.0

#: Replies that only a provider gives which has accepted the key.
_ACCEPTED = frozenset({RequestOutcome.SUCCESS, RequestOutcome.RATE_LIMITED})


class AccountGate:
    """Owns whether one provider's account is closed, and which request probes it."""

    __slots__ = (
        "_has_leave",
        "_needs_leave",
        "_probe",
        "closed_at",
        "interval_seconds",
        "probe_at",
        "probes",
        "said",
        "status",
    )

    def __init__(self) -> None:
        self.closed_at: float | None = None  # monotonic; None: it is open
        self.probe_at = inf  # monotonic: when the next probe may leave
        self.probes = 0  # that found it closed
        self.status = 0  # of the reply that closed it; 0: there was none
        self.said = ""  # what the provider wrote, redacted
        self.interval_seconds = FIRST_PROBE_SECONDS
        self._probe: int | None = None  # the lease of the probe in flight
        self._needs_leave = False  # others know that it is shut
        self._has_leave = False

    def __repr__(self) -> str:
        return f"<AccountGate {'open' if self.closed_at is None else 'closed'}>"

    @property
    def is_closed(self) -> bool:
        return self.closed_at is not None

    @property
    def is_probing(self) -> bool:
        """True if a probe is in flight: others wait for its end."""
        return self._probe is not None

    @property
    def reason(self) -> str:
        """What the provider answered, or why its key cannot be read."""
        return (
            f"{self.status}: {self.said}"
            if self.status and self.said
            else (self.said or f"it answered {self.status}")
        )

    def refuses(self, now: float) -> bool:
        """Return whether nothing may leave, and nothing is known to end that soon."""
        return self.closed_at is not None and self._probe is None and not self.may_probe(now)

    def may_probe(self, now: float) -> bool:
        """Return whether it is time for a probe, and this process is the one to send it."""
        return now >= self.probe_at and (self._has_leave or not self._needs_leave)

    def granted(self, lease_id: int) -> None:
        """A request leaves; it is the probe if the account is closed."""
        if self.closed_at is not None and self._probe is None:
            self._probe = lease_id
            self._has_leave = False

    def ended(self, lease_id: int, ending: RequestReleaseOutcome, now: float) -> bool:
        """Take in the end of a request; True if the state has changed."""
        is_probe = self._probe is not None and lease_id == self._probe
        if is_probe:
            self._probe = None
        if ending.outcome is RequestOutcome.ACCOUNT_CLOSED:
            if self.closed_at is None:
                self.close(ending.status, ending.said, now)
                return True
            if is_probe:
                self.probes += 1
                self.status, self.said = ending.status, ending.said
                self._postpone(now)
            return is_probe
        if is_probe and ending.outcome in _ACCEPTED:
            self.open()
        elif is_probe and ending.was_sent:  # it ended in a way that says nothing
            self.probe_at = now + self.interval_seconds
        return is_probe

    def unusable(self, said: str, now: float) -> None:
        """Shut it, or leave it shut: its key cannot be read."""
        if self.closed_at is None:
            self.close(0, said, now)
            return
        self.probes += 1
        self.status, self.said = 0, said
        self._postpone(now)

    def _postpone(self, now: float) -> None:
        self.interval_seconds = min(2 * self.interval_seconds, PROBE_SECONDS_MAX)
        self.probe_at = now + self.interval_seconds

    def close(self, status: int, said: str, now: float) -> None:
        """Shut it: a reply is about the account."""
        self.closed_at, self.probes = now, 0
        self.status, self.said = status, said
        self.interval_seconds = FIRST_PROBE_SECONDS
        self.probe_at = now + self.interval_seconds

    def open(self) -> None:
        self.closed_at, self.probe_at = None, inf
        self._needs_leave = self._has_leave = False

    def probe_now(self, now: float) -> None:
        """Let the next request probe it at once: it has leave, or its key is another one."""
        self.probe_at = min(self.probe_at, now)
        self._has_leave = True

    def needs_leave(self) -> None:
        """Let no probe leave without leave: others know that it is shut."""
        self._needs_leave = True

    def closed_elsewhere(
        self, note: AccountNote, closed_at: float, probe_at: float, now: float
    ) -> bool:
        """Shut it as another process has; True if it was open."""
        was_open = self.closed_at is None
        self.closed_at, self.probe_at = min(closed_at, now), probe_at
        self.status, self.said, self.probes = note.status, note.said, note.probes
        self.interval_seconds = note.interval_seconds
        self._needs_leave, self._has_leave = True, False
        return was_open
