# SPDX-License-Identifier: Apache-2.0
"""Cancelling by key and in bulk: what is cancelled, what is left, what is refused."""

from __future__ import annotations

import logging

import pytest

from penstock.errors import UsageError
from penstock.model.job import TERMINAL, Edge, JobState
from penstock.operate.actions import SLICE_JOBS
from penstock.operate.cancel import KEYS_SHOWN, BulkCancel, CancelledKeys, cancel_keys
from tests.contract.world import StoreWorld


def test_each_key_is_cancelled_had_ended_or_is_unknown(world: StoreWorld) -> None:
    found = cancel_keys(world.store, ["held", "good", "nobody", "held"])

    assert found == CancelledKeys(["held"], {"good": JobState.DONE}, ["nobody"])
    assert world.state("held") is JobState.CANCELLED


def test_keys_are_cancelled_in_slices_and_the_audit_line_names_a_few(
    world: StoreWorld, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [f"k{n}" for n in range(2 * SLICE_JOBS + 1)]
    world.add(*keys)

    with caplog.at_level(logging.INFO, "penstock.operator"):
        found = cancel_keys(world.store, keys)

    assert found.cancelled == keys
    (line,) = caplog.messages
    assert line.startswith(f"Cancelled 201 jobs: {', '.join(keys[:KEYS_SHOWN])}, … (by ")


def test_a_cancel_skips_a_long_chain_to_its_end_without_a_worker(world: StoreWorld) -> None:
    world.add("k0", *(world.job(f"k{n}", after=[Edge(f"k{n - 1}")]) for n in range(1, 700)))

    cancel_keys(world.store, ["k0"])

    assert world.state("k699") is JobState.SKIPPED


def test_a_bulk_cancel_counts_first_and_cancels_dependants_before_what_they_wait_for(
    world: StoreWorld,
) -> None:
    wanted = BulkCancel(task="work")

    count = wanted.count(world.store)
    before = world.states("held", "next", "waits")
    cancelled = wanted.run(world.store)

    assert (count, cancelled) == (3, 3)
    assert before == [JobState.IN_PROGRESS, JobState.QUEUED, JobState.WAITING]
    assert world.states("held", "next", "waits") == [JobState.CANCELLED] * 3


def test_a_bulk_cancel_is_narrowed_by_task_and_state(world: StoreWorld) -> None:
    world.add(world.job("other", task="else"))

    assert BulkCancel("else").count(world.store) == 1
    assert BulkCancel(state=JobState.QUEUED).count(world.store) == 2
    assert BulkCancel("else", JobState.WAITING).run(world.store) == 0


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_what_has_ended_is_not_cancelled_in_bulk(state: JobState) -> None:
    with pytest.raises(UsageError, match=f"Jobs in {state} have ended"):
        BulkCancel(state=state)
