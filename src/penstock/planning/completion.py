# SPDX-License-Identifier: Apache-2.0
"""Tracks which nodes of a dependency graph in memory are ready, running, complete or failed.

Such a graph is the cells of a row group. Each end is passed on once to each dependant, so a whole
run is linear in nodes and edges, in whatever order they end. A graph may grow while it runs: what
was added together is let go once all of it has ended, so its size is that of what is open.
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


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A need for the end of a node, whatever that is; a node by itself is one for its success."""

    node: Hashable


class CompletionSnapshot(msgspec.Struct, frozen=True):
    """How many nodes are where."""

    waiting: int  # for others
    ready: int  # on the frontier
    enqueued: int  # taken in, not ended
    complete: int
    failed: int
    dropped: int  # needed something that failed, or were not wanted any more


class _Batch:
    """Nodes that were added together."""

    __slots__ = ("nodes", "open")

    def __init__(self, nodes: Iterable[Hashable]) -> None:
        self.nodes = [*nodes]
        self.open = len(self.nodes)


class _Node:
    """A node, and those that wait for it."""

    __slots__ = ("batch", "dependants", "finishers", "name", "place")

    def __init__(self, name: Hashable, batch: _Batch) -> None:
        self.name = name
        self.batch = batch
        self.place = 0
        self.dependants: tuple[_Node, ...] | list[_Node] = ()  # they need its success
        self.finishers: tuple[_Node, ...] | list[_Node] = ()  # they need its end


