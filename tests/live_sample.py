# SPDX-License-Identifier: Apache-2.0
"""A run as a person would see it, in the tests of the live view and in the guide.

`python -m tests.live_sample` writes it into docs/guide/live-view.md.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from penstock.cli.live.display import format_progress
from penstock.cli.live.layout import ScreenView, compose, plain
from penstock.cli.render.run_summary import RunSummary, summary_lines
from penstock.cli.render.throughput import Throughput
from penstock.model.job import JobState, WorkerId
from penstock.model.run import ModelFigures
from penstock.model.spending import ALL, Account, Amount, Balance, Period
from penstock.model.views import Outlook, Stats, WorkerView
from penstock.model.worker import BlockedTasks, ProviderUse, SlotUse, WorkerStatus
from penstock.observe.live import RunSnapshot, run_snapshot
from penstock.supervisor.display import Course
from penstock.worker.log_lines import LimitChanges

NOW = 1_790_000_000_000_000  # microseconds
SECOND = 1_000_000
RUN = "run-1"

LOG = (
    "2026-11-16T12:04:01.120Z INFO run: crossref limit 8 → 14 of 256 (14 in flight, 7 refused).",
    "2026-11-16T12:04:09.002Z WARNING worker: 'fetch:10.5555/12345' failed (attempt 1 of 5) and is "
    "tried again in 12 s: HTTPStatusError: 502 Bad Gateway",
)

CROSSREF = ProviderUse(
    provider="crossref",
    model="api.crossref.org",
    limit=14,
    limit_max=256,
    in_flight=14,
    waiting=22,
    refused=7,
    failed=2,
    requests_last_minute=2_961,
    rpm=3_600,
)
OPENAI = ProviderUse(
    provider="openai",
    model="gpt-5",
    limit=8,
    limit_max=64,
    in_flight=2,
    refused=1,
    blocked_until_at=NOW + 12 * SECOND,
    requests_last_minute=120,
    tokens_last_minute=81_300,
    tpm=200_000,
)


def blocked(reason: str, resource: str, tasks: int, until: str = "capacity") -> BlockedTasks:
    return BlockedTasks(reason, until, resource, tasks, 1, NOW)


STATUS = WorkerStatus(
    captured_at=NOW,
    slots={"async": SlotUse(64, 61), "thread": SlotUse(32, 0), "submission": SlotUse(None, 5)},
    running=61,
    waiting=226,
    blocked=(
        blocked("no_capacity", "async", 160),
        blocked("group_cap", "async", 44),
        blocked("policy", "openai", 22, "gate"),
    ),
    providers=(CROSSREF, OPENAI),
    full_limits={"host:example.org": 2},
)


def worker(status: WorkerStatus | None = STATUS, *, pid: int = 4121) -> WorkerView:
    return WorkerView(
        id=WorkerId(f"w-{pid}"),
        run_id=RUN,
        host="here",
        pid=pid,
        started_at=0,
        alive=True,
        tasks=("fetch", "summary"),
        status=None if status is None else status.encoded(),
        status_at=NOW,
    )


def stats(**states: int) -> Stats:
    counts = {JobState(name): count for name, count in states.items()}
    return Stats(
        states=counts,
        tasks={"fetch": counts},
        groups={},
        groups_total=1,
        oldest_ready_seconds=None,
        next_due_at=NOW + 9 * SECOND,
        delayed=120 if counts.get(JobState.QUEUED, 0) > 120 else 0,
        suspects=0,
        workers=1,
        paused=False,
    )


def outlook(**ended: int) -> Outlook:
    return Outlook(
        open_by_task={},
        next_due_at=None,
        suspects=0,
        served_elsewhere=frozenset(),
        ended_in_run={JobState(name): count for name, count in ended.items()},
    )


BALANCES = (
    Balance(
        Account(ALL, Period.RUN, RUN), Amount(1_234_000, 812_000), Amount(20_000, 9_000), 1_180, 24
    ),
    Balance(Account("model:openai/gpt-5", Period.RUN, RUN), Amount(1_234_000, 812_000), Amount()),
)


def sample_snapshot() -> RunSnapshot:
    found = stats(queued=41_323, waiting=300, in_progress=287, done=12_040, error=3)
    return run_snapshot(found, outlook(done=12_040, error=3), [worker()], BALANCES, RUN, NOW)


PACE = Throughput(
    ended={JobState.DONE: 12_040, JobState.SKIPPED: 0, JobState.ERROR: 3, JobState.CANCELLED: 0},
    left=41_910,
    elapsed_seconds=123.0,
    rate=98.4,
    mean=97.9,
    seconds_left=428.0,
)


def sample_view(snapshot: RunSnapshot | None = None, **other: object) -> ScreenView:
    known = {"course": Course.DRAINING, "store": "sqlite:harvest.db", "log": LOG, **other}
    return ScreenView(snapshot=snapshot or sample_snapshot(), pace=PACE, **known)  # type: ignore[arg-type]


def sample_screen(columns: int, rows: int) -> str:
    return plain(compose(sample_view(), columns, rows))


CLOSING = RunSummary(
    pace=Throughput(
        ended={}, left=0, elapsed_seconds=551.0, rate=97.0, mean=97.6, seconds_left=None
    ),
    ended={JobState.DONE: 53_650, JobState.ERROR: 3},
    providers={
        "crossref": ModelFigures(
            provider="crossref",
            model="*",
            requests=52_466,
            refused=31,
            failed=2,
            limit=15,
            limit_max=256,
        ),
        "openai": ModelFigures(
            provider="openai", model="*", requests=1_204, refused=1, limit=8, limit_max=64
        ),
    },
    money=sample_snapshot().money,
    limited_by=(
        "crossref sat at its adaptive limit of 15 for 84% of the run; it answered 429 at 16."
    ),
)


def sample_closing() -> str:
    return "\n".join(summary_lines(CLOSING))


def sample_plain_lines() -> str:
    """Two lines of a run elsewhere: one that goes well, one that stands still."""
    moves, stands = LimitChanges(0.0), LimitChanges(0.0)
    moves.take([worker(WorkerStatus(captured_at=NOW, providers=(CROSSREF,)))], 0.0)
    down = msgspec.structs.replace(
        CROSSREF,
        in_flight=0,
        failed=9,
        failed_in_row=7,
        blocked_until_at=NOW + 8 * SECOND,
    )
    views = [worker(WorkerStatus(captured_at=NOW, providers=(down,)))]
    stands.take(views, 0.0)
    found = stats(queued=41_323, in_progress=14)
    ill = run_snapshot(found, outlook(), views, (), RUN, NOW)
    still = dataclasses.replace(PACE, rate=0.0, seconds_left=None)
    lines = (
        format_progress(sample_snapshot(), PACE, moves),
        format_progress(ill, still, stands),
    )
    return "\n".join(f"{'; '.join(words)}." for words in lines)


#: What stands in the guide under each mark.
SAMPLES = {
    "100 × 20": lambda: sample_screen(100, 20),
    "20 × 6": lambda: sample_screen(20, 6),
    "plain": sample_plain_lines,
    "closing": sample_closing,
}

GUIDE = Path(__file__).resolve().parents[1] / "docs/guide/live-view.md"


def guide_with_samples() -> str:
    """The page as it should be."""
    text = GUIDE.read_text()
    for mark, sample in SAMPLES.items():
        before, opening, rest = text.partition(f"<!-- {mark} -->\n```text\n")
        assert opening, mark
        _, closing, after = rest.partition("```\n")
        text = f"{before}{opening}{sample()}\n{closing}{after}"
    return text


if __name__ == "__main__":
    GUIDE.write_text(guide_with_samples())
