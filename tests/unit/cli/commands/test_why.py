# SPDX-License-Identifier: Apache-2.0
"""What does `penstock why` say, and with which code does it end?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import Edge, JobState
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.contract.world import StoreWorld
from tests.unit.cli.conftest import Command

FIELDS = [
    "key",
    "state",
    "gate",
    "sentence",
    "unblocks",
    "when",
    "command",
    "details",
    "waits_for",
    "chain",
    "limits",
    "worker",
    "as_of",
    "as_of_seconds",
]


@pytest.fixture
def world(project: Path) -> Iterator[StoreWorld]:
    """The project's store; its times are long ago, and its workers have been dead for long."""
    clock = ManualClock()
    (project / ".penstock").mkdir()
    path = project / ".penstock" / "shop.db"
    store = SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")
    yield StoreWorld(store, clock)
    assert store.check().result() == []
    store.close()


def test_a_ready_job_without_a_worker_says_so_and_what_to_do(
    world: StoreWorld, command: Command
) -> None:
    world.add(world.job("k", task="visit"))

    ended = command("why", "k")

    assert ended.code == 0
    assert ended.out.splitlines() == [
        "No live worker could take 'k'.",
        "It goes on when a worker starts that knows the task 'visit'.",
        "Command: penstock queue run",
    ]


def test_the_document_has_every_field_whatever_the_gate(
    world: StoreWorld, command: Command
) -> None:
    world.add(world.job("a", task="visit"))
    world.add(world.job("b", task="visit", after=[Edge("a")]))
    world.store.set_paused(True).result()

    document = command("why", "b", "--json").document

    assert list(document) == FIELDS
    assert document["gate"] == "dependency"
    assert document["chain"] == ["b", "a"]
    assert document["waits_for"] == [{"key": "a", "kind": "success", "state": "queued"}]
    assert document["command"] == "penstock queue resume"
    assert (document["as_of"], document["as_of_seconds"]) == (None, None)


def test_a_full_limit_is_told_with_the_settings_of_this_folder(
    world: StoreWorld, command: Command, project: Path
) -> None:
    (project / "penstock.toml").write_text('app = "pipeline.py"\n[limits.host]\n"*" = 1\n')
    world.caps["host:*"] = 1
    world.add(
        world.job("a", task="visit", limit_keys=["host:x"]),
        world.job("b", task="visit", limit_keys=["host:x"]),
    )
    worker = world.new_worker(tasks=["visit"])
    world.take_all(worker)

    document = command("why", "b", "--json").document

    (limit,) = [detail for detail in document["details"] if "limit" in detail]
    assert limit.startswith(
        "Behind that: 'b' waits for the limit 'host:x' of 1 (from the settings of this folder, "
        f"for all 'host:*'), held by 'a' on worker {worker!r}"
    )


def test_a_failed_job_is_told_with_its_error_and_the_way_back(
    world: StoreWorld, command: Command
) -> None:
    world.add(world.job("k", task="visit"))
    world.run(world.new_worker(tasks=["visit"]), "k", JobState.ERROR)

    ended = command("why", "k")

    assert "failed for good" in ended.out
    assert "ValueError: trouble." in ended.out
    assert "Command: penstock queue retry k\n" in ended.out


def test_an_unknown_key_ends_with_1_and_names_the_nearest(
    world: StoreWorld, command: Command
) -> None:
    for key in ("page-17", "page-18", "other"):
        world.add(world.job(key, task="visit"))

    ended = command("why", "page_17")

    assert ended.code == 1
    assert ended.out == ""
    assert "No job has the key 'page_17' in the store" in ended.sentence
    assert "closest: 'page-17', 'page-18'." in ended.sentence


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("Holder", "'holder'"), ("hold-up", "'held-up', 'holder'"), ("HELD-UP", "'held-up'")],
)
def test_the_nearest_key_is_found_whatever_its_case_and_beginning(
    world: StoreWorld, command: Command, slip: str, meant: str
) -> None:
    for key in ("holder", "held-up", *(f"A{n:02}" for n in range(60))):
        world.add(world.job(key, task="visit"))

    assert f"closest: {meant}." in command("why", slip).sentence


def test_the_time_of_a_later_job_is_told_in_one_way(world: StoreWorld, command: Command) -> None:
    world.add(world.job("k", task="visit", delay=40 * 365 * 86_400.0))
    world.add(world.job("after", task="visit", after=[Edge("k")]))

    said, opened, *_ = command("why", "k").out.splitlines()

    due = said.split(" due at ")[1].split(",")[0]
    assert opened == f"It goes on when it is due, at {due}."
    assert command("why", "after").out.splitlines()[1] == "It goes on when 'k' ends successfully."


def test_an_unknown_key_of_an_empty_store_is_told_without_a_guess(
    world: StoreWorld, command: Command
) -> None:
    ended = command("why", "x", "--json")

    assert (ended.code, ended.out) == (1, "")
    assert "closest" not in ended.sentence


@pytest.mark.parametrize(
    ("arguments", "code"), [((), 2), (("a", "b"), 2), (("\udcff",), 2), (("--help",), 0)]
)
def test_wrong_usage_ends_with_2(command: Command, arguments: tuple[str, ...], code: int) -> None:
    assert command("why", *arguments).code == code


def test_a_store_that_does_not_exist_is_refused_and_not_made(
    command: Command, project: Path
) -> None:
    ended = command("why", "k", "--store", "sqlite:///none.db")

    assert ended.code == 2
    assert "There is no store" in ended.sentence
    assert not (project / "none.db").exists()


def test_a_key_gives_a_terminal_no_orders(world: StoreWorld, command: Command) -> None:
    key = "k\x1b[31m\n$(reboot)"
    world.add(world.job(key, task="visit"))
    world.run(world.new_worker(tasks=["visit"]), key, JobState.ERROR)

    for arguments in ((), ("--json",)):
        ended = command("why", key, *arguments)
        assert "\x1b" not in ended.out
        assert ended.code == 0
