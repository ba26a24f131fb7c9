# SPDX-License-Identifier: Apache-2.0
"""What the section on scheduling measures, and what it concludes from its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring import ROOT, Answer, ProbeFailed
from benchmarks.peers import cycles
from benchmarks.peers.cases import SLOT, SUBMISSION, Case, Mix, Policy, Question
from benchmarks.peers.cycles import Scheduler
from benchmarks.runner import Check, Outcome, Setup
from benchmarks.scheduling import blocked, cycle, designer

BATCHES = 10
CASE = Case(Question.CYCLE, tasks=200, groups=8)


@dataclass(frozen=True)
class Selection:
    item: int
    queue_view: None = None


@dataclass(frozen=True)
class Released:
    released: bool


class Fifo:
    """First come, first served, with so many leases at once; remembers how it was used."""

    PACKAGE = "penstock"

    def __init__(self, *, stale: bool = False, leaks: bool = False) -> None:
        self._stale, self._leaks = stale, leaks
        self.queue: deque[int] = deque()
        self.free = 0
        self.calls: Counter[str] = Counter()

    def open_scheduler(self, case: Case) -> tuple[Scheduler, list[Any]]:
        self.free = case.capacity
        verbs = Scheduler(self._enqueue, self._select, self._acquire, self._commit, self._release)
        return verbs, [*range(case.tasks)]

    def _enqueue(self, items: Iterable[int]) -> Sequence[int]:
        accepted = list(items)
        self.queue += accepted
        return accepted

    def _select(self) -> Selection | None:
        self.calls["select"] += 1
        return Selection(self.queue[0]) if self.free and self.queue else None

    def _acquire(self, item: int, view: None) -> int:
        self.calls["acquire"] += 1
        self.free -= 1
        return item

    def _commit(self, selection: Selection) -> int | None:
        return None if self._stale else self.queue.popleft()

    def _release(self, lease: int) -> Released:
        self.calls["release"] += 1
        self.free += 1
        return Released(not self._leaks)


def figures(p50: float, cpu: float | None = None) -> list[Answer]:
    return [{"p50": p50, "p95": 2 * p50, "cpu": p50 if cpu is None else cpu, "count": 1}] * 3


def check(outcome: Outcome, *words: str) -> Check:
    (found,) = (check for check in outcome.checks if all(word in check.name for word in words))
    return found


@pytest.mark.parametrize("question", Question)
def test_every_question_gets_figures(question: Question) -> None:
    case = replace(CASE, question=question, tasks=2_000, capacity=4)
    (answer,) = cycles.measure_in_turns(Fifo(), [case], BATCHES)

    assert 0 < answer["p50"] <= answer["p95"]
    assert answer["count"] >= BATCHES


def test_a_measured_queue_is_as_long_afterwards_and_nothing_stays_held() -> None:
    fifo = Fifo()

    cycles.measure_in_turns(fifo, [CASE], BATCHES)

    assert sorted(fifo.queue) == [*range(CASE.tasks)]
    assert fifo.free == CASE.capacity
    assert fifo.calls["select"] == fifo.calls["acquire"] == fifo.calls["release"]


@pytest.mark.parametrize(
    ("fifo", "case", "message"),
    [
        (Fifo(stale=True), CASE, "selection was stale"),
        (Fifo(leaks=True), CASE, "lease was not released"),
        (Fifo(), replace(CASE, question=Question.BLOCKED), "nothing is blocked"),
    ],
)
def test_a_measurement_of_something_else_is_refused(fifo: Fifo, case: Case, message: str) -> None:
    with pytest.raises(ProbeFailed, match=message):
        cycles.measure_in_turns(fifo, [case], BATCHES)


def test_a_case_survives_the_way_to_its_probe() -> None:
    case = replace(CASE, mix=Mix.MIXED, policy=Policy.STRICT, key_limit=1)

    assert Case.of(json.loads(json.dumps(case.to_json()))) == case


def test_mixes_ask_for_what_they_say() -> None:
    asked = {}
    for mix in Mix:
        case = replace(CASE, mix=mix)
        asked[mix] = [{*amounts} for amounts in case.amounts(case.group_specs()[5])]

    local, keyed = {SUBMISSION}, {SUBMISSION, SLOT, "host:5"}
    assert asked == {Mix.LOCAL: [local], Mix.KEYED: [keyed], Mix.MIXED: [keyed, local]}


@pytest.mark.parametrize("mix", Mix)
def test_every_resource_that_is_asked_for_has_a_limit(mix: Mix) -> None:
    case = replace(CASE, mix=mix)

    asked = {
        name for group in case.group_specs() for amounts in case.amounts(group) for name in amounts
    }

    assert asked - {SUBMISSION} == set(case.limits())


def test_the_peer_s_side_needs_nothing_of_ours() -> None:
    """It runs in an environment in which Penstock and its dependencies are missing."""
    code = (
        "import sys, benchmarks.peers.cycles; "
        "print([name for name in sys.modules if name.split('.')[0] in ('penstock', 'apsw')])"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )

    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("slow", "by_groups", "by_tasks"),
    [
        ({}, True, True),
        ({"groups": 256}, False, True),
        ({"tasks": 100_000}, True, False),
        ({"groups": 64}, True, True),
    ],
)
def test_a_cycle_may_grow_neither_with_groups_nor_with_tasks(
    slow: dict[str, int], by_groups: bool, by_tasks: bool
) -> None:
    """Only one mix is slow, and it counts."""

    def p50(case: Case) -> float:
        hit = slow and all(getattr(case, name) == value for name, value in slow.items())
        return 1.6 if hit and case.mix is Mix.KEYED else 1.0

    found = {case: figures(p50(case)) for case in cycle.matrix(cycle.TASKS, cycle.GROUPS)}

    outcome = cycle.to_outcome(found)

    assert check(outcome, "256 groups, × that at 1").ok is by_groups
    assert check(outcome, "100,000 queued tasks, × that with 1,000").ok is by_tasks


@pytest.mark.parametrize(("groups", "ok"), [(256, False), (64, True)])
def test_asking_in_vain_is_cheap_with_the_most_groups(groups: int, ok: bool) -> None:
    asked = blocked.cases(blocked.GROUPS)
    found = {case: figures(3.0 if case.groups == groups else 2.9) for case in asked}

    assert check(blocked.to_outcome(found), "in vain at 256 groups").ok is ok


def test_all_groups_wait_for_the_same_or_each_for_its_own() -> None:
    assert {blocked.waits_for(case) for case in blocked.cases([8])} == {
        "submissions",
        "their own keys",
    }


@pytest.mark.parametrize(("groups", "bound"), [(8, 1 / 3), (256, 1 / 40)])
@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("clock", ["p50", "cpu"])
def test_ours_is_a_small_part_of_the_peer_by_both_clocks(
    groups: int, bound: float, policy: Policy, clock: str
) -> None:
    cases = [*designer.compared(Policy.STRICT), *designer.compared(Policy.BORROW)]
    slow = Case(Question.CYCLE, designer.TASKS, groups, Mix.LOCAL, policy)
    ours = {case: figures(1.0) for case in cases}
    ours[slow] = [figure | {clock: 1_000 * bound + 1} for figure in figures(1.0)]

    outcome = designer.to_outcome(ours, {case: figures(1_000.0) for case in cases}, {}, "0.9")

    assert [found.ok for found in outcome.checks].count(False) == 1
    assert not check(outcome, f"{groups} groups", f"{policy},").ok


def test_without_the_peer_it_says_which_command_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(designer, "READY", tmp_path / "missing")

    outcome = designer.measure(Setup(smoke=True, folder=tmp_path))

    assert outcome.checks == ()
    assert "make bench-peers" in str(outcome.tables)
