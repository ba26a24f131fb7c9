# SPDX-License-Identifier: Apache-2.0
"""The account gate of a provider: shut while a key is dead or an account empty, probed one by one.

Nothing leaves while it is shut; who waits is denied, so that its job waits in the store. At its
time one request may leave as a probe, and only its reply opens the account again, or shuts it for
twice as long. Each process has its own gate: several workers probe each for themselves.
"""

from __future__ import annotations

from math import inf

from penstock.model.request import RequestOutcome, RequestReleaseOutcome

FIRST_PROBE_SECONDS = 30.0
PROBE_SECONDS_MAX = 600.0

#: Replies that only a provider gives which has accepted the key.
_ACCEPTED = frozenset({RequestOutcome.SUCCESS, RequestOutcome.RATE_LIMITED})


class AccountGate:
    """Owns whether one provider's account is closed, and which request probes it."""

    __slots__ = ("_interval_seconds", "_probe", "closed_at", "probe_at", "probes", "said", "status")

    def __init__(self) -> None:
        self.closed_at: float | None = None  # monotonic; None: it is open
        self.probe_at = inf  # monotonic: when the next probe may leave
        self.probes = 0  # that found it closed
        self.status = 0  # of the reply that closed it; 0: there was none
        self.said = ""  # what the provider wrote, redacted
        self._interval_seconds = FIRST_PROBE_SECONDS
        self._probe: int | None = None  # the lease of the probe in flight

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
        return self.closed_at is not None and self._probe is None and now < self.probe_at

    def granted(self, lease_id: int) -> None:
        """A request leaves; it is the probe if the account is closed."""
        if self.closed_at is not None and self._probe is None:
            self._probe = lease_id

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
            self.probe_at = now + self._interval_seconds
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
        self._interval_seconds = min(2 * self._interval_seconds, PROBE_SECONDS_MAX)
        self.probe_at = now + self._interval_seconds

    def close(self, status: int, said: str, now: float) -> None:
        """Shut it: a reply is about the account."""
        self.closed_at, self.probes = now, 0
        self.status, self.said = status, said
        self._interval_seconds = FIRST_PROBE_SECONDS
        self.probe_at = now + self._interval_seconds

    def open(self) -> None:
        self.closed_at, self.probe_at = None, inf

    def probe_now(self, now: float) -> None:
        """Let the next request probe it at once: its key is another one."""
        self.probe_at = min(self.probe_at, now)
