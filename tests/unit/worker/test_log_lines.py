# SPDX-License-Identifier: Apache-2.0
"""Is a limit that moves told, in few words and not too often?"""

from __future__ import annotations

from penstock.model.job import WorkerId
from penstock.model.views import WorkerView
from penstock.model.worker import ProviderUse, WorkerStatus
from penstock.worker.log_lines import (
    LINE_SECONDS,
    LINES_AT_ONCE,
    NAMED_MAX,
    LimitChanges,
    SeenRefusals,
    format_limits,
    seen_limits,
)


def use(provider: str, limit: int, **more: object) -> ProviderUse:
    values = {"model": "m", "limit_max": 256, "in_flight": limit - 1, **more}
    return ProviderUse(provider=provider, limit=limit, **values)  # type: ignore[arg-type]


def worker(
    *uses: ProviderUse, alive: bool = True, name: str = "w", run_id: str = "run"
) -> WorkerView:
    return WorkerView(
        id=WorkerId(name),
        run_id=run_id,
        host="h",
        pid=1,
        started_at=0,
        alive=alive,
        tasks=(),
        status=WorkerStatus(captured_at=1_000_000, providers=uses).encoded(),
        status_at=1_000_000,
    )


class Rows:
    """Workers whose one provider has a limit that a test moves."""

    def __init__(self) -> None:
        self.limit = 4
        self._watch = LimitChanges(0.0)

    def look(self, now: float) -> str | None:
        return self._watch.take([worker(use("acme", self.limit, refused=3))], now)


def test_limits_of_several_workers_are_added_up() -> None:
    one = worker(use("acme", 5, refused=2, blocked_until_at=4_000_000))
    other = worker(use("acme", 7))
    dead = worker(use("acme", 100), alive=False)

    words = format_limits(seen_limits([one, other, dead]))

    assert words == ["acme limit 12 of 512 (10 in flight, 2 refused, cools down 3 s)"]


def test_refusals_of_a_killed_worker_stay_counted_in_its_run() -> None:
    refusals = SeenRefusals("run")
    stranger = worker(use("acme", 5, refused=90), name="s", run_id="other")
    killed = worker(use("acme", 5, refused=7), name="killed")

    first = [worker(use("acme", 5, refused=2)), killed, stranger]
    assert sum(refusals.of_gone(first).values()) == 0
    left = [worker(use("acme", 5, refused=3))]
    (seen,) = seen_limits(left, refusals.of_gone(left))

    assert seen.refused == 10


def test_what_was_declared_and_never_refused_is_not_named() -> None:
    assert seen_limits([worker(use("acme", 256))]) == []
    assert len(seen_limits([worker(use("acme", 256, refused=1))])) == 1


def test_models_are_named_where_a_provider_has_several() -> None:
    seen = seen_limits([worker(use("acme", 2), use("acme", 3, model="n"), use("other", 2))])

    assert [one.name for one in seen] == ["acme/m", "acme/n", "other"]


def test_a_line_names_a_bounded_number() -> None:
    many = [use(f"p{number}", 4) for number in range(NAMED_MAX + 3)]

    words = format_limits(seen_limits([worker(*many)]))

    assert len(words) == NAMED_MAX + 1
    assert words[-1] == "3 more limits"


def test_a_noticeable_change_is_told_from_where_to_where() -> None:
    rows = Rows()

    first = rows.look(0.0)
    rows.limit = 5
    small = rows.look(1.0)
    rows.limit = 12
    large = rows.look(2.0)

    assert first == "acme limit 4 of 256 (3 in flight, 3 refused)"
    assert small is None
    assert large == "acme limit 4 → 12 of 256 (11 in flight, 3 refused)"


def test_a_limit_that_never_rests_gives_a_bounded_number_of_lines() -> None:
    rows = Rows()
    lines = []

    for second in range(600):
        rows.limit = 4 if second % 2 else 40
        lines.append(rows.look(float(second)))

    # 10 at once, and 600 s / 30 s = 20 more.
    assert (
        LINES_AT_ONCE
        < sum(line is not None for line in lines)
        <= LINES_AT_ONCE + 600 / LINE_SECONDS
    )


def test_a_change_that_found_no_line_is_told_later() -> None:
    rows = Rows()
    for second in range(2 * LINES_AT_ONCE):
        rows.limit = 4 if second % 2 else 40
        rows.look(float(second))
    rows.limit = 100

    later = [rows.look(20.0 + second) for second in range(int(LINE_SECONDS))]

    told = [line for line in later if line is not None]
    assert len(told) == 1
    assert "→ 100 of 256" in told[0]
