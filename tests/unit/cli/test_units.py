# SPDX-License-Identifier: Apache-2.0
"""What do commands say of units of schedules, as a store has them?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import AttemptError, ErrorCategory, JobId
from penstock.model.lease import Effect, Rearm, SetCursor
from penstock.model.schedule import PreflightResult, UnitPlan
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.contract.world import StoreWorld
from tests.unit.cli.conftest import Command

TASK = "schedule:poll"
BROKEN = AttemptError(ErrorCategory.OWN, "HTTPStatusError", "404 Not Found")


@pytest.fixture
def world(project: Path) -> Iterator[StoreWorld]:
    clock = ManualClock()
    (project / ".penstock").mkdir()
    path = project / ".penstock" / "shop.db"
    store = SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")
    store.sign_on("shop", (), JobId(0)).result()
    yield StoreWorld(store, clock)
    assert store.check().result() == []
    store.close()


def now(world: StoreWorld) -> int:
    return world.clock.now_micros


def arm(world: StoreWorld, *partitions: str) -> None:
    plans = [
        UnitPlan(
            key=f"{TASK}:{partition}",
            task=TASK,
            payload="{}",
            group=partition,
            partition=partition,
            timing="every 10 s",
            first_at=now(world),
        )
        for partition in partitions
    ]
    world.store.arm("shop", plans).result()


def check_failed(world: StoreWorld, partition: str) -> None:
    result = PreflightResult(
        unit=f"preflight:exists:{partition}",
        name="exists",
        partition=partition,
        error=BROKEN,
        checked_at=now(world),
    )
    world.store.keep_preflights("shop", [result]).result()


def test_why_names_the_daemon_and_not_the_queue(world: StoreWorld, command: Command) -> None:
    arm(world, "a/b")

    ended = command("why", f"{TASK}:a/b")

    assert ended.code == 0
    assert ended.out.splitlines()[:3] == [
        "No daemon serves 'schedule:poll:a/b', or one has started and still runs its preflights.",
        "It goes on when a daemon of the app 'shop' runs and its preflights have passed.",
        "Command: penstock run",
    ]
    assert command("why", f"{TASK}:a/b", "--json").document["gate"] == "no_worker"


def test_an_unknown_unit_offers_the_nearest_among_many(world: StoreWorld, command: Command) -> None:
    arm(world, *(f"acme/repository-{number:04}" for number in range(300)))

    ended = command("why", f"{TASK}:acme/repositry-0217")

    assert ended.code == 1
    assert f"closest: '{TASK}:acme/repository-0217'" in ended.err
    assert "No unit of a schedule has the name" in ended.err


def test_after_a_first_start_that_failed_the_check_is_named(
    world: StoreWorld, command: Command
) -> None:
    check_failed(world, "x/y")
    check_failed(world, "a/b")

    ended = command("why", f"{TASK}:x/y", "--json")

    assert ended.document["gate"] == "preflight"
    assert ended.document["state"] is None
    assert "the preflight 'exists' of 'x/y' did not pass, and 1 more" in ended.document["sentence"]
    assert command("why", f"{TASK}:a/b").code == 0


def test_a_failed_start_after_good_ones_is_the_answer_for_an_armed_unit(
    world: StoreWorld, command: Command
) -> None:
    arm(world, "a/b", "x/y")
    check_failed(world, "x/y")

    document = command("why", f"{TASK}:a/b", "--json").document

    assert document["gate"] == "preflight"
    assert "the preflight 'exists' of 'x/y' did not pass: HTTPStatusError" in document["sentence"]


def test_show_has_counters_and_the_size_of_the_cursor_but_not_what_is_in_it(
    world: StoreWorld, command: Command
) -> None:
    arm(world, "a/b")
    worker = world.new_worker(tasks=[TASK])
    key = f"{TASK}:a/b"
    leased = world.take_all(worker)[key]
    effects = (SetCursor(key, '"secret"'), Rearm(now(world) + 10_000_000, 2))
    world.ack(worker, leased, effects=effects)

    shown = command("queue", "show", key)
    schedule = command("queue", "show", key, "--json").document["schedule"]

    assert "secret" not in shown.out
    assert (schedule["ticks"], schedule["missed"], schedule["failed"]) == (1, 2, 0)
    assert schedule["cursor_bytes"] == len('"secret"')
    assert schedule["timing"] == "every 10 s"
    assert "cursor_bytes" in shown.out
    assert "every 10 s" in shown.out


def test_the_doctor_names_units_that_fail(world: StoreWorld, command: Command) -> None:
    arm(world, "a/b", "x/y")
    worker = world.new_worker(tasks=[TASK])
    leased = world.take_all(worker)
    world.fail(worker, leased[f"{TASK}:a/b"])

    found = {one["check"]: one for one in command("doctor", "--json").document["findings"]}

    assert not found["schedules"]["ok"]
    assert f"The unit '{TASK}:a/b' is degraded" in found["schedules"]["text"]


def test_stats_have_a_row_for_each_schedule_and_none_among_the_jobs(
    world: StoreWorld, command: Command
) -> None:
    arm(world, "a/b", "x/y")

    document = command("queue", "stats", "--json").document
    shown = command("queue", "stats").out

    assert document["states"]["queued"] == 0
    assert document["schedules"][TASK]["queued"] == 2
    assert TASK in shown


def test_units_are_listed_by_their_schedule_without_a_warning(
    world: StoreWorld, command: Command
) -> None:
    arm(world, "a/b")

    ended = command("queue", "list", "--task", TASK)

    assert (ended.code, ended.err) == (0, "")
    assert f"{TASK}:a/b" in ended.out
    misspelt = command("queue", "list", "--task", "schedule:pol").err
    assert f"; it has jobs of '{TASK}'" in misspelt


def test_the_doctor_tells_of_a_start_that_failed_until_one_passes(
    world: StoreWorld, command: Command
) -> None:
    check_failed(world, "x/y")
    ended = command("doctor")

    assert ended.code == 1
    assert "the preflight 'exists:x/y' did not pass; 'penstock run --check' runs them" in ended.out

    world.store.forget_preflights("shop", now(world) + 1).result()
    assert "preflight" not in command("doctor").out


def test_a_check_is_no_job_and_the_command_that_runs_it_is_named(
    world: StoreWorld, command: Command
) -> None:
    ended = command("why", "preflight:exists:x/y")

    assert ended.code == 1
    assert ended.err == (
        "'preflight:exists:x/y' is a check, not a job: it runs when a daemon starts; "
        "'penstock run --check' runs it now and prints its result.\n"
    )


def test_units_are_listed_and_the_degraded_ones_alone(world: StoreWorld, command: Command) -> None:
    arm(world, "a", "b")
    worker = world.new_worker([TASK])
    jobs = world.take(worker)
    world.fail(worker, jobs[f"{TASK}:b"], delay=600)

    listed, failing = (
        command("schedule", "list"),
        command("schedule", "list", "--degraded", "--json"),
    )

    assert [line.split()[0] for line in listed.out.splitlines()] == ["unit", "poll:a", "poll:b"]
    assert "degraded" in listed.out.splitlines()[2]
    (unit,) = failing.document["units"]
    assert (unit["unit"], unit["is"], unit["failed"]) == (f"{TASK}:b", "degraded", 1)
    assert unit["error"]


def test_a_unit_ticks_now_when_it_is_told_to(world: StoreWorld, command: Command) -> None:
    arm(world, "a", "b")
    worker = world.new_worker([TASK])
    jobs = world.take(worker)
    world.fail(worker, jobs[f"{TASK}:b"], delay=600)

    ended = command("schedule", "tick", "poll")

    assert ended.code == 1
    assert ended.out.splitlines() == [
        f"'{TASK}:b' ticks now.",
        f"'{TASK}:a' is left as it is: ticks.",
    ]
    unit = world.store.unit(f"{TASK}:b").result()
    assert unit is not None
    assert unit.available_at > now(world) + 600_000_000  # by the command's clock, which is ahead


def test_a_cursor_is_shown_and_reset(world: StoreWorld, command: Command) -> None:
    arm(world, "a")
    worker = world.new_worker([TASK])
    job = world.take_one(worker)
    refused = command("schedule", "cursor", "poll:a", "--reset")
    assert refused.code == 2
    assert "ticks just now" in refused.err
    effects: list[Effect] = [SetCursor(job.key, '{"page":7}'), Rearm(job.due_at + 10_000_000, 0)]
    world.ack(worker, job, effects=effects)

    assert command("schedule", "cursor", f"{TASK}:a").document["cursor"] == {"page": 7}
    assert "begins anew" in command("schedule", "cursor", "poll:a", "--reset").out
    assert command("schedule", "cursor", "poll:a").document["cursor"] is None
    unknown = command("schedule", "cursor", "pol:a")
    assert unknown.code == 2
    assert "the nearest is 'schedule:poll:a'" in unknown.err


def test_a_paused_schedule_is_told_wherever_its_units_are(
    world: StoreWorld, command: Command
) -> None:
    arm(world, "a", "b")
    worker = world.new_worker([TASK])

    assert command("schedule", "pause", "poll").out == "'poll' is paused.\n"
    assert command("schedule", "pause", "poll").out == "'poll' is paused already.\n"

    assert world.take(worker) == {}
    units = command("schedule", "list", "--json").document["units"]
    assert [(one["is"], one["paused_by"], one["next_try_at"]) for one in units] == [
        ("paused", TASK, None)
    ] * 2
    found = {one["check"]: one for one in command("doctor", "--json").document["findings"]}
    assert not found["paused"]["ok"]
    assert found["paused"]["text"] == (
        f"{TASK} is paused, so nothing of that ticks; resume it with 'penstock schedule resume "
        f"{TASK}'."
    )
    assert "Paused: schedule:poll." in command("queue", "stats").out.splitlines()
    assert command("queue", "stats", "--json").document["paused_schedules"] == [TASK]
    why = command("why", f"{TASK}:a", "--json").document
    assert (why["gate"], why["command"]) == ("paused", f"penstock schedule resume {TASK}")
    assert f"'{TASK}:a' is paused with its schedule '{TASK}' since " in why["sentence"]
    assert "(is due, and paused)" in command("queue", "list", "--task", TASK).out
    left = command("schedule", "tick", "poll:a")
    assert (left.code, left.out) == (1, f"'{TASK}:a' is left as it is: paused.\n")


def test_a_resumed_schedule_leaves_units_that_are_paused_by_themselves(
    world: StoreWorld, command: Command
) -> None:
    arm(world, "a", "b")
    worker = world.new_worker([TASK])
    command("schedule", "pause", "poll", "poll:a")

    whole = command("schedule", "resume", "poll:b")
    assert whole.code == 1
    assert whole.out == (
        f"'{TASK}:b' is still paused with '{TASK}'; 'penstock schedule resume {TASK}' resumes it.\n"
    )
    ended = command("schedule", "resume", "poll")

    assert ended.code == 1
    assert ended.out.splitlines() == [
        "'poll' is resumed.",
        f"'{TASK}:a' is still paused; 'penstock schedule resume {TASK}:a' resumes it.",
    ]
    assert set(world.take(worker)) == {f"{TASK}:b"}
    document = command("schedule", "resume", "poll:a", "--json").document
    assert document == {"paused": False, "changed": {"poll:a": True}, "still_paused": []}
    assert command("schedule", "resume", "poll:a").out == "'poll:a' was not paused.\n"


def test_what_cannot_be_paused_is_told_with_the_nearest(
    world: StoreWorld, command: Command
) -> None:
    arm(world, "a/b")

    unknown = command("schedule", "pause", "pol")
    partition = command("schedule", "pause", "poll", "a/b")

    assert unknown.code == partition.code == 2
    assert "the nearest is 'schedule:poll'" in unknown.err
    assert "the nearest is 'schedule:poll:a/b'" in partition.err
