# SPDX-License-Identifier: Apache-2.0
"""Are tasks, their limits and their options taken as they are meant, or refused by name?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock import Context, Penstock, SchedulingMetadata, host_key
from penstock.definitions.request import JobRequest, to_new_job
from penstock.definitions.task import Task, TaskOptions
from penstock.errors import (
    PayloadError,
    SchedulingMetadataCode,
    SchedulingMetadataError,
    UnknownTask,
    UsageError,
)


async def visit(ctx: Context, url: str, depth: int = 1) -> str:
    return url


def make(function: Any = visit, **options: Any) -> Task[..., Any]:
    return Task("visit", function, TaskOptions(**options))


def test_constant_limits_are_keys_of_every_job() -> None:
    task = make(limits={"resolver": "crossref", "kind": "page"})

    assert task.job(url="u").limit_keys == ("kind:page", "resolver:crossref")


def test_limits_may_be_functions_of_some_arguments_by_name() -> None:
    task = make(limits={"host": lambda url: url.split("/")[0], "depth": lambda depth: str(depth)})

    assert task.job(url="h/x").limit_keys == ("depth:1", "host:h")
    assert task.job("g/x", 3).limit_keys == ("depth:3", "host:g")


def test_limits_see_arguments_as_the_task_will_see_them() -> None:
    def task(ctx: Context, when: timedelta) -> None: ...

    made = make(task, limits={"span": lambda when: f"{when.total_seconds():.0f}"})

    assert made.job(when=timedelta(minutes=1)).limit_keys == ("span:60",)
    assert made.job_from_json('{"when": "PT60S"}').limit_keys == ("span:60",)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (lambda url: 1 / 0, "cannot be evaluated: ZeroDivisionError: division by zero."),
        (
            lambda url: host_key("/x"),
            "cannot be evaluated: ValueError: The URL '/x' names no host.",
        ),
        (lambda url: 5, "must be text, got 5."),
        (lambda url: None, "must be text, got None."),
        (lambda url: "", "is refused: A limit 'host' has 1 to 256 characters; got 0."),
        (lambda url: "x" * 257, "is refused: A limit 'host' has 1 to 256 characters; got 257."),
        (lambda url: "a\nb", "is refused: A limit 'host' cannot hold control characters: 'a"),
        (lambda url: "\ud800", "is refused: A limit 'host' cannot hold a lone surrogate."),
        (lambda url: "*", "cannot be '*', which stands for every name in settings."),
    ],
)
def test_a_limit_that_fails_refuses_the_job(limit: Any, said: str) -> None:
    with pytest.raises(PayloadError) as refused:
        make(limits={"host": limit}).job(url="u")

    assert str(refused.value).startswith("The limit 'host' of task 'visit' ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


async def slow(url: str) -> str:
    return url


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (5, "is a text or a plain function of the task's arguments, got 5."),
        (slow, "is a text or a plain function of the task's arguments, got <function slow"),
        (int, "has parameters that cannot be read; wrap it"),
        (lambda *urls: "x", "asks for the argument 'urls', which the task does not have."),
        ("", "is refused: A limit 'host' has 1 to 256 characters; got 0."),
        ("*", "cannot be '*', which stands for every name in settings."),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused_when_it_is_defined(limit: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        make(limits={"host": limit})

    assert str(refused.value).startswith("The limit 'host' of task 'visit' ")
    assert said in str(refused.value)


def test_host_key_itself_may_be_the_function_of_a_limit() -> None:
    task = make(limits={"host": host_key})

    assert task.job(url="HTTPS://Example.ORG:443/x").limit_keys == ("host:example.org",)
    assert task.dimensions == {"host"}


def test_a_limit_of_an_argument_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="asks for the argument 'uri', which the task does not"):
        make(limits={"host": lambda uri: uri})
    with pytest.raises(UsageError, match="cannot hold a ':'"):
        make(limits={"ho:st": "x"})


def test_generators_are_no_tasks() -> None:
    def plain(ctx: Context) -> Iterator[int]:
        yield 1

    async def asynchronous(ctx: Context) -> AsyncIterator[int]:
        yield 1

    for function in (plain, asynchronous):
        with pytest.raises(UsageError, match="is a generator"):
            make(function)


def test_group_and_priority_of_a_task_are_those_of_its_jobs() -> None:
    request = make(group="g", priority=7).job(url="u")

    assert (request.group, request.priority) == ("g", 7)
    assert repr(make()) == "<Task visit>"


def test_an_app_refuses_tasks_that_cannot_be_meant() -> None:
    app = Penstock("a")
    app.task()(visit)

    with pytest.raises(UsageError, match="has two tasks named 'visit'"):
        app.task()(visit)
    with pytest.raises(UsageError, match="max_attempts must be at least 1, got 0"):
        app.task(name="other", max_attempts=0)(visit)
    with pytest.raises(UsageError, match="timeout must be above 0 seconds, got 0"):
        app.task(timeout=0)
    with pytest.raises(UsageError, match="A task name has 1 to 256 characters"):
        app.task(name="x" * 257)(visit)
    with pytest.raises(UsageError, match="must be usable as a file name"):
        Penstock("a/b")
    with pytest.raises(UsageError, match=r"limits is a mapping such as .*, got \['host'\]"):
        app.task(limits=["host"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="with parentheses"):
        app.task(visit)  # type: ignore[arg-type]


def test_a_first_parameter_that_is_no_context_is_refused() -> None:
    async def greet(name: str) -> str:
        return name

    async def bare(ctx, n: int) -> int:  # type: ignore[no-untyped-def]
        return n

    app = Penstock("a")

    with pytest.raises(UsageError, match="first parameter of task 'greet' is \"name: 'str'\""):
        app.task()(greet)  # type: ignore[arg-type]
    assert app.task()(bare).job(n=1).payload == '{"n":1}'


def test_a_task_called_like_a_function_says_what_to_write() -> None:
    task = Penstock("a").task()(visit)

    with pytest.raises(UsageError, match=r"write visit.job\(...\) to make a job of it"):
        task("x")  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": 5}, "A key is text, got 5; write key='5'"),
        ({"priority": "high"}, "A priority is a whole number, got 'high'"),
        ({"delay": "soon"}, "A duration is a number of seconds, a timedelta, or a text .* 'soon'"),
        ({"after": [7]}, "`after` takes keys, got 7"),
        ({"after": "a"}, r"write after=\['a'\]"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    app = Penstock("a")
    task = app.task(name="plain")(bare_task)

    with pytest.raises(UsageError, match=sentence):
        app.enqueue(task.job(), **options)


async def bare_task(ctx: Context) -> None:
    return None


def test_an_unknown_task_is_told_with_the_nearest() -> None:
    app = Penstock("a")
    app.task()(visit)

    with pytest.raises(UnknownTask, match=r"No task named 'vist'.*1 are; closest: 'visit'"):
        app.registry.find_task("vist")


def test_a_timeout_of_none_is_told_apart_from_none_given() -> None:
    app = Penstock("a")
    given = app.task(name="1", timeout=timedelta(minutes=1))(visit)
    configured = app.task(name="2")(visit)
    without = app.task(name="3", timeout=None)(visit)

    assert (given.options.timeout_seconds, given.options.has_timeout) == (60, True)
    assert (configured.options.timeout_seconds, configured.options.has_timeout) == (None, True)
    assert without.options.has_timeout is False


def test_a_call_by_keyword_gets_the_sentence_too() -> None:
    task: Task[..., None] = Task("fetch", _fetch, TaskOptions())

    with pytest.raises(UsageError, match=r"write fetch\.job\(\.\.\.\)"):
        task(url="x")


def _fetch(ctx: Context, url: str) -> None:
    raise AssertionError("it was called")


class Source:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def get_scheduling_metadata(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_task_says_what_scheduling_must_know_of_it() -> None:
    metadata = SchedulingMetadata.local("pages", weight=3)
    task = make(limits={"kind": "page", "host": lambda url: url}, metadata=metadata)

    definition = task.scheduling

    assert (definition.name, definition.slot) == ("visit", "async")
    assert definition.metadata is metadata
    assert definition.limit_keys == ("kind:page",)
    assert make(executor="process").scheduling.slot == "process"


def test_metadata_may_be_given_by_an_object() -> None:
    source = Source(SchedulingMetadata.local("pages"))

    assert make(metadata=source).scheduling.metadata is source


@pytest.mark.parametrize(
    ("metadata", "code", "said"),
    [
        (5, SchedulingMetadataCode.NOT_METADATA, "metadata is a SchedulingMetadata or an object"),
        (Source(5), SchedulingMetadataCode.NOT_METADATA, "gives a SchedulingMetadata, got 5."),
        (
            Source(ValueError("no model")),
            SchedulingMetadataCode.SOURCE_FAILED,
            "Source.get_scheduling_metadata() raised ValueError: no model.",
        ),
    ],
)
def test_metadata_that_cannot_be_used_is_refused_when_the_task_is_defined(
    metadata: Any, code: SchedulingMetadataCode, said: str
) -> None:
    app = Penstock("app")

    with pytest.raises(SchedulingMetadataError) as caught:
        app.task(metadata=metadata)(visit)

    assert str(caught.value).startswith("Task 'visit': ")
    assert said in str(caught.value)
    assert caught.value.code is code
    assert app.tasks == {}


def test_metadata_with_a_fallback_is_accepted_when_the_task_is_defined() -> None:
    spare = SchedulingMetadata.local("spare")
    error = SchedulingMetadataError(SchedulingMetadataCode.SOURCE_FAILED, "No model.", spare)

    assert make(metadata=Source(error)).options.metadata is not None


def group_of(request: JobRequest[Any]) -> str:
    return to_new_job(request).group


def test_the_identity_of_a_task_is_the_group_of_its_jobs() -> None:
    pages = SchedulingMetadata.local("pages", weight=3)

    assert group_of(make().job(url="u")) == "visit"
    assert group_of(make(metadata=pages).job(url="u")) == "local:pages"
    assert group_of(make(metadata=Source(pages)).job_from_json('{"url":"u"}')) == "local:pages"
    assert group_of(make(metadata=pages, group="g").job(url="u")) == "g"
    request = make(metadata=pages).job(url="u").with_options(key="k", group="h")
    assert group_of(request) == "h"
    ticked = msgspec.structs.replace(make(metadata=pages).job(url="u"), partition="p")
    assert group_of(ticked) == "p"


def test_the_identity_of_a_fallback_is_the_group() -> None:
    spare = SchedulingMetadata.local("spare")
    error = SchedulingMetadataError(SchedulingMetadataCode.SOURCE_FAILED, "No model.", spare)

    assert group_of(make(metadata=Source(error)).job(url="u")) == "local:spare"


def test_an_identity_that_is_too_long_for_a_group_is_refused() -> None:
    long = SchedulingMetadata.custom_model("n" * 100, "m" * 100, "v" * 100)

    with pytest.raises(SchedulingMetadataError) as caught:
        make(metadata=long)

    assert str(caught.value) == (
        "Task 'visit': the identity of its metadata is the group of its jobs, which has at most "
        "256 characters, not 315; shorten it."
    )
    assert group_of(make(metadata=long, group="g").job(url="u")) == "g"
