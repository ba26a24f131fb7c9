# SPDX-License-Identifier: Apache-2.0
"""Does a real workflow of a thousand datasets keep its slots busy, eagerly and level by level?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from penstock.testing import harness
from tests.depth import depth
from tests.list_schedule import WorkflowTask, greedy_makespan, level_makespan, workflow
from tests.workflow_app import AT, END, last_tasks, workflow_app

TOTAL_SECONDS = 500.0  # virtual; of all tasks together
SLACK = 1.02  # eager mode against levels, and levels against a schedule of levels
GREEDY = 1.10  # eager mode against a free slot that takes what is ready


@pytest.fixture(autouse=True)
def _in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def makespan(tasks: list[WorkflowTask], slots: int, *, eager: bool) -> float:
    """How long a build took; every parent was there before its children."""
    made: list[str] = []
    settings = {"runtime": {"async_slots": slots}}
    with harness(workflow_app(tasks, made.append), settings=settings) as test:
        report = test.build(*last_tasks(tasks), start=AT, end=END, eager=eager)
        seconds = test.clock.monotonic()
        assert test.store.check().result() == []
    assert report.ok
    assert report.slices == len(tasks)
    place = {name: number for number, name in enumerate(made)}
    assert len(place) == len(made) == len(tasks)
    for task in tasks:
        assert all(place[tasks[up].name] < place[task.name] for up in task.parents)
    return seconds


#: `make bench` measures all of them with 8 and with 32 slots.
@pytest.mark.parametrize(
    ("name", "slots"),
    depth(quick=[("montage", 8)], soak=[("montage", 8), ("epigenomics", 32), ("seismology", 8)]),
)
def test_a_workflow_is_built_as_fast_as_its_slots_allow(name: str, slots: int) -> None:
    tasks = workflow(name, TOTAL_SECONDS)
    eager = makespan(tasks, slots, eager=True)
    by_level = makespan(tasks, slots, eager=False)
    assert eager <= SLACK * by_level
    assert eager <= GREEDY * greedy_makespan(tasks, slots)
    assert by_level <= SLACK * level_makespan(tasks, slots)
