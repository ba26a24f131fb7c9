# SPDX-License-Identifier: Apache-2.0
"""Learned uses: the providers that attempts of a task have called, in place of its `uses=`.

A task that does not say which providers it calls would start into the cool-down of a dead one, and
its attempts would wait there in slots that others could use. What nearly all of its attempts call
is taken for what the next one will call.
"""

from __future__ import annotations

from penstock.model.provider import ANY, RequestResourceKey, SeveralResources

SAMPLE = 32  # attempts that are counted; then what was counted weighs half
SHARE = 0.9  # of the attempts: who is called by fewer is no use of the task


class LearnedUses:
    """Owns what attempts have called, by task. Pure."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}  # that have called anything
        self._calls: dict[str, dict[str, int]] = {}  # task → provider → attempts
        self._gates: dict[str, SeveralResources | None] = {}

    def called(self, task: str, provider: str, *, is_first: bool) -> bool:
        """An attempt has called a provider for the first time; True if that changes the gate.

        Args:
            task: of the attempt.
            provider: its name.
            is_first: the attempt has called nobody before.
        """
        calls = self._calls.setdefault(task, {})
        calls[provider] = calls.get(provider, 0) + 1
        self._attempts[task] = self._attempts.get(task, 0) + is_first
        if self._attempts[task] > SAMPLE:
            self._attempts[task] //= 2
            self._calls[task] = calls = {name: n // 2 for name, n in calls.items() if n > 1}
        least = SHARE * self._attempts[task]
        names = sorted(name for name, count in calls.items() if count >= least)
        resources = tuple(RequestResourceKey(name, ANY, ANY) for name in names)
        gate = SeveralResources(resources, learned=True) if resources else None
        has_changed = gate != self._gates.get(task)
        self._gates[task] = gate
        return has_changed

    def gate(self, task: str) -> SeveralResources | None:
        """What the next attempt of a task will probably call; None: nobody knows."""
        return self._gates.get(task)
