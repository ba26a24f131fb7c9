# SPDX-License-Identifier: Apache-2.0
"""How many requests did a run send to each provider, over all workers it ever had?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.model.provider import ProviderModelKey
from penstock.model.views import WorkerView
from penstock.model.worker_status import ProviderUse, read_status
from penstock.observe.live import ProviderLine

PROCESSES_MAX = 256  # whose words are kept apart; older ones are added up


class ProviderTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a provider over a whole run."""

    name: str
    sent: int
    refused: int
    failed: int
    limit: int
    limit_max: int


class Tally:
    """Owns the last word of every process: they count from their own beginning."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[ProviderUse, ...]] = {}  # by process; the newest last
        self._gone: dict[ProviderModelKey, ProviderUse] = {}
        self._limits: dict[str, tuple[int, int]] = {}

    def take(self, workers: Iterable[WorkerView], lines: Sequence[ProviderLine]) -> None:
        """What the rows of the run's workers say now."""
        for view in workers:
            if view.alive and view.status is not None:
                self.hear(view.pid, view.status)
        for line in lines:
            self._limits[line.name] = line.live.limit, line.live.limit_max

    def hear(self, pid: int, document: str) -> None:
        """The last word of a process so far."""
        status = read_status(document)
        if status is None:
            return
        self._said.pop(pid, None)
        self._said[pid] = status.providers
        if len(self._said) > PROCESSES_MAX:
            for use in self._said.pop(next(iter(self._said))):
                key = ProviderModelKey(use.provider, use.model)
                self._gone[key] = _added(use, self._gone.get(key))

    def totals(self) -> list[ProviderTotal]:
        """Every model that got a request, by name."""
        found = dict(self._gone)
        for uses in self._said.values():
            for use in uses:
                key = ProviderModelKey(use.provider, use.model)
                found[key] = _added(use, found.get(key))
        providers = [key.provider for key in found]
        return [
            self._total(key, use, several=providers.count(key.provider) > 1)
            for key, use in sorted(found.items())
            if use.sent or use.refused or use.failed
        ]

    def _total(self, key: ProviderModelKey, use: ProviderUse, *, several: bool) -> ProviderTotal:
        name = f"{key.provider}/{key.model}" if several else key.provider
        limit, limit_max = self._limits.get(name, (use.limit, use.limit_max))
        return ProviderTotal(
            name=name,
            sent=use.sent,
            refused=use.refused,
            failed=use.failed,
            limit=limit,
            limit_max=limit_max,
        )


def _added(use: ProviderUse, before: ProviderUse | None) -> ProviderUse:
    if before is None:
        return use
    return msgspec.structs.replace(
        use,
        sent=use.sent + before.sent,
        refused=use.refused + before.refused,
        failed=use.failed + before.failed,
    )
