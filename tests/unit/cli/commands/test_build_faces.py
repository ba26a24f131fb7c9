# SPDX-License-Identifier: Apache-2.0
"""What do commands about the queue, and the doctor, say of jobs of builds?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import mark_of_the_dead
from tests.unit.cli.commands.dataset_shop import Shop
from tests.unit.cli.conftest import Command

START, END = "2024-01-02", "2024-01-04"


@pytest.fixture
def shop(project: Path) -> Iterator[Shop]:
    made = Shop(project)
    yield made
    made.close()


def findings(command: Command) -> dict[str, dict[str, Any]]:
    found = command("doctor", "--json").document["findings"]
    return {one["check"]: one for one in found}


# The queue


def test_a_dataset_is_one_task_for_people(shop: Shop, command: Command) -> None:
    plan = shop.plan("mean", start=START, end=END)

    stats = command("queue", "stats")
    assert "task dataset:prices " in stats.out
    assert "#" not in stats.out
    counts = command("queue", "stats", "--json").document["tasks"]
    assert counts["dataset:prices"]["queued"] == 3
    listed = command("queue", "list", "--task", "dataset:prices")
    assert listed.err == ""
    assert [line.split()[:2] for line in listed.out.splitlines()] == [
        ["queued", "dataset:prices"]
    ] * 3
    assert f"build:{plan.plan_id}:prices@2024-01-01" in listed.out


def test_datasets_of_several_roots_are_listed_in_one_order(shop: Shop, command: Command) -> None:
    shop.plan("prices", start=START, end=END)
    (shop.folder / "penstock.toml").write_text('[datasets]\nroot = "elsewhere"\n')
    shop.store.release_locks("run-a", ["prices"]).result()
    shop.plan("prices", start="2024-02-02", end="2024-02-03", run_id="run-b")

    listed = command("queue", "list", "--task", "dataset:prices", "--json").document["jobs"]
    assert [job["id"] for job in listed] == sorted(job["id"] for job in listed)
    assert [job["task"] for job in listed] == ["dataset:prices"] * 3
    few = command("queue", "list", "--task", "dataset:prices", "--limit", "2")
    assert len(few.out.splitlines()) == 2


def test_a_job_of_a_build_tells_its_plan_level_and_slices(shop: Shop, command: Command) -> None:
    plan = shop.plan("total", start=START, end=END)
    key = f"build:{plan.plan_id}"

    batch = command("queue", "show", f"{key}:total@2024-01-02..2024-01-03", "--json").document
    assert batch["task"] == "dataset:total"
    assert (batch["plan_id"], batch["level"]) == (plan.plan_id, 2)
    assert batch["build"] == {
        "slices": "total@2024-01-02..2024-01-03",
        "slice_count": 2,
        "plan_state": "running",
        "plan_jobs": 6,
        "levels": 3,
        "run": "run-a",
    }
    shown = command("queue", "show", f"{key}:level:1").out
    assert "barrier: what level 1 has built becomes visible" in shown


def test_retry_failed_leaves_builds_alone_and_says_what_to_do(shop: Shop, command: Command) -> None:
    shop.fails("prices@2024-01-02")
    shop.build("mean", start=START, end=END)

    ended = command("queue", "retry-failed")
    assert ended.code == 0
    assert ended.sentence == (
        "1 job of builds that failed is left alone: the same 'penstock build' command builds "
        "what is missing."
    )
    named = command("queue", "retry-failed", "--task", "dataset:prices", "--json")
    assert named.document == {"failed": 0, "skipped": 0, "of_builds": 1, "dry_run": False}
    other = command("queue", "retry-failed", "--task", "dataset:mean", "--json").document
    assert other["of_builds"] == 0


# The doctor


def test_without_builds_the_doctor_says_nothing_of_them(shop: Shop, command: Command) -> None:
    assert shop.store.stats().result().tasks == {}
    assert not {"builds", "locks", "output root"} & findings(command).keys()


def test_the_doctor_counts_datasets(shop: Shop, command: Command) -> None:
    assert findings(command)["app"]["text"] == "'shop' of 'pipeline.py' has 0 tasks and 4 datasets"


def test_after_a_build_all_is_well(shop: Shop, command: Command) -> None:
    shop.build("mean", start=START, end=END)
    found = findings(command)

    assert found["builds"]["text"] == "0 plans open, none abandoned"
    assert found["output root"]["ok"]
    assert found["tasks"]["ok"]


def test_jobs_of_a_build_are_of_tasks_that_the_app_knows(shop: Shop, command: Command) -> None:
    shop.plan("mean", start=START, end=END)
    shop.worker()
    found = findings(command)

    assert found["tasks"]["ok"], found["tasks"]
    assert found["builds"]["text"] == "1 plan open, none abandoned"


def test_a_plan_that_was_left_is_a_problem_with_its_command(shop: Shop, command: Command) -> None:
    plan = shop.plan("mean", start=START, end=END)
    shop.store.release_locks("run-a", ["mean", "prices"]).result()
    found = findings(command)["builds"]

    assert found == {
        "check": "builds",
        "ok": False,
        "text": f"The plan {plan.plan_id} was abandoned by the run 'run-a'; 'penstock "
        "build mean --from 2024-01-02T00:00:00Z --to 2024-01-04T00:00:00Z' continues it.",
    }


def test_locks_of_a_process_that_is_gone_are_told(shop: Shop, command: Command) -> None:
    shop.plan("mean", start=START, end=END, mark=mark_of_the_dead())
    found = findings(command)

    assert not found["builds"]["ok"]
    assert found["locks"]["text"] == (
        "2 datasets locked; 'mean' and 'prices' by the run 'run-a', whose process is gone: the "
        "next build takes over"
    )


def test_an_output_root_that_is_gone_damaged_or_another_is_a_problem(
    shop: Shop, command: Command
) -> None:
    plan = shop.plan("mean", start=START, end=END)
    root = next(shop.folder.rglob(".penstock-root"))
    own = root.read_bytes()

    root.write_bytes(b"penstock-root 1 root-of-others\n")
    assert f"The plan {plan.plan_id} writes to" in findings(command)["output root"]["text"]
    root.write_bytes(b"nothing")
    assert "is damaged" in findings(command)["output root"]["text"]
    root.unlink()
    found = findings(command)["output root"]
    assert not found["ok"]
    assert "is missing or has no id" in found["text"]
    root.write_bytes(own)
    assert findings(command)["output root"]["ok"], json.dumps(findings(command))
