# SPDX-License-Identifier: Apache-2.0
"""Whose limits add up, when several workers use one provider?

Each place of a run has its part of what a provider allows. A worker that is worn, and the one that
runs suspects alone, have the part of a place besides the worker whose it is: what they send counts,
but their part is not a part more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.model.provider import ProviderModelKey
from penstock.model.views import WorkerView
from penstock.model.worker import ProviderUse, WorkerStatus, read_status


class ToldUse(NamedTuple):
    """What a worker says of one model of a provider."""

    use: ProviderUse
    status: WorkerStatus
    view: WorkerView
    is_own_part: bool  # its limits are its own: they add up with those of others


def told_uses(workers: Iterable[WorkerView]) -> dict[ProviderModelKey, list[ToldUse]]:
    """By model, what each live worker says of it."""
    found: dict[ProviderModelKey, list[ToldUse]] = {}
    for view in workers:
        status = read_status(view.status) if view.alive else None
        if status is None:
            continue
        for use in status.providers:
            key = ProviderModelKey(use.provider, use.model)
            found.setdefault(key, []).append(ToldUse(use, status, view, True))
    return {key: _with_owners(told) for key, told in found.items()}


def _with_owners(told: list[ToldUse]) -> list[ToldUse]:
    """Of those at one place, the one that serves it: neither solo nor stopping, the youngest."""
    owners: dict[tuple[str, int | None], ToldUse] = {}
    for one in told:
        known = owners.get(_place(one))
        if known is None or _rank(one) > _rank(known):
            owners[_place(one)] = one
    return [
        one._replace(is_own_part=one.status.place is None or owners[_place(one)] is one)
        for one in told
    ]


def _place(one: ToldUse) -> tuple[str, int | None]:
    return one.view.run_id, one.status.place


def _rank(one: ToldUse) -> tuple[bool, bool, int]:
    return not one.status.solo, not one.status.stopping, one.view.started_at
