# SPDX-License-Identifier: Apache-2.0
"""Tracks which nodes of a dependency graph in memory are ready, running, complete or failed.

Such a graph is the cells of a row group. Each end is passed on once to each dependant, so a whole
run is linear in nodes and edges, in whatever order they end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.model.task import SchedulableTask
from penstock.planning.graph import levels_of

# Where a node is: from zero on, how many others it still waits for; below zero, one of these.
_ENQUEUED, _COMPLETE, _FAILED, _DROPPED = -1, -2, -3, -4


class CompletionSnapshot(msgspec.Struct, frozen=True):
    """How many nodes are where."""

    waiting: int  # for others
    ready: int  # on the frontier
    enqueued: int  # taken in, not ended
    complete: int
    failed: int
    dropped: int  # needed something that failed, or were not wanted any more


class CompletionTracker:
    """Owns which node of a graph is ready. Knows neither order nor capacity. Belongs to one loop.

    Every verb may be repeated, and what has ended stays as it ended.

    Args:
        nodes: each node with those that it needs.
        make_task: the task of a node, asked for once, when it is ready; its id is the node.
    """

    def __init__(
        self,
        nodes: Mapping[Any, Collection[Hashable]],
        make_task: Callable[[Any], SchedulableTask],
    ) -> None:
        self._make_task = make_task
        self._places: dict[Hashable, int] = dict.fromkeys(nodes, 0)
        self._dependants: dict[Hashable, list[Hashable]] = {}
        for node, needs in nodes.items():
            self._connect(node, needs)
        levels_of(nodes, "Tasks")  # refuses circles
        self._frontier: dict[Hashable, SchedulableTask | None] = {
            node: None for node, left in self._places.items() if not left
        }
        self._waiting = len(self._places) - len(self._frontier)
        self._counts = dict.fromkeys((_ENQUEUED, _COMPLETE, _FAILED, _DROPPED), 0)

    def __repr__(self) -> str:
        ended = len(self._places) - self._open
        return (
            f"<CompletionTracker {ended} of {len(self._places)} ended, {len(self._frontier)} ready>"
        )

    # ── The three verbs ───────────────────────────────────────────────────────────────────────

    def ready_frontier(self) -> tuple[SchedulableTask, ...]:
        """Tasks that are ready and not yet acknowledged as enqueued, first come first."""
        return tuple(
            self._task_of(node) if task is None else task for node, task in self._frontier.items()
        )

    def mark_enqueued(self, ids: Iterable[Hashable]) -> None:
        """Exactly these were taken in."""
        for node in ids:
            if self._place(node) == 0:
                self._settle(node, _ENQUEUED)

    def mark_complete(self, task: SchedulableTask) -> None:
        """It has succeeded; those that waited only for it are ready now."""
        node = task.task_id
        if self._place(node) < _ENQUEUED:
            return
        self._settle(node, _COMPLETE)
        for dependant in self._dependants.pop(node, ()):
            left = self._places[dependant]
            if left < 0:
                continue  # it has ended before its turn
            self._places[dependant] = left - 1
            if left == 1:
                self._waiting -= 1
                self._frontier[dependant] = None

    # ── Other ends ────────────────────────────────────────────────────────────────────────────

    def mark_retry(self, task: SchedulableTask) -> None:
        """It is to run again: back to the frontier, behind what is there."""
        node = task.task_id
        if self._place(node) == _ENQUEUED:
            self._counts[_ENQUEUED] -= 1
            self._places[node] = 0
            self._frontier[node] = task

    def mark_failed(self, task: SchedulableTask) -> tuple[Hashable, ...]:
        """It has ended for good and not well; the answer names those dropped with it."""
        node = task.task_id
        if self._place(node) < _ENQUEUED:
            return ()
        self._settle(node, _FAILED)
        return self._drop(self._dependants.pop(node, []))

    def drop(self, ids: Iterable[Hashable]) -> tuple[Hashable, ...]:
        """Drop these and whatever needs them; returns all that were dropped.

        What was enqueued may still be queued or run: that is for the scheduler to end.
        """
        nodes = list(ids)
        for node in nodes:
            self._place(node)
        return self._drop(nodes)

    # ── Telling ───────────────────────────────────────────────────────────────────────────────

    @property
    def is_finished(self) -> bool:
        """Whether every node has ended: complete, failed or dropped."""
        return not self._open

    def snapshot(self) -> CompletionSnapshot:
        counts = self._counts
        return CompletionSnapshot(
            waiting=self._waiting,
            ready=len(self._frontier),
            enqueued=counts[_ENQUEUED],
            complete=counts[_COMPLETE],
            failed=counts[_FAILED],
            dropped=counts[_DROPPED],
        )

    # ── The books ─────────────────────────────────────────────────────────────────────────────

    @property
    def _open(self) -> int:
        return self._waiting + len(self._frontier) + self._counts[_ENQUEUED]

    def _place(self, node: Hashable) -> int:
        try:
            return self._places[node]
        except KeyError:
            raise UsageError(f"{node!r} is no node of this graph.") from None

    def _settle(self, node: Hashable, state: int) -> None:
        """Book a node, from wherever it is."""
        place = self._places[node]
        if place > 0:
            self._waiting -= 1
        elif place == 0:
            del self._frontier[node]
        else:
            self._counts[_ENQUEUED] -= 1
        self._places[node] = state
        self._counts[state] += 1

    def _drop(self, nodes: list[Hashable]) -> tuple[Hashable, ...]:
        dropped = []
        stack = nodes[::-1]
        while stack:
            node = stack.pop()
            if self._places[node] < _ENQUEUED:
                continue
            self._settle(node, _DROPPED)
            dropped.append(node)
            stack += self._dependants.pop(node, ())
        return tuple(dropped)

    def _task_of(self, node: Hashable) -> SchedulableTask:
        task = self._make_task(node)
        if task.task_id != node:
            raise UsageError(
                f"The task that was made for node {node!r} has the id {task.task_id!r}; a task's "
                "id is its node."
            )
        self._frontier[node] = task
        return task

    # ── The graph ─────────────────────────────────────────────────────────────────────────────

    def _connect(self, node: Hashable, needs: Collection[Hashable]) -> None:
        """A need that is named twice is told twice, and counted so."""
        for needed in needs:
            if needed not in self._places:
                raise UsageError(
                    f"{node!r} needs {needed!r}, which is not in the graph of "
                    f"{len(self._places)} nodes. Add it, or remove the dependency."
                )
            self._dependants.setdefault(needed, []).append(node)
        self._places[node] = len(needs)
