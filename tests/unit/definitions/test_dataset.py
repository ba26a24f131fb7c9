# SPDX-License-Identifier: Apache-2.0
"""Is a dataset that could not be built refused when it is defined, and told what to do?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock import Context, Penstock, Slices
from penstock.calendars import Daily, Exchange
from penstock.errors import UsageError
from penstock.model.dataset import Need, Rule, utc_datetime
from penstock.planning.calendars.timestamps import parse_moment

DAILY = Daily()


@pytest.fixture
def app() -> Penstock:
    return Penstock("defined")


def plain(ctx: Context, at: datetime) -> bytes:
    return b""


def several(ctx: Context, at: Sequence[datetime]) -> dict[datetime, bytes]:
    return {}


def of_prices(ctx: Context, at: datetime, prices: Slices) -> bytes:
    return b""


def without_at(ctx: Context, when: datetime) -> bytes:
    return b""


def without_anything() -> bytes:
    return b""


def starred(ctx: Context, at: datetime, *prices: Slices) -> bytes:
    return b""


def generated(ctx: Context, at: datetime) -> Any:
    yield b""


def of_a_date(ctx: Context, at: date) -> bytes:
    return b""


def of_nobody(ctx: Context, at: Nobody) -> bytes:  # type: ignore[name-defined]  # noqa: F821
    return b""


MISTAKES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (
        without_at,
        {},
        r"'x' must take \(ctx, at\): a context and `at`; it takes \(ctx: 'Context', wh",
    ),
    (without_anything, {}, r"must take \(ctx, at\)"),
    (of_prices, {}, "has the parameter 'prices', but no need of that name"),
    (
        plain,
        {"needs": ["prices"]},
        r"needs 'prices' and has no parameter of that name; .*, prices\)",
    ),
    (starred, {"needs": ["prices"]}, "each by its name"),
    (generated, {}, "is a generator; it returns its output"),
    (of_a_date, {}, "`at` is one datetime, so write `at: datetime` .* got date"),
    (several, {}, "`at` is one datetime"),
    (plain, {"batch": 3}, r"builds up to 3 slices at once, so write `at: Sequence\[datetime\]`"),
    (plain, {"batch": 0}, "batch= is a whole number from 1 to 10,000, got 0"),
    (plain, {"batch": True}, "batch= is a whole number"),
    (plain, {"version": 1.5}, "version= is a whole number or a text, got 1.5"),
    (plain, {"version": ""}, "version= has 1 to 100 printable characters"),
    (plain, {"name": "1st"}, "beginning with a letter"),
    (plain, {"name": "a/b"}, "so that it can be a folder"),
    (plain, {"calendar": "daily"}, "is a calendar of penstock.calendars such as Daily"),
    (plain, {"calendar": Daily}, "is a calendar of penstock.calendars"),
    (plain, {"needs": "prices"}, r"needs= is a list such as \[prices\]"),
    (plain, {"needs": None}, r"needs= is a list such as \[prices\], got None"),
    (of_prices, {"needs": Need(dataset="prices")}, r"needs= is a list such as \[prices\]"),
    (plain, {"needs": [5]}, "a need is a dataset, its name, or such as"),
    (of_prices, {"needs": ["prices", Need(dataset="prices")]}, "would both be passed as 'prices'"),
    (plain, {"limits": {"host": lambda at: "x"}}, "the limit 'host' of a dataset is a text"),
    (plain, {"max_attempts": 0}, "max_attempts must be at least 1"),
    (plain, {"executor": "thread"}, "executor must be 'process' or left out"),
    (of_nobody, {}, "Dataset 'x' has annotations that cannot be resolved"),
]


@pytest.mark.parametrize(("function", "options", "refusal"), MISTAKES)
def test_what_cannot_be_built_is_refused(
    app: Penstock, function: Callable[..., Any], options: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(UsageError, match=refusal):
        app.dataset(**{"calendar": DAILY, "name": "x", **options})(function)
    assert app.datasets == {}


def test_no_exchange_is_asked_when_a_dataset_is_defined(app: Penstock) -> None:
    """To import its sessions takes seconds, which commands about other things need not wait."""
    app.dataset(calendar=Exchange("NOWHERE"))(plain)
    app.load(environ={})


def test_two_datasets_of_one_name_are_refused(app: Penstock) -> None:
    app.dataset(calendar=DAILY)(plain)
    with pytest.raises(UsageError, match="two datasets named 'plain'"):
        app.dataset(calendar=DAILY)(plain)


def test_two_names_that_differ_in_case_only_are_refused(app: Penstock) -> None:
    app.dataset(calendar=DAILY, name="prices")(plain)
    with pytest.raises(UsageError, match=r"'Prices' and 'prices' .* one folder"):
        app.dataset(calendar=DAILY, name="Prices")(plain)


def test_a_dataset_alone_is_no_list_of_needs(app: Penstock) -> None:
    prices = app.dataset(calendar=DAILY, name="prices")(plain)
    with pytest.raises(UsageError, match=r"needs= is a list such as \[prices\], got <Dataset"):
        app.dataset(calendar=DAILY, needs=prices)(of_prices)  # type: ignore[arg-type]


def test_a_task_cannot_be_called_like_a_dataset(app: Penstock) -> None:
    with pytest.raises(UsageError, match="belong to schedules, preflights and datasets"):
        app.task(name="dataset:x")(plain)


def test_the_whole_graph_is_checked_when_the_app_is_loaded(app: Penstock) -> None:
    app.dataset(calendar=DAILY, name="mean", needs=["price"])(lambda ctx, at, price: b"")
    app.dataset(calendar=DAILY, name="prices", needs=["mean"])(lambda ctx, at, mean: b"")
    with pytest.raises(
        UsageError, match=r"'mean' needs 'price', which is not defined; .* 'prices'"
    ):
        app.load(environ={})
    app.dataset(calendar=DAILY, name="price", needs=["prices"])(lambda ctx, at, prices: b"")
    with pytest.raises(UsageError, match="mean → price → prices → mean"):
        app.load(environ={})


def test_a_need_says_which_slices(app: Penstock) -> None:
    prices = app.dataset(calendar=DAILY, name="my.prices-2")(plain)
    assert prices.latest() == Need(dataset="my.prices-2")
    assert prices.exact().rule is Rule.EXACT
    assert prices.lookback(20) == Need(dataset="my.prices-2", rule=Rule.LOOKBACK, count=20)
    assert prices.window(timedelta(seconds=1)).micros == 1_000_000
    made = app.dataset(calendar=DAILY, name="m", needs=[prices])(lambda ctx, at, my_prices_2: b"")
    assert made.needs == (Need(dataset="my.prices-2"),)
    assert prices(None, datetime.now(UTC)) == b""  # type: ignore[arg-type]  # as a test may
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(UsageError, match="takes a whole number from 1"):
            prices.lookback(wrong)  # type: ignore[arg-type]
    for span in (timedelta(0), 5):
        with pytest.raises(UsageError, match="takes a timedelta above 0"):
            prices.window(span)  # type: ignore[arg-type]


def test_an_unknown_target_is_refused_with_the_nearest(app: Penstock) -> None:
    app.dataset(calendar=DAILY, name="prices")(plain)
    with pytest.raises(UsageError, match=r"No dataset named 'price' .* closest: 'prices'"):
        app.plan_build("price", start="2024-01-01", end="2024-01-02")
    with pytest.raises(UsageError, match="needs at least one target"):
        app.plan_build(start="2024-01-01", end="2024-01-02")
    with pytest.raises(UsageError, match="lies after the end"):
        app.plan_build("prices", start="2024-01-03", end="2024-01-02")


@pytest.mark.parametrize(
    ("moment", "tz", "shown"),
    [
        ("2024-01-05", "UTC", "2024-01-05T00:00:00+00:00"),
        (date(2024, 1, 5), "America/New_York", "2024-01-05T00:00:00-05:00"),
        ("2024-07-05T12:00", "America/New_York", "2024-07-05T12:00:00-04:00"),
        (datetime(2024, 1, 5, 1), "Asia/Tokyo", "2024-01-05T01:00:00+09:00"),
        ("2024-01-05T21:00:00Z", "America/New_York", "2024-01-05T16:00:00-05:00"),
        (
            datetime(2024, 1, 5, tzinfo=timezone(timedelta(hours=2))),
            "UTC",
            "2024-01-04T22:00:00+00:00",
        ),
        ("1969-12-31T23:59:59.999999Z", "UTC", "1969-12-31T23:59:59.999999+00:00"),
    ],
)
def test_a_moment_is_meant_by_the_clocks_of_its_calendar(moment: Any, tz: str, shown: str) -> None:
    at = parse_moment(moment, Daily(tz=tz), now=0)

    assert utc_datetime(at).astimezone(ZoneInfo(tz)).isoformat() == shown


@pytest.mark.parametrize("moment", ["soon", "", 5, None])
def test_what_is_no_moment_is_refused(moment: Any) -> None:
    with pytest.raises(UsageError, match=r"is not a time|from one datetime or date"):
        parse_moment(moment, DAILY, now=0)
