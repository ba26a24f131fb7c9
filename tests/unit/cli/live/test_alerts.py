# SPDX-License-Identifier: Apache-2.0
"""Is an outage told once when it begins, and once when it ends?"""

from __future__ import annotations

import msgspec

from penstock.cli.live.poller import RunAlerts
from penstock.model.worker import WorkerStatus
from penstock.observe.live import RunSnapshot, Work, provider_lines
from tests.live_sample import CROSSREF, NOW, SECOND, worker


def look(failed_in_row: int, cooldown: int) -> RunSnapshot:
    until = NOW + cooldown * SECOND if cooldown else None
    use = msgspec.structs.replace(CROSSREF, failed_in_row=failed_in_row, blocked_until_at=until)
    views = [worker(WorkerStatus(captured_at=NOW, providers=(use,)))]
    return RunSnapshot(work=Work(), providers=provider_lines(views, (), NOW))


def test_an_outage_is_told_once_each_way() -> None:
    alerts = RunAlerts()
    looks = [(0, 0), (1, 3), (3, 8), (4, 8), (4, 0), (5, 16), (0, 0), (0, 0), (2, 5)]

    told = [text for seen in looks for text in alerts.new_in(look(*seen))]

    assert told == [
        "crossref is down (3 failures in a row); it is probed now and then, and its jobs wait "
        "uncharged",
        "crossref has recovered",
        "crossref is down (2 failures in a row); it is probed now and then, and its jobs wait "
        "uncharged",
    ]


def test_a_provider_that_only_refuses_is_not_down() -> None:
    assert list(RunAlerts().new_in(look(0, 30))) == []
