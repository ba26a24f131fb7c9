# SPDX-License-Identifier: Apache-2.0
"""Is every request of a run counted once, whichever worker sent it?"""

from __future__ import annotations

import msgspec

from penstock.cli.live.tally import PROCESSES_MAX, ProviderTotal, Tally
from penstock.model.worker_status import WorkerStatus
from tests.live_sample import CROSSREF, OPENAI, sample_picture, worker


def said(sent: int, refused: int = 0, limit: int = 4) -> WorkerStatus:
    use = msgspec.structs.replace(CROSSREF, sent=sent, refused=refused, failed=0, limit=limit)
    return WorkerStatus(captured_at=0, providers=(use,))


def test_the_last_word_of_each_process_counts() -> None:
    tally = Tally()

    tally.take([worker(said(10), pid=1), worker(said(5), pid=2)], ())
    tally.hear(1, said(12, refused=1).encoded())
    tally.take([worker(said(7), pid=2)], ())

    assert tally.totals() == [
        ProviderTotal(name="crossref", sent=19, refused=1, failed=0, limit=4, limit_max=256)
    ]


def test_the_limit_is_that_of_the_last_picture() -> None:
    tally = Tally()
    tally.take([worker()], sample_picture().providers)

    found = {total.name: (total.limit, total.limit_max) for total in tally.totals()}

    assert found == {"crossref": (14, 256), "openai": (8, 64)}


def test_processes_that_come_and_go_are_counted_in_bounded_memory() -> None:
    tally = Tally()

    for pid in range(3 * PROCESSES_MAX):
        tally.hear(pid, said(2).encoded())

    assert tally.totals()[0].sent == 3 * PROCESSES_MAX * 2
    assert len(tally._said) == PROCESSES_MAX


def test_models_of_one_provider_are_told_apart_and_unused_ones_left_out() -> None:
    other = msgspec.structs.replace(OPENAI, model="gpt-5-mini")
    unused = msgspec.structs.replace(CROSSREF, sent=0, refused=0, failed=0)
    tally = Tally()

    tally.hear(1, WorkerStatus(captured_at=0, providers=(OPENAI, other, unused)).encoded())
    tally.hear(1, "another version")

    assert [total.name for total in tally.totals()] == ["openai/gpt-5", "openai/gpt-5-mini"]