class CompletionTracker:
    """Owns which node of a graph is ready. Knows neither order nor capacity. Belongs to one loop.

    Every verb may be repeated, and what has ended stays as it ended.

    Args:
        nodes: each node with its needs: nodes that must succeed, and `Finished` ones.
        make_task: the task of a node, asked for once, when it is ready; its id is the node.
    """

    def __init__(
        self,
        nodes: Mapping[Any, Collection[Hashable]],
        make_task: Callable[[Any], SchedulableTask],
    ) -> None:
        self._make_task = make_task
        self._nodes: dict[Hashable, _Node] = {}
        self._batches: list[_Batch] = []
        self._frontier: dict[Hashable, SchedulableTask | None] = {}
        self._total = 0  # nodes, those that were let go among them
        self._waiting = 0
        self._counts = dict.fromkeys((_ENQUEUED, _COMPLETE, _FAILED, _DROPPED), 0)
        self.add(nodes)

    def __len__(self) -> int:
        """How many nodes are kept."""
        return len(self._nodes)

    def __repr__(self) -> str:
        ended = self._total - self._open
        return f"<CompletionTracker {ended} of {self._total} ended, {len(self._frontier)} ready>"

    def add(self, nodes: Mapping[Any, Collection[Hashable]]) -> tuple[Hashable, ...]:
        """Add nodes, which may need some that are there; what had been added and ended is let go.

        Returns those that are dropped at once, since something that they need has failed.

        Raises:
            UsageError: they cannot be added, and nothing has changed.
        """
        self._let_go()
        self._check(nodes)
        batch = _Batch(nodes)
        for name in nodes:
            self._nodes[name] = _Node(name, batch)
        hopeless = [node for name in nodes if self._connect(node := self._nodes[name], nodes[name])]
        for name in nodes:
            if self._nodes[name].place:
                self._waiting += 1
            else:
                self._frontier[name] = None
        self._total += batch.open
        self._batches.append(batch)
        return self._drop(hopeless)

    # ── The three verbs ───────────────────────────────────────────────────────────────────────

    def ready_frontier(self) -> tuple[SchedulableTask, ...]:
        """Tasks that are ready and not yet acknowledged as enqueued, first come first."""
        return tuple(
            self._task_of(name) if task is None else task for name, task in self._frontier.items()
        )

    def mark_enqueued(self, ids: Iterable[Hashable]) -> None:
        """Exactly these were taken in."""
        for name in ids:
            node = self._node(name)
            if node.place == 0:
                self._settle(node, _ENQUEUED)

    def mark_complete(self, task: SchedulableTask) -> None:
        """It has succeeded; those that waited only for it are ready now."""
        node = self._node(task.task_id)
        if node.place < _ENQUEUED:
            return
        self._settle(node, _COMPLETE)
        for dependant in node.dependants:
            self._tell(dependant)
        for dependant in node.finishers:
            self._tell(dependant)
        node.dependants = node.finishers = ()

    # ── Other ends ────────────────────────────────────────────────────────────────────────────

    def mark_retry(self, task: SchedulableTask) -> None:
        """It is to run again: back to the frontier, behind what is there."""
        node = self._node(task.task_id)
        if node.place == _ENQUEUED:
            self._counts[_ENQUEUED] -= 1
            node.place = 0
            self._frontier[node.name] = task

    def mark_failed(self, task: SchedulableTask) -> tuple[Hashable, ...]:
        """It has ended for good and not well; the answer names those dropped with it."""
        node = self._node(task.task_id)
        if node.place < _ENQUEUED:
            return ()
        return self._drop(self._end_badly(node, _FAILED))

    def drop(self, ids: Iterable[Hashable]) -> tuple[Hashable, ...]:
        """Drop these and whatever needs their success; returns all that were dropped.

        What was enqueued may still be queued or run: that is for the scheduler to end.
        """
        return self._drop([self._node(name) for name in ids])

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

    def _node(self, name: Hashable) -> _Node:
        try:
            return self._nodes[name]
        except KeyError:
            raise UsageError(f"{name!r} is no node of this graph.") from None

    def _settle(self, node: _Node, state: int) -> None:
        """Book a node, from wherever it is."""
        place = node.place
        if place > 0:
            self._waiting -= 1
        elif place == 0:
            del self._frontier[node.name]
        else:
            self._counts[_ENQUEUED] -= 1
        node.place = state
        self._counts[state] += 1
        if state < _ENQUEUED:
            node.batch.open -= 1

    def _tell(self, node: _Node) -> None:
        """One of those that a node waits for has ended as it should."""
        if node.place <= 0:
            return  # it has ended before its turn
        node.place -= 1
        if not node.place:
            self._waiting -= 1
            self._frontier[node.name] = None

    def _end_badly(self, node: _Node, state: int) -> Iterable[_Node]:
        """Book the end, tell those that wait for it, and return those that needed its success."""
        self._settle(node, state)
        for dependant in node.finishers:
            self._tell(dependant)
        hopeless = node.dependants
        node.dependants = node.finishers = ()
        return hopeless

    def _drop(self, nodes: Iterable[_Node]) -> tuple[Hashable, ...]:
        dropped = []
        stack = [*nodes][::-1]
        while stack:
            node = stack.pop()
            if node.place >= _ENQUEUED:
                dropped.append(node.name)
                stack += self._end_badly(node, _DROPPED)
        return tuple(dropped)

    def _task_of(self, name: Hashable) -> SchedulableTask:
        task = self._make_task(name)
        if task.task_id != name:
            raise UsageError(
                f"The task that was made for node {name!r} has the id {task.task_id!r}; a task's "
                "id is its node."
            )
        self._frontier[name] = task
        return task

    # ── The graph ─────────────────────────────────────────────────────────────────────────────

    def _let_go(self) -> None:
        """Forget what was added together and has ended."""
        for batch in self._batches:
            if not batch.open:
                for name in batch.nodes:
                    del self._nodes[name]
        self._batches = [batch for batch in self._batches if batch.open]

    def _check(self, nodes: Mapping[Any, Collection[Hashable]]) -> None:
        """Refuse names that are there, unknown needs, and circles; in order there are none."""
        before: set[Hashable] = set()
        in_order = True
        for name, needs in nodes.items():
            if name in self._nodes:
                raise UsageError(f"{name!r} is in the graph already. Give each node its own name.")
            for need in needs:
                needed = need.node if isinstance(need, Finished) else need
                if needed in before or needed in self._nodes:
                    continue
                if needed not in nodes:
                    raise UsageError(
                        f"{name!r} needs {needed!r}, which is not in the graph of "
                        f"{len(self._nodes) + len(nodes)} nodes. Add it, or remove the dependency."
                    )
                in_order = False
            before.add(name)
        if not in_order:
            levels_of({name: _among(nodes, needs) for name, needs in nodes.items()}, "Tasks")

    def _connect(self, node: _Node, needs: Collection[Hashable]) -> bool:
        """Let a node wait for its needs; True if one of them has failed already.

        A need that is named twice is told twice, and counted so.
        """
        waits, is_hopeless = 0, False
        for need in needs:
            is_success = not isinstance(need, Finished)
            needed = self._nodes[need.node if isinstance(need, Finished) else need]
            if needed.place < _ENQUEUED:
                is_hopeless |= is_success and needed.place != _COMPLETE
                continue
            waits += 1
            if is_success:
                needed.dependants = _with(needed.dependants, node)
            else:
                needed.finishers = _with(needed.finishers, node)
        node.place = waits
        return is_hopeless


def _with(nodes: tuple[_Node, ...] | list[_Node], node: _Node) -> list[_Node]:
    """Most nodes have nobody who waits for them: they share the empty tuple."""
    if isinstance(nodes, list):
        nodes.append(node)
        return nodes
    return [node]


def _among(nodes: Collection[Hashable], needs: Iterable[Hashable]) -> list[Hashable]:
    """The needs that are among these nodes, whatever must become of them."""
    names = (need.node if isinstance(need, Finished) else need for need in needs)
    return [name for name in names if name in nodes]
