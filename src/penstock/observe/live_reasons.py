# SPDX-License-Identifier: Apache-2.0
"""Which limit of a provider binds now, and what do jobs wait for?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.worker import BlockedTasks, WorkerStatus
from penstock.observe.phrases import counted, span
from penstock.observe.providers import LiveLimit

REASONS_MAX = 12  # more are not told
ILL = 2  # failures in a row: one may come late, after a refusal
NEARLY = 0.95  # of a cap: the minute that is looked at is not the bucket's own
BY_GATE = "gate"  # what a provider's resource is to whoever waits for it


class Binding(StrEnum):
    """What keeps a provider from getting more requests now."""

    COOLDOWN = "cool-down"
    DOWN = "down"  # it fails, and is tried now and again
    RPM = "rpm"
    TPM = "tpm"
    RATE = "adaptive rate"
    ADAPTIVE = "adaptive limit"
    MAX_PARALLEL = "max_parallel"
    BUDGET = "budget"  # of money or tokens, for as long as the run lasts
    NOTHING = "not the provider"


class Reason(msgspec.Struct, frozen=True):
    """What some jobs wait for: a thing ("async slots"), or a clause ("crossref cools down")."""

    text: str
    jobs: int | None = None  # None: nobody has counted them

    def words(self) -> str:
        who = "jobs" if self.jobs is None else counted(self.jobs, "job")
        return f"{who} waiting: {self.text}"


def is_down(live: LiveLimit) -> bool:
    """Does it fail, so that only single requests test it?"""
    return live.failed_in_row >= ILL and live.cooldown_seconds > 0


def binding_of(live: LiveLimit) -> Binding:
    """The first of the limits that holds requests back."""
    if is_down(live):
        return Binding.DOWN
    if live.cooldown_seconds > 0:
        return Binding.COOLDOWN
    if live.in_flight >= live.limit:
        full = live.limit >= live.limit_max
        return Binding.MAX_PARALLEL if full else Binding.ADAPTIVE
    if live.rpm is not None and live.requests_last_minute >= live.rpm * NEARLY:
        return Binding.RPM
    if live.tpm is not None and live.tokens_last_minute >= live.tpm * NEARLY:
        return Binding.TPM
    if not live.waiting:
        return Binding.NOTHING
    return Binding.RATE if live.rate is not None else Binding.ADAPTIVE


def provider_words(name: str, live: LiveLimit | None) -> str:
    """Why a provider serves no more now."""
    if live is None:
        return f"{name} serves no more now"
    rest = f"{max(live.cooldown_seconds, 1):,.0f} s"
    match binding_of(live):
        case Binding.DOWN:
            return f"{name} is down ({live.failed_in_row:,} failures in a row), tried in {rest}"
        case Binding.COOLDOWN:
            return f"{name} cools down {rest}"
        case Binding.MAX_PARALLEL:
            return f"{name} is at its max_parallel of {live.limit:,}"
        case Binding.RPM:
            return f"{name} has used its {live.rpm:,.0f} requests a minute"
        case Binding.TPM:
            return f"{name} has used its {live.tpm:,.0f} tokens a minute"
        case Binding.RATE:
            return f"{name} seems to allow {live.rate:,.4g} {live.mode} a second"
    return f"{name} is at its adaptive limit of {live.limit:,}"


def reasons(
    statuses: Iterable[WorkerStatus],
    providers: Mapping[str, LiveLimit],
    queued: Mapping[str, int],
    now_at: int,
) -> tuple[Reason, ...]:
    """What jobs wait for, as the workers tell it: those with most jobs first, a bounded number.

    Args:
        statuses: the last words of the workers.
        providers: by the name that people see.
        queued: jobs by task.
        now_at: by the clock of the workers.
    """
    statuses = list(statuses)
    counted: dict[str, int] = {}
    for status in statuses:
        for line in status.blocked:
            text = _blocked_words(line, providers, now_at)
            counted[text] = counted.get(text, 0) + line.tasks
    held_back = {task: name for status in statuses for task, name in status.held_back.items()}
    refused = {task: found for status in statuses for task, found in status.over_budget.items()}
    for task, refusal in refused.items():
        text = f"[{refusal.budget.name}], which is used up"
        if refusal.price_is_missing:
            text = f"the price of {refusal.where}, for [{refusal.budget.name}]"
        counted[text] = counted.get(text, 0) + queued.get(task, 0)
    for task, name in held_back.items():  # such jobs are not even leased
        if queued.get(task):
            text = provider_words(name, _pressed(name, providers))
            counted[text] = counted.get(text, 0) + queued[task]
    known = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    found = [Reason(text, jobs) for text, jobs in known]
    limits = {key: cap for status in statuses for key, cap in status.full_limits.items()}
    for key, cap in sorted(limits.items()):
        of = "is 0" if cap <= 0 else f"of {cap:,} is full"
        found.append(Reason(f"keyed limit {key} {of}"))
    return tuple(found[:REASONS_MAX])


def _blocked_words(line: BlockedTasks, providers: Mapping[str, LiveLimit], now_at: int) -> str:
    resource = line.resource or "a resource"
    if line.reason == "no_capacity":
        return f"{resource} slots"
    if line.reason in ("group_cap", "borrow_debt"):
        return f"fair share of {resource} slots"
    if line.reason == "shutdown":
        return "the worker stops"
    if line.until == BY_GATE:
        return provider_words(resource, _pressed(resource, providers))
    until = line.available_at
    rest = "" if until is None or until < now_at + MICROSECONDS else f", {span(until - now_at)}"
    return f"{resource}{rest}"


def _pressed(name: str, providers: Mapping[str, LiveLimit]) -> LiveLimit | None:
    """Of the models of a provider the one with most requests that wait."""
    if name in providers:
        return providers[name]
    models = [live for key, live in providers.items() if key.startswith(f"{name}/")]
    if not models and "/" in name:
        return providers.get(name.partition("/")[0])
    return max(models, key=lambda live: (live.waiting, live.in_flight), default=None)
