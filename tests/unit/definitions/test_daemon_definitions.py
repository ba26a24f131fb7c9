# SPDX-License-Identifier: Apache-2.0
"""Are preflights and schedules taken as they are meant, or refused by name?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from penstock import Context, Partitions, Penstock, TickContext
from penstock.definitions.preflight import checks_of
from penstock.definitions.task import ASYNC, THREAD
from penstock.errors import PayloadError, UsageError


@dataclass(frozen=True)
class Repo:
    owner: str
    name: str


def world() -> tuple[Penstock, Partitions[Repo], Partitions[str]]:
    app = Penstock("watch")
    repos = app.partitions("repo", [Repo("o", "a"), Repo("o", "b")])
    return app, repos, app.partitions("region", ["eu", "us"])


def test_a_schedule_is_a_task_of_its_own_kind() -> None:
    app, repos, _ = world()

    @app.every(timedelta(seconds=10), over=repos, uses=(), max_attempts=4, timeout=5)
    async def poll(ctx: TickContext, repo: Repo) -> None: ...

    @app.every("0 3 * * *", tz="Europe/Berlin", name="nightly", timeout=None)
    def sweep(ctx: TickContext) -> int:
        return 1

    assert list(app.schedules) == ["schedule:poll", "schedule:nightly"]
    assert app.tasks == {}
    assert (poll.name, poll.plain_name, poll.slot_kind) == ("schedule:poll", "poll", ASYNC)
    assert (poll.options.max_attempts, poll.options.timeout_seconds) == (4, 5.0)
    assert (sweep.slot_kind, sweep.options.has_timeout) == (THREAD, False)
    assert (poll.timing.text, sweep.timing.text) == (
        "every 10 s",
        "cron 0 3 * * * Europe/Berlin",
    )
    assert poll.unit_key("o/a") == "schedule:poll:o/a"
    assert sweep.unit_key(None) == "schedule:nightly"


def test_a_preflight_is_a_task_of_its_own_kind() -> None:
    app, repos, _ = world()

    @app.preflight(over=repos, recheck=True, hint="ask the owner")
    async def exists(ctx: Context, repo: Repo) -> dict[str, int]:
        return {"id": 1}

    @app.preflight()
    def token(ctx: Context) -> None: ...

    assert list(app.preflights) == ["preflight:exists", "preflight:token"]
    assert (exists.recheck, exists.hint, token.recheck, token.hint) == (
        True,
        "ask the owner",
        False,
        None,
    )
    assert exists.options.max_attempts == 1
    assert set(app.registry.all_tasks) == {"preflight:exists", "preflight:token"}


def test_a_tick_may_ask_for_a_plain_context() -> None:
    app, _, _ = world()

    @app.every(1)
    def tick(ctx: Context) -> None: ...

    assert tick.name == "schedule:tick"


def _bare(app: Penstock) -> None:
    @app.preflight  # type: ignore[call-overload]
    def check(ctx: Context) -> None: ...


def _no_context(app: Penstock) -> None:
    @app.every(1)  # type: ignore[arg-type]
    def tick() -> None: ...


def _tick_context_in_preflight(app: Penstock) -> None:
    @app.preflight()  # type: ignore[arg-type]
    def check(ctx: TickContext) -> None: ...


def _tick_context_in_task(app: Penstock) -> None:
    @app.task()  # type: ignore[arg-type]
    def work(ctx: TickContext) -> None: ...


def _too_few(app: Penstock) -> None:
    @app.every(1, over=app.registry.dimensions["repo"])  # type: ignore[arg-type]
    def tick(ctx: TickContext) -> None: ...


def _too_many(app: Penstock) -> None:
    @app.every(1)  # type: ignore[arg-type]
    def tick(ctx: TickContext, repo: Repo) -> None: ...


def _untyped(app: Penstock) -> None:
    @app.every(1, over=app.registry.dimensions["repo"])
    def tick(ctx: TickContext, repo) -> None: ...  # type: ignore[no-untyped-def]


def _colon(app: Penstock) -> None:
    @app.every(1, name="a:b")
    def tick(ctx: TickContext) -> None: ...


def _reserved(app: Penstock) -> None:
    @app.task(name="schedule:poll")
    def work(ctx: Context) -> None: ...


def _reserved_too(app: Penstock) -> None:
    @app.task(name="preflight:poll")
    def work(ctx: Context) -> None: ...


def _twice(app: Penstock) -> None:
    for _ in range(2):

        @app.every(1)
        def tick(ctx: TickContext) -> None: ...


def _preflight_twice(app: Penstock) -> None:
    for _ in range(2):

        @app.preflight()
        def check(ctx: Context) -> None: ...


def _one_dimension_twice(app: Penstock) -> None:
    repos = app.registry.dimensions["repo"]

    @app.every(1, over=(repos, repos))
    def tick(ctx: TickContext, one: Repo, other: Repo) -> None: ...


def _no_dimension(app: Penstock) -> None:
    @app.every(1, over=["eu", "us"])  # type: ignore[call-overload, untyped-decorator]
    def tick(ctx: TickContext, region: str) -> None: ...


def _foreign(app: Penstock) -> None:
    other = Penstock("other").partitions("zone", ["z"])

    @app.every(1, over=other)
    def tick(ctx: TickContext, zone: str) -> None: ...


def _generator(app: Penstock) -> None:
    @app.every(1)
    def tick(ctx: TickContext) -> Any:
        yield 1


def _long_hint(app: Penstock) -> None:
    @app.preflight(hint="x" * 501)
    def check(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("define", "why"),
    [
        (_bare, r"Write @app.preflight\(\) with parentheses."),
        (_no_context, "takes no context; its first parameter must be `ctx: TickContext`"),
        (_tick_context_in_preflight, "it must be `ctx: Context`"),
        (_tick_context_in_task, "it must be `ctx: Context`"),
        (_too_few, r"one parameter for each dimension of over= \(1\), it takes 0 more: none"),
        (_too_many, r"no parameter \(0\), it takes 1 more: repo: 'Repo'"),
        (_untyped, "the parameter 'repo' has no type; write that of the partitions 'repo'"),
        (_colon, "Schedule 'a:b': the name cannot hold a ':'"),
        (_reserved, "belong to schedules, preflights and datasets; rename it"),
        (_reserved_too, "belong to schedules, preflights and datasets; rename it"),
        (_twice, "two schedules named 'tick'"),
        (_preflight_twice, "two preflights named 'check'"),
        (_one_dimension_twice, "over= names the partitions 'repo' twice"),
        (_no_dimension, r"over= takes what app.partitions\(...\) gives"),
        (_foreign, "The partitions 'zone' belong to another app"),
        (_generator, "is a generator"),
        (_long_hint, "hint= is a text of at most 500 characters"),
        (lambda app: app.every(0), "above 0 seconds"),
        (lambda app: app.every("x"), "five fields"),
        (lambda app: app.every(None), "A duration is a number of seconds, a timedelta, or a text"),
        (lambda app: app.every(5, tz="Europe/Berlin"), "an interval has no time zone"),
        (lambda app: app.every(5, timeout=0), "timeout must be above 0"),
        (lambda app: app.every(5, timeout=float("nan")), "timeout must be above 0"),
        (lambda app: app.every(5, limits=3), "limits is a mapping"),
        (lambda app: app.every(5, max_attempts=0)(lambda ctx: None), "at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    define: Callable[[Penstock], object], why: str
) -> None:
    app, _, _ = world()

    with pytest.raises(UsageError, match=why) as refused:
        define(app)
    assert str(refused.value).endswith(".")


def test_values_must_fit_the_signature() -> None:
    app, repos, _ = world()

    @app.every(1, over=repos)
    def good(ctx: TickContext, repo: Repo) -> None: ...

    @app.every(1, over=repos)  # type: ignore[arg-type]
    def wrong(ctx: TickContext, repo: int) -> None: ...

    @app.every(1, over=repos)
    def loose(ctx: TickContext, repo: Any) -> None: ...

    value = (Repo("o", "a"),)
    assert good.unit_payload(value).payload == '{"repo":{"owner":"o","name":"a"}}'
    with pytest.raises(PayloadError, match="argument 'repo': expected `int`, got `object`"):
        wrong.unit_payload(value)
    with pytest.raises(PayloadError, match="would arrive as a dict; annotate it with Repo"):
        loose.unit_payload(value)


def test_a_number_may_become_another_that_is_equal() -> None:
    app, _, _ = world()
    sizes = app.partitions("size", [1, 2])

    @app.every(1, over=sizes)
    def tick(ctx: TickContext, size: float) -> None: ...

    assert tick.unit_payload((1,)).payload == '{"size":1}'


def test_limits_follow_from_the_partition() -> None:
    app, repos, _ = world()

    @app.every(1, over=repos, limits={"owner": lambda repo: repo.owner, "kind": "poll"})
    def tick(ctx: TickContext, repo: Repo) -> None: ...

    assert tick.unit_payload((Repo("o", "a"),)).limit_keys == ("kind:poll", "owner:o")


def test_the_checks_of_a_unit_are_those_of_its_dimensions() -> None:
    app, repos, regions = world()

    @app.preflight(over=(regions, repos))
    def both(ctx: Context, region: str, repo: Repo) -> None: ...

    @app.preflight(over=repos)
    def exists(ctx: Context, repo: Repo) -> None: ...

    @app.preflight()
    def token(ctx: Context) -> None: ...

    @app.every(1, over=repos)
    def poll(ctx: TickContext, repo: Repo) -> None: ...

    @app.every(1, over=(repos, regions))
    def mirror(ctx: TickContext, repo: Repo, region: str) -> None: ...

    @app.every(1)
    def sweep(ctx: TickContext) -> None: ...

    def units(work: Any, *values: object) -> list[str]:
        payload = work.unit_payload(values).payload
        return [check.unit for check in checks_of(work, payload, app.preflights.values())]

    repo = Repo("o", "a")
    assert units(sweep) == ["preflight:token"]
    assert units(poll, repo) == ["preflight:token", "preflight:exists:o/a"]
    assert units(mirror, repo, "eu") == [
        "preflight:token",
        "preflight:exists:o/a",
        "preflight:both:eu/o/a",
    ]
    check = checks_of(mirror, mirror.unit_payload((repo, "eu")).payload, [both])[0]
    assert check.payload == '{"region":"eu","repo":{"owner":"o","name":"a"}}'
    assert check.partition == "eu/o/a"


def test_a_function_can_still_be_called_as_itself() -> None:
    app, repos, _ = world()

    @app.preflight(over=repos)
    def exists(ctx: Context, repo: Repo) -> str:
        return repo.name

    from penstock.definitions.context import JobInfo

    assert exists(Context(JobInfo("k", "t", 1, None)), Repo("o", "a")) == "a"


def test_nobody_enqueues_what_the_daemon_runs() -> None:
    app, repos, _ = world()

    @app.every(10, over=repos)
    async def poll(ctx: TickContext, repo: Repo) -> None: ...

    @app.preflight()
    def exists(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match="Schedule 'poll' cannot be enqueued"):
        poll.job(Repo("o", "a"))
    with pytest.raises(UsageError, match="Schedule 'poll' cannot be enqueued"):
        poll.job_from_json("{}")
    with pytest.raises(UsageError, match="Preflight 'exists' cannot be enqueued"):
        exists.job()
