# SPDX-License-Identifier: Apache-2.0
"""The worker that plans a build tells its supervisor what came of it, and leaves it the locks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.processes.lead import BuildLead
from penstock.supervisor import protocol
from penstock.supervisor.protocol import BuildSpec, Locked, Planned
from tests.unit.cli.commands.dataset_shop import Shop

START, END = "2024-01-01", "2024-01-03"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    shop = Shop(tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def lead_of(shop: Shop) -> Iterator[Callable[[], tuple[BuildLead, socket.socket]]]:
    """Makes the lead of a build of prices, and where its supervisor listens."""
    app = shop.app()
    ours, theirs = socket.socketpair()

    def lead() -> tuple[BuildLead, socket.socket]:
        spec = BuildSpec(targets=("prices",), start=START, end=END)
        loaded = app.load({}, folder=shop.folder)
        return BuildLead(app, spec, loaded, SystemClock(), theirs, "run-b"), ours

    yield lead
    app.close()
    ours.close()
    theirs.close()


def heard(channel: socket.socket) -> list[protocol.FromWorker]:
    return [protocol.decode_from_worker(line) for line in channel.recv(65_536).splitlines()]


def held(shop: Shop) -> list[tuple[str, str]]:
    return [(lock.name, lock.run_id) for lock in shop.store.locks().result()]


def test_the_locks_of_a_build_that_is_up_to_date_are_left_to_its_supervisor(
    shop: Shop, lead_of: Callable[[], tuple[BuildLead, socket.socket]]
) -> None:
    """Or its next heartbeat, before it hears that nothing is to be built, would miss them."""
    shop.build("prices", start=START, end=END)
    lead, channel = lead_of()

    goes_on = asyncio.run(lead.run())

    locked, planned = heard(channel)
    assert not goes_on
    assert isinstance(locked, Locked)
    assert isinstance(planned, Planned)
    assert planned.plan_id is None
    assert held(shop) == [("prices", "run-b")]
