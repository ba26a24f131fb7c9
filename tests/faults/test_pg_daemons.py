# SPDX-License-Identifier: Apache-2.0
"""F09 and F23 on PostgreSQL: daemons that share a server, lose it, and die."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.faults.daemon_campaign import DaemonCampaign, race
from tests.faults.daemon_project import SHORT_TTL_SECONDS, DaemonProject
from tests.postgres.cluster import Server
from tests.postgres.proxy import Proxy
from tests.processes import children_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.integration]

SLACK_SECONDS = 0.5  # between the look at the lease and the first line of the body
PAUSE_SECONDS = 0.05


def test_f09_two_daemons_on_one_server_tick_each_occurrence_once(
    fresh_postgres: Callable[[], str], tmp_path: Path
) -> None:
    assert race(tmp_path / "race", fresh_postgres()) == []

    campaign = DaemonCampaign(tmp_path / "campaign", seed=5, url=fresh_postgres())
    try:
        for _ in range(2):
            campaign.cycle()
    finally:
        broken = campaign.finish()
    assert broken == []


def test_f23_a_daemon_without_its_store_stops_ticking_and_repeats_nothing(
    postgres_server: Server, postgres_url: str, tmp_path: Path
) -> None:
    """Cut off for three leases beside one that is not: by its own clock it begins nothing."""
    project = DaemonProject(
        tmp_path / "project",
        postgres_url,
        ttl_seconds=SHORT_TTL_SECONDS,
        hosts="a b c d",
        interval="0.1",
    )
    with Proxy(postgres_server) as proxy:
        way = proxy.url(str(conninfo_to_dict(postgres_url)["dbname"]))
        try:
            cut_off = project.start(url=way)
            project.await_bodies("ticked", 4)
            workers = children_of(cut_off.pid)
            other = project.start()
            wait_until(lambda: bool(ticks_of(project, children_of(other.pid))))

            proxy.stall()
            parted = time.monotonic()
            stood_still = longest_pause(3 * SHORT_TTL_SECONDS)
            # What it was about to write when it was cut off, the server holds for ten seconds.
            wait_until(lambda: any(at > parted for at in ticks_of(project, children_of(other.pid))))
            healed = time.monotonic()
            proxy.resume()

            # One that was let in just before its lease ended may have been held up by the machine.
            late = parted + SHORT_TTL_SECONDS + SLACK_SECONDS + stood_still
            assert [at for at in ticks_of(project, workers) if late < at < healed] == []
            wait_until(
                lambda: any(at > healed for at in ticks_of(project, children_of(cut_off.pid)))
            )
            assert (project.stop(cut_off), project.stop(other)) == (0, 0)
        finally:
            proxy.forgive()
            project.close()
    assert "Traceback" not in project.errors()
    assert project.broken() == []


def longest_pause(seconds: float) -> float:
    """Wait so long; how long this machine has stood still meanwhile."""
    until = time.monotonic() + seconds
    longest, before = 0.0, time.monotonic()
    while before < until:
        time.sleep(PAUSE_SECONDS)
        now = time.monotonic()
        longest, before = max(longest, now - before - PAUSE_SECONDS), now
    return longest


def ticks_of(project: DaemonProject, pids: list[int]) -> list[float]:
    """When ticks began in these processes."""
    return [float(at) for *_, pid, at in project.bodies("tick") if int(pid) in pids]
