# SPDX-License-Identifier: Apache-2.0
"""Does a drained run tell by its exit code that a job ended in error?"""

from __future__ import annotations

from penstock.cli.live.display import PlainDisplay
from penstock.model.job import JobState
from penstock.model.views import Outlook
from penstock.stores.protocol import Store
from penstock.stores.store_future import Question, Reply
from penstock.supervisor.protocol import Hello, RunSpec
from penstock.supervisor.supervisor import Supervisor


def outlook(errors: int) -> Outlook:
    return Outlook(
        open_by_task={},
        next_due_at=None,
        suspects=0,
        served_elsewhere=frozenset(),
        ended_in_run={JobState.ERROR: errors},
    )


def no_store(hello: Hello) -> Store:
    raise AssertionError(f"{hello.store_url} is opened")


def test_an_answer_from_before_the_last_end_does_not_count() -> None:
    spec = RunSpec(
        app="shop.py",
        flags={},
        folder="/",
        processes=1,
        drain=True,
        debug=False,
        log_level="info",
        log_format="text",
    )
    supervisor = Supervisor(spec, no_store, PlainDisplay())
    supervisor._signals.close()  # it is never run: nobody else gives the signals back
    early: Reply[Outlook] = Reply()
    late: Reply[Outlook] = Reply()
    replies = [early, late]
    supervisor._access.outlook = Question(lambda: replies.pop(0))
    assert supervisor._access.outlook.answer() is None  # asked while the last job still ran

    early.resolve(outlook(0))
    late.resolve(outlook(1))

    assert supervisor._exit_code() == 1
