# SPDX-License-Identifier: Apache-2.0
"""Which keys, groups, orders and times does a job get?"""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Context, JobRequest, Penstock, finished
from penstock.definitions.request import to_new_job
from penstock.errors import UsageError
from penstock.model.job import Edge, EdgeKind
from penstock.model.names import check_name

REQUEST: JobRequest[None] = JobRequest(task="t", payload='{"a":1}')


def test_without_a_key_it_is_the_task_and_a_hash_of_the_arguments() -> None:
    first = to_new_job(REQUEST)
    same = to_new_job(JobRequest(task="t", payload='{"a":1}'))
    other = to_new_job(JobRequest(task="t", payload='{"a":2}'))

    assert first.key == same.key
    assert first.key.startswith("t:")
    assert first.key != other.key


def test_the_group_is_the_jobs_or_the_partition_or_the_task() -> None:
    assert to_new_job(REQUEST).group == "t"
    assert to_new_job(JobRequest(task="t", payload="{}", partition="p")).group == "p"
    assert to_new_job(REQUEST.with_options(group="g")).group == "g"


def test_options_that_are_not_named_stay() -> None:
    first = REQUEST.with_options(
        key="k", after=["a", finished("b")], priority=5, delay=timedelta(minutes=1), group="g"
    )

    assert first.with_options() == first
    assert first.with_options(priority=6).key == "k"
    assert first.after == (Edge("a"), Edge("b", EdgeKind.FINISHED))
    assert first.delay_seconds == 60


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ""}, "A key has 1 to 512 characters; got 0."),
        ({"key": "k" * 513}, "got 513"),
        ({"key": "a\nb"}, "A key cannot hold control characters"),
        ({"key": "a\x00"}, "A key cannot hold control characters"),
        ({"key": "ü\x00"}, "A key cannot hold control characters"),
        ({"key": "\ud800"}, "A key cannot hold a lone surrogate"),
        ({"group": "g" * 257}, "A group has 1 to 256 characters; got 257."),
        ({"group": "g\x1b"}, "A group cannot hold control characters"),
        ({"priority": 2**31}, "A priority lies within"),
        ({"priority": True}, "A priority is a whole number, got True"),
        ({"delay": -1}, "A delay is at least 0"),
        ({"delay": float("nan")}, "A delay is at least 0"),
        ({"delay": 10**9}, "less than 10"),
        ({"after": "key"}, "`after` takes a list of keys; write after=\\['key'\\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        to_new_job(REQUEST.with_options(**options))  # type: ignore[arg-type]


def test_names_in_any_script_are_names() -> None:
    check_name("task name", "заказ-漢字-ü")
    assert to_new_job(REQUEST.with_options(key="k" * 512)).key == "k" * 512


def test_enqueue_takes_a_job_and_nothing_else() -> None:
    app = Penstock("a")

    @app.task()
    async def task(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match=r"enqueue takes a job, got Task; write app.enqueue\(task"):
        app.enqueue(task)  # type: ignore[arg-type]
